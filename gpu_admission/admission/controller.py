"""The controller: one budget, its leases, and the only place that waits.

Every change of the ledger happens here, under one lock, so that leases may end in any
thread; whoever is granted by it is woken here. Reading bodies and rendering refusals is
the edge's work (``http``), who may start the ledger's.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import os
import threading
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack, overload

import anyio
import anyio.to_thread

from gpu_admission.admission.buffered import BufferedBytes
from gpu_admission.admission.feedback import Lesson
from gpu_admission.admission.lease import Lease, LeaseContext, nesting_lease
from gpu_admission.admission.refusals import Refusals
from gpu_admission.admission.snapshots import snapshot_of
from gpu_admission.budget.ledger import Ledger
from gpu_admission.budget.ticket import ENDED, GRANTED, REFUSED, WAITING, Ticket
from gpu_admission.errors import ClientLeft, Rejected
from gpu_admission.guards.monitor import Monitor
from gpu_admission.guards.verdict import Verdict
from gpu_admission.request import Estimator, RequestInfo
from gpu_admission.rules.misfits import misfits
from gpu_admission.runtime.loop import call_soon, is_running, running_loop
from gpu_admission.settings import Options, Settings, checks
from gpu_admission.sizes import format_bytes, parse_bytes
from gpu_admission.types import Estimate, Event, Observer, Outcome, Snapshot, Waiting

if TYPE_CHECKING:
    from gpu_admission.admission.report import Report

logger = logging.getLogger("gpu_admission")
Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])
_running_loop = asyncio._get_running_loop
_monotonic = time.monotonic
_NO_LOOP = object()


class Waiter:
    """One waiting task. ``scope`` is what it waits in: cancelled when there is news.

    A scope of its own is all that it takes: a task or an event for each of ten thousand
    would take several times the memory.
    """

    __slots__ = ("left", "scope")

    def __init__(self) -> None:
        self.scope = anyio.CancelScope()
        self.left = False
        """Its client has gone."""


class Admission:
    """One budget of device bytes with its queue; share it between as many doors as you like.

    All settings are keyword-only and checked here: see ``Settings``. Raises ``TypeError`` or
    ``ValueError`` with a sentence that names the setting.
    """

    def __init__(self, **options: Unpack[Options]) -> None:
        self.settings = settings = Settings.of(options)
        self.metering = settings.metering()
        self.mode = settings.mode
        self.lane_names: tuple[str, ...] = tuple(lane.name for lane in settings.lanes)
        pickers = [picker for picker in (settings.lane, settings.flow) if picker is not None]
        self.picks_lanes = bool(pickers)
        self.pickers_read = any(getattr(picker, "needs_body", True) for picker in pickers)
        self.counts: dict[str, int] = defaultdict(int)
        self.needs_request_id = False
        self.observers: tuple[Observer, ...] = ()
        self._live()
        if settings.strict:
            self._check_sizes()
        for each in self.metering.estimators():
            self.bind(each)
        for observer in (*settings.observers, *self._own_observers()):
            self.observe(observer)

    def _live(self) -> None:
        """Make what belongs to one process: at construction, and anew in a process that was forked."""
        settings = self.settings
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._late: list[Lease] = []
        self._loop: Any = _NO_LOOP
        self._started = False
        self._closed: Verdict | None = None
        self._trying: Verdict | None = None
        self.succeeded_at: float | None = None
        self.buffer = BufferedBytes(settings.max_buffered_bytes)
        self.monitor = Monitor(settings, self._lock, self._apply, self._held)
        self._name_devices()
        self._ledger = self._new_ledger()
        self._refusals = Refusals(settings, self._ledger)

    def _name_devices(self) -> None:
        self.device_names = tuple(device.name for device in self.monitor.devices) or ("device",)

    def _check_sizes(self) -> None:
        """Raises ``ValueError`` for a setting by which a request could never fit."""
        for sentence in self._misfits():
            raise ValueError(f"{sentence} (strict=True)")

    def _misfits(self) -> Sequence[str]:
        settings = self.settings
        lanes = range(1 if settings.lane is None else len(settings.lanes))
        largest = max(self._ledger.largest(lane) for lane in lanes)
        # Nothing is known of devices that have not told their memory yet.
        return misfits(self.metering, settings.fallback, largest) if largest else ()

    def _new_ledger(self) -> Ledger:
        settings = self.settings
        per_flow = settings.max_waiting_per_flow
        if per_flow is None and settings.flow is not None:
            per_flow = max(1, settings.max_waiting // 2)
        return Ledger(
            [self._capacity()] * len(self.device_names),
            lanes=settings.lanes,
            max_waiting=settings.max_waiting,
            max_waiting_per_flow=per_flow,
            max_running=settings.max_running,
            max_bypass=settings.max_bypass,
            max_bypass_wait=settings.max_bypass_wait,
            placement=settings.placement,
        )

    def _capacity(self) -> int:
        capacity = self.settings.capacity
        if not isinstance(capacity, int):
            return 0
        return self._usable(capacity)

    def _usable(self, capacity: int) -> int:
        margin = self.settings.margin or 0.0
        return int(capacity * self.settings.overcommit * (1 - margin))

    # asking for a lease

    def check_open(self) -> None:
        """The cheap checks, before a body is read. Raises ``Unavailable`` or ``QueueFull``."""
        if self.mode != "enforce":
            return
        if _running_loop() is not self._loop:
            self._come_home()
        ledger = self._ledger
        if ledger.closed:
            raise self._refusals.draining()
        if self._closed is not None:
            raise self._refusals.closed(self._closed, _monotonic())
        if ledger.waiting and len(self.lane_names) == 1 and ledger.is_full(0):
            raise self._refusals.queue_full(0)

    async def acquire(
        self,
        estimate: Estimate,
        *,
        lane: int = 0,
        flow: Any = None,
        timeout: float | None = None,
        deadline: Callable[[], float | None] | None = None,
        route: str = "*",
        gone: Callable[[], Awaitable[None]] | None = None,
    ) -> Lease:
        """A lease on ``estimate.bytes``, after at most ``timeout`` seconds.

        ``deadline()`` (seconds) shortens the wait. ``gone`` returns when there is nobody left
        to answer. Raises ``Rejected``, or ``ClientLeft`` after ``gone``.
        """
        if self.mode != "enforce":
            return self._watch(estimate, lane, flow, route)
        if _running_loop() is not self._loop:
            self._come_home()
        if not self.monitor.is_measured:
            await self.measure()
        if self._closed is not None:
            raise self._refusals.closed(self._closed, _monotonic())
        ticket = Ticket(estimate.bytes, lane, flow)
        with self._lock:
            granted = self._ledger.request(ticket, _monotonic())
            if ticket.state is WAITING:
                ticket.waiter = Waiter()
        if granted and granted != (ticket,):
            self._wake(granted)  # who came may have let an earlier one start: it must hear of it
        if ticket.state is WAITING:
            await self._wait(ticket, timeout, deadline, gone)
        elif ticket.state is REFUSED:
            raise self._why_not(ticket)
        self.counts["admitted"] += 1
        lease = Lease(self, ticket, estimate, route, ticket.granted_at - ticket.arrived)
        if self.observers:
            self._tell("admitted", lease)
        return lease

    async def measure(self) -> None:
        """Have the capacity measured, once, where it was not given in bytes.

        A device that does not tell stays closed: see ``Monitor.measure``. In ``shadow``
        nobody waits for it.
        """
        if self.mode == "shadow":
            self.monitor.measure_aside()
        elif self.mode == "enforce" and not self.monitor.is_measured:
            if _running_loop() is not self._loop:
                self._come_home()
            await anyio.to_thread.run_sync(self.monitor.measure, limiter=self._measuring)
            self.start()

    def _why_not(self, ticket: Ticket) -> Rejected:
        if self._ledger.closed:
            return self._refusals.draining()
        if self._closed is not None:
            return self._refusals.closed(self._closed, _monotonic())
        if ticket.bytes > self._ledger.largest(ticket.lane):
            return self._refusals.too_large(ticket.bytes, ticket.lane)
        if self._trying is not None:
            return self._refusals.closed(self._trying, _monotonic())
        return self._refusals.queue_full(ticket.lane, of_flow=not self._ledger.is_full(ticket.lane))

    def _patience(
        self, lane: int, timeout: float | None, deadline: Callable[[], float | None] | None
    ) -> tuple[float, str]:
        """How long to wait, and the name of the setting that says so."""
        own = self.settings.lanes[lane].timeout
        setting, longest = ("timeout", self.settings.timeout)
        if own is not None:
            setting, longest = f"lane {self.lane_names[lane]!r}: timeout", own
        if timeout is not None:
            setting, longest = "timeout", timeout
        limit = None if deadline is None else deadline()
        if limit is not None and limit < longest:
            return limit, "deadline"
        return longest, setting

    async def _wait(
        self,
        ticket: Ticket,
        timeout: float | None,
        deadline: Callable[[], float | None] | None,
        gone: Callable[[], Awaitable[None]] | None,
    ) -> None:
        """Return when ``ticket`` is granted; however else this ends, it has left the queue."""
        waiter: Waiter = ticket.waiter
        try:
            longest, setting = self._patience(ticket.lane, timeout, deadline)
            closed = self._closed or self._trying
            if closed is not None:
                raise self._refusals.closed(closed, _monotonic())
            self._refuse_early(ticket, longest, setting)
            waiter.scope.deadline = anyio.current_time() + longest
            with waiter.scope:
                await (anyio.sleep_forever() if gone is None else gone())
                waiter.left = True
        except BaseException:
            self._withdraw(ticket)
            raise
        if ticket.state is GRANTED and not waiter.left:
            return
        state = ticket.state
        self._withdraw(ticket)
        if waiter.left:
            raise ClientLeft("the client left while it waited")
        if state is REFUSED:
            rejected = self._why_not(ticket)
        else:
            rejected = self._refusals.timed_out(ticket.bytes, longest, setting)
        rejected.waited = _monotonic() - ticket.arrived
        raise rejected

    def _refuse_early(self, ticket: Ticket, longest: float, setting: str) -> None:
        if not self.settings.refuse_early:
            return
        forecast = self._ledger.forecast_of(ticket, _monotonic())
        if forecast is not None and forecast > longest:
            raise self._refusals.too_late(ticket.bytes, forecast, longest, setting)

    def _withdraw(self, ticket: Ticket) -> None:
        with self._lock:
            granted = self._ledger.release(ticket, _monotonic())
        self._wake(granted)

    def _watch(self, estimate: Estimate, lane: int, flow: Any, route: str) -> Lease:
        """A lease that is always given: recorded in ``shadow`` mode, not even counted in ``off``."""
        if self._pid != os.getpid():
            self._live()
        ticket = Ticket(estimate.bytes, lane, flow)
        lease = Lease(self, ticket, estimate, route, 0.0)
        if self.mode == "off":
            return lease
        if not self.monitor.is_measured:
            self.monitor.measure_aside()
        self.start()
        with self._lock:
            self._ledger.request(ticket, _monotonic())
            known = self.monitor.is_measured
            would = self._would_refuse(ticket) if known and ticket.state is not GRANTED else ""
            if ticket.state is not GRANTED:
                now = _monotonic()
                self._ledger.release(ticket, now)
                self._ledger.force(ticket, now)
        self.counts["admitted"] += 1
        if would:
            self.counts[f"shadow_{would}"] += 1
        if self.observers:
            self._tell("shadow", lease, reason=would)
        return lease

    def _would_refuse(self, ticket: Ticket) -> str:
        """What a request that did not start at once would have come to: ``waited``, or a reason."""
        if ticket.state is not WAITING or self._closed is not None:
            return self._why_not(ticket).reason
        forecast = self._ledger.forecast_of(ticket, _monotonic())
        longest, _ = self._patience(ticket.lane, None, None)
        return "queue_timeout" if longest == 0 or (forecast or 0.0) > longest else "waited"

    def refused(
        self, rejected: Rejected, *, lane: int = 0, route: str = "*", needed: int | None = None
    ) -> None:
        """Complete a refusal on its way out, count it and tell the observers."""
        self._refusals.complete(rejected, needed, _monotonic(), self.monitor.lowered())
        self.counts[rejected.reason] += 1
        if self.observers:
            self._emit(
                Event(
                    kind="refused",
                    at=_monotonic(),
                    route=route,
                    lane=self.lane_names[lane],
                    bytes=rejected.needed or 0,
                    reason=rejected.reason,
                    status=rejected.status,
                    waited=rejected.waited,
                )
            )

    def left(self, *, lane: int = 0, route: str = "*") -> None:
        """Count a client that went away before the app was called."""
        self.counts["disconnected"] += 1
        if self.observers:
            self._emit(Event(kind="disconnected", at=_monotonic(), route=route, lane=self.lane_names[lane]))

    # ending and changing one

    def _end(self, lease: Lease) -> None:
        if lease.ended:
            return
        if self._lock._is_owned():  # type: ignore[attr-defined]
            # The garbage collector closes a generator that held a lease while we change the
            # ledger in this very thread: it is ended when that change is done.
            self._late.append(lease)
            if self._loop is not _NO_LOOP:
                call_soon(self._loop, self._end_late)
            return
        with self._lock:
            if lease.ended or lease._handles:
                return
            lease.ended = True
            now = _monotonic()
            try:
                self._learn_from(lease, now)
            finally:
                granted = lease.ledger.release(lease.ticket, now)
        if granted:
            self._wake(granted)
        if self.observers and lease.ticket.state is ENDED:  # else it was given in mode "off"
            self._tell("released", lease, held=now - lease.ticket.granted_at)
        self._end_late()

    def _learn_from(self, lease: Lease, now: float) -> None:
        """Before its bytes are free: the next one starts by what this one has shown."""
        kind, error = lease.outcome
        if kind == "ok":
            self.succeeded_at = now
        if lease.lesson is not None:
            lease.lesson.end(lease)
        if self.monitor.is_watching:
            self.monitor.ended(lease.ticket.device, kind, lease.ticket.bytes, error, now)

    def _end_late(self) -> None:
        while self._late:
            self._end(self._late.pop())

    def _resize(self, lease: Lease, size: int) -> None:
        with self._lock:
            if lease.ended:
                raise RuntimeError("this lease has ended: it can't be resized")
            ticket = lease.ticket
            if self.mode == "enforce" and size > ticket.bytes and not self._ledger.can_grow(ticket, size):
                rejected = self._refusals.no_room(size)
                self._refusals.complete(rejected, size, _monotonic())
                raise rejected
            granted: Sequence[Ticket] = ()
            if ticket.state is GRANTED:
                granted = lease.ledger.change(ticket, size, _monotonic())
            ticket.bytes = size
        self._wake(granted)
        if self.observers and ticket.state is GRANTED:
            self._tell("resized", lease)

    def _wake(self, granted: Sequence[Ticket]) -> None:
        if not granted:
            return
        at_home = _at_home(self._loop)
        for ticket in granted:
            if ticket.waiter is None:
                continue
            if at_home:
                ticket.waiter.scope.cancel()
            else:
                call_soon(self._loop, ticket.waiter.scope.cancel)

    def _come_home(self) -> None:
        """Bind to the running event loop. A second one, while the first still runs, is refused."""
        if self._pid != os.getpid():
            self._live()
        loop = running_loop()
        with self._lock:
            if loop is self._loop:
                return
            if self._loop is not _NO_LOOP and is_running(self._loop):
                raise RuntimeError(
                    "this Admission already serves another event loop that is still running; "
                    "give each loop (thread) an Admission of its own"
                )
            self._loop = loop
            self._measuring = anyio.CapacityLimiter(1)
            self._ledger.refuse_all(_monotonic())
        self.start()

    def bind(self, estimator: Estimator) -> None:
        """Give the capacity to an estimator that wants it (``Learned``)."""
        bind = getattr(estimator, "bind", None)
        if bind is not None:
            bind(lambda: self.largest)

    def teach(self, lease: Lease, estimator: Any, info: RequestInfo) -> None:
        """Tell ``estimator`` at the end of ``lease`` what it really took."""
        with self._lock:
            lease.lesson = Lesson(estimator, info, lease.estimate, self._ledger)

    # what is safe

    def out_of_memory(self, status: int) -> Rejected:
        """The refusal in place of an answer that ran out of memory before it began."""
        rejected = self._refusals.out_of_memory(status)
        self._refusals.complete(rejected, None, _monotonic())
        return rejected

    async def begin(self) -> None:
        """Measure the capacity and begin to watch the devices: at the server's startup.

        Raises ``ValueError`` under ``strict=True`` for what could then not be served: a device
        that does not tell its memory, a setting by which a request could never fit.
        """
        if self._pid != os.getpid():
            self._live()
        if self.mode != "off":
            await anyio.to_thread.run_sync(self.monitor.measure)
        self.start()
        if self.settings.strict and self.mode != "off":
            if self.monitor.failure:
                raise ValueError(f"{self.monitor.failure} (strict=True)")
            self._check_sizes()

    def report_outcome(self, outcome: Outcome, device: int = 0) -> None:
        """Tell the guards of a device how work on it ended: leases do so by themselves."""
        if self.monitor.is_watching:
            self.monitor.ended(device, outcome.kind, outcome.bytes, outcome.error, outcome.at)

    def _held(self, device: int) -> tuple[int | None, int | None]:
        account = self._ledger.accounts[device]
        return account.capacity, account.in_use

    def _apply(self, device: int, verdict: Verdict, capacity: int | None) -> None:
        """Put what the guards of ``device`` say, and a ``capacity`` that was measured, into force."""
        ledger, now = self._ledger, _monotonic()
        if not self.monitor.is_measured:
            # Its drivers have just been asked who they are; from then on names stay.
            self._name_devices()
        changed = ledger.allow(
            device, now, capacity=capacity, ceiling=verdict.ceiling, max_running=verdict.trials
        )
        self._closed = self.monitor.closed()
        self._trying = self.monitor.trying()
        self._wake(changed)
        if self._closed is not None:
            # Whoever comes now is refused at once: so are those who came before.
            self._wake(ledger.refuse_all(now))

    # changing the whole

    def resize(self, capacity: int | str) -> None:
        """Change the capacity (bytes, per device). Leases stay; those that can no longer fit are refused."""
        size = parse_bytes(capacity, name="capacity")
        if not size:
            raise ValueError("capacity must be above 0 bytes; to stop admitting, call drain()")
        with self._lock:
            self.monitor.fix_capacity()
            now = _monotonic()
            changed = list(self._ledger.resize([self._usable(size)] * len(self.device_names), now))
        self._wake(changed)

    def drain(self) -> None:
        """Admit nobody from now on, and refuse those who wait (503 ``draining``). Leases run on.

        May be called from any thread, and from a signal handler.
        """
        if self._lock._is_owned() and self._loop is not _NO_LOOP:  # type: ignore[attr-defined]
            # The handler has interrupted a change of the ledger in this very thread.
            call_soon(self._loop, self.drain)
            return
        with self._lock:
            refused = self._ledger.close(_monotonic())
        self._wake(refused)

    async def aclose(self) -> None:
        """Drain, and stop what runs in the background. Open leases end by themselves."""
        self.drain()
        self.stop()

    def stop(self) -> None:
        """Stop what runs in the background, until the server starts again."""
        self.monitor.stop()
        self._started = False

    # doors

    def lease(
        self, size: int | str, *, lane: str | None = None, flow: Any = None, timeout: float | None = None
    ) -> LeaseContext:
        """``async with admission.lease("2GiB") as lease:`` right at the model call.

        Inside a request that holds a lease of this admission already, it is that lease.
        Raises ``Rejected``.
        """
        charged = parse_bytes(size, name="size")
        if not charged:
            raise ValueError("size must be above 0 bytes")
        if timeout is not None:
            checks.number("timeout", timeout)
        return LeaseContext(self, Estimate(charged), self.lane_index(lane), flow, timeout)

    @overload
    def admit(self, function: Endpoint) -> Endpoint: ...
    @overload
    def admit(self, *, estimator: Any = None) -> Callable[[Endpoint], Endpoint]: ...
    def admit(self, function: Any = None, *, estimator: Any = None) -> Any:
        """Meter one route: ``@admission.admit(estimator=...)`` below the route's own decorator.

        See ``gpu_admission.routes.door.admit``.
        """
        from gpu_admission import routes

        return routes.admit(self, function, estimator=estimator)

    def dependency(self, estimator: Any = None) -> Callable[..., AsyncIterator[Lease]]:
        """A FastAPI dependency that gives the route its ``Lease``. See ``gpu_admission.routes.door``."""
        from gpu_admission import routes

        return routes.dependency(self, estimator)

    def classify(self, error: BaseException) -> tuple[Literal["error", "oom", "fault", "client"], str]:
        """How work that raised ``error`` ended, and the name of its class."""
        name = type(error).__name__
        if not isinstance(error, Exception):
            return "client", name
        from gpu_admission.guards.classify import classify

        try:
            kind = (self.settings.classify or classify)(error)
        except Exception:
            logger.exception("classify failed on %s: it counts as an error", name)
            return "error", name
        return kind if kind in ("oom", "fault") else "error", name

    @property
    def largest(self) -> int:
        """Bytes of the largest request that can ever start."""
        return self._ledger.largest()

    def held(self) -> Lease | None:
        """The lease of this admission that the arriving request holds already."""
        return nesting_lease(self)

    def lane_index(self, name: str | None) -> int:
        """The place of the lane called ``name``; ``None`` is the first."""
        if name is None:
            return 0
        try:
            return self.lane_names.index(name)
        except ValueError:
            raise ValueError(f"there is no lane {name!r}; lanes are {', '.join(self.lane_names)}") from None

    # what is told

    def start(self) -> None:
        """Work begins: said once, at the server's startup or else at the first request."""
        if self._started or not self.monitor.is_measured:
            return
        self._started = True
        if self.mode != "off":
            self.monitor.start()
        from gpu_admission.admission.startline import start_line

        logger.info("%s", start_line(self))
        for sentence in self._misfits():
            logger.warning("%s", sentence)
        if self.observers:
            lane = self.lane_names[0]
            self._emit(
                Event(kind="started", at=_monotonic(), route="*", lane=lane, bytes=self._ledger.capacity)
            )

    def observe(self, observer: Observer) -> None:
        """Call ``observer`` with each event from now on.

        One that has a method ``watch`` is given this admission first. One that has a true
        ``needs_request_id`` finds it with ``gpu_admission.observe.current_request_id``.
        """
        watch = getattr(observer, "watch", None)
        if watch is not None:
            watch(self)
        self.observers = (*self.observers, observer)
        self.needs_request_id = any(getattr(each, "needs_request_id", False) for each in self.observers)

    def _own_observers(self) -> Sequence[Observer]:
        """What the settings ask for by name."""
        own: list[Observer] = []
        if self.mode == "shadow":
            from gpu_admission.admission.shadow import ShadowSummary

            own.append(ShadowSummary())
        if self.settings.profile:
            from gpu_admission.observe.profiler import Profiler

            own.append(Profiler(self.settings.profile))
        return own

    def _tell(self, kind: Any, lease: Lease, *, reason: str = "", held: float = 0.0) -> None:
        ticket = lease.ticket
        self._emit(
            Event(
                kind=kind,
                at=_monotonic(),
                route=lease.route,
                lane=self.lane_names[ticket.lane],
                reason=reason,
                bytes=ticket.bytes,
                waited=lease.waited,
                held=held,
                device=self.device_names[ticket.device],
                peak=lease.peak,
                outcome=lease.outcome[0],
                lease=lease.number,
                estimate=lease.estimate,
            )
        )

    def _emit(self, event: Event) -> None:
        for observer in self.observers:
            try:
                observer(event)
            except Exception:
                logger.exception("observer %r failed", observer)

    # what there is to see

    @property
    def in_use(self) -> int:
        """Bytes that leases hold now."""
        return self._ledger.in_use

    @property
    def waiting(self) -> int:
        """Requests in the queue now."""
        return self._ledger.waiting

    def report(self) -> Report:
        """What the policy did so far, and whether it could ever have fired; ``str`` of it is for people."""
        from gpu_admission.admission.report import report

        return report(self.snapshot(), self.settings, self._ledger.asked)

    def queue(self, most: int = 100) -> tuple[Waiting, ...]:
        """The first ``most`` of those who wait, by priority of their lane, then by arrival."""
        with self._lock:
            ledger, now = self._ledger, _monotonic()
            line = (
                (-lane.lane.priority, ticket.arrived, ticket)
                for lane in ledger.lanes
                for ticket in lane.tickets()
            )
            ahead = -ledger.available
            waiting = []
            for _, arrived, ticket in heapq.nsmallest(most, line, key=lambda entry: entry[:2]):
                ahead += ticket.bytes
                forecast = ledger.drain.seconds(max(ahead, ticket.bytes))
                waiting.append(Waiting(self.lane_names[ticket.lane], ticket.bytes, now - arrived, forecast))
            return tuple(waiting)

    def snapshot(self) -> Snapshot:
        """Everything at this instant: cheap, consistent, JSON-able."""
        with self._lock:
            return snapshot_of(self, self._ledger, _monotonic())

    def __repr__(self) -> str:
        ledger = self._ledger
        return (
            f"<Admission {self.settings.name!r} {format_bytes(ledger.in_use)} "
            f"of {format_bytes(ledger.capacity)} in use by {ledger.running}, "
            f"{ledger.waiting} waiting, mode={self.mode}>"
        )


def _at_home(loop: Any) -> bool:
    try:
        return running_loop() is loop
    except RuntimeError:
        return False
