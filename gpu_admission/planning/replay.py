"""A trace driven through the real ledger on a virtual clock.

Owns the clock and the three things that happen on it: requests arrive, end, and lose
patience. Every decision is made by ``budget.Ledger`` itself; how long a request takes is
told by the trace and the card.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import Protocol

import msgspec

from gpu_admission.budget.ledger import Ledger
from gpu_admission.budget.ticket import State, Ticket
from gpu_admission.planning.trace import Trace

NEVER = math.inf


class Pace(Protocol):
    """What requests run on."""

    @property
    def capacity(self) -> int:
        """Bytes that they may hold together."""
        ...

    def slowdown(self, held: float, running: int, alone: float) -> float:
        """How many times longer each of ``running`` requests takes, which together hold ``held`` bytes.

        ``alone`` is the sum of their ``shares``: the part of each one's time that no other can share.
        """
        ...


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """What became of each request of a trace; seconds."""

    waits: list[float]
    """Seconds until it started; infinite if it never did."""
    ends: list[float]
    """From its arrival until it ended; infinite where it never did."""
    done: bytearray
    """1 where it ran to its end."""
    out_of_memory: int
    """Requests that were let in although the card was full. Each fails at its start."""
    refused: int
    """Requests that found the queue full, or could never fit."""
    forecasts: list[float]
    """The ledger's forecast for each that had to wait, before it joined; NaN where there was none."""
    byte_seconds: float
    """Byte-seconds held until the last arrival."""


class Replay:
    """One run. ``ledger`` decides; ``sizes`` are the bytes that requests really take on ``card``.

    A request waits ``patience`` seconds. ``shares`` are handed to ``card``: the part of each request's
    time alone that no other can share. Running requests share one pace: the clock of work done
    advances at ``1 / card.slowdown(...)``, and each request ends once that clock has advanced by its
    seconds, so a change of pace costs nothing however many run.
    ``charge(index)`` gives the charge of a request as it arrives, in place of the trace's sizes, and
    ``ended(index, ran_out)`` hears how each that started has ended: for estimators that learn. Once one
    ran out of memory, those that wait are charged what ``charge`` says then, if that is more.
    """

    def __init__(
        self,
        trace: Trace,
        ledger: Ledger,
        card: Pace,
        *,
        patience: float,
        sizes: Sequence[int] | None = None,
        shares: Sequence[float] | None = None,
        lanes: Sequence[int] | None = None,
        flows: Sequence[Hashable] | None = None,
        charge: Callable[[int], int] | None = None,
        ended: Callable[[int, bool], object] | None = None,
    ) -> None:
        self._trace = trace
        self._ledger = ledger
        self._card = card
        self._patience = patience
        self._sizes = trace.sizes if sizes is None else sizes
        self._shares = [0.0] * len(trace) if shares is None else shares
        self._lanes = lanes
        self._flows = flows
        self._charge = trace.sizes.__getitem__ if charge is None else charge
        self._tell = ended
        self._charge_anew = charge is not None and ended is not None
        self._now = 0.0
        self._work = 0.0
        self._pace = 1.0
        self._held = 0
        self._alone = 0.0
        self._running: list[tuple[float, int, Ticket]] = []
        self._waiting: deque[tuple[float, Ticket]] = deque()
        self._waits = [NEVER] * len(trace)
        self._ends = [NEVER] * len(trace)
        self._done = bytearray(len(trace))
        self._forecasts = [math.nan] * len(trace)
        self._out_of_memory = 0
        self._refused = 0
        self._byte_seconds = 0.0

    def run(self) -> Replayed:
        for index, arrival in enumerate(self._trace.arrivals):
            self._pass(arrival)
            self._arrive(index, arrival)
        byte_seconds = self._byte_seconds
        self._pass(NEVER)
        return Replayed(
            waits=self._waits,
            ends=self._ends,
            done=self._done,
            out_of_memory=self._out_of_memory,
            refused=self._refused,
            forecasts=self._forecasts,
            byte_seconds=byte_seconds,
        )

    def _arrive(self, index: int, now: float) -> None:
        ledger, size = self._ledger, self._charge(index)
        lane = 0 if self._lanes is None else self._lanes[index]
        flow = None if self._flows is None else self._flows[index]
        ticket = Ticket(size, lane, flow)
        ticket.waiter = index
        forecast = ledger.forecast(size, now, lane=lane, flow=flow) if ledger.waiting else None
        granted = ledger.request(ticket, now)
        if granted:
            self._start(granted, now)
        if ticket.state is State.WAITING:
            self._waiting.append((now + self._patience, ticket))
            if forecast is not None:
                self._forecasts[index] = forecast
        elif ticket.state is State.REFUSED:
            self._refused += 1

    def _pass(self, until: float) -> None:
        """Let time pass, and end whatever ends in it."""
        running = self._running
        while True:
            end = self._now + (running[0][0] - self._work) / self._pace if running else NEVER
            last = self._next_to_give_up()
            if end <= until and end <= last:
                if end == NEVER:
                    return
                self._go_on(end)
                self._end_first(end)
            elif last <= until:
                self._go_on(last)
                _, ticket = self._waiting.popleft()
                self._start(self._ledger.release(ticket, last), last)
            else:
                self._go_on(until)
                return

    def _next_to_give_up(self) -> float:
        waiting = self._waiting
        while waiting and waiting[0][1].state is not State.WAITING:
            waiting.popleft()
        return waiting[0][0] if waiting else NEVER

    def _go_on(self, now: float) -> None:
        passed = now - self._now
        self._now = now
        self._work += passed * self._pace
        self._byte_seconds += passed * self._held

    def _end_first(self, now: float) -> None:
        self._work, index, ticket = heapq.heappop(self._running)
        self._hold(-self._sizes[index], -self._shares[index])
        self._done[index] = 1
        self._ends[index] = now - self._trace.arrivals[index]
        if self._tell is not None:
            self._tell(index, False)
        self._start(self._ledger.release(ticket, now), now)

    def _start(self, granted: Sequence[Ticket], now: float) -> None:
        starting = deque(granted)
        while starting:
            ticket = starting.popleft()
            index: int = ticket.waiter
            if self._held + self._sizes[index] > self._card.capacity:
                self._out_of_memory += 1
                if self._tell is not None:
                    self._tell(index, True)
                starting.extend(self._ledger.release(ticket, now))
                starting.extend(self._charged_anew(now))
                continue
            self._waits[index] = now - self._trace.arrivals[index]
            heapq.heappush(self._running, (self._work + self._trace.seconds[index], index, ticket))
            self._hold(self._sizes[index], self._shares[index])

    def _charged_anew(self, now: float) -> Sequence[Ticket]:
        granted: list[Ticket] = []
        for _, ticket in list(self._waiting) if self._charge_anew else ():
            if ticket.state is State.WAITING:
                size = max(ticket.bytes, min(self._charge(ticket.waiter), self._card.capacity))
                granted.extend(self._ledger.change(ticket, size, now))
        return granted

    def _hold(self, more: int, alone: float) -> None:
        self._held += more
        self._alone += alone
        self._pace = 1.0 / self._card.slowdown(self._held, len(self._running), self._alone)
