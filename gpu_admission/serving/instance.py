"""One instance, from its making to its end, with the thread, the device and the stream it lives on.

Who gets it, and whether another one takes its place, is decided in ``pool``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import copy_context
from typing import Any

from gpu_admission.runtime.worker import Worker
from gpu_admission.serving.stream import Stream


class Recipe:
    """How instances are made, cleaned and ended: one for a pool."""

    def __init__(
        self,
        factory: Callable[[], Any],
        *,
        warm_up: Callable[[Any], object] | None,
        reset: Callable[[Any], object] | None,
        close: Callable[[Any], object] | None,
        is_fault: Callable[[Exception], bool],
    ) -> None:
        self.factory = factory
        self.warm_up = warm_up
        self.reset = reset
        self.close = close
        self.is_fault = is_fault
        self.one_at_a_time = threading.Lock()
        """Held while one loads: what two of them take on a device at once can't be told apart."""


class Instance:
    """What ``recipe`` makes on ``device``, in a new thread called ``name``."""

    model: Any = None
    resident: int | None = None
    """Bytes that making it took on its device; ``None`` = not known."""
    is_faulty = False
    """It must not be used again."""

    def __init__(self, recipe: Recipe, device: str, name: str) -> None:
        self.device = device
        self._recipe = recipe
        self._calls: set[Future[Any]] = set()
        self._worker = Worker(name)

    def build(self) -> Future[None]:
        return self._worker.submit(self._build)

    def call(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        """``function(model, *args)`` in its thread, in a copy of the calling context."""
        context = copy_context()
        future = self._worker.submit(lambda: context.run(self._call, function, args))
        self._calls.add(future)
        future.add_done_callback(self._calls.discard)
        return future

    def blame(self, error: BaseException) -> None:
        """Note what ``error`` says about the instance."""
        if isinstance(error, Exception) and self._recipe.is_fault(error):
            self.is_faulty = True

    def clean(self, then: Callable[[], object]) -> None:
        """Have ``then()`` called once nothing works on the instance and it has been reset."""
        if self._calls or self._recipe.reset is not None:
            self._worker.submit(self._clean).add_done_callback(lambda _: then())
        else:
            then()

    def discard(self) -> Future[None]:
        """End the instance and its thread."""
        ended = self._worker.submit(self._close)
        self._worker.stop()
        return ended

    def _build(self) -> None:
        with self._recipe.one_at_a_time:
            self._stream = Stream(self.device)
            before = self._stream.allocated()
            self.model = self._recipe.factory()
            if self._recipe.warm_up is not None:
                self._recipe.warm_up(self.model)
            self._stream.settle()
            after = self._stream.allocated()
        self.resident = None if before is None or after is None else max(0, after - before)

    def _call(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        try:
            result = function(self.model, *args)
            self._stream.settle()
            return result
        except BaseException as error:
            self.blame(error)
            raise

    def _clean(self) -> None:
        if self._recipe.reset is None or self.is_faulty:
            return
        try:
            self._recipe.reset(self.model)
        except Exception:
            self.is_faulty = True

    def _close(self) -> None:
        model, self.model = self.model, None
        if self._recipe.close is not None and model is not None:
            self._recipe.close(model)
