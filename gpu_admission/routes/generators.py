"""An endpoint's plain generator, closed when its lease ends.

A framework that drops a stream half-way leaves its generator to the garbage collector: until that
runs, its tensors and the bytes held for it would stay. Async generators are closed by their awaiters.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator
from typing import Any

from gpu_admission.admission.lease import Lease


class Steps:
    """The items of ``items``. Each is made with ``lease`` held, until the step has really returned."""

    def __init__(self, lease: Lease, items: Generator[Any, Any, Any]) -> None:
        self._lease = lease
        self._items = items
        self._lock = threading.Lock()
        self._is_running = False
        self._is_closed = False

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        with self._lease.keep():
            self._begin()
            try:
                return next(self._items)
            finally:
                self._returned()

    def close(self) -> None:
        """Make no more items. A step that is running in its thread is the last, and closes behind itself."""
        with self._lock:
            is_ours = not (self._is_closed or self._is_running)
            self._is_closed = True
        if is_ours:
            self._items.close()

    def _begin(self) -> None:
        with self._lock:
            if self._is_closed:
                raise StopIteration
            self._is_running = True

    def _returned(self) -> None:
        with self._lock:
            self._is_running = False
            is_last = self._is_closed
        if is_last:
            self._items.close()
