"""``Learned``: an estimator corrected by what requests really took.

Owns the loop: which observation belongs to which route, model and flow, how far an estimate may
be moved, and that a wrong one can't refuse a request for ever. The statistics are in ``history``.
"""

from __future__ import annotations

import json
import os
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from gpu_admission.errors import UnreadableBody
from gpu_admission.estimators.history import History, size_class
from gpu_admission.estimators.meter import PeakMeter
from gpu_admission.estimators.terms import clamp, render
from gpu_admission.request import Estimator, RequestInfo
from gpu_admission.sizes import format_bytes, parse_bytes
from gpu_admission.types import Estimate, Workload

ALL = "*"
"""The history of all routes together: what a route without one of its own is judged by."""
_CORRECTION, _SOLO = "learned", "runs alone"
_LONGEST_TURN = 64
_LONGEST_NAME = 200
_MOST_TOLD = 4096
_MOST_CAUTION = 8
_Told: TypeAlias = "tuple[str, int, int, int] | None"
"""Route, bytes that ``inner`` said, bytes taken, and bytes it had where it ran alone, else 0;
``None``: some request ran out of memory."""


class Learned:
    """``inner``, corrected by what requests of the same route, model, flow and size really took.

    A charge is the ``quantile`` of the last ``window`` shares (taken over estimated) of its size,
    with ``margin`` on top, and where no share above 1 was ever seen it is never above ``inner``.
    It rises with one observation, but a lone one far above all others waits for a second. It
    falls below ``inner`` only for a size that was itself seen ``trust`` times, and from then on by
    little, as far as a hundred shares allow. After an out-of-memory every charge is ``inner``'s
    again at once, and twice as many observations are needed to believe less. A charge above
    ``inner`` is forgotten once 64 requests in a row took less than half of it.

    Feed it with ``observe``; the admission does so for every lease whose peak is recorded.

    - ``capacity``: bytes, or a function that gives them. An estimate above it is not the last
      word: now and then such a request is charged the whole capacity, so that it runs alone
      and is measured. Without ``capacity`` (the admission fills it in) there are no such runs.
    - ``route``: names the route of a request, by default its path; ``flow`` whose it is, by
      default everybody's. The model that the body names always counts.
    - ``clip``: bounds of actual over estimated; what is outside is taken as the bound.
    - ``doubt``: how many times the capacity an estimate may be to be worth a run alone.
    - ``max_routes``: of routes, models and flows together; the one that was quiet longest is forgotten.
    - ``meter``: measures a request that ran alone where the app does not; see ``PeakMeter``.
    """

    def __init__(
        self,
        inner: Estimator,
        *,
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
        _between(quantile, 0.5, 1, "quantile")
        _between(margin, 0, 1, "margin")
        _between(doubt, 1, 32, "doubt")
        if not 0 < clip[0] <= 1 <= clip[1] < 1e6:
            raise ValueError(f"clip must be (low, high) with 0 < low <= 1 <= high, got {clip!r}")
        for name, count in (("window", window), ("trust", trust), ("max_routes", max_routes)):
            if count < 1:
                raise ValueError(f"{name} must be at least 1, got {count!r}")
        self.inner = inner
        self.meter = meter
        self.capacity = (
            capacity if capacity is None or callable(capacity) else parse_bytes(capacity, name="capacity")
        )
        self.margin = margin
        self.clip = clip
        self.doubt = doubt
        self.max_routes = max_routes
        self._route, self._flow = route or _path, flow
        self._new = partial(History, window=window, quantile=quantile, trust=min(trust, window))
        self._histories = {ALL: self._new()}
        self._turns: dict[tuple[str, int], _Turn] = {}
        self._caution = 1
        self._lock = threading.Lock()
        # The collector may end a lease while the lock is held, by the same thread: what an ending
        # says is put here, without a lock, and taken in when the next charge is asked for.
        self._told: deque[_Told] = deque(maxlen=_MOST_TOLD)

    @property
    def needs_body(self) -> bool:
        """As ``inner`` does."""
        return bool(getattr(self.inner, "needs_body", True))

    def __call__(self, info: RequestInfo, /) -> Estimate | Awaitable[Estimate]:
        result = self.inner(info)
        if isinstance(result, (int, Estimate)):
            return self._charge(self.route_of(info), _as_estimate(result))
        return self._later(result, self.route_of(info))

    def route_of(self, info: RequestInfo) -> str:
        """The name under which ``observe`` must be told of a request: its route, model and flow."""
        model = _model(info) if self.needs_body else None
        flow = self._flow(info) if self._flow else None
        return " ".join(name[:_LONGEST_NAME] for name in (self._route(info), model, flow) if name)

    def estimate(self, workload: Workload, *, route: str = ALL) -> Estimate:
        """What is known of ``workload`` on ``route``, without runs alone; ``inner`` needs a formula."""
        first: Estimate = self.inner.estimate(workload)  # type: ignore[attr-defined]
        with self._lock:
            self._take_in()
            return self._corrected(route, first)

    def explain(self, workload: Workload, *, route: str = ALL) -> str:
        """The terms of ``inner`` and what is put on or taken off, as text."""
        return render(f"Learned on {route}", self.estimate(workload, route=route))

    def observe(self, route: RequestInfo | str, estimate: Estimate | int, peak: int) -> None:
        """One request on ``route`` was charged ``estimate`` and took ``peak`` bytes of it.

        ``peak`` is what the request added; one that failed or was cut short says nothing and is
        not for here. Raises nothing: a peak below 1 is passed over. Takes no lock.
        """
        charged = _as_estimate(estimate)
        first = charged.bytes - charged.parts.get(_CORRECTION, 0) - charged.parts.get(_SOLO, 0)
        if peak >= 1 and first >= 1:
            name = route if isinstance(route, str) else self.route_of(route)
            self._told.append((name, first, peak, charged.bytes if _SOLO in charged.parts else 0))

    def observe_workload(
        self, route: RequestInfo | str, estimate: Estimate | int, workload: Workload
    ) -> None:
        """One request that was charged ``estimate`` really was ``workload``: as many tokens as it used.

        It took what ``inner``, which needs a formula, says of that. Raises what ``inner`` raises.
        """
        really: Estimate = self.inner.estimate(workload)  # type: ignore[attr-defined]
        self.observe(route, estimate, really.bytes)

    def ran_out(self) -> None:
        """Some request ran out of memory: believe nothing below ``inner`` until much more was seen.

        Of all routes, for the one that failed need not be the one that took too much. Takes no lock.
        """
        self._told.append(None)

    def bind(self, capacity: Callable[[], int]) -> None:
        """Take the capacity from the admission, unless one was given."""
        if self.capacity is None:
            self.capacity = capacity

    def to_dict(self) -> dict[str, Any]:
        """What was learned, as plain JSON types."""
        with self._lock:
            self._take_in()
            return {"version": 2, "routes": {name: h.to_dict() for name, h in self._histories.items()}}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take in what ``to_dict`` gave, in place of what was learned. Raises ``ValueError``."""
        routes = state.get("routes") if isinstance(state, Mapping) else None
        if not isinstance(routes, Mapping) or state.get("version") != 2:
            raise ValueError("not the saved state of a Learned estimator, version 2")
        histories = {ALL: self._new()}
        for name, saved in routes.items():
            if not isinstance(saved, Mapping):
                raise ValueError(f"not a saved history: {saved!r:.80}")
            if name == ALL or len(histories) <= self.max_routes:
                histories.setdefault(name, self._new()).restore(saved)
        with self._lock:
            self._told.clear()
            self._histories = histories
            self._turns.clear()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write what was learned as JSON; a reader sees the old file or the new one, never half."""
        target = Path(path)
        part = target.with_name(f".{target.name}.{os.getpid()}.{threading.get_ident()}")
        try:
            with part.open("w", encoding="utf-8") as file:
                json.dump(self.to_dict(), file)
                file.flush()
                os.fsync(file.fileno())
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)

    def load(self, path: str | os.PathLike[str]) -> bool:
        """Take in a file that ``save`` wrote; ``False`` when there is none. Raises ``ValueError``."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except FileNotFoundError:
            return False
        self.restore(json.loads(text))
        return True

    def __repr__(self) -> str:
        with self._lock:
            self._take_in()
            seen = self._histories[ALL].count
        return f"Learned({self.inner!r}, {seen} observations on {len(self._histories) - 1} routes)"

    async def _later(self, result: Awaitable[int | Estimate], route: str) -> Estimate:
        return self._charge(route, _as_estimate(await result))

    def _charge(self, route: str, first: Estimate) -> Estimate:
        capacity = self.capacity() if callable(self.capacity) else self.capacity
        with self._lock:
            self._take_in()
            corrected = self._corrected(route, first)
            if capacity is None or corrected.bytes <= capacity or corrected.bytes > self.doubt * capacity:
                return corrected
            if not self._fitted(route, first, capacity) and not self._turn(route, first.bytes).comes():
                return corrected
        note = (
            f"charged the whole capacity, to be measured alone: {format_bytes(corrected.bytes)} did not fit"
        )
        return _moved(first, capacity, _SOLO, note)

    def _take_in(self) -> None:
        """What endings have said since the last time. They may say more meanwhile."""
        while self._told:
            told = self._told.popleft()
            if told is None:
                self._caution = min(_MOST_CAUTION, 2 * self._caution)
                for history in self._histories.values():
                    history.doubt()
            else:
                self._learn(*told)

    def _fitted(self, route: str, first: Estimate, capacity: int) -> bool:
        """Whether requests of this size did fit, alone, though too few to charge them less."""
        own = self._histories.get(route)
        return own is not None and 0 < own.taken_by(first.bytes) <= capacity

    def _learn(self, route: str, first: int, peak: int, alone: int) -> None:
        share = min(self.clip[1], max(self.clip[0], peak / first))
        for history in {id(h): h for h in (self._own(route), self._histories[ALL])}.values():
            if alone and history.taken_by(first) > alone:
                history.forget(first)
            history.add(first, share)
        self._turns.pop((route, size_class(first)), None)

    def _turn(self, route: str, size: int) -> _Turn:
        turn = self._turns.setdefault((route, size_class(size)), _Turn())
        while len(self._turns) > 16 * self.max_routes:
            del self._turns[next(iter(self._turns))]
        return turn

    def _corrected(self, route: str, first: Estimate) -> Estimate:
        own = self._histories.get(route)
        history = own or self._histories[ALL]
        if not history.count:
            return first
        size = history.bytes_for(first.bytes, caution=self._caution)
        if own is None:
            size = max(first.bytes, size)
        if size > first.bytes:
            size = min(self.clip[1] * first.bytes, size * (1 + self.margin))
        else:
            size = min(first.bytes, size * (1 + self.margin))
        return _moved(first, clamp(size), _CORRECTION, "")

    def _own(self, route: str) -> History:
        """The history of a route, which is now the latest; the one that was quiet longest makes room."""
        own = self._histories.pop(route, None) or self._new()
        self._histories[route] = own
        while len(self._histories) > self.max_routes + 1:
            del self._histories[next(name for name in self._histories if name != ALL)]
        return own


class _Turn:
    """Counts the refusals of one size until it is run alone again: at first at once, then less often."""

    __slots__ = ("left", "length")

    def __init__(self) -> None:
        self.left = 0
        self.length = 2

    def comes(self) -> bool:
        if self.left:
            self.left -= 1
            return False
        self.length = min(_LONGEST_TURN, 2 * self.length)
        self.left = self.length
        return True


def _as_estimate(result: int | Estimate) -> Estimate:
    return result if isinstance(result, Estimate) else Estimate(result, parts={"estimated": result})


def _moved(first: Estimate, size: int, name: str, note: str) -> Estimate:
    """``first`` with the difference to ``size`` as one more part, so that the parts still add up."""
    parts = {**first.parts, name: size - first.bytes}
    notes = (*first.notes, note) if note else first.notes
    return Estimate(size, None, first.basis, parts, notes)


def _path(info: RequestInfo) -> str:
    return info.path


def _model(info: RequestInfo) -> str | None:
    """The model that the body names, where one can be read."""
    try:
        return info.workload.model
    except UnreadableBody:
        return None


def _between(value: float, low: float, high: float, name: str) -> None:
    if not low <= value <= high:
        raise ValueError(f"{name} must be between {low} and {high}, got {value!r}")
