"""What every door asks of an admission: the cheap checks, a lease, a refusal completed and counted.

Owns the order of these and the event loop that is served. Reading bodies and rendering refusals
belongs to the edge (``http``), who may start to the ledger, and waiting to ``waiting``.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypedDict

import anyio
import anyio.to_thread

from gpu_admission.admission.context import Holder, holder_of, innermost, nesting_lease
from gpu_admission.admission.events import Events
from gpu_admission.admission.lease import Issuer, Lease
from gpu_admission.admission.recharging import Again, Recharging
from gpu_admission.admission.refusals import Refusals
from gpu_admission.admission.seam import Budget
from gpu_admission.admission.shadow import Shadow
from gpu_admission.admission.snapshots import place_of
from gpu_admission.admission.startup import Startup
from gpu_admission.admission.waiting import Gone, Waiting
from gpu_admission.budget.ticket import Ticket
from gpu_admission.errors import Rejected
from gpu_admission.estimators.taken import ALONE
from gpu_admission.guards.monitor import Monitor
from gpu_admission.runtime.home import Home
from gpu_admission.runtime.loop import running_asyncio, running_loop
from gpu_admission.settings import Settings, checks
from gpu_admission.types import Estimate, Place

_LOOK_SECONDS = 0.5
"""Seconds between checks whether a guard, or another process, has closed the doors."""


class Asked(TypedDict, total=False):
    """How a lease is asked for, beside its estimate."""

    lane: int
    flow: Any
    timeout: float | None
    """Seconds to wait at most; ``None``: the setting."""
    deadline: float | None
    """Seconds that its client waits at most, if they are fewer."""
    waited_before: float
    """Seconds that it has waited already, which count towards ``timeout`` and ``deadline``."""
    route: str
    gone: Gone | None
    """Returns when there is nobody left to answer."""
    queued: Callable[[Ticket], object] | None
    """Called with its place in the queue, where it has to wait."""


_NOWHERE: Any = object()


class Entrance:
    """The way into one admission, in one process."""

    def __init__(
        self,
        settings: Settings,
        locked: Budget,
        home: Home,
        monitor: Monitor,
        issuer: Issuer,
        events: Events,
        refusals: Refusals,
        startup: Startup,
    ) -> None:
        self.issuer = issuer
        self._mode = settings.mode
        self._lane_names = tuple(lane.name for lane in settings.lanes)
        self._locked = locked
        self._home = home
        self._monitor = monitor
        self._events = events
        self._refusals = refusals
        self._startup = startup
        self._waiting = Waiting(settings, locked, monitor, refusals)
        self._shadow = Shadow(issuer, locked, monitor, events, refusals, self._waiting)
        self.recharging = Recharging(locked, home)
        self._measuring: anyio.CapacityLimiter | None = None
        self._open_for: set[anyio.CancelScope] = set()
        self.is_leaving = False
        """Whether traffic should go elsewhere, though what comes may still be served."""
        self._begun_in: Any = _NOWHERE
        """The asyncio loop that is served; set once nothing remains to be done before a request may start."""

    def is_open(self, loop: Any) -> bool:
        """Whether ``check_open`` would do nothing. ``loop`` is the running asyncio loop, or ``None``."""
        return loop is self._begun_in and self._refusal() is None

    def check_open(self) -> None:
        """The cheap checks, before a body is read. Raises ``Unavailable`` or ``QueueFull``."""
        if self._mode != "enforce":
            return
        if running_asyncio() is not self._home.loop:
            self._come_home()
        refusal = self._refusal()
        if refusal is not None:
            raise refusal()

    def _refusal(self) -> Callable[[], Rejected] | None:
        """Makes the answer to a request whatever it asks for; ``None``: that depends on what it asks."""
        ledger = self._locked.ledger
        if self._locked.is_closed:
            return self._refusals.draining
        if self._monitor.closed is not None:
            return partial(self._refusals.closed, self._monitor.closed)
        if ledger.waiting and len(self._lane_names) == 1:
            lane = ledger.lane_called(self._lane_names[0])
            return partial(self._refusals.queue_full, lane) if ledger.is_full(lane) else None
        return None

    async def closed(self) -> None:
        """Wait until nothing is let in any more. Then raises ``Unavailable``."""
        if self._mode != "enforce":
            await anyio.sleep_forever()
        if running_asyncio() is not self._home.loop:
            self._come_home()
        while not self._locked.is_closed and self._monitor.closed is None:
            with anyio.move_on_after(_LOOK_SECONDS) as waiting:
                self._open_for.add(waiting)
                try:
                    if not self._locked.is_closed:  # or it was closed before it could be told
                        await anyio.sleep_forever()
                finally:
                    self._open_for.discard(waiting)
        self.check_open()

    def drain(self, waiting: str) -> None:
        """Let nothing in from now on; where ``waiting`` is ``"serve"``, only say so.

        To be called in a turn that interrupts no other change.
        """
        checks.word("refuse", "serve")("waiting", waiting)
        self.is_leaving = True
        if waiting == "serve":
            return
        self._locked.drain()
        for scope in tuple(self._open_for):
            self._home.call(scope.cancel)

    def leave(self) -> None:
        """Keep no event loop of our own any more: nothing is let in from now on."""
        self._home.leave()

    def start(self, estimate: Estimate, lane: int, flow: Any, route: str, loop: Any) -> Lease | None:
        """A lease on ``estimate.bytes`` where they are free and nobody waits; else ``None``: ``acquire`` it.

        ``loop`` is the running asyncio loop, or ``None``.
        """
        if loop is not self._begun_in:
            return None
        ticket = Ticket(estimate.bytes, lane, flow)
        return self._given(ticket, estimate, route) if self._locked.start(ticket) else None

    async def acquire(
        self,
        estimate: Estimate,
        *,
        lane: int = 0,
        flow: Any = None,
        timeout: float | None = None,
        deadline: float | None = None,
        waited_before: float = 0.0,
        route: str = "*",
        gone: Gone | None = None,
        queued: Callable[[Ticket], object] | None = None,
        again: Again | None = None,
    ) -> Lease:
        """A lease on ``estimate.bytes``, after at most ``timeout`` seconds, with those ``waited_before``.

        ``deadline`` (seconds) shortens the wait. ``gone`` returns when there is nobody left to answer.
        ``again()`` says what is charged by what is known now. Raises ``Rejected``, or ``ClientLeft``
        after ``gone``.
        """
        if self._mode != "enforce":
            return self._without_deciding(Ticket(estimate.bytes, lane, flow), estimate, route)
        if running_asyncio() is not self._home.loop:
            self._come_home()
        await self._begin()
        if self._monitor.closed is not None:
            raise self._refusals.closed(self._monitor.closed)
        ticket = Ticket(estimate.bytes, lane, flow, waited_before=waited_before)
        if not self._locked.ask(ticket):
            if queued is not None:
                queued(ticket)
            if again is None:
                await self._waiting.wait(ticket, lane, timeout, deadline, gone)
            else:
                with self.recharging.of(ticket, again):
                    await self._waiting.wait(ticket, lane, timeout, deadline, gone)
                estimate = self.recharging.started(ticket, estimate, again)
        return self._given(ticket, estimate, route)

    def patience(self, lane: int | None, deadline: float | None) -> tuple[float, str]:
        """How long it may wait in all, and which setting says so; ``None``: in the most patient lane."""
        lanes = range(len(self._lane_names)) if lane is None else (lane,)
        return max(self._waiting.patience(each, None, deadline) for each in lanes)

    def unread(self, longest: float, setting: str) -> Rejected:
        """The refusal of a request whose body could not be read in the time that it may wait."""
        return self._refusals.unread(longest, setting)

    def no_more(self, size: int, missing: int, least: int, lane: int) -> Rejected:
        """The refusal of work that may not wait for what its leases lack: see ``Refusals.no_more``."""
        return self._refusals.no_more(size, missing, least, lane)

    async def _begin(self) -> None:
        """Do what has to be done before the first request may start."""
        if not self._locked.is_joined:
            await self._locked.join()
            self._startup.start()
        if not self._monitor.is_measured:
            await self.measure()
        self._begun_in = self._home.loop

    def _given(self, ticket: Ticket, estimate: Estimate, route: str) -> Lease:
        events = self._events
        events.counts["admitted"] += 1
        lease = Lease(self.issuer, ticket, estimate, route)
        if events.observers:
            self._tell(lease)
        return lease

    def _tell(self, lease: Lease) -> None:
        try:
            self._events.of("admitted", lease)
        except BaseException:  # an observer's ``SystemExit``, or an interrupt: nobody gets the lease
            lease.release()
            raise

    def _without_deciding(self, ticket: Ticket, estimate: Estimate, route: str) -> Lease:
        """A lease that is always given: recorded in ``shadow`` mode, not even counted in ``off``."""
        if self._mode == "off":
            return Lease(self.issuer, ticket, estimate, route)
        self._locked.join_aside()
        if not self._monitor.is_measured:
            self._monitor.measure_aside()
        self._startup.start()
        return self._shadow.lease(ticket, estimate, route)

    async def measure(self) -> None:
        """Have the capacity measured, once, where it was not given in bytes.

        A device that does not report its memory stays closed: see ``Monitor.measure``. In ``shadow``
        mode nobody waits for it.
        """
        if self._mode == "shadow":
            self._monitor.measure_aside()
        elif self._mode == "enforce" and not self._monitor.is_measured:
            if running_asyncio() is not self._home.loop:
                self._come_home()
            await self._locked.join()
            await anyio.to_thread.run_sync(self._monitor.measure, limiter=self._measuring)
            self._startup.start()

    def place(self, ticket: Ticket) -> Place | None:
        """Where ``ticket`` is in the queue now; ``None``: it does not wait."""
        return place_of(self._locked, ticket)

    @property
    def serves_elsewhere(self) -> bool:
        """Whether the loop that is served still runs, but is not the one running here (if any is)."""
        return self._home.is_elsewhere

    def from_thread(self, ask: Callable[[], Coroutine[Any, Any, Lease]]) -> Lease:
        """The lease from ``ask()``, which is called and waits in the loop that is served, or one of ours.

        Raises ``RuntimeError`` where that would block a loop.
        """
        return self._home.wait_for(ask)

    def held(self) -> Lease | None:
        """The lease of this admission that the arriving request holds already."""
        return None if innermost() is None else nesting_lease(self.issuer)

    def holder(self) -> Holder | None:
        """What gives the running code bytes of this admission: that lease, or a block inside it."""
        return holder_of(self.issuer)

    def refused(
        self, rejected: Rejected, *, lane: int = 0, route: str = "*", charged: Estimate | None = None
    ) -> None:
        """Complete a refusal on its way out, count it and pass it on to the observers."""
        if charged is not None and ALONE in charged.parts and rejected.status == 429:
            rejected.detail += f"; it was {charged.notes[-1]}"
        needed = None if charged is None else charged.bytes
        self._refusals.complete(rejected, needed, self._monitor.lowered(), self._events.actuals.of(route))
        self._events.refused(rejected, lane, route)

    def left(self, *, lane: int = 0, route: str = "*") -> None:
        """Count a client that went away before the app was called."""
        self._events.left(lane, route)

    def lane_index(self, name: str | None) -> int:
        """Index of the lane called ``name``; ``None`` means the first."""
        if name is None:
            return 0
        try:
            return self._lane_names.index(name)
        except ValueError:
            raise ValueError(f"there is no lane {name!r}; lanes are {', '.join(self._lane_names)}") from None

    def _come_home(self) -> None:
        """Serve the running event loop from now on. A second one, while the first runs, is refused."""
        loop = running_loop()
        home = self._home
        with self._locked:
            if loop is home.loop:
                return  # trio's, which the quick look does not know
            if home.is_taken:
                raise RuntimeError(
                    "this Admission already serves another event loop that is still running; "
                    "give each loop (thread) an Admission of its own"
                )
            with home.moving(loop):
                # Those who waited in the other loop hear of it there, should it ever run again.
                self._locked.refuse_all()
            self._begun_in = _NOWHERE
            self._measuring = anyio.CapacityLimiter(1)
        self._startup.start()
