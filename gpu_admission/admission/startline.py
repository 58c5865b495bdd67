"""The effective configuration as one line, for the log at start.

Owns how settings are put into words. No value of a callable, key or header is ever shown,
only its name.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from gpu_admission.budget.lanes import Lane
from gpu_admission.settings import Settings
from gpu_admission.shared.redisaddress import parse
from gpu_admission.sizes import format_bytes

_ALWAYS = ("mode", "estimator", "timeout", "max_waiting", "max_body_bytes", "routes", "methods")
_SIZES = ("max_body_bytes", "max_buffered_bytes", "fallback", "reserve")


def start_line(
    settings: Settings,
    capacity: int,
    devices: Sequence[str],
    control: Sequence[str] = (),
    taken: Sequence[str] = (),
) -> str:
    """The ``capacity`` on ``devices``, the main settings, and all others that are not at their default.

    ``control``: patterns of the calls that pass at once, of which only those of the setting are named:
    there are many; ``taken``: variables of the environment
    that gave settings.
    """
    shown = [f"{name}={_word(name, getattr(settings, name))}" for name in _shown(settings)]
    if control:
        own = [path for path in control if path in settings.control]
        known = len(control) - len(own)
        shown.append(f"control={_word('control', [f'{known} known paths', *own] if known else own)}")
    if taken:
        shown.append(f"(from {', '.join(taken)})")
    return f"gpu_admission {settings.name!r} starts: capacity={_on(capacity, devices)} {' '.join(shown)}"


def _shown(settings: Settings) -> list[str]:
    defaults = {field.name: field.default for field in fields(settings)}
    changed = [name for name in defaults if getattr(settings, name) != _checked(defaults[name])]
    return [
        *_ALWAYS,
        *(name for name in changed if name not in (*_ALWAYS, "capacity", "name", "placement", "control")),
    ]


def _checked(default: Any) -> Any:
    return tuple(default) if isinstance(default, (tuple, list)) else default


def _on(capacity: int, devices: Sequence[str]) -> str:
    each = f"{len(devices)} devices ({', '.join(devices)})" if len(devices) > 1 else devices[0]
    return f"{format_bytes(capacity)} on {each}"


def _word(name: str, value: Any) -> str:
    if name in _SIZES and value is not None:
        return format_bytes(value).replace(" ", "")
    if name == "shared":
        return _place(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_word(name, each)}" for key, each in value.items()) + "}"
    if isinstance(value, (set, frozenset)):
        return _word(name, sorted(value, key=str))
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ", ".join(_word(name, each) for each in value) + "]"
    if isinstance(value, Lane):
        return value.name
    if value is None:
        return "all" if name == "routes" else "none"
    if isinstance(value, float):
        return "unlimited" if value == math.inf else f"{value:g}"
    return _name(value)


def _place(shared: Any) -> str:
    """Where a shared budget is; an address without its password."""
    if isinstance(shared, str) and "://" in shared:
        return parse(shared).where
    return str(shared) if isinstance(shared, (str, os.PathLike)) else type(shared).__name__


def _name(value: Any) -> str:
    if isinstance(value, (str, int)):
        return str(value)
    return str(getattr(value, "name", None) or getattr(value, "__qualname__", None) or type(value).__name__)
