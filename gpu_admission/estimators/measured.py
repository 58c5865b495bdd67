"""``Measured``: what requests take, from measurements alone: the ``inner`` of ``estimator="auto"``.

Owns which requests run alone to be measured, which wait for that, and what is charged from then on.
The fit of one route is in ``envelope``; ``Learned`` learns from answers, on top of it.
"""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import anyio
import msgspec

from gpu_admission.estimators.company import Company
from gpu_admission.estimators.envelope import Envelope
from gpu_admission.estimators.numbers import FEATURES, Row, asked_of, name_of, path_of, row_of
from gpu_admission.estimators.taken import ALONE, Followed
from gpu_admission.estimators.terms import clamp
from gpu_admission.request import RequestInfo
from gpu_admission.runtime import clock
from gpu_admission.runtime.fork import Mutex, in_child
from gpu_admission.runtime.loop import call_soon, running_loop
from gpu_admission.types import Estimate, Usage, Workload
from gpu_admission.workloads.usage import really

ENOUGH = 40
"""With this many requests that went well, a route counts as learned."""
_GENEROUS = 1.5
_BEYOND = 1.25
"""A request this many times above all that was seen counts as a new size."""
_CLAIM_SECONDS = 5.0
_RUN_SECONDS = 600.0
_LOOK_SECONDS = 1.0
_MOST_ROUTES = 64
_MOST_TOLD = 4096
_LONGEST_SKIP = 64
_MOST_LOOKED_AT = 64
_LEAST = 512
"""The least charge is the capacity over this: a request that shows no use may be too small to be seen."""


class Progress(NamedTuple):
    """How far a route is learned."""

    route: str
    seen: int
    needed: int

    def __str__(self) -> str:
        if self.seen < self.needed:
            return f"learning {self.route}: {self.seen} of {self.needed}"
        return f"learned {self.route}"


class _Told(NamedTuple):
    route: str
    outcome: str
    features: Row | None
    asked: Row | None
    peak: int | None
    was_alone: bool
    is_exact: bool


class Measured:
    """The peak of a request, by its route and by what its body asks, as measured while it ran alone.

    The first requests of a route run alone, one at a time, the largest waiting one first; while little
    is known, requests larger than any that was seen wait for that. From then on a request is charged
    what was fitted over its tokens, pixels, seconds and bytes, never less than any request with no more
    of anything took, plus a margin of half of that over the square root of the evidence, at least 5 %.
    Off this comes the part that requests running together were seen to take only once, for which the
    charges of a full device leave room. A request that has more of something than any before runs alone
    again, or beside others on a generous guess while another runs alone. After an out-of-memory the
    evidence of every route counts for nothing. Runs alone that yield nothing (a path or model that the
    app does not know, or one beyond the 64 that are remembered) become rarer and rarer, so that no client
    can keep the device to itself. Of the half that was quiet longest, the one seen least is forgotten.

    ``waits``: whether a request may wait for another to be measured; if not, it is charged a quarter.
    """

    needs_body = True

    def __init__(self, *, waits: bool = True) -> None:
        self.waits = waits
        """Whether what it returns may take as long as another request runs."""
        self._capacity: Callable[[], int] = lambda: 0
        self._routes: dict[str, _Route] = {}
        self._new = _Claims()
        self.company = Company()
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
        self.company.begin_anew()
        for claims in (self._new, *(known.claims for known in self._routes.values())):
            claims.drop()

    def bind(self, capacity: Callable[[], int]) -> None:
        """Take the capacity, which a request that runs alone is charged, from the admission."""
        self._capacity = capacity

    def __call__(self, info: RequestInfo, /) -> Estimate | Awaitable[Estimate]:
        asked = asked_of(info)
        return self.charge(name_of(info.path, asked.model), asked, asked, info.size)

    def charge(
        self, route: str, asked: Workload, expected: Workload, size: int
    ) -> Estimate | Awaitable[Estimate]:
        """The charge for a request of ``size`` bytes that asks for ``asked`` and should use ``expected``."""
        features, beyond = row_of(expected, asked, size, route), row_of(asked, asked, size, route)
        with self._lock:
            charge = self._charge(route, features, beyond)
        return self._later(route, features, beyond) if charge is None else charge

    async def _later(self, route: str, features: Row, asked: Row) -> Estimate:
        """What is charged once the request that runs alone has ended, or another may."""
        place = object()
        self._asking[place] = (route, asked)
        try:
            while True:
                event, loop = anyio.Event(), running_loop()
                self._waiting.append(partial(call_soon, loop, event.set))
                with self._lock:
                    charge = self._charge(route, features, asked)
                if charge is not None:
                    return charge
                with anyio.move_on_after(_LOOK_SECONDS):
                    await event.wait()
        finally:
            del self._asking[place]

    def _charge(self, route: str, features: Row, asked: Row) -> Estimate | None:
        """``None``: it has to wait until another has been measured."""
        self._take_in()
        known, capacity, now = self._routes.get(route), max(1, self._capacity()), clock.monotonic()
        if known is None:
            if self._new.may(route, now):
                return _alone(capacity, capacity, "nothing is known of its route")
            if self.waits and self._new.is_running(route):
                return None
            return Estimate(max(1, capacity // 4), parts={"guess": max(1, capacity // 4)})
        reach = known.fit.reach(asked)
        size = known.size(features, reach)
        larger = self._larger_waits(route, reach, known)
        if (reach > _BEYOND or known.needs_run) and not larger and known.claims.may(route, now):
            return _alone(min(clamp(size), capacity), capacity, "a size that has not been measured")
        is_early = self.waits and known.good < ENOUGH
        if is_early and reach > _BEYOND and (larger or known.claims.is_running(route)):
            return None
        if reach > 1 and not known.claims.skips:
            size = min(size, capacity)
        fitted, charged = clamp(known.fit.bytes_for(features)), clamp(size)
        own = max(1, capacity // _LEAST, _own(charged, self.company.shared, capacity))
        return Estimate(own, parts={"measured": fitted, "margin": charged - fitted, "shared": own - charged})

    def _larger_waits(self, route: str, reach: float, known: _Route) -> bool:
        """Whether a waiting request goes further beyond what was seen, so that measuring it says more."""
        waiting = islice(self._asking.values(), _MOST_LOOKED_AT)
        return any(name == route and known.fit.reach(asked) > reach for name, asked in waiting)

    def estimate(self, workload: Workload) -> Estimate:
        """What such a request takes on the one route that is known. Raises ``LookupError`` otherwise."""
        with self._lock:
            self._take_in()
            if len(self._routes) != 1:
                raise LookupError("what a request takes is known by route: ask with a request")
            ((route, known),) = self._routes.items()
            features = row_of(workload, workload, 0, route)
            return Estimate(clamp(known.size(features, known.fit.reach(features))))

    def wants(self, route: str, charged: Estimate) -> bool:
        """Whether a request that runs alone now is worth measuring; if so, its measurement has begun."""
        if ALONE in charged.parts:
            self._told.append(_Told(route, "begun", None, None, None, True, False))
            return True
        known = self._routes.get(route)
        return known is None or known.good < ENOUGH

    def joins(self, request: Followed, meter: Any) -> Followed:
        """``request``, which runs from now on, in the company of others."""
        parts = request.estimate.parts
        if self.waits and hasattr(meter, "resume"):
            alone = math.nan if ALONE in parts else parts.get("measured", math.nan)
            self.company.joins(id(request), alone, meter)
        return request

    def leaves(self, request: Followed, meter: Any) -> None:
        """It has ended."""
        self.company.leaves(id(request), meter)

    def ended(
        self, request: Followed, outcome: str, *, peak: int | None, usage: Usage | None, is_exact: bool
    ) -> None:
        """``request`` ended as ``outcome``; ``peak`` where it was measured. Takes no lock."""
        asked, size, route = request.asked or Workload(), request.size, request.route
        workload = asked if usage is None else really(asked, usage, longest_prompt=size)
        features, before = row_of(workload, asked, size, route), row_of(asked, asked, size, route)
        alone = ALONE in request.estimate.parts
        self._told.append(_Told(route, outcome, features, before, peak, alone, is_exact))
        if outcome == "ok" and self._tell is not None:
            self._tell((route, outcome, features, before, peak, False, is_exact))
        while self._waiting:
            self._waiting.popleft()()

    def ran_out(self) -> None:
        """Some request ran out of memory: no route has any evidence. Takes no lock."""
        self.company.ran_out()
        self._told.append(_Told("", "oom", None, None, None, False, False))

    def share(self, tell: Callable[[tuple[Any, ...]], object]) -> None:
        """Call ``tell`` with each request that ended well, as plain values: for ``hear`` elsewhere."""
        self._tell = tell

    def hear(self, values: Sequence[Any]) -> None:
        """Take in what another process has told. Raises nothing, whatever it is."""
        with contextlib.suppress(msgspec.ValidationError):
            told = msgspec.convert(values, _Told)
            if told.outcome == "ok" and len(told.features or ()) == len(told.asked or ()) == len(FEATURES):
                self._told.append(told)

    def progress(self) -> list[Progress]:
        """How far each route is learned, the one that was quiet longest first."""
        with self._lock:
            self._take_in()
            seen: dict[str, int] = {}
            for name, known in self._routes.items():
                path = path_of(name)[:80]
                seen[path] = min(ENOUGH, max(seen.get(path, 0), known.good))
            return [Progress(path, good, ENOUGH) for path, good in seen.items()]

    def to_dict(self) -> dict[str, Any]:
        """What was measured, as plain JSON types."""
        with self._lock:
            self._take_in()
            return {
                name: {"fit": known.fit.to_dict(), "good": known.good, "runs": known.runs}
                for name, known in self._routes.items()
            }

    def restore(self, saved: object) -> None:
        """Take in what ``to_dict`` gave. Raises ``ValueError`` for anything else."""
        made: dict[str, _Route] = {}
        try:
            assert isinstance(saved, Mapping)
            for name, values in list(saved.items())[-_MOST_ROUTES:]:
                made[str(name)] = route = _Route()
                route.fit.restore(values["fit"])
                route.good, route.runs = int(values["good"]), int(values["runs"])
        except (AssertionError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not what a Measured estimator has saved: {error!r}") from None
        with self._lock:
            self._told.clear()
            self._routes = made

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
                    known.fit.doubt()
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
        known = self._routes.pop(told.route, None) or _Route()
        self._routes[told.route] = known
        if len(self._routes) > _MOST_ROUTES:
            quiet = islice(self._routes, _MOST_ROUTES // 2)
            del self._routes[min(quiet, key=lambda name: self._routes[name].good)]
        known.learn(told)


class _Route:
    """What is known of one route and model."""

    def __init__(self) -> None:
        self.fit = Envelope(len(FEATURES))
        self.claims = _Claims()
        self.good = 0
        """Requests that ended well."""
        self.runs = 0
        """How many of these were measured."""
        self._warms_up = False

    @property
    def needs_run(self) -> bool:
        """Whether more have to be measured: the first three, and one each after 8, 16 and 32 good ones."""
        return self.runs < 3 + (self.good >= 8) + (self.good >= 16) + (self.good >= 32)

    def size(self, features: Row, reach: float) -> float:
        """What is charged; a generous guess for what asks ``reach`` times the most that was seen."""
        evidence = max(1.0, self.runs + self.good / 10) if self.good else 1.0
        size = self.fit.bytes_for(features) * (1 + max(0.05, 0.5 / math.sqrt(evidence)))
        if reach <= 1:
            return size
        beyond = max(size, self.fit.bytes_for(self.fit.top) * reach)
        return beyond if reach <= _BEYOND else _GENEROUS * beyond

    def learn(self, told: _Told) -> None:
        self.good += 1
        if told.peak is None or told.features is None:
            return
        if self._warms_up:
            # The very first run sets things up for good, and no later one does: drop its row.
            self.fit.clear()
        self._warms_up = told.is_exact and not self.runs
        self.runs += 1
        self.fit.add(told.features, max(1, told.peak), asked=told.asked or ())


class _Claims:
    """Whose turn it is to run alone: one at a time, and less often after each run that yielded nothing."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}
        self._left = 0
        self._length = 1

    @property
    def skips(self) -> bool:
        """Whether the last runs yielded nothing, so that none should be tried now."""
        return self._left > 0

    def is_running(self, route: str) -> bool:
        return route in self._until

    def may(self, route: str, now: float) -> bool:
        """Whether a request may run alone now; then it is its turn."""
        self._until = {name: until for name, until in self._until.items() if until > now}
        if route in self._until or len(self._until) >= 4:
            return False
        if self._left:
            self._left -= 1
            return False
        self._until[route] = now + _CLAIM_SECONDS
        return True

    def begin(self, route: str, now: float) -> None:
        """It has started, and takes as long as it takes."""
        self._until[route] = now + _RUN_SECONDS

    def drop(self) -> None:
        self._until = {}

    def end(self, route: str, *, fruitful: bool) -> None:
        if self._until.pop(route, None) is None:
            return
        self._length = 1 if fruitful else min(_LONGEST_SKIP, 2 * self._length)
        self._left = self._length - 1


def _own(alone: int, shared: float, capacity: int) -> int:
    """The charge for a request that takes ``alone`` bytes by itself, of which all together share ``shared``.

    In proportion, so that the charges of all that fill ``capacity`` leave room for ``shared``.
    """
    shared = min(shared, alone / 2, capacity / 2)
    return math.ceil((alone - shared) * capacity / (capacity - shared))


def _alone(guess: int, capacity: int, why: str) -> Estimate:
    parts = {"guess": guess, ALONE: capacity - guess}
    return Estimate(
        capacity, parts=parts, notes=(f"charged the whole capacity, to be measured alone: {why}",)
    )
