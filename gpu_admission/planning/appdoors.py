"""An app looked into without a request: its admissions, its routes, and which of them each meters.

Owns how Starlette, FastAPI and plain ASGI wrappers are walked. ``check_command`` prints what is
found; ``rules`` decides which requests are metered, here as in service.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import msgspec

from gpu_admission.admission import Admission
from gpu_admission.middleware import GPUAdmission
from gpu_admission.routes.door import Door
from gpu_admission.rules.metering import Fixed, Rule
from gpu_admission.rules.patterns import route_path
from gpu_admission.sizes import format_bytes

_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_ANY = "POST"
"""Stands for all methods, where a route takes any."""
_SOCKET = "WEBSOCKET"
"""Stands where a method does, for a connection."""


class Metered(msgspec.Struct, frozen=True):
    """One way in which a request gets a lease."""

    method: str
    path: str
    admission: Admission
    by: str
    """``middleware``, ``admit`` or ``dependency``."""
    rule: Rule


class Seen(msgspec.Struct, frozen=True):
    """A route as the patterns of one admission see it."""

    admission: Admission
    path: str
    """Below the mounts that the admission is in; a parameter stands as ``*``, or ``**``."""
    is_socket: bool
    is_metered: bool


class Passing(msgspec.Struct, frozen=True):
    """A route that carries work but that nothing meters."""

    method: str
    path: str


class Looked(msgspec.Struct):
    """All that was found in one app."""

    middleware: list[tuple[Admission, str]] = msgspec.field(default_factory=list)
    """The admissions, each with the path below which it is mounted."""
    metered: list[Metered] = msgspec.field(default_factory=list)
    passing: list[Passing] = msgspec.field(default_factory=list)
    seen: list[Seen] = msgspec.field(default_factory=list)
    """Every route, once for each admission that might meter it."""
    unknown: list[str] = msgspec.field(default_factory=list)
    """Paths below which there is an app whose routes are not known."""
    inside: list[Admission] = msgspec.field(default_factory=list)
    """For an app without any door, the admissions in its module: it calls ``lease`` or ``job`` itself."""

    @property
    def admissions(self) -> Sequence[Admission]:
        """Each once, in the order in which they were found."""
        found = [admission for admission, _ in self.middleware]
        found += [metered.admission for metered in self.metered]
        return list(dict.fromkeys([*found, *self.inside]))


def look_into(app: Any, names: Mapping[str, Any]) -> Looked:
    """Walk ``app``; ``names`` are its module's. Raises what its middleware raises for wrong settings."""
    looked = Looked()
    _walk(app, "", (), looked)
    if not looked.admissions:
        looked.inside = [each for each in names.values() if isinstance(each, Admission)]
    return looked


_Around = tuple[tuple[Admission, str], ...]


def _walk(app: Any, prefix: str, around: _Around, looked: Looked) -> None:
    """Follow the layers of ``app`` to its routes; ``around``: the middleware passed so far."""
    seen: set[int] = set()
    while id(app) not in seen:
        seen.add(id(app))
        if isinstance(app, GPUAdmission):
            looked.middleware.append((app.admission, prefix))
            around = (*around, (app.admission, prefix))
        if hasattr(app, "build_middleware_stack"):
            # Kept, as the app does it at its first call: a stack of our own would be a second budget.
            app.middleware_stack = app.middleware_stack or app.build_middleware_stack()
            app = app.middleware_stack
        elif hasattr(app, "routes"):
            for route in _routes(app.routes):
                _look_at(route, prefix, around, looked)
            return
        elif hasattr(app, "app"):
            app = app.app
        else:
            break
    looked.unknown.append(prefix or "/")


def _routes(routes: Sequence[Any]) -> Iterator[Any]:
    """Each route with its full path; found FastAPI's own way, where routers are included late."""
    if find_spec("fastapi") is not None:
        from fastapi import routing

        contexts = getattr(routing, "iter_route_contexts", None)
        if contexts is not None:
            yield from contexts(routes)
            return
    yield from routes


def _look_at(route: Any, prefix: str, around: _Around, looked: Looked) -> None:
    original = getattr(route, "original_route", route)
    path = getattr(route, "path", None)
    endpoint = getattr(route, "endpoint", None)
    if path is None or endpoint is None:
        inner = getattr(original, "app", None)
        if inner is not None:
            _walk(inner, prefix + (path or "").rstrip("/"), around, looked)
        return
    path = prefix + path
    if not hasattr(original, "methods"):
        _meter(_SOCKET, path, prefix, (), around, looked)
        return
    doors = _doors(original, endpoint)
    for method in sorted(original.methods or {_ANY}):
        _meter(method, path, prefix, doors, around, looked)


def _meter(
    method: str, path: str, prefix: str, doors: Sequence[tuple[Door, str]], around: _Around, looked: Looked
) -> None:
    found = _by_middleware(method, path, around, looked)
    for door, by in doors:
        rule = door.admission.metering.default(_scope(method, path, prefix), path, door.estimator)
        looked.seen.append(Seen(door.admission, _template(path, prefix), False, True))
        found.append(Metered(method, path, door.admission, by, rule))
    looked.metered += found
    if not found and method not in _SAFE:
        looked.passing.append(Passing(method, path))


def _by_middleware(method: str, path: str, around: _Around, looked: Looked) -> list[Metered]:
    """What the middleware around a route meters of it, the outermost first."""
    found: list[Metered] = []
    for admission, below in around:
        is_socket, metering = method == _SOCKET, admission.metering
        scope = _scope("GET" if is_socket else method, path, below)
        rule = metering.connection(scope) if is_socket else metering.rule(scope)
        looked.seen.append(Seen(admission, _template(path, below), is_socket, rule is not None))
        if rule is not None:
            found.append(Metered(method, path, admission, "middleware", rule))
    return found


def _template(path: str, below: str) -> str:
    """``path`` as a pattern, from where an admission mounted at ``below`` sees it."""
    path = re.sub(r"\{[^}:]*:path\}", "**", path)
    return route_path(re.sub(r"\{[^}]*\}", "*", path), below)


def _scope(method: str, path: str, root_path: str) -> dict[str, Any]:
    """A request to ``path``, with a word for each of its parameters."""
    sample = re.sub(r"\{[^}]*\}", "x", path)
    return {"type": "http", "method": method, "path": sample, "root_path": root_path, "headers": []}


def _doors(route: Any, endpoint: Any) -> list[tuple[Door, str]]:
    """What ``dependency`` and ``admit`` have put on a route, in the order in which a request passes them."""
    decorated = getattr(endpoint, "gpu_admission_door", None)
    found: list[tuple[Door, str]] = []
    for call in _dependencies(getattr(route, "dependant", None)):
        door = getattr(call, "__self__", None)
        if isinstance(door, Door) and door is not decorated:
            found.append((door, "dependency"))
    return found if decorated is None else [*found, (decorated, "admit")]


def _dependencies(dependant: Any) -> Iterator[Any]:
    for each in getattr(dependant, "dependencies", ()):
        yield from _dependencies(each)
        yield each.call


def name_of(estimator: Any) -> str:
    """Name of an estimator: its size, class or function."""
    if estimator is None:
        return "none: all of the capacity"
    if isinstance(estimator, Fixed):
        return format_bytes(estimator.bytes)
    return str(getattr(estimator, "__qualname__", None) or type(estimator).__name__)


def reader_of(rule: Rule) -> str:
    """The dialect that reads a rule's bodies; ``-`` if its estimator needs none."""
    if not rule.needs_body:
        return "-"
    return type(getattr(rule.reader, "inner", rule.reader)).__name__
