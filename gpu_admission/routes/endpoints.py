"""The wrapper around each kind of endpoint, and what it shows to Starlette and FastAPI.

Signature, name and kind stay those of the endpoint. How a request gets its lease is in ``door``.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Annotated, Any

from starlette.requests import Request

from gpu_admission.admission import Admission
from gpu_admission.admission.lease import Lease
from gpu_admission.admission.threads import run_in_thread
from gpu_admission.routes.door import FOR_WEBSOCKETS, Door
from gpu_admission.routes.generators import Steps
from gpu_admission.routes.placement import check_fastapi, check_place, name_of, unwrapped


def admit(admission: Admission, function: Any = None, *, estimator: Any = None) -> Any:
    """Meter one endpoint, in Starlette or FastAPI, ``async def`` or plain ``def``.

    It goes *below* the route's own decorator. Signature, OpenAPI and behaviour of the
    endpoint stay; a plain function still runs in the thread pool, and its bytes are held
    until it has really returned. ``estimator`` defaults to the admission's own. Raises
    ``TypeError`` for anything but an endpoint, and when the route already exists.
    """
    if function is None:
        return functools.partial(admit, admission, estimator=estimator)
    check_place(function)
    door = Door(admission, estimator, name_of(function))
    while door.parameter in _signature(function).parameters:
        door.parameter += "_"  # that of another admission's door below this one
    return _with_signature(_wrapper(door, function), function, door)


def dependency(admission: Admission, estimator: Any = None) -> Callable[..., AsyncIterator[Lease]]:
    """For ``Annotated[Lease, Depends(admission.dependency(est))]``: the route's lease.

    It is held until the response has been sent. Needs FastAPI 0.118 or newer, where
    dependencies end after the response.
    """
    check_fastapi()
    return Door(admission, estimator, "").depend


def _wrapper(door: Door, function: Any) -> Callable[..., Any]:
    kind = unwrapped(function)
    if inspect.isasyncgenfunction(kind):
        return _async_stream(door, function)
    if inspect.isgeneratorfunction(kind):
        return _stream(door, function)
    is_async = inspect.iscoroutinefunction(kind)

    async def endpoint(*args: Any, **kwargs: Any) -> Any:
        def call(lease: Lease) -> Any:
            if is_async:
                return function(*args, **kwargs)
            return run_in_thread(lease, functools.partial(function, *args, **kwargs))

        lease = kwargs.pop(door.parameter, None)
        if lease is not None:
            result = await call(lease)
            door.report_load(result)  # FastAPI adds no headers of its own to a response that is returned
            return result
        return await door.respond(_request_among(args, kwargs, door.name), call)

    return endpoint


def _async_stream(door: Door, function: Any) -> Callable[..., Any]:
    async def endpoint(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        _lease_among(kwargs, door)
        async with contextlib.aclosing(function(*args, **kwargs)) as items:
            async for item in items:
                yield item

    return endpoint


def _stream(door: Door, function: Any) -> Callable[..., Any]:
    def endpoint(*args: Any, **kwargs: Any) -> Any:
        lease = _lease_among(kwargs, door)
        steps = Steps(lease, function(*args, **kwargs))
        door.closes_at_end(lease, steps)
        yield from steps

    return endpoint


def _with_signature(endpoint: Any, function: Any, door: Door) -> Any:
    """``endpoint`` made to look like ``function`` and, for FastAPI, to ask for the lease too."""
    functools.update_wrapper(endpoint, function)
    endpoint.gpu_admission_door = door
    endpoint.__name__ = door.name
    signature = _signature(function)
    try:
        from fastapi import Depends
    except ImportError:
        endpoint.__signature__ = signature
        return endpoint
    check_fastapi()
    parameters = list(signature.parameters.values())
    lease = inspect.Parameter(
        door.parameter, inspect.Parameter.KEYWORD_ONLY, annotation=Annotated[Any, Depends(door.depend)]
    )
    last_is_kwargs = parameters and parameters[-1].kind is inspect.Parameter.VAR_KEYWORD
    parameters.insert(len(parameters) - bool(last_is_kwargs), lease)
    endpoint.__signature__ = signature.replace(parameters=parameters)
    return endpoint


def _signature(function: Any) -> inspect.Signature:
    """With annotations resolved where ``function`` was written: older FastAPI would resolve them here."""
    try:
        return inspect.signature(function, eval_str=True)
    except Exception:
        return inspect.signature(function)  # names that are known only later, or only to type checkers


def _request_among(args: Sequence[Any], kwargs: dict[str, Any], name: str) -> Request:
    for value in (*args, *kwargs.values()):
        if isinstance(value, Request):
            return value
    raise _unmetered(name, "starlette Request")


def _lease_among(kwargs: dict[str, Any], door: Door) -> Lease:
    lease: Lease | None = kwargs.pop(door.parameter, None)
    if lease is None:
        raise _unmetered(door.name, "lease from FastAPI")
    return lease


def _unmetered(name: str, what: str) -> TypeError:
    return TypeError(
        f"{name} was called without a {what}, so it can't be metered: admit() is for endpoints "
        f"of Starlette and FastAPI routes; for a WebSocket {FOR_WEBSOCKETS}"
    )
