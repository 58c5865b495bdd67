"""Where a decorator may stand: what is no endpoint, or a route already, is refused at import.

Owns the sentences that say so. How an endpoint is wrapped is in ``endpoints``.
"""

from __future__ import annotations

import functools
import gc
import inspect
import sys
from collections.abc import Mapping
from typing import Any

from starlette.routing import BaseRoute


def unwrapped(function: Any) -> Any:
    """The function below partials, or the ``__call__`` of an object."""
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.isroutine(function):
        return function
    return type(function).__call__


def name_of(function: Any) -> str:
    """As frameworks name an endpoint."""
    name: str = getattr(function, "__name__", type(function).__name__)
    return name


def check_place(function: Any) -> None:
    """Raises ``TypeError`` for what is no endpoint, and for one that is a route already."""
    if _is_estimator(function):
        raise TypeError(
            f"admit() goes on an endpoint function; what it takes is named: admit(estimator={function!r})"
        )
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
            f"admit() stands above the route of {name_of(function)!r}, where it would meter nothing: "
            "put it below the route's decorator, next to the function"
        )


def check_fastapi() -> None:
    """Raises ``RuntimeError`` for a FastAPI whose dependencies may end too early."""
    import fastapi

    version = tuple(int(part) for part in fastapi.__version__.split(".")[:2])
    if version < (0, 118):
        raise RuntimeError(
            f"FastAPI {fastapi.__version__} may end dependencies before a streamed response does: "
            "admit() and dependency() need 0.118 or newer (the middleware works with any)"
        )


def _is_estimator(function: Any) -> bool:
    """Whether it is what ``estimator=`` takes: a size, a mapping, or an object that says what it reads."""
    if isinstance(function, (str, int, Mapping)):
        return True
    return not inspect.isroutine(function) and (
        hasattr(function, "needs_body") or hasattr(function, "estimate")
    )


def _is_app(function: Any) -> bool:
    """Whether it is an ASGI app: its own arguments tell."""
    arguments = list(inspect.signature(function).parameters)
    return arguments[:3] == ["scope", "receive", "send"]


def _has_route(function: Any) -> bool:
    """Whether some route has it for its endpoint.

    Asked of the collector, since nothing else knows: a route's decorator leaves no mark on its
    function, and above it ours would be a silent no-op on an unmetered route.
    """
    return any(_is_route_of(referrer, function) for referrer in gc.get_referrers(function))


def _is_known(function: Any) -> bool:
    """Whether it has a name by now: a function that decorators are still at work on has none.

    One that has may well be a route elsewhere, unmetered. Its name may be a local one, so the
    frame that calls us is looked at.
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
