"""A budget that many processes share, as the rest of an admission sees it: ``LockedLedger``'s face.

Owns when this process begins to take part (with its first request, never before a fork), that a
change is whole before the next begins, and what is this process's own: its drain, and the work
that it starts. How processes agree is ``gpu_admission.shared``'s business.
"""

from __future__ import annotations

import atexit
import hashlib
import logging
import threading
import weakref
from collections.abc import Sequence
from functools import partial

import anyio.to_thread

from gpu_admission.admission.seam import Woken
from gpu_admission.budget.ledger import Ledger
from gpu_admission.budget.ticket import GRANTED, REFUSED, Ticket
from gpu_admission.guards.verdict import Verdict
from gpu_admission.runtime import clock
from gpu_admission.runtime.answer import Answer
from gpu_admission.runtime.turn import Turn
from gpu_admission.shared.gossip import Use
from gpu_admission.shared.ledger import SharedLedger
from gpu_admission.shared.members import Allowed
from gpu_admission.shared.opening import open_log
from gpu_admission.shared.operations import Terms, Why
from gpu_admission.shared.process import pid
from gpu_admission.shared.protocol import LogAway
from gpu_admission.types import Device, MemberSnapshot

logger = logging.getLogger("gpu_admission")


class Sharing:
    """A ``Budget`` over a ``SharedLedger``; see ``seam`` for what each method does.

    ``shared`` is as in the settings. ``use()`` returns, for each device, the bytes that this
    process holds besides its leases, and those that its leases really take. Nothing is opened
    before ``join``. Raises ``TypeError`` or ``ValueError`` that names ``shared``.
    """

    __slots__ = (
        "__weakref__",
        "_closed",
        "_has_left",
        "_joining",
        "_shared",
        "_woken",
        "is_joined",
        "turn",
        "where",
    )

    may_resize = False

    def __init__(
        self,
        shared: object,
        terms: Terms,
        woken: Woken,
        *,
        fallback: float,
        use: Use,
        devices: Sequence[Device] = (),
    ) -> None:
        log = open_log(shared, lease_ttl=terms.lease_ttl)
        self._shared = SharedLedger(
            log, terms, woken=woken, use=use, fallback=fallback, devices=partial(_keys, devices)
        )
        self._woken = woken
        self._closed = self._has_left = False
        self._joining = threading.Lock()
        self.is_joined = False
        self.turn = Turn(self._shared.lock)
        self.where: str | None = log.where
        atexit.register(_leave_at_exit, weakref.ref(self), pid())

    def __enter__(self) -> Ledger:
        self.turn.__enter__()
        return self._shared.ledger

    def __exit__(self, *error: object) -> None:
        self.turn.__exit__(*error)

    @property
    def ledger(self) -> Ledger:
        """Don't keep it: it is a new object after the log was lost, or settings have changed."""
        return self._shared.ledger_as_read

    @property
    def lane_names(self) -> Sequence[str]:
        return tuple(state.lane.name for state in self._shared.ledger_as_read.lanes)

    def now(self) -> float:
        """The log's time, which tickets are stamped with."""
        return self._shared.now()

    @property
    def is_given(self) -> bool:
        return self._shared.replica.is_given

    @property
    def is_closed(self) -> bool:
        return self._closed or self._shared.ledger_as_read.closed

    @property
    def away(self) -> str | None:
        return self._shared.away

    @property
    def is_cut_off(self) -> bool:
        """Its own share can't be granted then either: nobody has told of what."""
        return self._shared.away is not None and self._shared.replica.ledger is None

    @property
    def settles(self) -> float | None:
        return self._shared.settles

    def catch_up(self) -> None:
        if self.is_joined:
            self._shared.catch_up()

    def members(self) -> tuple[MemberSnapshot, ...]:
        return self._shared.members() if self.is_joined else ()

    # its life

    async def join(self) -> None:
        """Raises ``ValueError`` for a place that can't be used. A place out of reach is no error."""
        if not self.is_joined:
            await anyio.to_thread.run_sync(self._join)

    def join_aside(self) -> None:
        if not self.is_joined:
            threading.Thread(target=self._try_to_join, name="gpu-admission-join", daemon=True).start()

    def _try_to_join(self) -> None:
        try:
            self._join()
        except ValueError as error:
            logger.error("%s", error)

    def _join(self) -> None:
        with self._joining:
            if not self.is_joined and not self._has_left:
                self._shared.start()
                self.is_joined = True

    async def rest(self) -> None:
        if self.is_joined:
            await anyio.to_thread.run_sync(self._rest)

    def _rest(self) -> None:
        with self._joining:
            if self.is_joined and not self._shared.own:
                self.is_joined = False
                self._shared.stop()

    async def leave(self) -> None:
        self._closed = True
        await anyio.to_thread.run_sync(self._leave)

    def _leave(self) -> None:
        with self._joining:  # what is joining just now has joined, and whoever comes later does not
            self._has_left = True
            if self.is_joined:
                self._shared.stop()

    def leave_at_exit(self) -> None:
        """The program ends. What it holds even so stays counted until others see that it has died."""
        if self.is_joined and self._shared.away is None:
            self._shared.stop()

    # one ticket

    def start(self, ticket: Ticket) -> bool:
        """With the bytes of a lease that has just ended here; for others the log has to be asked."""
        return not self._closed and self._shared.hand_on(ticket)

    def ask(self, ticket: Ticket) -> bool:
        """On a folder it has come back already; on a server it is ``NEW`` until it has."""
        if self._closed:
            ticket.state = REFUSED
            return False
        try:
            self._shared.ask(ticket, came_back=self._came_back, start=True)
        except LogAway:
            ticket.state = REFUSED
            return False
        return ticket.started or (ticket.state is GRANTED and self._shared.may_start(ticket))

    def _came_back(self, ticket: Ticket) -> None:
        self._woken((ticket,))

    async def may_start(self, ticket: Ticket) -> bool:
        return await self._shared.start_work(ticket)

    def release(self, ticket: Ticket) -> None:
        self.turn.take(partial(self._shared.release, ticket))

    def release_in_turn(self, ticket: Ticket) -> float:
        self._shared.release(ticket)
        return self._shared.now()

    def force(self, ticket: Ticket) -> None:
        self._shared.force(ticket)

    def change(self, ticket: Ticket, size: int) -> None:
        self._shared.change(ticket, size)

    def grow(self, ticket: Ticket, size: int) -> Answer:
        """On a folder the answer is there already; on a server it comes after a round trip."""
        return self._shared.grow(ticket, size)

    # the whole

    def held(self, device: int) -> tuple[int, int]:
        accounts = self._shared.ledger.accounts
        if device >= len(accounts):
            return 0, 0  # processes that name more devices are no members any more, or not yet
        return accounts[device].capacity, accounts[device].in_use

    def held_here(self, device: int) -> int:
        with self.turn:
            return sum(ticket.bytes for ticket in self._shared.own.running if ticket.device == device)

    def taken_by_others(self, device: int) -> int:
        with self._shared.lock:
            return self._shared.replica.members.taken(device, self._shared.member)

    def closed_by_others(self) -> Verdict | None:
        """The latest reason given for any device, where guards of other processes close all of them."""
        shared = self._shared
        with shared.lock:
            accounts = shared.ledger_as_read.accounts
            if any(account.ceiling != 0 for account in accounts):
                return None
            said = shared.replica.members.closing(len(accounts) - 1, shared.member)
        return None if said is None or said.why is None else _verdict(said, said.why, shared.now())

    def allow(
        self,
        device: int,
        *,
        capacity: int | None = None,
        ceiling: int | None = None,
        max_running: int | None = None,
        verdict: Verdict | None = None,
    ) -> None:
        why = None if verdict is None or verdict.guard is None else _why(verdict)
        self._shared.allow(device, capacity=capacity, ceiling=ceiling, max_running=max_running, why=why)

    def resize(self, capacity: int) -> None:
        """For all processes."""
        self._shared.resize([capacity] * len(self._shared.ledger.accounts))

    def drain(self) -> None:
        """This process lets nothing in any more; the others go on. Works while the budget is away."""
        with self.turn:
            self._closed = True
            self._woken(self._shared.own.waiting)

    def refuse_all(self) -> None:
        """Those who wait in this process."""
        self._shared.refuse_all()


def _keys(devices: Sequence[Device]) -> list[str]:
    """What tells ``devices`` apart, and says nothing else of them. May ask a driver."""
    return [hashlib.blake2b(device.key.encode(), digest_size=12).hexdigest() for device in devices]


def _leave_at_exit(which: weakref.ref[Sharing], made_in: int) -> None:
    """What the interpreter calls; in processes forked from the one that it was ``made_in`` too."""
    sharing = which()
    if sharing is not None and pid() == made_in:
        sharing.leave_at_exit()


def _why(verdict: Verdict) -> Why:
    """``verdict`` for other processes, whose clocks differ from ours."""
    seconds = None if verdict.retry_at is None else max(0.0, verdict.retry_at - clock.monotonic())
    return Why(str(verdict.guard)[:128], verdict.reason[:512], verdict.restart_only, seconds)


def _verdict(said: Allowed, why: Why, now: float) -> Verdict:
    """What the guards of another process said, as if they were our own."""
    return Verdict(
        ceiling=0,
        guard=why.guard,
        reason=f"{why.reason} (in another process of the shared budget)",
        restart_only=why.restart_only,
        retry_at=None if said.until is None else clock.monotonic() + max(0.0, said.until - now),
    )
