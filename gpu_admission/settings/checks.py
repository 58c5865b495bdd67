"""Checks of single settings: each takes a name and a value, and returns the value to use.

A wrong value raises ``TypeError`` or ``ValueError`` with a sentence that begins with the name.
Which setting is checked by what stands in ``settings``.
"""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from gpu_admission.sizes import parse_bytes

T = TypeVar("T")
Check: TypeAlias = Callable[[str, Any], T]


def optional(check: Check[T]) -> Check[T | None]:
    """``check``, or ``None``."""
    return lambda name, value: None if value is None else check(name, value)


def number(name: str, value: Any) -> float:
    """A number of 0 or more; infinity is one."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number, not {type(value).__name__}")
    if not value >= 0:
        raise ValueError(f"{name} must be 0 or more, got {value!r}")
    return value


def factor(name: str, value: Any) -> float:
    """A finite number of 1 or more."""
    if not 1 <= number(name, value) < math.inf:
        raise ValueError(f"{name} must be 1.0 or more, got {value!r}")
    return float(value)


def share(name: str, value: Any) -> float:
    """A number from 0 to below 1."""
    if not number(name, value) < 1:
        raise ValueError(f"{name} is a share of the capacity, from 0 to below 1, got {value!r}")
    return float(value)


def count(least: int) -> Check[int]:
    """An ``int`` of ``least`` or more."""

    def check(name: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name} must be an int, not {type(value).__name__}")
        if value < least:
            raise ValueError(f"{name} must be {least} or more, got {value}")
        return value

    return check


def size(name: str, value: Any) -> int:
    """Bytes of an ``int`` or of a string such as ``"6GiB"``."""
    return parse_bytes(value, name=name)


def flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r}")
    return value


def word(*allowed: str) -> Check[Any]:
    """One of ``allowed``."""

    def check(name: str, value: Any) -> str:
        if not isinstance(value, str) or value not in allowed:
            raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}")
        return value

    return check


def word_or_callable(*allowed: str) -> Check[Any]:
    """One of ``allowed``, or a callable."""

    def check(name: str, value: Any) -> Any:
        if not callable(value) and value not in allowed:
            raise ValueError(f"{name} must be {', '.join(map(repr, allowed))} or a callable, got {value!r}")
        return value

    return check


def function(name: str, value: Any) -> Any:
    """A plain callable, which is called where nothing can be awaited."""
    if not callable(value):
        raise TypeError(f"{name} must be a callable of RequestInfo, not {type(value).__name__}")
    if inspect.iscoroutinefunction(value):
        raise TypeError(f"{name} must be a plain function, not a coroutine function")
    return value


def several(name: str, value: Any) -> tuple[Any, ...]:
    """A tuple of any iterable but a string."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise TypeError(f"{name} must be a list, not {type(value).__name__}")
    return tuple(value)


def every(kind: Any) -> Check[tuple[Any, ...]]:
    """A tuple of objects that have what ``kind`` declares; a class in place of an object is refused."""

    def check(name: str, value: Any) -> tuple[Any, ...]:
        for each in (values := several(name, value)):
            if isinstance(each, type) or not isinstance(each, kind):
                raise TypeError(f"{name} must hold {kind.__name__} objects, not {each!r}")
        return values

    return check


def path(name: str, value: Any) -> str | os.PathLike[str]:
    """A path of a file, in a folder that exists."""
    if not isinstance(value, (str, os.PathLike)) or not str(value):
        raise TypeError(f"{name} must be the path of a file, not {type(value).__name__}")
    if not Path(value).parent.is_dir() or Path(value).is_dir():
        raise ValueError(f"{name}: {value} is not a file in a folder that exists")
    return value


def text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError(f"{name} must be a string that is not empty")
    return value
