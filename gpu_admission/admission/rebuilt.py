"""An app's middleware built again: it goes on with the budget that it had.

Starlette makes its middleware anew whenever its stack is built, and calls each class with the same
settings again. Owns which budget was made of which settings, for which app. What an admission is
made of is the controller's.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping
from types import BuiltinFunctionType, FunctionType, NoneType
from typing import Any, NamedTuple, Unpack

from gpu_admission.admission.controller import Admission
from gpu_admission.settings import Options

_DEEPEST = 100
_PLAIN = frozenset({int, float, str, bool, NoneType, FunctionType, BuiltinFunctionType})


class _Built(NamedTuple):
    """All three are weak references: nothing here may keep anything alive."""

    app: Callable[[], object]
    middleware: Callable[[], object]
    admission: Callable[[], Admission | None]


class Rebuilds:
    """The budgets of one process that were made by a middleware, for as long as they live."""

    def __init__(self) -> None:
        self._built: list[_Built] = []

    def __len__(self) -> int:
        return len(self._built)

    def admission(self, middleware: object, app: object, **options: Unpack[Options]) -> Admission:
        """A budget for ``middleware`` around ``app``: the one it had, or a new one. Raises as ``Admission``.

        A budget is taken over from an earlier middleware that had the very same objects as settings, if
        it has ``observers``, or served the same app and is still in use: by its middleware, or by
        work that holds bytes.
        """
        innermost = _innermost(app)
        found = self._find(innermost, options) or Admission(**options)
        # Of one budget those alone that still stand, so that building it ever again keeps nothing.
        self._built = [built for built in self._built if built.admission() is not found or built.middleware()]
        self._built.append(_Built(_weak(innermost), _weak(middleware), weakref.ref(found)))
        return found

    def _find(self, app: object, options: Mapping[str, Any]) -> Admission | None:
        self._built = [built for built in self._built if built.admission() is not None]
        for built in reversed(self._built):
            admission = built.admission()
            if admission is None or not _is_same(admission.given, options):
                continue
            if admission.entrance.serves_elsewhere:
                continue  # an admission serves one loop at a time
            is_in_use = built.middleware() is not None or admission.in_use or admission.waiting
            if admission.settings.observers or (
                is_in_use and built.app() is app and _are_meant(app, options)
            ):
                return admission
        return None


def _is_same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return one.keys() == other.keys() and all(one[name] is value for name, value in other.items())


def _are_meant(app: object, options: Mapping[str, Any]) -> bool:
    """Whether identical settings mean the same middleware; for functions and numbers it may be chance.

    Python has one object for each small number, and one for a function however often it is wrapped.
    """
    return any(type(thing) not in _PLAIN for thing in (app, *options.values()))


def _innermost(app: object) -> object:
    """The app behind all middleware of ``app``: it stays the same when the stack is built again."""
    for _ in range(_DEEPEST):
        inner = getattr(app, "app", None)
        if (
            inner is None or getattr(inner, "__self__", None) is app
        ):  # Starlette's router has a method ``app``
            break
        app = inner
    return getattr(app, "router", app)


def _weak(thing: object) -> Callable[[], object]:
    try:
        return weakref.ref(thing)
    except TypeError:  # it can't be found again: then its budget is its own
        return object


@functools.cache
def rebuilds() -> Rebuilds:
    """The process's one list."""
    return Rebuilds()
