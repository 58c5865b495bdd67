"""``Learned``: estimates that follow what requests really take."""

from __future__ import annotations

import json
import math
import random
import sys
from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_admission.estimators import Constant, Learned, Linear, TorchPeak
from gpu_admission.estimators.history import History, size_class
from gpu_admission.request import EstimateResult, RequestInfo
from gpu_admission.types import Estimate, Workload
from tests.estimators.published import GIB, MIB


class Wrong:
    """Says ``factor`` times what ``tensor_bytes`` gives as the truth."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, info: RequestInfo, /) -> EstimateResult:
        return self.estimate(info.workload)

    def estimate(self, workload: Workload) -> Estimate:
        size = max(1, int(workload.tensor_bytes * self.factor))
        return Estimate(size, basis="pool", parts={"formula": size})


def asking(size: int, path: str = "/a") -> RequestInfo:
    class Reads:
        def read(self, info: RequestInfo) -> Workload:
            return Workload(tensor_bytes=size)

    return RequestInfo({"type": "http", "path": path, "headers": []}, dialect=Reads())


def charged(learned: Learned, size: int, path: str = "/a") -> Estimate:
    result = learned(asking(size, path))
    assert isinstance(result, Estimate)
    return result


def replay(
    learned: Learned,
    *,
    requests: int,
    noise: float,
    drift: Callable[[float], float],
    largest: float = 16,
    seed: int = 1,
) -> tuple[list[float], int]:
    """Shares of their charge that requests took after the first 200; the most refusals in a row of a size."""
    draw = random.Random(seed)
    shares: list[float] = []
    refused: dict[int, int] = {}
    longest = 0
    capacity = learned.capacity
    assert isinstance(capacity, int)
    for i in range(requests):
        size = int(2 ** draw.uniform(math.log2(0.1), math.log2(largest)) * GIB)
        estimate = charged(learned, size)
        kind = size.bit_length()
        if estimate.bytes > capacity:
            refused[kind] = refused.get(kind, 0) + 1
            longest = max(longest, refused[kind])
            continue
        refused[kind] = 0
        peak = min(capacity, int(size * drift(i / requests) * math.exp(draw.gauss(0, noise))))
        learned.observe("/a", estimate, peak)
        if i >= 200 and "runs alone" not in estimate.parts:
            shares.append(peak / estimate.bytes)
    return shares, longest


def percentile(shares: list[float]) -> float:
    return sorted(shares)[math.ceil(0.99 * len(shares)) - 1]


@pytest.mark.parametrize("noise", [0.0, 0.05, 0.1, 0.3])
@pytest.mark.parametrize("factor", [3.0, 1.0, 1 / 3])
def test_an_inner_that_is_wrong_by_three_is_put_right_after_200_requests(factor: float, noise: float) -> None:
    shares, longest = replay(
        Learned(Wrong(factor), capacity="24GiB"), requests=1500, noise=noise, drift=lambda part: 1.0
    )
    assert 0.8 <= percentile(shares) <= 1.0
    assert longest <= 64


DRIFTS: dict[str, Callable[[float], float]] = {
    "doubling": lambda part: 1 + part,
    "falling to a third": lambda part: 1 / (1 + 2 * part),
    "swinging": lambda part: 1.2 + 0.6 * math.sin(12 * part),
    "a jump up": lambda part: 1.0 if part < 0.5 else 2.0,
    "a jump down": lambda part: 2.0 if part < 0.5 else 1.0,
}


LOWEST = {
    "doubling": (0.8, 0.8),
    "falling to a third": (0.5, 0.45),
    "swinging": (0.8, 0.4),
    "a jump up": (0.8, 0.8),
    "a jump down": (0.8, 0.45),
}
"""Of its charge, what the 99th of 100 requests took at least: of all, and of the last 500. What falls is
followed only when 200 requests of a size have shown it, and there are 13 sizes."""


@pytest.mark.parametrize("drift", DRIFTS)
@pytest.mark.parametrize("factor", [3.0, 1 / 3])
def test_a_truth_that_drifts_is_followed_up_and_down(factor: float, drift: str) -> None:
    learned = Learned(Wrong(factor), capacity="24GiB")
    shares, longest = replay(learned, requests=3000, noise=0.05, drift=DRIFTS[drift], largest=8)
    of_all, of_last = LOWEST[drift]
    assert of_all <= percentile(shares) <= 1.0
    assert of_last <= percentile(shares[-500:]) <= 1.02
    assert longest <= 64


@pytest.mark.parametrize("drift", ["doubling", "a jump up", "a jump down"])
@pytest.mark.parametrize("factor", [3.0, 1 / 3])
def test_what_is_learned_of_a_truth_that_drifted_is_not_wasteful(factor: float, drift: str) -> None:
    learned = Learned(Wrong(factor), capacity="24GiB")
    shares, _ = replay(learned, requests=6000, noise=0.05, drift=DRIFTS[drift], largest=8)
    assert 0.8 <= percentile(shares[-500:]) <= 1.02


def test_nothing_is_changed_before_anything_was_seen() -> None:
    assert charged(Learned(Wrong(1.0)), GIB) == Wrong(1.0).estimate(Workload(tensor_bytes=GIB))


def test_one_observation_above_raises_the_charge_at_once() -> None:
    learned = Learned(Wrong(1 / 3), margin=0.05)
    learned.observe("/a", charged(learned, 3 * GIB), 3 * GIB)
    assert charged(learned, 3 * GIB).bytes == pytest.approx(3.15 * GIB, rel=1e-6)


def test_the_charge_falls_below_the_inner_only_after_enough_observations_of_the_route() -> None:
    learned = Learned(Wrong(3.0), trust=32, margin=0)
    falling = []
    for _ in range(100):
        learned.observe("/a", charged(learned, GIB), GIB)
        falling.append(charged(learned, GIB).bytes)
    assert falling[:32] == [3 * GIB] * 32
    assert all(after < before for before, after in pairwise(falling[31:]))
    assert falling[-1] == pytest.approx(GIB, rel=1e-6)
    assert charged(learned, GIB, "/b").bytes == 3 * GIB


def test_another_route_is_judged_by_all_until_it_has_a_history_but_never_below_its_inner() -> None:
    learned = Learned(Wrong(1 / 3), margin=0)
    for _ in range(20):
        learned.observe("/a", charged(learned, GIB), GIB)
    assert charged(learned, GIB, "/b").bytes == pytest.approx(GIB, rel=1e-6)
    assert learned.estimate(Workload(tensor_bytes=GIB), route="/a").bytes == pytest.approx(GIB, rel=1e-6)


def test_sizes_are_learned_apart() -> None:
    learned = Learned(Wrong(1.0), margin=0)
    for _ in range(110):
        learned.observe("/a", 100 * MIB, 300 * MIB)
        learned.observe("/a", 8 * GIB, 4 * GIB)
    assert charged(learned, 100 * MIB).bytes == pytest.approx(300 * MIB, rel=1e-6)
    assert charged(learned, 8 * GIB).bytes == pytest.approx(4 * GIB, rel=1e-6)


def test_an_observation_is_clipped_to_what_is_credible() -> None:
    learned = Learned(Wrong(1.0), clip=(0.5, 2.0), margin=0)
    for _ in range(10):
        learned.observe("/a", GIB, 100 * GIB)
    assert charged(learned, GIB).bytes == 2 * GIB
    for _ in range(300):
        learned.observe("/a", GIB, 1)
    assert charged(learned, GIB).bytes == pytest.approx(GIB // 2, rel=1e-6)


def test_parts_still_add_up_and_the_rest_of_the_estimate_is_kept() -> None:
    learned = Learned(Wrong(1.0))
    learned.observe("/a", GIB, 2 * GIB)
    estimate = charged(learned, GIB)
    assert estimate.parts["formula"] == GIB
    assert sum(estimate.parts.values()) == estimate.bytes
    assert estimate.basis == "pool"
    assert "Learned on /a" in learned.explain(Workload(tensor_bytes=GIB), route="/a")


def test_what_was_charged_is_judged_by_what_the_inner_had_said() -> None:
    learned = Learned(Wrong(1.0), margin=0)
    for _ in range(20):
        learned.observe("/a", charged(learned, GIB), 2 * GIB)
    assert charged(learned, GIB).bytes == pytest.approx(2 * GIB, rel=1e-6)


def test_peaks_that_are_none_are_passed_over() -> None:
    learned = Learned(Wrong(1.0))
    learned.observe("/a", GIB, 0)
    learned.observe("/a", GIB, -5)
    assert charged(learned, GIB).bytes == GIB


def test_a_request_can_be_named_by_itself_or_by_its_route() -> None:
    learned = Learned(Wrong(1.0), route=lambda info: "all " + info.method, margin=0)
    info = asking(GIB)
    info.scope["method"] = "POST"
    learned.observe(info, GIB, 2 * GIB)
    assert learned.route_of(info) == "all POST"
    assert learned.estimate(Workload(tensor_bytes=GIB), route="all POST").bytes == 2 * GIB


def test_of_more_routes_than_the_bound_those_that_were_quiet_longest_are_forgotten() -> None:
    learned = Learned(Wrong(1.0), max_routes=2, margin=0)
    for i in range(100):
        for _ in range(100):
            learned.observe(f"/{i}", GIB, GIB // 2)
    assert "2 routes" in repr(learned)
    assert set(learned.to_dict()["routes"]) == {"*", "/98", "/99"}
    assert charged(learned, GIB, "/99").bytes == pytest.approx(GIB // 2, rel=1e-6)
    assert charged(learned, GIB, "/5").bytes == GIB


class TestRunsAlone:
    def test_a_request_that_could_never_fit_is_charged_the_whole_capacity_now_and_then(self) -> None:
        learned = Learned(Wrong(3.0), capacity="10GiB")
        sizes = [charged(learned, 4 * GIB) for _ in range(300)]
        alone = [i for i, estimate in enumerate(sizes) if estimate.bytes == 10 * GIB]
        assert alone[0] == 0
        assert all(after - before <= 65 for before, after in pairwise(alone))
        assert "measured alone" in sizes[0].notes[0]
        assert sum(sizes[0].parts.values()) == sizes[0].bytes
        assert all(sizes[i].bytes == 12 * GIB for i in range(300) if i not in alone)

    def test_a_run_alone_that_fits_lets_the_next_ones_in(self) -> None:
        learned = Learned(Wrong(3.0), capacity="10GiB")
        for _ in range(40):
            alone = charged(learned, 4 * GIB)
            assert alone.bytes <= 10 * GIB
            learned.observe("/a", alone, 4 * GIB)
        for _ in range(60):
            learned.observe("/a", charged(learned, 4 * GIB), 4 * GIB)
        assert charged(learned, 4 * GIB).bytes == pytest.approx(4.2 * GIB, rel=1e-6)

    def test_a_run_alone_overrules_what_was_seen_before(self) -> None:
        learned = Learned(Wrong(1.0), capacity="10GiB", margin=0)
        for _ in range(50):
            learned.observe("/a", 4 * GIB, 12 * GIB)
        alone = charged(learned, 4 * GIB)
        assert alone.bytes == 10 * GIB
        learned.observe("/a", alone, 3 * GIB)
        assert charged(learned, 4 * GIB).bytes == pytest.approx(4 * GIB, rel=0.01)

    def test_what_is_beyond_doubt_too_large_is_not_tried(self) -> None:
        learned = Learned(Wrong(1.0), capacity="1GiB", doubt=4)
        assert all(charged(learned, 5 * GIB).bytes == 5 * GIB for _ in range(100))

    def test_without_a_capacity_there_are_none_and_the_admission_may_give_one(self) -> None:
        learned = Learned(Wrong(1.0))
        assert charged(learned, 2 * GIB).bytes == 2 * GIB
        learned.bind(lambda: GIB)
        assert charged(learned, 2 * GIB).bytes == GIB
        learned.bind(lambda: 7)
        assert callable(learned.capacity)
        assert learned.capacity() == GIB

    def test_sizes_that_are_waited_for_are_a_bounded_number(self) -> None:
        learned = Learned(Wrong(1.0), capacity=1000, max_routes=1, route=lambda info: info.path)
        for i in range(100):
            charged(learned, 2000, f"/{i}")
        assert len(learned._turns) <= 16


@pytest.mark.anyio
async def test_an_inner_may_be_awaited() -> None:
    async def inner(info: RequestInfo) -> int:
        return 100

    learned = Learned(inner, margin=0)
    learned.observe("/a", 100, 200)
    result = learned(asking(1))
    assert isinstance(result, Awaitable)
    assert (await result).bytes == 200


def test_a_body_is_read_when_the_inner_needs_one() -> None:
    assert not Learned(Constant(1)).needs_body
    assert Learned(Linear({"prompt_tokens": 1})).needs_body


def test_what_was_learned_survives_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "learned.json"
    learned = Learned(Wrong(3.0), capacity="24GiB")
    assert not learned.load(file)
    replay(learned, requests=300, noise=0.1, drift=lambda part: 1.0)
    learned.save(file)
    again = Learned(Wrong(3.0), capacity="24GiB")
    assert again.load(file)
    assert again.to_dict() == learned.to_dict()
    for size in (MIB, GIB, 7 * GIB):
        assert charged(again, size) == charged(learned, size)
    assert [entry.name for entry in tmp_path.iterdir()] == ["learned.json"]


def test_a_save_that_fails_leaves_the_old_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learned = Learned(Wrong(1.0))
    learned.save(tmp_path / "learned.json")

    def full(fd: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("os.fsync", full)
    learned.observe("/a", 1, 2)
    with pytest.raises(OSError, match="no space"):
        learned.save(tmp_path / "learned.json")
    assert [entry.name for entry in tmp_path.iterdir()] == ["learned.json"]
    assert json.loads((tmp_path / "learned.json").read_text())["routes"] == {"*": {}}


GOOD = {"60": {"shares": [1.0], "evidence": 1}}


@pytest.mark.parametrize(
    "state",
    [
        [],
        {},
        {"version": 1, "routes": {}},
        {"version": 2, "routes": []},
        {"version": 2, "routes": {"/a": []}},
        {"version": 2, "routes": {"/a": {"x": {"shares": [1], "evidence": 1}}}},
        {"version": 2, "routes": {"/a": {"1": {"shares": 5, "evidence": 1}}}},
        {"version": 2, "routes": {"/a": {"1": {"shares": [-1], "evidence": 1}}}},
        {"version": 2, "routes": {"/a": {"1": {"shares": [math.nan], "evidence": 1}}}},
        {"version": 2, "routes": {"/a": {"1": {"shares": ["much"], "evidence": 1}}}},
        {"version": 2, "routes": {"/a": {"1": {"shares": [1]}}}},
        {"version": 2, "routes": {"/a": {"1": {"shares": [1], "evidence": None}}}},
    ],
)
def test_a_state_that_was_not_saved_by_it_is_refused_and_changes_nothing(state: Any) -> None:
    learned = Learned(Wrong(1.0))
    learned.observe("/a", GIB, 2 * GIB)
    before = learned.to_dict()
    with pytest.raises(ValueError, match=r".+"):
        learned.restore(state)
    assert learned.to_dict() == before


def test_a_state_with_more_routes_than_the_bound_is_cut() -> None:
    learned = Learned(Wrong(1.0), max_routes=2)
    learned.restore({"version": 2, "routes": {f"/{i}": GOOD for i in range(9)} | {"*": GOOD}})
    assert len(learned.to_dict()["routes"]) == 3


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"quantile": 0.2}, "quantile"),
        ({"margin": 2}, "margin"),
        ({"doubt": 0}, "doubt"),
        ({"clip": (2, 1)}, "clip"),
        ({"clip": (0, 2)}, "clip"),
        ({"window": 0}, "window"),
        ({"trust": 0}, "trust"),
        ({"max_routes": 0}, "max_routes"),
        ({"capacity": "much"}, "capacity"),
    ],
)
def test_an_option_that_makes_no_sense_is_named(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Learned(Wrong(1.0), **options)


@given(
    seen=st.lists(st.tuples(st.integers(1, 2**50), st.floats(0.01, 100)), min_size=1, max_size=60),
    asked=st.integers(1, 2**62),
)
def test_a_history_says_no_less_than_was_estimated_of_a_size_that_it_has_not_seen_often(
    seen: list[tuple[int, float]], asked: int
) -> None:
    history = History(window=20, quantile=0.9, trust=20)
    for size, share in seen:
        history.add(size, share)
    if sum(size_class(size) == size_class(asked) for size, _ in seen) <= 20:
        assert history.bytes_for(asked) >= asked


def test_a_history_without_observations_of_a_size_forgets_nothing() -> None:
    history = History(window=20, quantile=0.9, trust=4)
    history.add(1000, 2.0)
    history.forget(10**9)
    assert history.bytes_for(1000) == pytest.approx(2000)


def many(learned: Learned, times: int, peak: int, *, asked: int = 4 * GIB, path: str = "/a") -> None:
    for _ in range(times):
        learned.observe(path, charged(learned, asked, path), peak)


class TestAdversaries:
    """Clients and accidents that made an earlier policy charge too little, or too much for long."""

    def test_eight_short_answers_lower_nothing(self) -> None:
        learned = Learned(Wrong(1.0))
        many(learned, 8, 80 * MIB)
        assert charged(learned, 4 * GIB).bytes == 4 * GIB

    def test_sixteen_cheap_requests_after_a_hundred_honest_ones_lower_nothing(self) -> None:
        for honest in (1.0, 3.0, 0.5):
            learned = Learned(Wrong(1.0))
            many(learned, 100, int(honest * 4 * GIB))
            before = charged(learned, 4 * GIB).bytes
            many(learned, 16, int(honest * 0.07 * 4 * GIB))
            assert charged(learned, 4 * GIB).bytes >= before >= honest * 4 * GIB

    def test_one_outlier_costs_nobody_a_place_but_a_second_counts(self) -> None:
        learned = Learned(Wrong(1.0))
        many(learned, 100, 4 * GIB)
        many(learned, 1, 128 * GIB)
        assert charged(learned, 4 * GIB).bytes == 4 * GIB
        many(learned, 1, 128 * GIB)
        assert charged(learned, 4 * GIB).bytes > 100 * GIB

    def test_an_outlier_that_no_second_follows_is_forgotten(self) -> None:
        learned = Learned(Wrong(1.0))
        many(learned, 100, 4 * GIB)
        many(learned, 1, 128 * GIB)
        many(learned, 250, 4 * GIB)
        many(learned, 1, 128 * GIB)
        assert charged(learned, 4 * GIB).bytes == 4 * GIB

    def test_two_models_on_one_path_are_learned_apart(self) -> None:
        class Reads:
            def __init__(self, model: str) -> None:
                self.model = model

            def read(self, info: RequestInfo) -> Workload:
                return Workload(tensor_bytes=4 * GIB, model=self.model)

        learned = Learned(Wrong(1.0), margin=0)
        scope = {"type": "http", "path": "/v1/chat/completions", "headers": []}
        small, large = (RequestInfo(scope, dialect=Reads(model)) for model in ("small", "large"))
        for _ in range(150):
            for info, peak in ((small, GIB), (large, 4 * GIB)):
                estimate = learned(info)
                assert isinstance(estimate, Estimate)
                learned.observe(learned.route_of(info), estimate, peak)
        sizes = [result.bytes for info in (small, large) if isinstance(result := learned(info), Estimate)]
        assert sizes == [pytest.approx(GIB, rel=1e-6), 4 * GIB]

    def test_what_one_flow_answers_lowers_no_others_charge(self) -> None:
        learned = Learned(Wrong(1.0), flow=lambda info: info.headers.get("x-tenant"))
        cheap, honest = asking(4 * GIB), asking(4 * GIB)
        cheap.scope["headers"] = [(b"x-tenant", b"cheap")]
        honest.scope["headers"] = [(b"x-tenant", b"honest")]
        for _ in range(300):
            estimate = learned(cheap)
            assert isinstance(estimate, Estimate)
            learned.observe(learned.route_of(cheap), estimate, 80 * MIB)
        sizes = [result.bytes for info in (cheap, honest) if isinstance(result := learned(info), Estimate)]
        assert sizes[0] < GIB
        assert sizes[1] == 4 * GIB

    def test_after_a_swap_to_a_smaller_model_the_charge_is_the_inners_again_soon(self) -> None:
        learned = Learned(Wrong(1.0))
        many(learned, 300, int(4.4 * 4 * GIB))
        many(learned, 64, 4 * GIB)
        assert charged(learned, 4 * GIB).bytes == 4 * GIB

    def test_after_a_swap_to_a_larger_model_two_requests_are_enough(self) -> None:
        learned = Learned(Wrong(1.0))
        many(learned, 300, GIB)
        assert charged(learned, 4 * GIB).bytes < 1.1 * GIB
        many(learned, 2, 4 * GIB)
        assert charged(learned, 4 * GIB).bytes == 4 * GIB

    def test_an_out_of_memory_puts_every_charge_back_at_once_and_makes_it_careful(self) -> None:
        learned = Learned(Wrong(1.0))
        many(learned, 200, GIB)
        many(learned, 200, 8 * GIB, path="/b")
        learned.ran_out()
        assert charged(learned, 4 * GIB).bytes == 4 * GIB
        assert charged(learned, 4 * GIB, "/b").bytes > 8 * GIB
        many(learned, 64, GIB)
        assert charged(learned, 4 * GIB).bytes == 4 * GIB
        many(learned, 136, GIB)
        assert charged(learned, 4 * GIB).bytes < 1.1 * GIB

    def test_learning_never_charges_more_than_the_inner_that_is_never_exceeded(self) -> None:
        draw = random.Random(3)
        learned = Learned(Wrong(1.0))
        for _ in range(2000):
            asked = int(2 ** draw.uniform(20, 33))
            estimate = charged(learned, asked)
            assert estimate.bytes <= asked
            learned.observe("/a", estimate, int(asked * draw.uniform(0.1, 1)))

    def test_a_lease_that_the_collector_ends_under_the_lock_does_not_hang(self) -> None:
        learned = Learned(Wrong(1.0))
        with learned._lock:
            learned.observe("/a", GIB, 2 * GIB)
            learned.ran_out()
        assert charged(learned, GIB).bytes > 2 * GIB

    def test_what_endings_say_is_bounded_while_no_request_comes(self) -> None:
        learned = Learned(Wrong(1.0))
        for _ in range(10_000):
            learned.observe("/a", GIB, 2 * GIB)
        assert len(learned._told) <= 4096


def test_what_a_request_really_was_is_put_through_the_inner() -> None:
    learned = Learned(Linear({"prompt_tokens": MIB, "new_tokens": MIB}))
    asked = learned.estimate(Workload(prompt_tokens=96, new_tokens=4000))
    for _ in range(100):
        learned.observe_workload("/a", asked, Workload(prompt_tokens=96, new_tokens=928))
    after = learned.estimate(Workload(prompt_tokens=96, new_tokens=4000), route="/a")
    assert after.bytes == pytest.approx(1.05 * GIB, rel=1e-6)


def test_torch_measures_what_was_allocated_since_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    cuda = SimpleNamespace(
        reset_peak_memory_stats=calls.append,
        memory_allocated=lambda device: 100,
        max_memory_allocated=lambda device: 150,
    )
    monkeypatch.setitem(
        sys.modules, "torch", SimpleNamespace(cuda=cuda, version=SimpleNamespace(cuda="12.8", hip=None))
    )
    meter = TorchPeak(device=1)
    assert (meter.start(), meter.peak(), calls) == (100, 150, [1])


def test_without_torch_its_meter_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(RuntimeError, match=r"gpu-admission\[torch\]"):
        TorchPeak()


def test_a_torch_for_the_cpu_measures_nothing_and_says_so_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    version = SimpleNamespace(cuda=None, hip=None)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(version=version))
    with pytest.raises(RuntimeError, match="built for CUDA or ROCm: this one is not"):
        TorchPeak()


@pytest.mark.parametrize("inner", [None, 5, "1GiB", {"/v1": 1}])
def test_an_inner_that_is_no_estimator_is_refused_where_it_is_given(inner: Any) -> None:
    with pytest.raises(TypeError, match=r"inner must be an estimator, such as Linear\(\.\.\.\)"):
        Learned(inner)
