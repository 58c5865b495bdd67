"""Measured rows: the features of a request, and the bytes that it took.

Owns their check, so that a row of the wrong shape is a sentence with its number. What is made
of them is in ``linear`` and ``table``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gpu_admission.sizes import parse_bytes

MeasuredRow = tuple[Mapping[str, Any], "int | str"]


def measured(rows: Iterable[MeasuredRow], *, of: str) -> Sequence[tuple[Mapping[str, Any], int]]:
    """``rows`` with their sizes in bytes. Raises ``ValueError`` naming the wrong row and ``of``."""
    if isinstance(rows, (str, bytes, Mapping)) or not isinstance(rows, Iterable):
        raise ValueError(f"{of} needs a list of rows ({{feature: value}}, bytes), got {type(rows).__name__}")
    return [_checked(row, f"row {number} of {of}") for number, row in enumerate(rows, 1)]


def _checked(row: Any, name: str) -> tuple[Mapping[str, Any], int]:
    pair = isinstance(row, Sequence) and not isinstance(row, (str, bytes)) and len(row) == 2
    if not pair or not isinstance(row[0], Mapping):
        raise ValueError(
            f"{name} must be ({{feature: value}}, bytes), such as ({{'prompt_tokens': 512}}, '1.2GiB'), "
            f"got {row!r}"
        )
    values, size = row
    for feature, value in values.items():
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not math.isfinite(value) or value < 0:
            raise ValueError(f"{feature!r} in {name} must be a number that is not negative, got {value!r}")
    try:
        return values, parse_bytes(size, name=f"the size in {name}")
    except TypeError as error:
        raise ValueError(str(error)) from None
