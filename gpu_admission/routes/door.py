"""Doors on single routes: the decorator ``admit`` and the FastAPI dependency.

Owns how Starlette and FastAPI call an endpoint, and nothing of admission itself: both go
through the same ``Intake`` as the middleware.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Annotated, Any

import anyio
from starlette.requests import Request
from starlette.routing import BaseRoute

from gpu_admission.admission import Admission
from gpu_admission.admission.context import enter, leave
from gpu_admission.admission.feedback import bind
from gpu_admission.admission.lease import Lease
from gpu_admission.admission.threads import run_in_thread
from gpu_admission.errors import AdmissionError, ClientLeft, Rejected, UnreadableBody
from gpu_admission.http.answer import released_at_end
from gpu_admission.http.intake import Intake
from gpu_admission.http.rescue import Answer
from gpu_admission.http.respond import response_for
from gpu_admission.request import Estimator, Part, RequestInfo
from gpu_admission.rules.metering import Rule, as_estimator
from gpu_admission.types import ASGIApp, Message, Receive, Scope, Send

_LEASE = "gpu_admission_lease"
_HEAD_BYTES = 64 * 1024
_FORM_READ = (
    "the body was read before its lease: of a form use info.parts, or put GPUAdmission in front of the app"
)


def admit(admission: Admission, function: Any = None, *, estimator: Any = None) -> Any:
    """Meter one endpoint, in Starlette or FastAPI, ``async def`` or plain ``def``.

    It goes *below* the route's own decorator. Signature, OpenAPI and behaviour of the
    endpoint stay; a plain function still runs in the thread pool, and its bytes are held
    until it has really returned. ``estimator`` defaults to the admission's own. Raises
    ``TypeError`` for what is no endpoint, and when the route exists already.
    """
    if function is None:
        return functools.partial(admit, admission, estimator=estimator)
    _check_place(function)
    door = Door(admission, estimator, _name(function))
    while door.parameter in _signature(function).parameters:
        door.parameter += "_"  # that of another admission's door below this one
    return _with_signature(_wrapper(door, function), function, door)


def dependency(admission: Admission, estimator: Any = None) -> Callable[..., AsyncIterator[Lease]]:
    """For ``Annotated[Lease, Depends(admission.dependency(est))]``: the route's lease.

    It is held until the response has been sent. Needs FastAPI 0.118 or newer, where
    dependencies end after the response.
    """
    _check_fastapi()
    return Door(admission, estimator, "").depend


class Door:
    """The way into one route."""

    def __init__(self, admission: Admission, estimator: Any, name: str) -> None:
        self.admission = admission
        self.name = name
        self.parameter = _LEASE
        """The parameter by which FastAPI hands over the lease."""
        self.estimator: Estimator | None = None if estimator is None else as_estimator(estimator)
        if self.estimator is not None:
            bind(self.estimator, lambda: admission.largest)

    async def depend(self, request: Request) -> AsyncIterator[Lease]:
        """FastAPI's side: a dependency that yields the lease and ends it after the response."""
        held = self.admission.entrance.held()
        if held is not None:
            yield held
            return
        intake = self._intake(request)
        lease = await self._lease_or_answer(intake, request)
        lease.task = anyio.get_current_task()
        enter(lease, request.scope)
        try:
            yield lease
        except BaseException as error:
            lease.finish(error)
            raise
        finally:
            lease.finish(None)
            leave(lease, request.scope)
            intake.body.close()

    async def respond(self, request: Request, call: Callable[[Lease], Any]) -> Any:
        """Starlette's side: the endpoint's response, which gives the bytes back once it is sent."""
        held = self.admission.entrance.held()
        if held is not None:
            return await call(held)
        intake = self._intake(request)
        try:
            lease = await intake.lease()
        except Rejected as rejected:
            return response_for(self.admission.settings.on_reject, intake.info, rejected)
        except ClientLeft:
            return _nothing
        enter(lease, request.scope)
        try:
            response = await call(lease)
        except BaseException as error:
            lease.finish(error)
            intake.body.close()
            raise
        finally:
            leave(lease, request.scope)
        return HeldResponse(response, lease, intake)

    async def _lease_or_answer(self, intake: Intake, request: Request) -> Lease:
        handlers, _ = request.scope.get("starlette.exception_handlers", ({}, {}))
        try:
            return await intake.lease()
        except ClientLeft:
            handlers.setdefault(ClientLeft, _answer)
            raise
        except Rejected as error:
            if any(kind in handlers for kind in type(error).__mro__ if issubclass(kind, AdmissionError)):
                raise  # the app's own handler for refusals comes first
            handlers.setdefault(Answered, _answer)
            answer = response_for(self.admission.settings.on_reject, intake.info, error)
            raise Answered(error, answer) from error

    def _intake(self, request: Request) -> Intake:
        rule = self._rule(request.scope)
        intake = Intake(self.admission, rule, request.scope, _receive_of(request))
        if _was_streamed(request):
            intake.body.complete = True
            intake.info = _info_of_form(request, rule)
            rule.needs_body = False
        request._receive = intake.body
        return intake

    def _rule(self, scope: Scope) -> Rule:
        label = self.name or getattr(scope.get("route"), "path", "*")
        return self.admission.metering.default(scope, label, self.estimator)


class HeldResponse:
    """A response that gives its lease back once it has been sent; it looks like the response."""

    _response: Any
    _lease: Lease
    _intake: Intake

    def __init__(self, response: Any, lease: Lease, intake: Intake) -> None:
        intake.body.lease = lease
        self.__dict__.update(_response=response, _lease=lease, _intake=intake)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        lease, intake = self._lease, self._intake
        answer = Answer(lease, send)
        at_end = lease.issuer.settings.hold == "response"
        enter(lease, scope)
        try:
            await self._response(scope, intake.body, released_at_end(lease, answer) if at_end else answer)
            if not answer.is_whole:
                await answer.returned()
        except Exception as error:
            lease.finish(error)
            if not await answer.rescue(error, intake.info, scope, receive):
                raise
        except BaseException as error:
            lease.finish(error)
            raise
        finally:
            lease.finish(None)
            leave(lease, scope)
            intake.body.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._response, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._response, name, value)

    def __del__(self) -> None:
        """A response that was thrown away is never sent: its bytes come back with it."""
        self._lease.finish(None)


async def _nothing(scope: Scope, receive: Receive, send: Send) -> None:
    """The answer to a client that has left."""


class Answered(Rejected):
    """A dependency's refusal on its way through the framework, with the answer to it."""

    def __init__(self, rejected: Rejected, answer: ASGIApp) -> None:
        super().__init__(rejected.reason, rejected.detail)
        self.__dict__.update(rejected.__dict__)
        self.status = rejected.status
        self.answer = answer


async def _answer(request: Request, error: Exception) -> ASGIApp:
    """Starlette's handler for what a door raises."""
    return error.answer if isinstance(error, Answered) else _nothing


# reading what the framework may have read already


def _was_streamed(request: Request) -> bool:
    """Whether the body is gone: read as a form, or piece by piece by something before us."""
    return request._form is not None or (request._stream_consumed and not hasattr(request, "_body"))


def _receive_of(request: Request) -> Receive:
    """The request's ``receive``; a body that was read by now is replayed first."""
    if not hasattr(request, "_body"):
        return request.receive
    behind = request.receive
    messages: list[Message] = [{"type": "http.request", "body": request._body, "more_body": False}]

    async def receive() -> Message:
        return messages.pop() if messages else await behind()

    return receive


def _info_of_form(request: Request, rule: Rule) -> RequestInfo:
    """The request with its form's parts, if it has a form; its body is gone."""

    def gone() -> bytes:
        raise UnreadableBody(_FORM_READ)

    parts = [_part(name, value) for name, value in request._form.multi_items()] if request._form else []
    info = RequestInfo(request.scope, path=rule.path, dialect=rule.dialect, parts=parts)
    info.read_from(gone)
    return info


def _part(name: str, value: Any) -> Part:
    if isinstance(value, str):
        data = value.encode("utf-8", "surrogatepass")
        return Part(name, None, "text/plain", len(data), data[:_HEAD_BYTES])
    head = value.file.read(_HEAD_BYTES)
    value.file.seek(0)
    return Part(name, value.filename, value.content_type or "", value.size or 0, head)


# the wrapper of each kind of endpoint


def _wrapper(door: Door, function: Any) -> Callable[..., Any]:
    kind = _unwrap(function)
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
            return await call(lease)
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
        with _lease_among(kwargs, door).keep():
            yield from function(*args, **kwargs)

    return endpoint


def _with_signature(endpoint: Any, function: Any, door: Door) -> Any:
    """``endpoint`` looking like ``function``, and for FastAPI asking for the lease besides."""
    functools.update_wrapper(endpoint, function)
    endpoint.__name__ = door.name
    signature = _signature(function)
    try:
        from fastapi import Depends
    except ImportError:
        endpoint.__signature__ = signature
        return endpoint
    _check_fastapi()
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
        return inspect.signature(function)  # names that are known later, or to type checkers only


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
        "of Starlette and FastAPI routes"
    )


# refusing wrong places


def _unwrap(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.isroutine(function):
        return function
    return type(function).__call__


def _name(function: Any) -> str:
    """As frameworks name an endpoint."""
    name: str = function.__name__ if inspect.isroutine(function) else type(function).__name__
    return name


def _check_place(function: Any) -> None:
    if inspect.isclass(function) or not (callable(function) or isinstance(function, classmethod)):
        raise TypeError(
            f"admit() goes on an endpoint function, not on {function!r}; of a class, on its methods"
        )
    if isinstance(function, (staticmethod, classmethod)):
        raise TypeError(f"admit() goes below @{type(function).__name__}, on the function itself")
    if isinstance(function, BaseRoute):
        raise TypeError("admit() goes below the route's decorator, on the function itself")
    if _is_app(function):
        raise TypeError(f"admit() is for endpoints; put GPUAdmission(...) around an app such as {function!r}")
    if _has_route(function) and not _is_known(function):
        raise TypeError(
            f"admit() stands above the route of {_name(function)!r}, where it would meter nothing: "
            "put it below the route's decorator, next to the function"
        )


def _is_app(function: Any) -> bool:
    """Whether it is an ASGI app: its own arguments tell."""
    arguments = list(inspect.signature(function).parameters)
    return arguments[:3] == ["scope", "receive", "send"]


def _has_route(function: Any) -> bool:
    return any(_is_route_of(referrer, function) for referrer in gc.get_referrers(function))


def _is_known(function: Any) -> bool:
    """Whether it has a name by now: a function that decorators are still at work on has none.

    One that has may well be a route elsewhere, unmetered.
    """
    frame: Any = sys._getframe()
    while frame.f_globals.get("__name__", "").startswith("gpu_admission"):
        frame = frame.f_back
    names = (*frame.f_locals.values(), *getattr(function, "__globals__", {}).values())
    return any(value is function for value in names)


def _is_route_of(referrer: object, function: Any) -> bool:
    if isinstance(referrer, BaseRoute):
        return True
    return isinstance(referrer, dict) and referrer.get("endpoint") is function and "path" in referrer


def _check_fastapi() -> None:
    import fastapi

    version = tuple(int(part) for part in fastapi.__version__.split(".")[:2])
    if version < (0, 118):
        raise RuntimeError(
            f"FastAPI {fastapi.__version__} may end dependencies before a streamed response does: "
            "admit() and dependency() need 0.118 or newer (the middleware works with any)"
        )
