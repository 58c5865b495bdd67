"""The controller: one budget, its leases and its queue, as its users see it.

Owns which parts an admission is made of, and that a forked process makes its own. What each part
does is in its own file: the ways in are in ``entrance``, waiting in ``waiting``, the end of a
lease in ``ending``.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any, Literal, NoReturn, Self, TypeVar, Unpack, overload

from gpu_admission.admission.block import LeaseContext
from gpu_admission.admission.budgets import budget_of, usable
from gpu_admission.admission.buffered import BufferedBytes
from gpu_admission.admission.ending import Endings
from gpu_admission.admission.entrance import Asked, Entrance
from gpu_admission.admission.events import Events
from gpu_admission.admission.kept import Kept
from gpu_admission.admission.learning import Learning, startable
from gpu_admission.admission.lease import Lease
from gpu_admission.admission.profiler import Profiler
from gpu_admission.admission.refusals import Refusals
from gpu_admission.admission.report import Report, report
from gpu_admission.admission.shadow import ShadowSummary
from gpu_admission.admission.snapshots import queue_of, snapshot_of
from gpu_admission.admission.startup import Startup
from gpu_admission.admission.twins import twins
from gpu_admission.admission.waiting import wake
from gpu_admission.bodies.share import StepShare
from gpu_admission.guards.monitor import Monitor, given_devices
from gpu_admission.runtime.fork import in_child
from gpu_admission.runtime.home import Home
from gpu_admission.settings import Options, Settings, checks, from_environment, named_by_variable, variable
from gpu_admission.shared.gossip import Use
from gpu_admission.sizes import format_bytes, parse_bytes
from gpu_admission.types import Estimate, Observer, Snapshot, Waiting, WatchingObserver

_OF_ONE_PROCESS = (
    "an Admission can't be pickled or copied, since it belongs to one process: build one in each, "
    "with the same shared= where they share one budget"
)
Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])


class Admission:
    """One budget of device bytes with its queue; share it between as many doors as you like.

    All settings are keyword-only and checked here: see ``Settings``. Raises ``TypeError`` or
    ``ValueError`` with a sentence that names the setting.
    """

    def __init__(self, **options: Unpack[Options]) -> None:
        self.given = options
        """The settings as they were given."""
        self.settings = settings = Settings.of(options)
        self.metering = settings.metering()
        self.mode = settings.mode
        self.lane_names: tuple[str, ...] = tuple(lane.name for lane in settings.lanes)
        pickers = [picker for picker in (settings.lane, settings.flow) if picker is not None]
        self.picks_lanes = bool(pickers)
        self.shapes_responses = settings.server_timing or settings.load_header or settings.hold == "response"
        """Whether the settings add anything to every response."""
        self.pickers_read = any(getattr(picker, "needs_body", True) for picker in pickers)
        self.events = Events(self.lane_names)
        self._capacity = settings.capacity
        self.kept: Kept | None = None
        """Keeps what is learned in the file that ``state`` names."""
        self._learning = Learning(self.metering.named_estimators())
        self._make()
        in_child(self._make_anew)
        if settings.shared is None and settings.devices and self.mode == "enforce":
            twins().add(self, settings.name, settings.devices)
        if settings.strict:
            self.startup.check_sizes()
        self._learning.begin(
            lambda: startable(settings, self.locked),
            lambda: self.monitor.devices,
            lambda: self.entrance.recharging.learned(),
        )
        for observer in (*settings.observers, *self._own_observers()):
            self.observe(observer)

    @classmethod
    def from_env(cls, **options: Unpack[Options]) -> Self:
        """An admission whose operator may set ``GPU_ADMISSION_CAPACITY``, ``_TIMEOUT``, ``_MODE``,
        ``_MAX_WAITING``, ``_SHARED`` and ``_NAME``; keywords win. The start line names what was taken.

        Raises ``ValueError`` naming the variable whose value is wrong, or that is no setting.
        """
        given = {name: value for name, value in from_environment(os.environ).items() if name not in options}
        with named_by_variable(given):
            admission = cls(**given, **options)
        admission.startup.taken = tuple(map(variable, given))
        return admission

    def _make(self) -> None:
        """All that belongs to one process: locks, threads, an event loop, and what is held."""
        settings = self.settings
        devices = given_devices(settings)
        home = Home()
        self.locked = budget_of(
            settings, self.given, self._capacity, max(1, len(devices)), partial(wake, home), self._use()
        )
        self.buffer = BufferedBytes(settings.max_buffered_bytes)
        self.share = StepShare()
        self.monitor = Monitor(settings, devices, self.locked)
        if self._capacity != settings.capacity:
            self.monitor.fix_capacity()
        refusals = Refusals(settings, self.locked)
        self.load = refusals.load
        self.endings = Endings(self, settings, self.locked, self.monitor, self.events, refusals)
        self.startup = Startup(settings, self.metering, self.locked, self.monitor, self.events)
        self.entrance = Entrance(
            settings, self.locked, home, self.monitor, self.endings, self.events, refusals, self.startup
        )
        self.begin = self.startup.begin
        """What a server's startup awaits: measure the capacity, watch the devices."""
        self.acquire = self.entrance.acquire
        """For doors: a lease that only its ``release`` ends. ``lease()`` is safer."""

    def _use(self) -> Use:
        """What this process tells the others that share its budget."""
        use = partial(_use_of, self)  # the monitor is made after the budget
        return use if self.settings.shared is None else self._learning.shared(use)

    def _make_anew(self) -> None:
        """In a forked process: nothing is held here, nothing waits, and it measures for itself."""
        taken = self.startup.taken
        self.endings.disown()
        self._make()
        self.startup.taken = taken

    def _own_observers(self) -> Sequence[Observer]:
        """What the settings ask for by name."""
        own: list[Observer] = []
        if self.settings.state is not None:
            self.kept = Kept(self.settings.state, self.metering.named_estimators())
            own.append(self.kept)
        if self.mode == "shadow":
            own.append(ShadowSummary())
        if self.settings.profile:
            own.append(Profiler(self.settings.profile))
        return own

    # doors

    def lease(
        self,
        size: int | str,
        *,
        lane: str | None = None,
        flow: Any = None,
        timeout: float | None = None,
        own: bool = False,
    ) -> LeaseContext:
        """``async with admission.lease("2GiB") as lease:`` at the model call; ``with`` where no loop runs.

        Inside a request that holds a lease of this admission already, it is that lease, grown to
        ``size`` for the block where it is smaller: it never waits. ``own=True`` takes a place in the
        queue even there, for a task that works on after its request; in the very task that holds the
        lease, or one that it waits for (as far as that is seen), it is a ``RuntimeError``. Raises
        ``Rejected``.
        """
        charged = parse_bytes(size, name="size")
        if not charged:
            raise ValueError("size must be above 0 bytes")
        if timeout is not None:
            checks.number("timeout", timeout)
        index = self.entrance.lane_index(lane)
        asked = Asked(lane=index, flow=flow, timeout=timeout)
        return LeaseContext(self.entrance, Estimate(charged), own=own, **asked)

    @overload
    def admit(self, function: Endpoint) -> Endpoint: ...
    @overload
    def admit(self, *, estimator: Any = None) -> Callable[[Endpoint], Endpoint]: ...
    def admit(self, function: Any = None, *, estimator: Any = None) -> Any:
        """Meter one route: ``@admission.admit(estimator=...)`` below the route's own decorator.

        See ``gpu_admission.routes.admit``.
        """
        return _routes().admit(self, function, estimator=estimator)

    def dependency(self, estimator: Any = None) -> Callable[..., AsyncIterator[Lease]]:
        """A FastAPI dependency that gives the route its ``Lease``. See ``gpu_admission.routes``."""
        depend: Callable[..., AsyncIterator[Lease]] = _routes().dependency(self, estimator)
        return depend

    # the whole

    async def __aenter__(self) -> Self:
        await self.begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def resize(self, capacity: int | str) -> None:
        """Change the capacity (bytes, per device). Leases stay; those that can no longer fit are refused.

        A shared budget is changed for all. May be called from any thread, and from a signal handler.
        """
        size = parse_bytes(capacity, name="capacity")
        if not size:
            raise ValueError("capacity must be above 0 bytes; to stop admitting, call drain()")
        self._capacity = size
        self.monitor.fix_capacity()
        self.locked.turn.take(partial(self.locked.resize, usable(self.settings, size)))

    def drain(self, waiting: Literal["refuse", "serve"] = "refuse") -> None:
        """Admit nothing from now on, and refuse all who wait (503 ``draining``). Leases run on.

        ``"serve"``: ``/health/ready`` fails, but what waits and comes is served until a plain ``drain()``.
        Only this process is meant. May be called from any thread, and from a signal handler.
        """
        self.locked.turn.take(partial(self.entrance.drain, waiting))

    async def aclose(self) -> None:
        """Drain, leave a shared budget, and stop what runs in the background.

        Open leases end by themselves; their bytes stay counted until then.
        """
        self.drain()
        self.startup.end()
        await self.events.flush()
        await self.locked.leave()
        self.entrance.leave()

    # what there is to see

    def observe(self, observer: Observer) -> None:
        """Call ``observer`` with each event from now on.

        A ``WatchingObserver`` is given this admission first; for a ``NamingObserver`` each request
        gets an id, which it finds with ``gpu_admission.observe.current_request_id``.
        """
        if isinstance(observer, WatchingObserver):
            observer.watch(self)
        self.events.add(observer)

    @property
    def observers(self) -> tuple[Observer, ...]:
        """All that are called with each event, in their order."""
        return self.events.observers

    @property
    def largest(self) -> int:
        """Bytes of the largest request that can ever start."""
        return self.locked.ledger.largest()

    @property
    def in_use(self) -> int:
        """Bytes that leases hold now."""
        with self.locked as ledger:
            return ledger.in_use

    @property
    def waiting(self) -> int:
        """Requests in the queue now."""
        with self.locked as ledger:
            return ledger.waiting

    def report(self) -> Report:
        """What the policy has done so far, and whether it could ever have fired. Print it to read it."""
        learning = self.metering.progress()
        actual = tuple(map(str, self.events.actuals.all()))
        return report(self.snapshot(), self.settings, self.locked.ledger.asked, learning, actual)

    def queue(self, most: int = 100) -> tuple[Waiting, ...]:
        """The first ``most`` of those who wait, by priority of their lane, then by arrival."""
        return queue_of(self.locked, most)

    def snapshot(self) -> Snapshot:
        """Everything at this instant: cheap, consistent, JSON-able."""
        return snapshot_of(
            self.locked,
            self.monitor,
            mode=self.mode,
            counts=self.events.counts,
            buffered=self.buffer.held + self.buffer.unpacking,
            succeeded_at=self.endings.succeeded_at,
            leaving=self.entrance.is_leaving,
        )

    def __reduce__(self) -> NoReturn:
        raise TypeError(_OF_ONE_PROCESS)

    def __repr__(self) -> str:
        ledger = self.locked.ledger
        return (
            f"<Admission {self.settings.name!r} {format_bytes(ledger.in_use)} "
            f"of {format_bytes(ledger.capacity)} in use by {ledger.running}, "
            f"{ledger.waiting} waiting, mode={self.mode}>"
        )


def _use_of(admission: Admission) -> tuple[Sequence[int], Sequence[int]]:
    """What its devices are used for now."""
    return admission.monitor.use()


def _routes() -> Any:
    """Imported only when a route is metered: the modules that doors are made of import this file."""
    return importlib.import_module("gpu_admission.routes")
