"""Numbers in a body, where a client may have put anything. Owns what each wrong value means.

Missing, ``null``, NaN, zero and negative count as "not said". A text of digits is a number, a
fraction is rounded up, and a huge number becomes ``CEILING``, which fits no capacity.
Anything else (true, text, a list, an object) is refused with the name of its field.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from gpu_admission.errors import UnreadableBody

CEILING: Final = 2**53
"""The largest number in a workload. Still exact as a float."""
_LONGEST_NUMBER = 400
_READERS: tuple[Callable[[str], int | float], ...] = (int, float)


def positive(fields: Mapping[str, Any], name: str, default: int) -> int:
    """The whole number at ``name``, or ``default`` if there is none."""
    value = fields.get(name)
    if type(value) is int and 0 < value <= CEILING:
        return value
    return whole(value, name) or default


def whole(value: Any, name: str) -> int:
    """``value`` as a whole number from 1 to ``CEILING``, or 0 if it means "not said".

    Raises ``UnreadableBody`` if it is no number.
    """
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise UnreadableBody(f"{name} must be a number")
    if isinstance(value, str):
        value = _number(value, name)
    number: int = _rounded_up(value) if isinstance(value, float) else value
    return min(max(number, 0), CEILING)


def fraction(fields: Mapping[str, Any], name: str, default: float) -> float:
    """The number at ``name``, fractions kept, up to ``CEILING``; ``default`` if there is none."""
    value = fields.get(name)
    if isinstance(value, str):
        value = _number(value, name)
    whole(value, name)
    return float(min(value, CEILING)) if value is not None and value > 0 else default


def capped(value: int) -> int:
    """``value``, or ``CEILING`` if a product has exceeded that."""
    return value if value <= CEILING else CEILING


def positive_option(value: int, name: str) -> int:
    """``value`` of the option ``name``: an ``int`` of at least 1, or ``TypeError``/``ValueError``."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, not {type(value).__name__}")
    if not 1 <= value <= CEILING:
        raise ValueError(f"{name} must be between 1 and 2**53, got {value}")
    return value


def _number(text: str, name: str) -> int | float:
    for read in _READERS if len(text) <= _LONGEST_NUMBER else ():
        try:
            return read(text)
        except ValueError:
            continue
    raise UnreadableBody(f"{name} must be a number")


def _rounded_up(value: float) -> int:
    if math.isnan(value):
        return 0
    return math.ceil(max(value, 0.0)) if value < CEILING else CEILING
