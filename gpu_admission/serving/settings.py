"""Checks of what serving helpers are set to, beside those in ``gpu_admission.settings.checks``."""

from __future__ import annotations

import math

from gpu_admission.settings.checks import number


def check_callable(setting: str, value: object, *, optional: bool = True) -> None:
    if not callable(value) and not (optional and value is None):
        raise TypeError(f"{setting} must be a callable, not {type(value).__name__}")


def check_seconds(setting: str, value: object) -> None:
    if number(setting, value) == math.inf:
        raise ValueError(f"{setting} must be finite: it is in seconds")


def check_share(setting: str, value: object) -> None:
    if number(setting, value) > 1:
        raise ValueError(f"{setting} must be from 0 to 1, got {value!r}")
