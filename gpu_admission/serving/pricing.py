"""What one item weighs in a batch: the bytes of a row, its rows, and the key of those it may join.

Owns the callables that a user gives for these, and the check of what they return. What a
whole batch takes is in ``packing``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from gpu_admission.errors import TooLarge
from gpu_admission.serving.settings import check_callable
from gpu_admission.settings.checks import count
from gpu_admission.sizes import format_bytes, parse_bytes


class Pricing:
    """The settings ``cost``, ``max_bytes``, ``rows``, ``key`` and ``max_items`` of a batcher."""

    def __init__(
        self,
        *,
        cost: int | str | Callable[[Any], int] | None,
        max_bytes: int | str | None,
        rows: Callable[[Any], int] | None,
        key: Callable[[Any], Hashable] | None,
        max_items: int,
    ) -> None:
        check_callable("rows", rows)
        check_callable("key", key)
        count(1)("max_items", max_items)
        if max_bytes is not None and cost is None:
            raise TypeError("cost must be given with max_bytes: the bytes of one row")
        self._cost = cost if callable(cost) else parse_bytes(cost or 0, name="cost")
        self._rows = rows
        self._key = key
        self.max_items = max_items
        self.max_bytes = None if max_bytes is None else parse_bytes(max_bytes, name="max_bytes")
        if self.max_bytes == 0:
            raise ValueError("max_bytes must be above 0 bytes")

    def weigh(self, item: Any) -> tuple[int, int, Hashable]:
        """Bytes of a row of ``item``, its rows, its key. Raises ``TooLarge`` where no batch may hold it."""
        price = self._cost if isinstance(self._cost, int) else _whole("cost", self._cost(item), 0)
        rows = 1 if self._rows is None else _whole("rows", self._rows(item), 1)
        key = None if self._key is None else self._key(item)
        hash(key)  # A key without a hash fails here, for its own caller.
        self._check_size(rows, price)
        return price, rows, key

    def _check_size(self, rows: int, price: int) -> None:
        size, most = rows * price, self.max_bytes
        if most is not None and size > most:
            detail = f"this item needs {format_bytes(size)} and can never fit: max_bytes={format_bytes(most)}"
            raise TooLarge("too_large", detail, needed=size)
        if rows > self.max_items:
            detail = f"this item has {rows} rows and can never fit: max_items={self.max_items}"
            raise TooLarge("too_large", detail, needed=size)


def _whole(setting: str, value: object, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{setting} must return an int, not {type(value).__name__}")
    if value < least:
        raise ValueError(f"{setting} must return {least} or more, got {value}")
    return value
