"""One caller's item on its way through a batcher, and what observers get of a batch.

Values and the one-way change from waiting to done; which calls share a batch is decided in
``packing``, when it starts in ``waitingcalls``.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextvars import Context, ContextVar, copy_context
from types import TracebackType
from typing import Any, Literal, TypeAlias

import anyio
import msgspec

from gpu_admission.admission.lease import Lease

ClosedBy: TypeAlias = Literal["idle", "items", "bytes", "max_wait", "close", "split"]
Ending: TypeAlias = Literal["ok", "error", "oom", "fault", "client", "refused"]


class BatchEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a batcher's handler. It carries no item and no key."""

    batcher: str
    """The setting ``name``."""
    items: int
    rows: int
    """Same as ``items`` unless the setting ``rows`` counts them."""
    bytes: int
    """Bytes of the padded batch: rows x the costliest row. 0 without ``cost``."""
    padding: float
    """Share of ``bytes`` that is padding, 0 to 1."""
    closed_by: ClosedBy
    """Why it was no longer: ``split`` is a part of a batch that did not fit as a whole."""
    waited: float
    """Seconds that its oldest item had waited."""
    device: str | None = None
    """Device of the bytes that it held; ``None`` where it held none."""
    seconds: float
    """Seconds from then to its end, the wait for a lease included."""
    outcome: Ending
    """``client``: every caller had left."""


class Call:
    """An item with its price, and the event that its caller waits for."""

    __slots__ = (
        *("at", "context", "done", "error", "item", "key", "lease", "left"),
        *("number", "price", "result", "rows", "trace"),
    )

    def __init__(
        self, item: Any, *, price: int, rows: int, key: Hashable, lease: Lease | None, at: float
    ) -> None:
        self.item = item
        self.price = price
        """Bytes of one of its rows."""
        self.rows = rows
        self.key = key
        self.lease = lease
        """Its caller's lease in the batcher's budget."""
        self.at = at
        self.context = copy_context()
        self.number = 0
        """Its place in the order of arrival."""
        self.left = False
        """Its caller was cancelled."""
        self.done = anyio.Event()
        self.result: Any = None
        self.error: BaseException | None = None
        self.trace: TracebackType | None = None

    def succeed(self, result: Any) -> None:
        self.result = result
        self.done.set()

    def fail(self, error: BaseException) -> None:
        """End it with ``error``, unless it has ended."""
        if not self.done.is_set():
            self.error, self.trace = error, error.__traceback__
            self.done.set()

    def outcome(self) -> Any:
        """Its result. Raises its error."""
        if self.error is None:
            return self.result
        # One error may go to many callers: what one adds to its traceback is not for the others.
        raise self.error.with_traceback(self.trace)


class Batch:
    """Calls that were taken out of the line together."""

    __slots__ = ("calls", "closed_by", "scope", "taken_at")

    def __init__(self, calls: Sequence[Call], closed_by: ClosedBy, at: float) -> None:
        self.calls = calls
        self.closed_by = closed_by
        self.taken_at = at
        self.scope = anyio.CancelScope()

    def leave(self, call: Call) -> None:
        """The caller of ``call`` has left. When all have, the work is cancelled."""
        call.left = True
        if all(other.left for other in self.calls):
            self.scope.cancel()


_device: ContextVar[str | None] = ContextVar("gpu_admission.batch_device", default=None)
_callers: ContextVar[tuple[object, tuple[Context, ...]]] = ContextVar(
    "gpu_admission.batch", default=(None, ())
)


def caller_contexts() -> tuple[Context, ...]:
    """Inside a batcher's handler: the context of each item's caller, in the order of the items.

    The handler itself runs in the context of no request. Use it to carry over what belongs to
    one item alone: ``context.get(request_id)``, or links from a batch's span to its callers'.
    """
    return _callers.get()[1]


def batch_device() -> str | None:
    """Inside a batcher's handler: name of the device that the batch's bytes are on, as in ``Lease.device``.

    When you want it: an admission with several devices, and a model on each:
    ``models[batch_device()](items)``. ``None`` where the batch holds no bytes. A batch never mixes
    callers whose bytes are on different devices.
    """
    return _device.get()


def is_inside(batcher: object) -> bool:
    """Whether the running code was called by ``batcher``'s own handler."""
    return _callers.get()[0] is batcher


def enter_batch(batcher: object, calls: Sequence[Call]) -> None:
    """Make ``calls`` the batch that the running task's handler is given."""
    _callers.set((batcher, tuple(call.context for call in calls)))
    _device.set(None)


def on_device(name: str | None) -> None:
    """Note where the bytes of the running task's batch are."""
    _device.set(name)
