"""A lease: bytes held for one request, until its work has really ended.

Owns the end of holding: released once, from any task or thread, by whichever comes last: the app,
or a handle that ``keep`` gave out. What else happens at the end is in ``ending``; which request a
lease belongs to is in ``context``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Literal, Protocol, TypeAlias

import anyio
import msgspec

from gpu_admission.admission.feedback import Feedback
from gpu_admission.admission.shares import Share
from gpu_admission.budget.ticket import Ticket
from gpu_admission.errors import Rejected
from gpu_admission.runtime.turn import Turn
from gpu_admission.settings import Settings
from gpu_admission.sizes import format_bytes, parse_bytes
from gpu_admission.types import Device, Estimate

Kind: TypeAlias = Literal["ok", "error", "oom", "fault", "client"]


class Issuer(Protocol):
    """What a lease asks of the admission that gave it."""

    @property
    def admission(self) -> Any: ...
    @property
    def settings(self) -> Settings: ...
    @property
    def turn(self) -> Turn:
        """The turn in which the size of an open lease may change."""
        ...

    @property
    def lanes(self) -> Sequence[str]: ...
    @property
    def devices(self) -> Sequence[Device]: ...
    @property
    def device_names(self) -> Sequence[str]: ...

    def end(self, lease: Lease) -> None:
        """Give its bytes back, unless that was done or a handle is open."""
        ...

    def resize(self, lease: Lease, size: int) -> None: ...
    def open_share(self, lease: Lease, size: int, around: Share | None) -> Share:
        """Claim ``size`` bytes until the share is closed; they are held once ``fund`` has returned."""
        ...

    async def fund(self, lease: Lease, share: Share) -> None:
        """Hold what ``share`` claims. Raises ``Rejected`` where that does not fit now; then it is closed."""
        ...

    def fund_here(self, lease: Lease, share: Share) -> None:
        """The same for a thread: it waits there where a shared budget has to be asked."""
        ...

    def close_share(self, lease: Lease, share: Share) -> None:
        """Give back what was held for it alone, and end the lease with the last one that outlives it."""
        ...

    def classify(self, error: BaseException) -> tuple[Kind, str]:
        """How work that raised ``error`` ended, and the name of its class."""
        ...

    def out_of_memory(self, status: int) -> Rejected:
        """The refusal in place of an answer that ran out of memory before it began."""
        ...


class Lease(msgspec.Struct, eq=False, weakref=True):
    """The held right to use ``bytes`` of ``device``. It ends once; every method is thread-safe."""

    issuer: Issuer
    ticket: Ticket
    estimate: Estimate
    """What was charged, and why."""
    route: str
    number: int = msgspec.field(default_factory=itertools.count(1).__next__)
    """Counts leases in this process; joins the events of one lease."""
    ended: bool = False
    peak: int | None = None
    """The most bytes that ``record_peak`` was given."""
    outcome: tuple[Kind, str] = ("ok", "")
    outer: Lease | Block | None = None
    """The holder around this one in its request."""
    covers: object = None
    """The lease of another admission that was in the scope before this one."""
    task: anyio.TaskInfo | None = None
    """The request's task, where it sends its response while the lease is in its context."""
    feedback: Feedback | None = None
    """For an estimator that learns from the end of this lease."""
    task_id: int = 0
    """Identity of the task that it was entered in; 0 where that was a thread."""
    estimator: object = None
    """The estimator that priced its request."""
    share: Share | None = None
    """The claims on it, once a block inside its request has made one."""
    told: int | None = None
    """The bytes that its budget was last told to hold. From a shared one that may not have come back yet."""
    handles: int = 0
    returned: bool = False
    """The app is done with it: only open handles, and blocks that outlive the request, hold it now."""

    @property
    def admission(self) -> Any:
        """The ``Admission`` that gave it."""
        return self.issuer.admission

    @property
    def lease(self) -> Lease:
        """The lease itself; for a ``Block``, the lease that it is a part of."""
        return self

    @property
    def is_over(self) -> bool:
        """Whether its request no longer uses it; work that outlives the request still may."""
        return self.ended or (self.returned and not self.handles)

    @property
    def bytes(self) -> int:
        """Bytes held now."""
        return self.ticket.bytes

    @property
    def actual(self) -> int | None:
        """Bytes that its request took, once it has ended; ``None``: not known.

        What ``record_peak`` was given; else what was measured, or the tokens that the answer reported,
        where ``Learned`` looks at these.
        """
        if self.peak is not None or self.feedback is None:
            return self.peak
        return self.feedback.actual

    @property
    def waited(self) -> float:
        """Seconds that it waited before it started: for its estimate, and in the queue."""
        ticket = self.ticket
        return ticket.waited_before + ticket.granted_at - ticket.arrived

    @property
    def device(self) -> str:
        """Name of the device that the bytes are on; ``"device 1"`` where only others of a shared budget
        know more of them.
        """
        names, index = self.issuer.device_names, self.ticket.device
        return names[index] if index < len(names) else f"device {index}"

    @property
    def device_index(self) -> int:
        """Index of its device in the admission's ``devices``."""
        return self.ticket.device

    def on_device(self) -> AbstractContextManager[object]:
        """A context in which ``device`` is torch's current one, in the calling thread.

        Does nothing where torch does not know the device, or the device is not known here.
        """
        from gpu_admission.devices import on_device

        devices = self.issuer.devices
        index = self.ticket.device
        return on_device(devices[index]) if index < len(devices) else nullcontext()

    @property
    def lane(self) -> str:
        return self.issuer.lanes[self.ticket.lane]

    def resize(self, size: int | str) -> None:
        """Hold ``size`` bytes from now on. Shrinking always works and wakes those who wait.

        Growing never waits for others: where it does not fit now it raises ``Rejected``, and the
        lease stays as it is. A budget on a Redis server has to be asked: that takes a round trip,
        in an event loop at most 0.1 s (503 ``budget_unreachable``). To grow there without holding
        up the loop, enter ``async with admission.lease(size)`` instead.
        """
        self.issuer.resize(self, parse_bytes(size, name="size"))

    def record_peak(self, size: int) -> None:
        """Say what the request really took, in bytes, for ``Learned`` and the metrics."""
        size = parse_bytes(size, name="peak")
        self.peak = size if self.peak is None else max(self.peak, size)

    def report_oom(self, error: str = "reported") -> None:
        """Say that the request ran out of device memory although the app answered by itself."""
        self.outcome = ("oom", error)

    def keep(self) -> Handle:
        """Keep holding after the app has returned, until the handle is closed (or its ``with`` block ends).

        For an engine or a thread that may free its memory only after the handler has ended, as
        when a client hangs up mid-stream. Raises ``RuntimeError`` when the lease has ended.
        """
        with self.issuer.turn:
            if self.ended:
                raise RuntimeError("this lease has ended: keep it before the app returns")
            self.handles += 1
        return Handle(self)

    def release(self) -> None:
        """End it, now or when the last handle is closed. Calling it again changes nothing."""
        self.finish(None)

    def finish(self, error: BaseException | None) -> None:
        """Release it, and remember how its work ended."""
        if error is not None:
            self.failed(error)
        self.returned = True
        if not self.handles:
            self.issuer.end(self)

    def failed(self, error: BaseException | None) -> None:
        """Remember that work under it has raised ``error``."""
        if error is not None and not self.ended and self.outcome[0] not in ("oom", "fault"):
            self.outcome = self.issuer.classify(error)

    def __repr__(self) -> str:
        state = "ended" if self.ended else "open"
        return f"<Lease {self.number} {format_bytes(self.bytes)} lane={self.lane!r} {state}>"


class Handle:
    """Keeps a lease open until it is closed; closing it again changes nothing."""

    __slots__ = ("closed", "lease")

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        self.closed = False

    def close(self) -> None:
        if not self.closed:
            self.lease.issuer.turn.take(self._close)

    def _close(self) -> Callable[[], object] | None:
        lease = self.lease
        if self.closed:
            return None
        self.closed = True
        lease.handles -= 1
        return partial(lease.issuer.end, lease) if lease.returned and not lease.handles else None

    def __enter__(self) -> Handle:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Block:
    """A block of code inside the work of ``lease``, and what is held for it until it is closed."""

    __slots__ = ("lease", "outer", "share", "task_id")

    def __init__(self, lease: Lease, size: int, around: Share | None) -> None:
        """``size`` bytes are claimed; before the work begins, ``fund`` it."""
        self.lease = lease
        self.share = lease.issuer.open_share(lease, size, around)
        self.outer: Lease | Block | None = None
        self.task_id = 0

    @property
    def issuer(self) -> Issuer:
        return self.lease.issuer

    @property
    def is_over(self) -> bool:
        return not self.share.is_open

    async def fund(self) -> None:
        """Hold its bytes. Raises ``Rejected`` where the lease can't grow to them now; then it is closed."""
        await self.lease.issuer.fund(self.lease, self.share)

    def fund_here(self) -> None:
        """The same for a thread."""
        self.lease.issuer.fund_here(self.lease, self.share)

    def close(self, error: BaseException | None = None) -> None:
        """End it; closing it again changes nothing. ``error``: what its work has raised."""
        if self.share.is_open and self.lease.is_over:
            self.lease.failed(error)  # a request that runs on tells at its own end how it went
        self.lease.issuer.close_share(self.lease, self.share)
