"""Checks of what serving helpers are set to: each raises with a sentence that names the setting."""

from __future__ import annotations

import math


def check_callable(setting: str, value: object, *, optional: bool = True) -> None:
    if not callable(value) and not (optional and value is None):
        raise TypeError(f"{setting} must be a callable, not {type(value).__name__}")


def check_count(setting: str, value: object, least: int = 1) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{setting} must be an int, not {type(value).__name__}")
    if value < least:
        raise ValueError(f"{setting} must be {least} or more, got {value}")


def check_seconds(setting: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{setting} must be a number of seconds, not {type(value).__name__}")
    if not 0 <= value < math.inf:
        raise ValueError(f"{setting} must be 0 or more seconds and finite, got {value!r}")


def check_share(setting: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{setting} must be a number from 0 to 1, not {type(value).__name__}")
    if not 0 <= value <= 1:
        raise ValueError(f"{setting} must be from 0 to 1, got {value!r}")
