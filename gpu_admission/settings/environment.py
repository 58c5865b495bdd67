"""Settings that operators change without touching code: ``GPU_ADMISSION_TIMEOUT=5``.

Only those that belong to a deployment. Each is read as its type, and checked as the keyword of the
same name is; a keyword that the code gives wins.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from typing import Any, Final

from gpu_admission.settings.settings import Settings

PREFIX: Final = "GPU_ADMISSION_"
HELD_DEVICE: Final = "GPU_ADMISSION_HELD_DEVICE"
"""No setting: what ``gpu-admission hold`` tells its command."""
_READ: Final[dict[str, Callable[[str], Any]]] = {
    "capacity": str,
    "max_waiting": int,
    "mode": str,
    "name": str,
    "shared": str,
    "timeout": float,
}
_CHECKS: Final = {each.name: each.metadata["check"] for each in fields(Settings)}


def from_environment(env: Mapping[str, str]) -> dict[str, Any]:
    """The settings that ``env`` holds; an empty variable is as none.

    Raises ``ValueError`` that names the variable.
    """
    found = {name: value for name, value in env.items() if name.startswith(PREFIX) and value}
    found.pop(HELD_DEVICE, None)
    return {_setting(name): _value(name, value) for name, value in sorted(found.items())}


def variable(setting: str) -> str:
    """The name of the variable that gives ``setting``."""
    return PREFIX + setting.upper()


@contextmanager
def named_by_variable(given: Mapping[str, Any]) -> Iterator[None]:
    """Errors of the block that begin with the name of a setting in ``given`` name its variable too."""
    try:
        yield
    except (TypeError, ValueError) as error:
        begin = re.match(r"\w*", str(error))
        if begin is None or begin[0] not in given:
            raise
        raise ValueError(f"{variable(begin[0])}: {error}") from None


def _setting(name: str) -> str:
    setting = name.removeprefix(PREFIX).lower()
    if setting not in _READ:
        close = difflib.get_close_matches(setting, _READ, n=1)
        hint = f"; did you mean {variable(close[0])}?" if close else ""
        known = ", ".join(map(variable, _READ))
        raise ValueError(f"{name} is no setting that the environment may give{hint} (known: {known})")
    return setting


def _value(name: str, text: str) -> Any:
    setting = _setting(name)
    try:
        value = _READ[setting](text)
    except ValueError:
        kind = "a whole number" if _READ[setting] is int else "a number"
        raise ValueError(f"{name} must be {kind}, got {text[:40]!r}") from None
    try:
        _CHECKS[setting](setting, value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: {error}") from None
    return value
