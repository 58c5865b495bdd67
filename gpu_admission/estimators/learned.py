"""``Learned``: an estimator corrected by what requests really took.

Owns the loop: which observation belongs to which route, model and flow, how far an estimate may
be moved, and that a wrong one can't refuse a request for ever. The statistics are in ``history``;
the usage that an answer reports is read in ``workloads.usage``.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Literal

import msgspec

from gpu_admission.estimators.histories import ALL, Histories
from gpu_admission.estimators.history import History
from gpu_admission.estimators.learnedchecks import check_between, check_clip, check_counts, check_reading
from gpu_admission.estimators.lengths import Counted, Lengths, heard
from gpu_admission.estimators.measured import Ask, Measured, Progress
from gpu_admission.estimators.meter import PeakMeter
from gpu_admission.estimators.numbers import asked_of, hidden, model_of, name_of
from gpu_admission.estimators.taken import ALONE, CORRECTION, Followed, Taken, as_estimate, moved, taken
from gpu_admission.estimators.terms import checked_inner, clamp, render
from gpu_admission.estimators.turns import Turns
from gpu_admission.request import EstimateResult, Estimator, RequestInfo
from gpu_admission.runtime import statefile
from gpu_admission.runtime.fork import Mutex
from gpu_admission.sizes import format_bytes, parse_bytes
from gpu_admission.types import Estimate, Usage, Workload

_MOST_TOLD = 4096
_MOST_CAUTION = 8
_KINDS: Mapping[str, Any] = {"Taken": Taken, "Counted": Counted}
"""What one process tells another."""


class Learned:
    """``inner``, corrected by what requests of the same route, model, flow and size really took.

    A charge is the ``quantile`` of the last ``window`` shares (taken over estimated) of its size,
    with ``margin`` on top; if no share above 1 was ever seen, it is never above ``inner``.
    It rises after one observation, but a single one far above all others waits for a second. It
    falls below ``inner`` only for a size that was itself seen ``trust`` times, and then only
    slightly, as far as a hundred shares allow. After an out-of-memory every charge is ``inner``'s
    again at once, and twice as many observations are needed to believe less. A charge above
    ``inner`` is forgotten once 64 requests in a row took less than half of it.

    Feed it with ``observe``; the admission does so for every lease whose peak is recorded.

    - ``usage``: learn from the token counts in the answers that pass through ``GPUAdmission``
      (OpenAI, Anthropic, vLLM, SGLang, TGI, llama.cpp, Ollama, LM Studio; JSON and streams). The
      policy is the same for new tokens, by how many were asked for and the prompt's length; ``inner``,
      which needs a formula, makes bytes of them. An answer that reports nothing (compressed, or a stream
      without ``stream_options.include_usage``) counts as all that was asked for. Only on paths
      of a known API, or with a ``dialect`` set: elsewhere the model may write the answer.
    - ``tokens``: with ``"learned"``, a prompt is counted by what prompts of its route and model took,
      under the same policy, and never above one token per byte. Needs ``usage``.
    - ``capacity``: bytes, or a function that gives them. An estimate above it is not the last
      word: now and then such a request is charged the whole capacity, so that it runs alone
      and is measured. Without ``capacity`` (the admission fills it in) there are no such runs.
    - ``route``: names the route of a request (by default its path); ``flow`` names its owner (by
      default one for everybody). The model that the body names always counts.
    - ``clip``: bounds for actual over estimated; a value outside counts as the nearest bound.
    - ``doubt``: an estimate above this many times the capacity is not worth a run alone.
    - ``max_routes``: limit on routes, models and flows together; the one quiet longest is forgotten.
    - ``meter``: measures a request that ran alone where the app does not; see ``PeakMeter``.
    """

    def __init__(
        self,
        inner: Estimator,
        *,
        usage: bool = False,
        tokens: Literal["learned"] | None = None,
        capacity: int | str | Callable[[], int] | None = None,
        route: Callable[[RequestInfo], str] | None = None,
        flow: Callable[[RequestInfo], str | None] | None = None,
        quantile: float = 0.99,
        margin: float = 0.05,
        window: int = 200,
        clip: tuple[float, float] = (1 / 32, 32.0),
        trust: int = 32,
        doubt: float = 4.0,
        max_routes: int = 64,
        meter: PeakMeter | None = None,
    ) -> None:
        check_between(quantile=(quantile, 0.5, 1), margin=(margin, 0, 1), doubt=(doubt, 1, 32))
        check_clip(clip)
        check_counts(window=window, trust=trust, max_routes=max_routes)
        check_reading(inner, usage, tokens)
        self.inner = checked_inner(inner)
        self.usage = usage
        """Whether it wants to hear the usage that answers report."""
        self.meter = meter
        self.capacity = (
            capacity if capacity is None or callable(capacity) else parse_bytes(capacity, name="capacity")
        )
        self._measured: Measured | None = inner if isinstance(inner, Measured) else None
        self.waits = self._measured is not None and self._measured.waits
        """As ``inner``: whether a request may wait in here until another has been measured."""
        self.margin = margin
        self.clip = clip
        self.doubt = doubt
        self._route, self._flow = route or attrgetter("path"), flow
        new = partial(History, window=window, quantile=quantile, trust=min(trust, window))
        self._shares = Histories(new, max_routes)
        self._lengths = Lengths(new, max_routes, margin=margin, clip=clip, prompts=tokens == "learned")
        self._turns = Turns(16 * max_routes)
        self._caution = 1
        self._lock = Mutex()
        self._announce: Callable[[], object] | None = None
        self._tell_others: Callable[[tuple[Any, ...]], object] | None = None
        # The collector may end a lease in the very thread that holds the lock: endings are noted
        # here, without a lock, and taken in when the next charge is asked for.
        self._told: deque[Taken | Counted | None] = deque(maxlen=_MOST_TOLD)

    @property
    def covers_calls_inside(self) -> bool:
        """Whether a request's measured bytes include those of the requests that it makes inside."""
        return self._measured is not None

    @property
    def needs_body(self) -> bool:
        """As ``inner`` does."""
        return bool(getattr(self.inner, "needs_body", True))

    def __call__(self, info: RequestInfo, /) -> Estimate | Awaitable[Estimate]:
        route = self.route_of(info)
        if self._measured is not None:
            result: EstimateResult | Awaitable[EstimateResult] = self._measured.charge(self._ask(route, info))
        elif self.usage:
            result = self._formula(self._expected(route, info.workload, info.size))
        else:
            result = self.inner(info)
        if isinstance(result, (int, Estimate)):
            return self._charge(route, as_estimate(result))
        return self._later(result, route)

    def again(self, info: RequestInfo, charged: Estimate) -> Callable[[], Estimate] | None:
        """What one that waits, and was ``charged``, is charged by what is known now; ``None``: the same."""
        measured, route = self._measured, self.route_of(info)
        if measured is not None:
            ask = self._ask(route, info)
            return lambda: self._charge(route, measured.again(ask, charged))
        if not self.usage or ALONE in charged.parts:
            return None
        asked, size = info.workload, info.size
        return lambda: self._raised(self._formula(self._expected(route, asked, size)), charged)

    def _raised(self, estimate: Estimate, charged: Estimate) -> Estimate:
        return estimate if charged.bytes < estimate.bytes <= (self._most or estimate.bytes) else charged

    @property
    def _most(self) -> int | None:
        return self.capacity() if callable(self.capacity) else self.capacity

    def _ask(self, route: str, info: RequestInfo) -> Ask:
        asked, size = asked_of(info), info.size
        return Ask(route, asked, partial(self._expected, route, asked, size), size)

    def route_of(self, info: RequestInfo) -> str:
        """The name under which ``observe`` must be told of a request: its route, model and flow."""
        model = model_of(info) if self.needs_body else None
        flow = self._flow(info) if self._flow else None
        return name_of(self._route(info), model, flow and hidden(flow))

    def estimate(self, workload: Workload, *, route: str = ALL) -> Estimate:
        """What is known of ``workload`` on ``route``, without runs alone; ``inner`` needs a formula."""
        first = self._formula(self._expected(route, workload, 0) if self.usage else workload)
        with self._lock:
            self._take_in()
            return self._corrected(route, first)

    def explain(self, workload: Workload, *, route: str = ALL) -> str:
        """The terms of ``inner``, and what was added or taken off, as text."""
        return render(f"Learned on {route}", self.estimate(workload, route=route))

    # what requests took

    def follow(self, info: RequestInfo, estimate: Estimate) -> Followed:
        """The record to hand to ``ended`` for a request that was charged ``estimate`` and begins now."""
        route = self.route_of(info)
        if self._measured is not None:
            wanted = self._measured.wants(route, estimate)
            followed = Followed(route, estimate, info.known_workload or Workload(), info.size, wanted)
            return self._measured.joins(followed, self.meter)
        return Followed(route, estimate, info.known_workload if self.usage else None, info.size)

    def ended(
        self, request: Followed, outcome: str, *, peak: int | None, usage: Usage | None, pieces: int | None
    ) -> None:
        """``request`` ended as ``outcome``, of ``Outcome.kind``, and took ``peak`` bytes (``None``: unknown).

        ``usage`` is what its answer reported, and ``pieces`` how many messages it sent; ``None``: it was
        not looked at. An answer that was cut short can only raise what is charged.
        """
        if self._measured is not None:
            self._measured.leaves(request, self.meter)
            news = self._measured.ended(request, outcome, peak=peak, usage=usage, meter=self.meter)
            if news and self._announce is not None:
                self._announce()
            peak = None
        if outcome == "oom":
            self.ran_out()
        elif outcome == "ok" and peak is not None:
            self.observe(request.route, request.estimate, peak)
        elif pieces is not None and outcome in ("ok", "client"):
            for told in heard(request, usage, pieces if outcome == "client" else None):
                self._note(told)

    def observe(self, route: RequestInfo | str, estimate: Estimate | int, peak: int) -> None:
        """One request on ``route`` was charged ``estimate`` and took ``peak`` bytes of it.

        ``peak`` is what the request added; don't report one that failed or was cut short, which says
        nothing. Raises nothing: a peak below 1 is ignored. Takes no lock.
        """
        self._tell(route, estimate, peak)

    def observe_workload(
        self, route: RequestInfo | str, estimate: Estimate | int, workload: Workload
    ) -> None:
        """One request that was charged ``estimate`` turned out to be ``workload``, by the tokens it used.

        It counts as the bytes that ``inner``, which needs a formula, gives for that. Raises what
        ``inner`` raises.
        """
        self._tell(route, estimate, self._formula(workload).bytes)

    def ran_out(self) -> None:
        """Some request ran out of memory: believe nothing below ``inner`` until much more was seen.

        For all routes, since the one that failed need not be the one that took too much. Takes no lock.
        """
        self._note(None)
        if self._measured is not None:
            self._measured.ran_out()

    def share(self, tell: Callable[[tuple[Any, ...]], object]) -> None:
        """Call ``tell`` with what is learned, as tuples of plain values: for ``hear`` in other processes."""
        self._tell_others = tell
        if self._measured is not None:
            self._measured.share(lambda record: tell(("measured", *record)))

    def hear(self, record: tuple[Any, ...]) -> None:
        """Take in what another process has told. Raises nothing, whatever it is. Takes no lock."""
        kind, *values = record or ("",)
        if kind == "measured" and self._measured is not None:
            self._measured.hear(values)
        elif kind == "oom":
            self._told.append(None)
        elif isinstance(kind, str) and kind in _KINDS:
            with contextlib.suppress(msgspec.ValidationError):
                self._told.append(msgspec.convert(values, _KINDS[kind]))

    def _note(self, told: Taken | Counted | None) -> None:
        self._told.append(told)
        if told is None and self._announce is not None:
            self._announce()
        if self._tell_others is not None:
            self._tell_others(("oom",) if told is None else (type(told).__name__, *told))

    def _tell(self, route: RequestInfo | str, charged: Estimate | int, peak: int) -> None:
        name = route if isinstance(route, str) else self.route_of(route)
        for told in taken(name, as_estimate(charged), peak):
            self._note(told)

    def _formula(self, workload: Workload) -> Estimate:
        return self.inner.estimate(workload)  # type: ignore[attr-defined, no-any-return]

    # what is kept

    def bind(self, capacity: Callable[[], int]) -> None:
        """Take the capacity from the admission, unless one was given."""
        if self.capacity is None:
            self.capacity = capacity
        if self._measured is not None:
            self._measured.bind(capacity)

    def announce(self, learned: Callable[[], object]) -> None:
        """Call ``learned()`` when those who wait might be charged otherwise: see ``again``."""
        self._announce = learned

    def progress(self) -> Sequence[Progress]:
        """How far each route is learned, where nothing but measurements is known of it."""
        return () if self._measured is None else self._measured.progress()

    def to_dict(self) -> dict[str, Any]:
        """What was learned, as plain JSON types."""
        with self._lock:
            self._take_in()
            state = {"version": 2, "routes": self._shares.to_dict()}
            if self.usage:
                state["lengths"] = self._lengths.to_dict()
        if self._measured is not None:
            state["measured"] = self._measured.to_dict()
        return state

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take in what ``to_dict`` gave, in place of what was learned. Raises ``ValueError``."""
        if not isinstance(state, Mapping) or state.get("version") != 2:
            raise ValueError("not the saved state of a Learned estimator, version 2")
        shares = self._shares.restored(state.get("routes"))
        lengths = self._lengths.restored(state.get("lengths", {}))
        if self._measured is not None:
            self._measured.restore(state.get("measured", {"routes": {}}))
        with self._lock:
            self._told.clear()
            self._shares = shares
            self._lengths.take(lengths)
            self._turns.clear()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write what was learned as JSON; a reader sees the old file or the new one, never half."""
        statefile.write(path, self.to_dict())

    def load(self, path: str | os.PathLike[str]) -> bool:
        """Take in a file that ``save`` wrote; ``False`` when there is none. Raises ``ValueError``."""
        state = statefile.read(path)
        if state is not None:
            self.restore(state)
        return state is not None

    def __repr__(self) -> str:
        with self._lock:
            self._take_in()
            seen = self._shares.count + self._lengths.count
            routes = max(self._shares.routes, self._lengths.routes)
            return f"Learned({self.inner!r}, {seen} observations on {routes} routes)"

    # what is charged

    async def _later(self, result: Awaitable[int | Estimate], route: str) -> Estimate:
        return self._charge(route, as_estimate(await result))

    def _expected(self, route: str, asked: Workload, size: int) -> Workload:
        with self._lock:
            self._take_in()
            return self._lengths.expected(route, asked, size, self._caution)

    def _charge(self, route: str, first: Estimate) -> Estimate:
        if ALONE in first.parts:
            return first
        capacity = self._most
        with self._lock:
            self._take_in()
            corrected = self._corrected(route, first)
            if capacity is None or corrected.bytes <= capacity or corrected.bytes > self.doubt * capacity:
                return corrected
            if not self._fitted(route, first, capacity) and not self._turns.comes(route, first.bytes):
                return corrected
        note = (
            f"charged the whole capacity, to be measured alone: {format_bytes(corrected.bytes)} did not fit"
        )
        return moved(first, capacity, ALONE, note)

    def _take_in(self) -> None:
        """Take in the endings noted since the last time. More may come meanwhile."""
        while self._told:
            told = self._told.popleft()
            if isinstance(told, Taken):
                self._learn(told)
            elif told is not None:
                self._lengths.learn(told, self._caution)
            else:
                self._caution = min(_MOST_CAUTION, 2 * self._caution)
                self._shares.doubt()
                self._lengths.doubt()

    def _learn(self, told: Taken) -> None:
        route, first = told.route, told.first
        low, high = self.clip
        if told.alone:
            for history in self._shares.of(route):
                if history.taken_by(first) > told.alone:
                    history.forget(first)
        self._shares.add(route, first, min(high, max(low, told.peak / first)))
        self._turns.forget(route, first)

    def _fitted(self, route: str, first: Estimate, capacity: int) -> bool:
        """Whether requests of this size did fit, alone, but too few of them to charge less."""
        own = self._shares.get(route)
        return own is not None and 0 < own.taken_by(first.bytes) <= capacity

    def _corrected(self, route: str, first: Estimate) -> Estimate:
        if not self._shares.count:
            return first
        size = self._shares.size(
            route, first.bytes, caution=self._caution, margin=self.margin, most=self.clip[1]
        )
        return moved(first, clamp(size), CORRECTION, "")
