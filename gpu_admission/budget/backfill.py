"""Whose turn it is among those who wait: the one deciding function, over the state of all lanes.

Pure: it changes nothing but the count of how often a head was passed. Holding bytes, and the
queue itself, are the ledger's and the lanes'. The rules, as ``next`` applies them:

1. The head of a lane starts when its bytes fit. Heads that are *overdue* (passed
   ``max_bypass`` times, or at the head for ``max_bypass_wait`` seconds) come first, then
   those inside their lane's guarantee, then by priority, then by arrival.
2. A head that does not fit holds back every head that comes after it, except one inside
   its own lane's guarantee. An overdue head holds back those too, unless it will fit beside
   all guarantees.
3. In the gap that it leaves, *small* requests may start (see ``SmallSizes``), while their
   own lane's head is not overdue. While a head that is overdue, or inside its lane's
   guarantee, does not fit, only small ones inside their own lane's guarantee may.
4. A head kept waiting by its own lane's limit holds back no other lane, and one that is
   above every ceiling holds back nothing: room that is kept for it would lie idle.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpu_admission.budget.lanes import LaneState
from gpu_admission.budget.recentsizes import SmallSizes
from gpu_admission.budget.ticket import Ticket


class Order:
    """The order of one ledger. ``max_bypass=0`` is strict first in, first out, lane by lane."""

    __slots__ = ("_sizes", "max_bypass", "max_bypass_wait")

    def __init__(self, sizes: SmallSizes, *, max_bypass: int, max_bypass_wait: float) -> None:
        self._sizes = sizes
        self.max_bypass = max_bypass
        self.max_bypass_wait = max_bypass_wait

    def next(
        self, lanes: Sequence[LaneState], *, room: int, most: int, promised: int, now: float
    ) -> Ticket | None:
        """Who may start in ``room`` bytes.

        ``most``: bytes that the widest device may hold; ``promised``: the sum of all guarantees.
        """
        order = self._in_turn(lanes, now)
        first: Ticket | None = None
        claimed = False
        for lane in order:
            head = lane.head
            assert head is not None
            # Rule 4: no room on the device would help it, so none is kept for it.
            if head.bytes > most or lane.in_use + head.bytes > lane.limit:
                continue
            inside = _is_guaranteed(lane, head)
            # Rule 1; and rule 2's exception: a guarantee is not held back by an earlier head.
            if head.bytes <= room and (first is None or inside):
                return head
            overdue = self.is_overdue(head, now)
            # Rule 2: guarantees that others go on using would keep it waiting for ever.
            if overdue and head.bytes > most - (promised - lane.guaranteed):
                return None
            first = first or head
            claimed = claimed or overdue or inside
        return self._small_one(order, room, most, first, claimed, now)

    def _in_turn(self, lanes: Sequence[LaneState], now: float) -> Sequence[LaneState]:
        if len(lanes) == 1:
            return lanes
        waiting = [lane for lane in lanes if lane.head is not None]
        waiting.sort(key=lambda lane: self._turn(lane, now))
        return waiting

    def _turn(self, lane: LaneState, now: float) -> tuple[bool, float, bool, int, float]:
        head = lane.head
        assert head is not None
        overdue = head.passed >= max(1, self.max_bypass) or now - head.head_since >= self.max_bypass_wait
        since = head.head_since if overdue else 0.0
        return (not overdue, since, not _is_guaranteed(lane, head), -lane.lane.priority, head.arrived)

    def is_overdue(self, head: Ticket, now: float) -> bool:
        """Whether nothing may pass ``head`` any more.

        The count alone would not do: where small requests hold their bytes for long, fewer than
        ``max_bypass`` of them may pass a large head in an hour. So a clock runs too, from when it
        became the head: before that, those in front of it were in its way.
        """
        return head.passed >= self.max_bypass or now - head.head_since >= self.max_bypass_wait

    def _small_one(
        self,
        order: Sequence[LaneState],
        room: int,
        most: int,
        first: Ticket | None,
        claimed: bool,
        now: float,
    ) -> Ticket | None:
        """Rule 3: who may start in the gap that ``first`` leaves."""
        self._sizes.look()
        for lane in order:
            head = lane.head
            assert head is not None
            holds_nothing = head.bytes > most
            if not holds_nothing and self.is_overdue(head, now):
                continue
            gap = lane.guaranteed if claimed else lane.limit
            size = min(room, gap - lane.in_use)
            if first is not None or not holds_nothing:
                size = min(size, self._sizes.beside((first or head).bytes))
            ticket = lane.small(size)
            if ticket is not None:
                return ticket
        return None

    def may_pass(self, size: int, head: Ticket) -> bool:
        """Whether ``size`` bytes are small beside ``head``."""
        return self.max_bypass > 0 and size <= self._sizes.beside(head.bytes)


def count_passed(ticket: Ticket, lanes: Sequence[LaneState], most: int) -> None:
    """``ticket`` starts: count it against each head that it passes.

    Starts in other lanes do not count while a head waits for its own lane's limit.
    """
    for index, lane in enumerate(lanes):
        head = lane.head
        if head is None or head is ticket or head.arrived > ticket.arrived or head.bytes > most:
            continue
        if index == ticket.lane or lane.in_use + head.bytes <= lane.limit:
            head.passed += 1


def _is_guaranteed(lane: LaneState, head: Ticket) -> bool:
    return lane.in_use + head.bytes <= lane.guaranteed
