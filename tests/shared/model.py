"""The protocol of a shared budget as a small machine of states, to be searched whole.

Some processes, one unit of capacity, two requests each; crashes, pauses, cuts, the loss of the
log, a failover and one leap of the server's clock. Times count in ticks of half a ``lease_ttl``
and are relative, so that the states are finitely many. ``flaws`` plants what must not be done.
No test lives here.

Whoever is well says something in each tick (beats come from a thread), and reads what it said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import msgspec
from msgspec.structs import replace

TTL, HALF = 2, 1
UP, PAUSED, CUT, DEAD = range(4)
NONE, ASKED, GRANTED, RUNNING = range(4)
OUT, IN, RESTING = range(3)
NO, WAITS, HOLDS = range(3)

FLAWS = {
    "client clocks": "who speaks judges the others by its own clock, which is wrong",
    "reaper outside the log": "one that looked dead a moment ago is removed, renewed or not",
    "renewal not re-checked": "who was declared dead isn't told, and goes on",
    "missing = empty": "a log that was lost grants at once",
    "late end subtracts": "the end of a dead membership takes its size off what is held",
    "no quarantine": "the bytes of the dead go to others at once",
    "old grant": "a grant is started after a pause, however old it is",
    "old bytes handed on": "bytes that end are used again without asking, however old their grant is",
    "failover trusted": "a promoted server's log is taken for the whole log",
    "wake-up only": "a waiter learns of its grant by a wake-up, and by nothing else",
}


class P(msgspec.Struct, frozen=True, order=True, cache_hash=True, gc=False):
    """One process: what it is and believes, and what the log says of it."""

    mode: int = UP
    well: bool = True
    """It was up for a whole tick: long enough to have said something."""
    belief: int = NONE
    age: int = 0
    """Ticks of its own clock since what it last knew was confirmed."""
    left: int = 2
    member: int = OUT
    silent: int = 0
    rest: int = 0
    ticket: int = NO
    given: bool = False
    """Its bytes went to others while it was running, paused or cut off: said aloud, and allowed."""
    at_ease: bool = True
    """When it last read the log, nobody waited, and all that was held did fit."""
    marked: bool = False
    woken: bool = False


class State(msgspec.Struct, frozen=True, cache_hash=True, gc=False):
    ps: tuple[P, ...]
    queue: tuple[int, ...] = ()
    settle: int = 0
    extra: int = 0
    """Units that the log believes to be free and that aren't (only flaws make them)."""
    faults: int = 2
    leaps: int = 1
    before: tuple[tuple[tuple[int, int, int, int], ...], tuple[int, ...]] | None = None
    """What the log said before its last entry, for a failover."""


class Wrong(Exception):
    """A state that must not be."""


class Model:
    """All that can happen from a state. ``flaw``: one of ``FLAWS``, or none."""

    def __init__(self, flaw: str = "") -> None:
        self.flaw = flaw

    def start(self, processes: int, faults: int) -> State:
        return State(tuple(P(member=IN) for _ in range(processes)), faults=faults)

    def steps(self, s: State) -> Iterator[tuple[str, State]]:
        for i, p in enumerate(s.ps):
            if p.mode == UP:
                yield from self._well(s, i, p)
            if p.mode in (UP, CUT):
                yield from self._hand_on(s, i, p)
            yield from self._harm(s, i, p)
        yield from self._world(s)

    def _well(self, s: State, i: int, p: P) -> Iterator[tuple[str, State]]:
        if p.silent or p.age or p.member != IN or (p.ticket == HOLDS and p.belief in (NONE, ASKED)):
            yield f"{i} beats", self.entry(s, i)
        if p.belief == NONE and p.left:
            asked = self._put(s, i, replace(p, left=p.left - 1))
            yield f"{i} asks", self.entry(asked, i, "ask")
        if p.belief == GRANTED and (p.age < HALF or self.flaw == "old grant"):
            yield f"{i} starts", self._put(s, i, replace(p, belief=RUNNING))
        if p.belief == RUNNING:
            over = self._put(s, i, replace(p, belief=NONE, given=False))
            yield f"{i} ends", self.entry(over, i, "end")
        if p.marked and self.flaw == "reaper outside the log":
            yield f"reaper takes {i}", self._free(self._put(s, i, replace(p, marked=False)), i)

    def _hand_on(self, s: State, i: int, p: P) -> Iterator[tuple[str, State]]:
        """What ends is used for the next request at once, and nobody is told."""
        may = (p.age < HALF and p.at_ease) or self.flaw == "old bytes handed on"
        if p.belief == RUNNING and p.left and may:
            yield f"{i} hands on", self._put(s, i, replace(p, left=p.left - 1, given=False))

    def _harm(self, s: State, i: int, p: P) -> Iterator[tuple[str, State]]:
        if p.mode in (PAUSED, CUT):
            yield f"{i} is well again", self._put(s, i, replace(p, mode=UP))
        if p.mode == CUT and p.belief == RUNNING:
            yield f"{i} ends, cut off", self._put(s, i, replace(p, belief=NONE, given=False))
        if p.mode == PAUSED and p.silent > TTL and not p.marked and self.flaw == "reaper outside the log":
            yield f"reaper marks {i}", self._put(s, i, replace(p, marked=True))
        if s.faults and p.mode == UP:
            for mode, name in ((PAUSED, "pauses"), (CUT, "is cut off"), (DEAD, "crashes")):
                belief = NONE if mode == DEAD else p.belief
                harmed = replace(s, faults=s.faults - 1)
                yield f"{i} {name}", self._put(harmed, i, replace(p, mode=mode, belief=belief, well=False))

    def _world(self, s: State) -> Iterator[tuple[str, State]]:
        if all(p.mode != UP or (p.member == IN and not p.silent) for p in s.ps):
            yield "a tick", self._tick(s)
        if s.faults:
            yield "the log is lost", self._lose(replace(s, faults=s.faults - 1))
            failed = replace(s, faults=s.faults - 1)
            yield "a failover", self._fail_over(failed)
        if s.leaps and not s.settle:
            leapt = tuple(replace(p, silent=TTL + 1) for p in s.ps)
            yield "the clock leaps", replace(s, ps=leapt, leaps=0)
        if self.flaw == "wake-up only" and s.faults:
            for i, p in enumerate(s.ps):
                if p.woken:
                    lost = replace(s, faults=s.faults - 1)
                    yield f"the wake-up of {i} is lost", self._put(lost, i, replace(p, woken=False))

    def _tick(self, s: State) -> State:
        ps = tuple(
            replace(
                p,
                well=p.mode == UP,
                silent=min(p.silent + 1, TTL + 1),
                age=min(p.age + 1, HALF),
                rest=max(0, p.rest - 1),
                given=p.given or (s.settle == 1 and self._missed_it(p)),
            )
            for p in s.ps
        )
        return replace(s, ps=ps, settle=max(0, s.settle - 1))

    def _missed_it(self, p: P) -> bool:
        """It stood still, or was cut off, for all the time in which others declared what they hold."""
        return p.belief == RUNNING and p.member == OUT and not p.well and p.mode in (PAUSED, CUT)

    def _lose(self, s: State) -> State:
        ps = tuple(replace(p, member=OUT, silent=0, rest=0, ticket=NO, woken=False) for p in s.ps)
        settle = 0 if self.flaw == "missing = empty" else TTL
        return replace(s, ps=ps, queue=(), settle=settle, extra=0, before=None)

    def _fail_over(self, s: State) -> State:
        """A server that lacks the last entry: known by its name to be another, it begins a new log."""
        if self.flaw != "failover trusted" or s.before is None:
            return self._lose(s)
        said, queue = s.before
        ps = tuple(
            replace(p, member=m, silent=silent, rest=rest, ticket=ticket)
            for p, (m, silent, rest, ticket) in zip(s.ps, said, strict=True)
        )
        return replace(s, ps=ps, queue=queue, before=None)

    # one entry of the log, and its author reading up to it

    def entry(self, s: State, i: int, what: str = "") -> State:
        if self.flaw == "failover trusted":
            s = replace(s, before=(tuple((p.member, p.silent, p.rest, p.ticket) for p in s.ps), s.queue))
        s = self._let_pass(s, i)
        if s.ps[i].member != IN:
            s = self._stranger(s, i, what)
        else:
            s = self._put(s, i, replace(s.ps[i], silent=0))
            s = self._apply(s, i, what)
        s = self._grant(s)
        return self._read(s, i)

    def _let_pass(self, s: State, author: int) -> State:
        """Who is dead, and whose bytes have rested, as of this entry."""
        for i, p in enumerate(s.ps):
            wrong = self.flaw == "client clocks" and author == 0 and i != 0
            by_log = self.flaw != "reaper outside the log"
            if p.member == IN and (wrong or (p.silent > TTL and by_log)):
                rest = 0 if wrong or self.flaw == "no quarantine" else HALF
                ticket = NO if p.ticket == WAITS else p.ticket
                queue = tuple(q for q in s.queue if q != i)
                s = self._put(s, i, replace(p, member=RESTING, rest=rest, ticket=ticket))
                s = replace(s, queue=queue)
            p = s.ps[i]
            if p.member == RESTING and not p.rest:
                s = self._free(s, i)
        return s

    def _free(self, s: State, i: int) -> State:
        """The bytes of ``i`` are for others now."""
        p = s.ps[i]
        if p.belief == RUNNING and p.well and p.ticket == HOLDS:
            raise Wrong(f"the bytes of {i}, which runs and is well, are given away")
        given = p.given or p.belief == RUNNING
        queue = tuple(q for q in s.queue if q != i)
        return self._put(replace(s, queue=queue), i, replace(p, member=OUT, ticket=NO, given=given))

    def _stranger(self, s: State, i: int, what: str) -> State:
        """It was declared dead, or the log is new: it joins again, and declares what runs."""
        p = s.ps[i]
        if what == "end" and self.flaw == "late end subtracts":
            s = replace(s, extra=1)
        if self.flaw == "renewal not re-checked":
            return s
        belief = ASKED if what == "ask" or p.belief in (ASKED, GRANTED) else p.belief
        running = p.belief == RUNNING
        ticket = HOLDS if running else WAITS if belief == ASKED else NO
        queue = (*s.queue, i) if ticket == WAITS else s.queue
        joined = replace(p, member=IN, silent=0, rest=0, ticket=ticket, belief=belief)
        return self._put(replace(s, queue=queue), i, joined)

    def _apply(self, s: State, i: int, what: str) -> State:
        p = s.ps[i]
        if what == "ask":
            s = replace(s, queue=(*s.queue, i))
            return self._put(s, i, replace(p, ticket=WAITS, belief=ASKED))
        if p.belief == NONE and p.ticket != NO:  # its end, or what it could not say when it was cut off
            queue = tuple(q for q in s.queue if q != i)
            return self._put(replace(s, queue=queue), i, replace(p, ticket=NO))
        return s

    def _grant(self, s: State) -> State:
        held = sum(p.ticket == HOLDS for p in s.ps) - s.extra
        if s.settle or not s.queue or held >= 1:
            return s
        first, *rest = s.queue
        granted = replace(s.ps[first], ticket=HOLDS, woken=self.flaw == "wake-up only")
        return self._put(replace(s, queue=tuple(rest)), first, granted)

    def _read(self, s: State, i: int) -> State:
        p = s.ps[i]
        sees = self.flaw != "wake-up only" or p.woken
        belief = GRANTED if p.belief == ASKED and p.ticket == HOLDS and sees else p.belief
        held = sum(each.ticket == HOLDS for each in s.ps)
        at_ease = held <= 1 and not s.queue and not s.settle
        return self._put(s, i, replace(p, age=0, belief=belief, at_ease=at_ease, woken=False))

    def _put(self, s: State, i: int, p: P) -> State:
        return replace(s, ps=(*s.ps[:i], p, *s.ps[i + 1 :]))

    # what must hold in every state

    def check(self, s: State) -> None:
        running = [p for p in s.ps if p.belief == RUNNING and not p.given]
        if len(running) > 1:
            raise Wrong("more runs than the capacity allows")
        for i, p in enumerate(s.ps):
            if p.mode == UP and p.belief == ASKED and p.ticket == HOLDS and p.member == IN:
                after = self.entry(s, i).ps[i]
                if after.belief == ASKED and after.ticket == HOLDS:
                    raise Wrong(f"{i} waits for ever, with a grant in the log")
            if p.mode == DEAD and p.ticket == HOLDS and p.member == OUT:
                raise Wrong(f"bytes of {i} are lost")


@cache
def told(p: P) -> P:
    """The same process without what no step asks it any more; the one object of all that are equal."""
    if p.mode == DEAD:
        p = P(mode=DEAD, well=False, left=0, member=p.member, silent=p.silent, rest=p.rest, ticket=p.ticket)
    if p.member != IN:
        p = replace(p, silent=0)
    if p.belief in (NONE, ASKED) or (p.belief == RUNNING and not p.left):
        p = replace(p, age=0, at_ease=True)
    return p


def alike(s: State) -> State:
    """The same state in short, its processes in one order: which of them is which makes no difference."""
    ps = [told(p) for p in s.ps]
    if not s.queue:
        return replace(s, ps=tuple(sorted(ps)))
    order = sorted(range(len(ps)), key=lambda i: (ps[i], s.queue.index(i) if i in s.queue else -1))
    place = {i: n for n, i in enumerate(order)}
    return replace(s, ps=tuple(ps[i] for i in order), queue=tuple(place[i] for i in s.queue))


def search(
    flaw: str = "",
    processes: int = 3,
    faults: int = 2,
    most: int = 10_000_000,
    as_one: Callable[[State], State] | None = alike,
) -> tuple[set[State], str]:
    """All states, and what is wrong with the first wrong one (empty: nothing).

    ``as_one`` gives the state that stands for all that differ in nothing that counts.
    """
    model = Model(flaw)
    first = model.start(processes, faults)
    seen, edge = {first}, [first]
    while edge:
        beyond: list[State] = []
        for state in edge:
            try:
                for _, after in model.steps(state):
                    after = as_one(after) if as_one else after
                    if after not in seen:
                        model.check(after)
                        seen.add(after)
                        beyond.append(after)
            except Wrong as wrong:
                return seen, str(wrong)
        assert len(seen) < most
        edge = beyond
    return seen, ""
