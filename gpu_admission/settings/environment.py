"""Settings that operators change without touching code: ``GPU_ADMISSION_TIMEOUT=5``.

Only those that belong to a deployment. They are checked like keywords, and a keyword that the code
gives wins.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any, Final

PREFIX: Final = "GPU_ADMISSION_"
_READ: Final[dict[str, Callable[[str], Any]]] = {
    "capacity": str,
    "max_waiting": int,
    "mode": str,
    "name": str,
    "timeout": float,
}


def from_environment(env: Mapping[str, str]) -> dict[str, Any]:
    """The settings that ``env`` holds. Raises ``ValueError`` that names the variable."""
    found = {name: value for name, value in env.items() if name.startswith(PREFIX)}
    return {_setting(name): _value(name, value) for name, value in sorted(found.items())}


def _setting(name: str) -> str:
    setting = name.removeprefix(PREFIX).lower()
    if setting not in _READ:
        close = difflib.get_close_matches(setting, _READ, n=1)
        hint = f"; did you mean {PREFIX}{close[0].upper()}?" if close else ""
        known = ", ".join(f"{PREFIX}{each.upper()}" for each in _READ)
        raise ValueError(f"{name} is no setting that the environment may give{hint} (known: {known})")
    return setting


def _value(name: str, value: str) -> Any:
    read = _READ[_setting(name)]
    try:
        return read(value)
    except ValueError:
        kind = "a whole number" if read is int else "a number"
        raise ValueError(f"{name} must be {kind}, got {value[:40]!r}") from None
