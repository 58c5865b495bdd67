"""``Learned``: an estimator corrected by what requests really took.

Owns the loop: which observation belongs to which route, how far an estimate may be moved,
and that a wrong one can't refuse a request for ever. The statistics are in ``history``.
"""

from __future__ import annotations

import functools
import json
import os
import threading
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from gpu_admission.estimators.history import History, size_class
from gpu_admission.estimators.meter import PeakMeter
from gpu_admission.estimators.terms import clamp, render
from gpu_admission.request import Estimator, RequestInfo
from gpu_admission.runtime.turn import Turn
from gpu_admission.sizes import format_bytes, parse_bytes
from gpu_admission.types import Estimate, Workload

ALL = "*"
"""The history of all routes together: what a route without one of its own is judged by."""
_CORRECTION, _SOLO = "learned", "runs alone"
_LONGEST_TURN = 64


class Learned:
    """``inner``, times what measured peaks say of its estimates for this route and size.

    Feed it with ``observe``; the admission does so for every lease whose peak is recorded.

    - ``capacity``: bytes, or a function that gives them. An estimate above it is not the last
      word: now and then such a request is charged the whole capacity, so that it runs alone
      and is measured. Without ``capacity`` (the admission fills it in) there are no such runs.
    - ``route``: names the route of a request; by default its path.
    - ``quantile``, ``margin``: of the next requests this share stays below its charge, and
      ``margin`` is put on top.
    - ``recent``, ``window``: observations of one size, and of one route, that count.
    - ``clip``: bounds of actual over estimated; what is outside is taken as the bound.
    - ``trust``: observations of a route before a charge may be below ``inner``'s.
    - ``doubt``: how many times the capacity an estimate may be to be worth a run alone.
    - ``meter``: measures a request that ran alone where the app does not; see ``PeakMeter``.
    """

    def __init__(
        self,
        inner: Estimator,
        *,
        capacity: int | str | Callable[[], int] | None = None,
        route: Callable[[RequestInfo], str] | None = None,
        quantile: float = 0.99,
        margin: float = 0.05,
        recent: int = 16,
        window: int = 200,
        clip: tuple[float, float] = (1 / 32, 32.0),
        trust: int = 8,
        doubt: float = 4.0,
        max_routes: int = 64,
        meter: PeakMeter | None = None,
    ) -> None:
        _between(quantile, 0.5, 1, "quantile")
        _between(margin, 0, 1, "margin")
        _between(doubt, 1, 32, "doubt")
        if not 0 < clip[0] <= 1 <= clip[1] < 1e6:
            raise ValueError(f"clip must be (low, high) with 0 < low <= 1 <= high, got {clip!r}")
        for name, count in (
            ("recent", recent),
            ("window", window),
            ("trust", trust),
            ("max_routes", max_routes),
        ):
            if count < 1:
                raise ValueError(f"{name} must be at least 1, got {count!r}")
        self.inner = inner
        self.meter = meter
        self.capacity = (
            capacity if capacity is None or callable(capacity) else parse_bytes(capacity, name="capacity")
        )
        self.route_of: Callable[[RequestInfo], str] = route or _path
        """The name under which ``observe`` must be told of a request."""
        self.margin = margin
        self.clip = clip
        self.trust = trust
        self.doubt = doubt
        self.max_routes = max_routes
        self._windows = {"window": window, "recent": recent}
        self._quantile = quantile
        self._histories = {ALL: self._new()}
        self._turns: dict[tuple[str, int], _Turn] = {}
        # The collector may end a lease, and so call ``observe``, in the middle of any line here, in the
        # very thread that holds the lock: what is observed then comes after.
        self._lock = Turn()

    @property
    def needs_body(self) -> bool:
        """As ``inner`` does."""
        return bool(getattr(self.inner, "needs_body", True))

    def __call__(self, info: RequestInfo, /) -> Estimate | Awaitable[Estimate]:
        result = self.inner(info)
        if isinstance(result, (int, Estimate)):
            return self._charge(self.route_of(info), _as_estimate(result))
        return self._later(result, self.route_of(info))

    def estimate(self, workload: Workload, *, route: str = ALL) -> Estimate:
        """What is known of ``workload`` on ``route``, without runs alone; ``inner`` needs a formula."""
        with self._lock:
            return self._corrected(route, self.inner.estimate(workload))  # type: ignore[attr-defined]

    def explain(self, workload: Workload, *, route: str = ALL) -> str:
        """The terms of ``inner`` and what is put on or taken off, as text."""
        return render(f"Learned on {route}", self.estimate(workload, route=route))

    def observe(self, route: RequestInfo | str, estimate: Estimate | int, peak: int) -> None:
        """One request on ``route`` was charged ``estimate`` and took ``peak`` bytes of it.

        ``peak`` is what the request added; one that failed or was cut short says nothing and is
        not for here. Raises nothing: a peak below 1 is passed over.
        """
        name = route if isinstance(route, str) else self.route_of(route)
        charged = _as_estimate(estimate)
        first = charged.bytes - charged.parts.get(_CORRECTION, 0) - charged.parts.get(_SOLO, 0)
        if peak < 1 or first < 1:
            return
        share = min(self.clip[1], max(self.clip[0], peak / first))
        self._lock.take(functools.partial(self._take_in, name, charged, first, share))

    def _take_in(self, name: str, charged: Estimate, first: int, share: float) -> None:
        with self._lock:
            for history in {id(h): h for h in (self._own(name), self._histories[ALL])}.values():
                if _SOLO in charged.parts:
                    history.forget(first)
                history.add(first, share)
            self._turns.pop((name, size_class(first)), None)

    def bind(self, capacity: Callable[[], int]) -> None:
        """Take the capacity from the admission, unless one was given."""
        if self.capacity is None:
            self.capacity = capacity

    def to_dict(self) -> dict[str, Any]:
        """What was learned, as plain JSON types."""
        with self._lock:
            return {"version": 1, "routes": {name: h.to_dict() for name, h in self._histories.items()}}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take in what ``to_dict`` gave, in place of what was learned. Raises ``ValueError``."""
        routes = state.get("routes") if isinstance(state, Mapping) else None
        if not isinstance(routes, Mapping) or state.get("version") != 1:
            raise ValueError("not the saved state of a Learned estimator, version 1")
        histories = {ALL: self._new()}
        for name, saved in routes.items():
            if name == ALL or len(histories) <= self.max_routes:
                histories.setdefault(name, self._new()).restore(saved)
        with self._lock:
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
        seen = self._histories[ALL].count
        return f"Learned({self.inner!r}, {seen} observations on {len(self._histories) - 1} routes)"

    async def _later(self, result: Awaitable[int | Estimate], route: str) -> Estimate:
        return self._charge(route, _as_estimate(await result))

    def _charge(self, route: str, first: Estimate) -> Estimate:
        with self._lock:
            corrected = self._corrected(route, first)
            capacity = self.capacity() if callable(self.capacity) else self.capacity
            if capacity is None or corrected.bytes <= capacity or corrected.bytes > self.doubt * capacity:
                return corrected
            if not self._turn(route, first.bytes).comes():
                return corrected
        note = (
            f"charged the whole capacity, to be measured alone: {format_bytes(corrected.bytes)} did not fit"
        )
        return _moved(first, capacity, _SOLO, note)

    def _turn(self, route: str, size: int) -> _Turn:
        turn = self._turns.setdefault((route, size_class(size)), _Turn())
        while len(self._turns) > 16 * self.max_routes:
            del self._turns[next(iter(self._turns))]
        return turn

    def _corrected(self, route: str, first: Estimate) -> Estimate:
        history = self._histories.get(route) or self._histories[ALL]
        if not history.count:
            return first
        own = route in self._histories or len(self._histories) > self.max_routes
        low = self.clip[0] if own and history.count >= self.trust else 1.0
        size = min(self.clip[1] * first.bytes, max(low * first.bytes, history.bytes_for(first.bytes)))
        return _moved(first, clamp(size * (1 + self.margin)), _CORRECTION, "")

    def _new(self) -> History:
        return History(**self._windows, quantile=self._quantile)

    def _own(self, route: str) -> History:
        """The history of a route; the shared one for routes beyond the bound."""
        if route not in self._histories and len(self._histories) > self.max_routes:
            return self._histories[ALL]
        return self._histories.setdefault(route, self._new())


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


def _between(value: float, low: float, high: float, name: str) -> None:
    if not low <= value <= high:
        raise ValueError(f"{name} must be between {low} and {high}, got {value!r}")
