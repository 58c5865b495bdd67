"""``Measured``: what requests take, from measurements alone: the ``inner`` of ``estimator="auto"``.

Owns which requests run alone to be measured, which wait for that, and what is charged from then on.
What is known of a route is in ``knownroute``, what requests share in ``company``; ``Learned`` learns from
answers, on top of it.
"""

from __future__ import annotations

import contextlib
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import anyio
import msgspec

from gpu_admission.estimators.claims import Claims
from gpu_admission.estimators.company import Company, own
from gpu_admission.estimators.knownroute import BEYOND, ENOUGH, Compared, KnownRoute
from gpu_admission.estimators.numbers import FEATURES, Row, asked_of, name_of, path_of, reach_of, row_of
from gpu_admission.estimators.taken import ALONE, Followed
from gpu_admission.estimators.terms import clamp
from gpu_admission.request import RequestInfo
from gpu_admission.runtime import clock
from gpu_admission.runtime.fork import Mutex, in_child
from gpu_admission.runtime.loop import call_soon, running_loop
from gpu_admission.types import Estimate, Usage, Workload
from gpu_admission.workloads.usage import really

_LOOK_SECONDS = 1.0
_MOST_ROUTES = 64
_MOST_TOLD = 4096
_MOST_LOOKED_AT = 64
_LEAST = 512
"""The least charge is the capacity over this: a request that shows no use may be too small to be seen."""


class Progress(NamedTuple):
    """How far a route is learned."""

    route: str
    seen: int
    needed: int
    waiting: int = 0
    """Requests that wait until another, which runs alone, has been measured."""

    def __str__(self) -> str:
        said = f"learning {self.route}: {self.seen} of {self.needed}"
        wait = f" ({self.waiting} wait until one has run alone)" if self.waiting else ""
        return (said if self.seen < self.needed else f"learned {self.route}") + wait


class Ask(NamedTuple):
    """A request to be charged: what its body asks for, and a function that says what to expect of that."""

    route: str
    asked: Workload
    expected: Callable[[], Workload]
    size: int
    """Bytes of the body."""

    @property
    def reach(self) -> Row:
        """What tells whether it is a new size; see ``reach_of``."""
        return reach_of(self.expected(), self.asked, self.size, self.route)

    def compared(self, known: KnownRoute) -> Compared:
        """What it is expected to use, by what is known now, beside what was seen of its route."""
        of = self.expected(), self.asked, self.size, self.route
        return known.compare(row_of(*of), reach_of(*of))


class _Told(NamedTuple):
    route: str
    outcome: str
    features: Row | None = None
    reach: Row | None = None
    peak: int | None = None
    was_alone: bool = False
    is_exact: bool = False
    grows: bool = True


class Measured:
    """The peak of a request, by its route and by what its body asks, as measured while it ran alone.

    The first three requests of a route run alone, one at a time, the largest waiting one first; while
    little is known, requests larger than any that was seen wait for that. From then on a request is
    charged what was fitted over its tokens, pixels, seconds and bytes, never less than any request with no
    more of anything took. On top comes a margin: half of that over the number of measured requests and a
    quarter of the others, at least 5 %, and up to 25 % for what resembles no measured one. Off this comes
    the part that requests which began together were seen to take only once, for which the charges of a
    full device leave room; requests that wait are charged by what was learned meanwhile. A request
    that has a quarter more of something than any before runs alone again, or beside others on a generous
    guess while another runs alone; tokens that were asked for and not used vouch for no size.

    After an out-of-memory the evidence of every route counts for nothing. Runs alone that yield nothing
    (a path or model that the app does not know, or one beyond the 64 that are remembered) become rarer
    and rarer, so that no client can keep the device to itself. Of the half that was quiet longest, the
    one seen least is forgotten.

    ``waits``: whether a request may wait for another to be measured; if not, it is charged a quarter.
    """

    needs_body = True

    def __init__(self, *, waits: bool = True) -> None:
        self.waits = waits
        """Whether what it returns may take as long as another request runs."""
        self._capacity: Callable[[], int] = lambda: 0
        self._routes: dict[str, KnownRoute] = {}
        self._new = Claims()
        """Of routes of which nothing is known."""
        self._company = Company()
        self._tell: Callable[[tuple[Any, ...]], object] | None = None
        self._lock = Mutex()
        self._begin_anew()
        in_child(self._begin_anew)

    def _begin_anew(self) -> None:
        """Also in a forked process: what runs or waits is the parent's, and what was learned stays."""
        # See ``Learned``: an ending may come while the lock is held, by the same thread.
        self._told: deque[_Told] = deque(maxlen=_MOST_TOLD)
        self._waiting: deque[Callable[[], object]] = deque()
        self._asking: dict[object, tuple[str, Row]] = {}
        """Routes and sizes of those that wait to be measured, or for another that is."""
        self._company.begin_anew()
        for claims in (self._new, *(known.claims for known in self._routes.values())):
            claims.drop()

    def bind(self, capacity: Callable[[], int]) -> None:
        """Take the capacity, which a request that runs alone is charged, from the admission."""
        self._capacity = capacity

    def __call__(self, info: RequestInfo, /) -> Estimate | Awaitable[Estimate]:
        asked = asked_of(info)
        return self.charge(Ask(name_of(info.path, asked.model), asked, lambda: asked, info.size))

    def charge(self, ask: Ask) -> Estimate | Awaitable[Estimate]:
        """What is charged, at once or when it is known."""
        with self._lock:
            charge = self._charge(ask)
        return self._later(ask) if charge is None else charge

    async def _later(self, ask: Ask) -> Estimate:
        """What is charged once the request that runs alone has ended, or another may."""
        place = object()
        try:
            while True:
                self._asking[place] = (ask.route, ask.reach)
                event, loop = anyio.Event(), running_loop()
                self._waiting.append(partial(call_soon, loop, event.set))
                with self._lock:
                    charge = self._charge(ask)
                if charge is not None:
                    return charge
                with anyio.move_on_after(_LOOK_SECONDS):
                    await event.wait()
        finally:
            self._asking.pop(place, None)

    def _charge(self, ask: Ask) -> Estimate | None:
        """``None``: it has to wait until another has been measured."""
        self._take_in()
        route, now = ask.route, clock.monotonic()
        known = self._routes.get(route)
        if known is None:
            if self._new.may(route, now):
                return self._alone(self._most, "nothing is known of its route")
            if self.waits and self._new.is_running(route):
                return None
            return Estimate(max(1, self._most // 4), parts={"guess": max(1, self._most // 4)})
        request = ask.compared(known)
        larger = self._larger_waits(route, request.beyond, known)
        if (request.beyond > BEYOND or known.needs_run) and not larger and known.claims.may(route, now):
            guess = clamp(known.size(request))
            return self._alone(min(guess, self._most), "a size that has not been measured")
        is_early = self.waits and known.good < ENOUGH
        if is_early and request.beyond > BEYOND and (larger or known.claims.is_running(route)):
            return None
        return self._beside(known, request)

    def again(self, ask: Ask, before: Estimate) -> Estimate:
        """What a request that still waits, and was charged ``before``, is charged by what is known now."""
        with self._lock:
            self._take_in()
            known = self._routes.get(ask.route)
            if known is None:
                return before
            request = ask.compared(known)
            if ALONE in before.parts:
                if request.beyond > BEYOND or known.needs_run:
                    return before
                known.claims.give_back(ask.route)
            return self._beside(known, request)

    def _beside(self, known: KnownRoute, request: Compared) -> Estimate:
        """What is charged for a request that may run beside others."""
        size, capacity = known.size(request), self._most
        if request.beyond > 1 and not known.claims.skips:
            size = min(size, capacity)
        fitted, charged = clamp(known.fit.bytes_for(request.features)), clamp(size)
        share = 0.0 if known.grows else self._company.shared(self._apart, capacity)
        largest = max(each.fit.largest for each in self._routes.values())
        mine = max(1, capacity // _LEAST, own(charged, share, largest=largest, capacity=capacity))
        parts = {"measured": fitted, "margin": charged - fitted, "shared": mine - charged}
        return Estimate(mine, parts=parts)

    def _alone(self, guess: int, why: str) -> Estimate:
        parts = {"guess": guess, ALONE: self._most - guess}
        note = f"charged the whole capacity, to be measured alone: {why}"
        return Estimate(self._most, parts=parts, notes=(note,))

    @property
    def _most(self) -> int:
        return max(1, self._capacity())

    def _apart(self, route: str, features: Row, count: int) -> float | None:
        """What so many requests take one by one, if it is known, and known not to grow."""
        known = self._routes.get(route)
        return known.fit.middle_of(features, count) if known and known.runs and not known.grows else None

    def _larger_waits(self, route: str, beyond: float, known: KnownRoute) -> bool:
        """Whether a waiting request goes further beyond what was seen, so that measuring it says more."""
        waiting = islice(self._asking.values(), _MOST_LOOKED_AT)
        return any(name == route and known.fit.reach(asked) > beyond for name, asked in waiting)

    def estimate(self, workload: Workload) -> Estimate:
        """What such a request takes on the one route that is known. Raises ``LookupError`` otherwise."""
        with self._lock:
            self._take_in()
            if len(self._routes) != 1:
                raise LookupError("what a request takes is known by route: ask with a request")
            ((route, known),) = self._routes.items()
            features = row_of(workload, workload, 0, route)
            return Estimate(clamp(known.size(known.compare(features, features))))

    def wants(self, route: str, charged: Estimate) -> bool:
        """Whether a request that runs alone now is worth measuring; if so, its measurement has begun."""
        if ALONE in charged.parts:
            self._told.append(_Told(route, "begun", was_alone=True))
            return True
        known = self._routes.get(route)
        return known is None or known.good < ENOUGH

    def joins(self, request: Followed, meter: Any) -> Followed:
        """``request``, which runs from now on, in the company of others.

        A meter that keeps peaks but not when they came can't tell what is shared from what comes in turn.
        """
        if self.waits and hasattr(meter, "resume") and not getattr(meter, "is_exact", False):
            self._company.joins(id(request), meter)
        return request

    def leaves(self, request: Followed, meter: Any) -> None:
        """It has ended."""
        self._company.leaves(id(request), meter)

    def ended(
        self, request: Followed, outcome: str, *, peak: int | None, usage: Usage | None, meter: Any
    ) -> bool:
        """``request`` ended as ``outcome``; ``peak`` where ``meter`` has measured it. Takes no lock.

        Returns whether those that wait might be charged otherwise from now on.
        """
        asked, size, route = request.asked or Workload(), request.size, request.route
        workload = asked if usage is None else really(asked, usage, longest_prompt=size)
        features, reach = row_of(workload, asked, size, route), reach_of(workload, asked, size, route)
        alone = ALONE in request.estimate.parts
        exact, grows = bool(getattr(meter, "is_exact", False)), bool(getattr(meter, "grows", True))
        told = partial(_Told, route, outcome, features, reach, peak, is_exact=exact, grows=grows)
        self._company.ended(id(request), route, features if outcome == "ok" else None)
        self._told.append(told(was_alone=alone))
        if outcome == "ok" and self._tell is not None:
            self._tell(told())
        while self._waiting:
            self._waiting.popleft()()
        known = self._routes.get(route)
        return peak is not None or known is None or known.good <= ENOUGH or self._company.is_learning

    def ran_out(self) -> None:
        """Some request ran out of memory: no route has any evidence. Takes no lock."""
        self._company.ran_out()
        self._told.append(_Told("", "oom"))

    def share(self, tell: Callable[[tuple[Any, ...]], object]) -> None:
        """Call ``tell`` with each request that ended well, as plain values: for ``hear`` elsewhere."""
        self._tell = tell

    def hear(self, values: Sequence[Any]) -> None:
        """Take in what another process has told. Raises nothing, whatever it is."""
        with contextlib.suppress(msgspec.ValidationError):
            told = msgspec.convert(values, _Told)
            if told.outcome == "ok" and len(told.features or ()) == len(told.reach or ()) == len(FEATURES):
                self._told.append(told)

    def progress(self) -> list[Progress]:
        """How far each route is learned, the one that was quiet longest first."""
        with self._lock:
            self._take_in()
            waiting = Counter(_shown(name) for name, _ in list(self._asking.values()))
            seen = dict.fromkeys(waiting, 0)
            for name, known in self._routes.items():
                path = _shown(name)
                seen[path] = min(ENOUGH, max(seen.get(path, 0), known.good))
            return [Progress(path, good, ENOUGH, waiting[path]) for path, good in seen.items()]

    def to_dict(self) -> dict[str, Any]:
        """What was measured, as plain JSON types."""
        with self._lock:
            self._take_in()
            routes = {name: known.to_dict() for name, known in self._routes.items()}
            return {"routes": routes, "shared": self._company.shared(self._apart, self._most)}

    def restore(self, saved: object) -> None:
        """Take in what ``to_dict`` gave. Raises ``ValueError`` for anything else."""
        made: dict[str, KnownRoute] = {}
        company = Company()
        try:
            assert isinstance(saved, Mapping)
            for name, values in list(saved["routes"].items())[-_MOST_ROUTES:]:
                made[str(name)] = KnownRoute.from_dict(values)
            company.keep(saved.get("shared", 0.0))
        except (AssertionError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not what a Measured estimator has saved: {error!r}") from None
        with self._lock:
            self._told.clear()
            self._routes, self._company = made, company

    def __repr__(self) -> str:
        return f"Measured({', '.join(map(str, self.progress()))})"

    def _take_in(self) -> None:
        """What endings have said since the last time."""
        now = clock.monotonic()
        while self._told:
            told = self._told.popleft()
            if told.outcome == "oom":
                for known in self._routes.values():
                    known.good = 0
            if told.route:
                self._learn(told, now)

    def _learn(self, told: _Told, now: float) -> None:
        known = self._routes.get(told.route)
        claims = self._new if known is None else known.claims
        if told.outcome == "begun":
            claims.begin(told.route, now)
            return
        if told.was_alone:
            has_room = len(self._routes) < _MOST_ROUTES
            self._new.end(told.route, fruitful=told.outcome == "ok" and has_room)
            if known is not None:
                known.claims.end(told.route, fruitful=told.outcome == "ok")
        if told.outcome != "ok" or told.features is None:
            return
        if known is None and told.peak is None:
            return
        known = self._routes.pop(told.route, None) or KnownRoute()
        self._routes[told.route] = known
        if len(self._routes) > _MOST_ROUTES:
            quiet = islice(self._routes, _MOST_ROUTES // 2)
            del self._routes[min(quiet, key=lambda name: self._routes[name].good)]
        known.learn(told.features, told.reach or (), told.peak, is_exact=told.is_exact, grows=told.grows)
        if told.peak is not None:
            self._company.weigh_again()


def _shown(route: str) -> str:
    """The path of a route, as it is shown."""
    return path_of(route)[:80]
