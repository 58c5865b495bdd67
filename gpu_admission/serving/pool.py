"""Which instance goes to whom: the states of all slots, and those who wait for one.

Each change is made under one lock, from any thread; whoever waits is woken in its own event
loop. What an instance is, and how it is made and ended, is in ``instance``.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Literal, TypeAlias

import anyio

from gpu_admission.admission.refusals import retry_after
from gpu_admission.errors import QueueFull, QueueTimeout, Rejected, Unavailable
from gpu_admission.runtime.fork import in_child
from gpu_admission.runtime.loop import call_soon, running_loop
from gpu_admission.serving.instance import Instance, Recipe

logger = logging.getLogger("gpu_admission")
LONGEST_PAUSE = 60.0
"""Seconds, at most, before a factory that fails is tried again."""

_monotonic = time.monotonic
State: TypeAlias = Literal["empty", "building", "ready", "lent", "broken"]


class Slot:
    """A place for one instance at a time, one after the other. Only the pool changes it."""

    instance: Instance
    """Set in every state but ``empty`` and ``broken``."""
    state: State = "empty"
    error: Exception | None = None
    """Why the last one could not be made."""
    failures = 0
    """In a row."""
    failed_at = 0.0
    resident: int | None = None

    def __init__(self, device: str, name: str) -> None:
        self.device = device
        self.name = name


class Waiter:
    """A caller that waits for an instance, in its own loop."""

    def __init__(self) -> None:
        self.slot: Slot | None = None
        self.error: Rejected | None = None
        self._loop = running_loop()
        self._woken = anyio.Event()

    def wake(self) -> bool:
        """``False``: its loop has ended."""
        return call_soon(self._loop, self._woken.set)

    async def wait(self) -> None:
        await self._woken.wait()


class Pool:
    """Slots that are built when first asked for, lent to one at a time, and built again after a fault."""

    def __init__(
        self,
        recipe: Recipe,
        devices: Sequence[str],
        *,
        name: str,
        max_waiting: int,
        timeout: float,
        pause: float,
    ) -> None:
        self.slots = [Slot(device, f"{name}[{place}]") for place, device in enumerate(devices)]
        self._recipe = recipe
        self.name = name
        self.closed = False
        self._max_waiting = max_waiting
        self._timeout = timeout
        self._pause = pause
        self._begin()
        in_child(self._begin_in_child)

    def _begin(self) -> None:
        # Reentrant: a callback for what has already ended runs at once, in the same thread.
        self._lock = threading.RLock()
        self._waiters: deque[Waiter] = deque()
        self._watchers: list[Waiter] = []

    def _begin_in_child(self) -> None:
        """In a forked process no instance has a thread, and nobody waits: all are made anew."""
        self._begin()
        self._recipe.one_at_a_time = threading.Lock()
        for slot in self.slots:
            slot.state, slot.resident = "empty", None

    @property
    def waiting(self) -> int:
        return len(self._waiters)

    def count(self, *states: str) -> int:
        """How many slots are in one of ``states``."""
        return sum(slot.state in states for slot in self.slots)

    async def borrow(self) -> Slot:
        """A slot that belongs to nobody else until ``give_back``. Raises ``Rejected``."""
        with self._lock:
            slot = self._take()
            if slot is not None:
                return slot
            waiter = Waiter()
            self._waiters.append(waiter)
        try:
            with anyio.move_on_after(self._timeout):
                await waiter.wait()
        except BaseException:
            self._withdraw(waiter)
            raise
        if waiter.slot is not None:
            return waiter.slot
        if waiter.error is None:
            self._withdraw(waiter)
            waiter.error = self._late()
        raise waiter.error

    def give_back(self, slot: Slot) -> None:
        """Lend ``slot`` to the next caller once nothing works on it; after a fault, with a new instance."""
        slot.instance.clean(lambda: self._cleaned(slot))

    def build_all(self) -> None:
        """Begin to build every slot that has no instance."""
        with self._lock:
            self._check_open()
            self._build_missing(hurry=True)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return when ``condition()`` of the states holds."""
        while True:
            with self._lock:
                if condition():
                    return
                waiter = Waiter()
                self._watchers.append(waiter)
            await waiter.wait()

    def close(self) -> None:
        """Lend nothing from now on, and refuse those who wait."""
        with self._lock:
            self.closed = True
            self._refuse_all(self._closed)

    def empty(self) -> list[Future[None]]:
        """End every instance that nobody has."""
        with self._lock:
            return [self._discard(slot) for slot in self.slots if slot.state == "ready"]

    # under the lock

    def _take(self) -> Slot | None:
        """A slot that is ready, or ``None``: wait for one. Raises ``Rejected``."""
        self._check_open()
        self._build_missing(hurry=False)
        if not self._waiters:
            for slot in self.slots:
                if slot.state == "ready":
                    slot.state = "lent"
                    return slot
        if not self.count("ready", "lent", "building"):
            raise self._broken()
        if len(self._waiters) >= self._max_waiting:
            detail = f"max_waiting={self._max_waiting} wait for one of {self.name} already"
            raise self._complete(QueueFull("queue_full", detail), None)
        return None

    def _build_missing(self, *, hurry: bool) -> None:
        for slot in self.slots:
            if slot.state == "empty" or (
                slot.state == "broken" and (hurry or _monotonic() >= self._again_at(slot))
            ):
                self._build(slot)

    def _again_at(self, slot: Slot) -> float:
        return slot.failed_at + min(LONGEST_PAUSE, self._pause * 2.0 ** min(slot.failures - 1, 20))

    def _build(self, slot: Slot) -> None:
        slot.state = "building"
        slot.instance = Instance(self._recipe, slot.device, slot.name)
        slot.instance.build().add_done_callback(lambda built: self._built(slot, built))

    def _offer(self, slot: Slot) -> None:
        """Give ``slot`` to the first that waits, and whose loop still runs."""
        slot.state = "ready"
        while self._waiters:
            waiter = self._waiters.popleft()
            waiter.slot, slot.state = slot, "lent"
            if waiter.wake():
                return
            slot.state = "ready"

    def _discard(self, slot: Slot) -> Future[None]:
        slot.state = "empty"
        ended = slot.instance.discard()
        ended.add_done_callback(lambda future: self._log_end(slot, future))
        return ended

    def _log_end(self, slot: Slot, ended: Future[None]) -> None:
        if error := ended.exception():
            logger.warning("closing %s failed with %s: %s", slot.name, type(error).__name__, error)

    def _refuse_all(self, refusal: Callable[[], Rejected]) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            waiter.error = refusal()
            waiter.wake()

    def _notify(self) -> None:
        watchers, self._watchers = self._watchers, []
        for watcher in watchers:
            watcher.wake()

    # taking the lock

    def _built(self, slot: Slot, built: Future[None]) -> None:
        """In the slot's thread, when an instance has been made, or could not be."""
        error = built.exception()
        with self._lock:
            if error is None:
                slot.failures, slot.error, slot.resident = 0, None, slot.instance.resident
                if self.closed:
                    self._discard(slot)
                else:
                    self._offer(slot)
            else:
                self._failed(slot, error)
            self._notify()

    def _failed(self, slot: Slot, error: BaseException) -> None:
        logger.error("%s could not be made: %s: %s", slot.name, type(error).__name__, error)
        self._discard(slot)
        slot.state, slot.failures, slot.failed_at = "broken", slot.failures + 1, _monotonic()
        slot.error = error if isinstance(error, Exception) else RuntimeError(repr(error))
        if not self.count("ready", "lent", "building"):
            self._refuse_all(self._broken)

    def _cleaned(self, slot: Slot) -> None:
        with self._lock:
            if slot.instance.is_faulty:
                self._replace(slot)
            else:
                self._offer(slot)
            self._notify()

    def _replace(self, slot: Slot) -> None:
        logger.warning("%s had a fault: it is replaced", slot.name)
        ended = self._discard(slot)
        if not self.closed:
            # Not earlier: a card may have no room for both.
            slot.state = "building"
            ended.add_done_callback(lambda _: self._rebuild(slot))

    def _rebuild(self, slot: Slot) -> None:
        with self._lock:
            self._build(slot)

    def _withdraw(self, waiter: Waiter) -> None:
        with self._lock:
            if waiter.slot is not None:
                self._offer(waiter.slot)
                self._notify()
            elif waiter in self._waiters:
                self._waiters.remove(waiter)

    # refusals

    def _check_open(self) -> None:
        if self.closed:
            raise self._closed()

    def _closed(self) -> Rejected:
        return self._complete(Unavailable("draining", f"{self.name} is closed: aclose() was called"), None)

    def _broken(self) -> Rejected:
        """Every slot is broken: say why, and when the first is tried again."""
        first = min(self.slots, key=self._again_at)
        detail = f"there is no working one of {self.name}: making it failed with {type(first.error).__name__}"
        again = self._again_at(first) - _monotonic()
        return self._complete(Unavailable("gpu_unavailable", detail), again)

    def _late(self) -> Rejected:
        detail = f"none of {self.name} was free within timeout={self._timeout:g} s"
        return self._complete(QueueTimeout("queue_timeout", detail), None)

    def _complete(self, rejected: Rejected, forecast: float | None) -> Rejected:
        wait = retry_after(forecast, self._timeout / 2)
        rejected.complete(needed=None, capacity=0, waiting=len(self._waiters), retry_after=wait)
        return rejected
