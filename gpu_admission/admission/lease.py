"""A lease: bytes held for one request, until its work has really ended.

Owns the end of holding: released once, by whoever is last of the app and the handles that
``keep`` gave out, from any task or thread. Granting is in the ledger, waiting in
``admission``.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Literal, TypeVar, TypeVarTuple

import anyio

from gpu_admission.errors import Rejected
from gpu_admission.sizes import format_bytes, parse_bytes
from gpu_admission.types import Estimate, Scope

if TYPE_CHECKING:
    from gpu_admission.admission import Admission
    from gpu_admission.admission.feedback import Lesson
    from gpu_admission.budget.ticket import Ticket

SCOPE_KEY = "gpu_admission.lease"
Arguments = TypeVarTuple("Arguments")
T = TypeVar("T")

_current: ContextVar[Lease | None] = ContextVar("gpu_admission.lease", default=None)
_numbers = itertools.count(1)


def current_lease() -> Lease | None:
    """The lease that the running request holds, or ``None``."""
    lease = _current.get()
    while lease is not None and lease.ended:
        lease = lease.outer
    return lease


def held_lease(admission: Admission) -> Lease | None:
    """The open lease of ``admission`` that the running request holds already."""
    lease = _current.get()
    while lease is not None and (lease.ended or lease._admission is not admission):
        lease = lease.outer
    return lease


def nesting_lease(admission: Admission) -> Lease | None:
    """The open lease of ``admission`` inside whose request the arriving one was made.

    A lease that is in its context only because the server went on to the connection's next
    request there, from the task of the last one, is not it.
    """
    if _current.get() is None:
        return None
    lease = held_lease(admission)
    if lease is None or lease.task is None:
        return lease
    return None if _started_alike(lease.task, anyio.get_current_task()) else lease


def _started_alike(task: anyio.TaskInfo, other: anyio.TaskInfo) -> bool:
    """Whether two tasks run the same coroutine function for the same parent, as a server's requests do."""
    if task.id == other.id or task.parent_id != other.parent_id:
        return False
    code: object = getattr(task.coro, "cr_code", None)
    return code is getattr(other.coro, "cr_code", None)


class Lease:
    """The held right to use ``bytes`` of ``device``. It ends once; every method is thread-safe."""

    # Defaults are the class's, of what most leases never need.
    peak: int | None = None
    """What ``record_peak`` was told."""
    task: anyio.TaskInfo | None = None
    """The request's task, where it sends its answer while the lease is in its context."""
    _returned = False

    def __init__(
        self, admission: Admission, ticket: Ticket, estimate: Estimate, route: str, waited: float
    ) -> None:
        self._admission = admission
        self.ledger = admission._ledger
        """Where it is held."""
        self.ticket = ticket
        self.estimate = estimate
        """What was charged, and why."""
        self.route = route
        self.waited = waited
        """Seconds in the queue."""
        self.number = next(_numbers)
        """Counts leases in this process; joins the events of one lease."""
        self.outer: Lease | None = None
        self.ended = False
        self.outcome: tuple[Literal["ok", "error", "oom", "fault", "client"], str] = ("ok", "")
        self.lesson: Lesson | None = None
        """For an estimator that learns from the end of this lease."""
        self.covers: object = None
        """The lease of another admission that stood in the scope before."""
        self._handles = 0

    @property
    def admission(self) -> Admission:
        return self._admission

    @property
    def bytes(self) -> int:
        """Bytes held now."""
        return self.ticket.bytes

    @property
    def device(self) -> str:
        """Name of the device that the bytes are on."""
        return self._admission.device_names[self.ticket.device]

    @property
    def device_index(self) -> int:
        """Its place in the admission's ``devices``."""
        return self.ticket.device

    def on_device(self) -> AbstractContextManager[object]:
        """A context in which ``device`` is torch's current one, in the calling thread.

        Does nothing where the device is none of torch's, or is not known.
        """
        from gpu_admission.devices import on_device

        devices = self._admission.monitor.devices
        return on_device(devices[self.ticket.device]) if devices else nullcontext()

    @property
    def lane(self) -> str:
        return self._admission.lane_names[self.ticket.lane]

    def resize(self, size: int | str) -> None:
        """Hold ``size`` bytes from now on. Shrinking always works and wakes waiters.

        Growing never waits: where it does not fit now it raises ``Rejected``, and the lease
        stays as it is.
        """
        self._admission._resize(self, parse_bytes(size, name="size"))

    def record_peak(self, size: int) -> None:
        """Tell what the request really took, in bytes, for ``Learned`` and the metrics."""
        size = parse_bytes(size, name="peak")
        self.peak = size if self.peak is None else max(self.peak, size)

    def report_oom(self, error: str = "reported") -> None:
        """Tell that the request ran out of device memory although the app answered by itself."""
        self.outcome = ("oom", error)

    def keep(self) -> Handle:
        """Hold on after the app has returned, until the handle is closed (also ``with``).

        For an engine or a thread that frees its memory later than the handler ends, as
        when a client hangs up mid-stream. Raises ``RuntimeError`` when the lease has ended.
        """
        with self._admission._lock:
            if self.ended:
                raise RuntimeError("this lease has ended: keep it before the app returns")
            self._handles += 1
        return Handle(self)

    def release(self) -> None:
        """End it, now or when the last handle is closed. Calling it again changes nothing."""
        self.finish(None)

    def finish(self, error: BaseException | None) -> None:
        """Release it, and remember how its work ended."""
        if error is not None and not self.ended and self.outcome[0] not in ("oom", "fault"):
            self.outcome = self._admission.classify(error)
        self._returned = True
        if not self._handles:
            self._admission._end(self)

    def _let_go(self, handle: Handle) -> None:
        with self._admission._lock:
            if handle.closed:
                return
            handle.closed = True
            self._handles -= 1
        if self._returned and not self._handles:
            self._admission._end(self)

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
        self.lease._let_go(self)

    def __enter__(self) -> Handle:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class LeaseContext:
    """``async with``: a lease for the block, or the one that the request holds already. For one block."""

    __slots__ = ("_admission", "_entered", "_estimate", "_flow", "_lane", "_lease", "_timeout")

    def __init__(
        self, admission: Admission, estimate: Estimate, lane: int, flow: Any, timeout: float | None
    ) -> None:
        self._admission = admission
        self._estimate = estimate
        self._lane = lane
        self._flow = flow
        self._timeout = timeout
        self._entered = False
        self._lease: Lease | None = None

    async def __aenter__(self) -> Lease:
        if self._entered:
            raise RuntimeError("a lease is entered once: call admission.lease(...) for each block")
        self._entered = True
        held = held_lease(self._admission)
        if held is not None:
            return held
        try:
            self._lease = await self._admission.acquire(
                self._estimate, lane=self._lane, flow=self._flow, timeout=self._timeout, route="lease"
            )
        except Rejected as rejected:
            self._admission.refused(rejected, lane=self._lane, route="lease", needed=self._estimate.bytes)
            raise
        enter(self._lease)
        return self._lease

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        if self._lease is None:
            return
        leave(self._lease)
        self._lease.finish(error)


def enter(lease: Lease, scope: Scope | None = None) -> None:
    """Make ``lease`` the current one of this context, and of its request's ``scope``."""
    outer = _current.get()
    while outer is not None and outer.ended:
        outer = outer.outer
    lease.outer = outer
    _current.set(lease)
    if scope is not None:
        lease.covers = scope.get(SCOPE_KEY)
        scope[SCOPE_KEY] = lease


def leave(lease: Lease, scope: Scope | None = None) -> None:
    """Undo ``enter``; where another context runs (a generator closed elsewhere) only in the scope."""
    if _current.get() is lease:
        _current.set(lease.outer)
    if scope is None or scope.get(SCOPE_KEY) is not lease:
        return
    if lease.covers is None:
        del scope[SCOPE_KEY]
    else:
        scope[SCOPE_KEY] = lease.covers


async def outside(lease: Lease, call: Callable[[*Arguments], Awaitable[T]], *args: *Arguments) -> T:
    """``await call(...)`` as if ``lease`` had not been entered: for what runs in the server.

    A server may start the connection's next request inside ``send`` or ``receive``, or in a
    callback that it registers there. That request is not nested in this one, whose lease it
    would take for its own.
    """
    inside = _current.get()
    _current.set(lease.outer)
    try:
        return await call(*args)
    finally:
        _current.set(inside)


def step_out(lease: Lease) -> Lease | None:
    """Leave ``lease`` for a call into the server (see ``outside``); ``step_in`` takes what this returns."""
    inside = _current.get()
    _current.set(lease.outer)
    return inside


def step_in(inside: Lease | None) -> None:
    """Undo ``step_out``."""
    _current.set(inside)
