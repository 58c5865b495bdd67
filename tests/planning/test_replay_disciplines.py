"""What is compared: the disciplines, their figures on slices of real traces, and the plot of them."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_admission.planning.cases import Case, Row
from gpu_admission.planning.disciplines import Setup, disciplines, flows_of, lanes_of, true_sizes
from gpu_admission.planning.figures import completed_by_tenant, figures, percentile
from gpu_admission.planning.replay import NEVER, Replayed
from gpu_admission.planning.service import Decoder
from gpu_admission.planning.table import blocks_for, plot, table
from gpu_admission.planning.trace import Trace, read

DATA = Path(__file__).parent / "data"
SLICES = ["azure2023_code_head.csv", "mooncake_conversation_head.csv"]


def trace(*sizes: int) -> Trace:
    count = len(sizes)
    return Trace(arrivals=[float(n) for n in range(count)], sizes=list(sizes), seconds=[1.0] * count)


def played(
    file: str, *names: str, load: float = 1.2, error: float = 0.0, margin: float = 0.0
) -> dict[str, Row]:
    decoder = Decoder()
    card = decoder.card
    requests = read(DATA / file, decoder).at_most(card.capacity)
    case = Case(
        name="",
        discipline=disciplines()["default"],
        setup=Setup(capacity=card.capacity, timeout=60.0, max_waiting=10**6, margin=margin),
        drag=card.drag,
        pace=requests.load(card) / load,
        error=error,
    )
    known = disciplines()
    return {name: replace(case, discipline=known[name]).play(requests) for name in names}


@pytest.mark.parametrize("file", SLICES)
def test_under_overload_far_more_start_soon_and_the_largest_keep_their_place(file: str) -> None:
    rows = played(file, "default", "fifo", "n-worst")
    default, fifo, worst = (rows[name].figures for name in ("default", "fifo", "n-worst"))
    assert default.out_of_memory == fifo.out_of_memory == worst.out_of_memory == 0
    assert default.completed >= 1.3 * worst.completed
    assert default.completed >= fifo.completed - 1
    assert default.soon >= 1.5 * fifo.soon
    assert default.largest >= fifo.largest - 10


@pytest.mark.parametrize("file", SLICES)
def test_counting_requests_by_their_mean_runs_out_of_memory(file: str) -> None:
    assert played(file, "n-mean")["n-mean"].figures.out_of_memory > 100


@pytest.mark.parametrize("error", [0.05, 0.1, 0.2])
def test_a_margin_as_large_as_the_error_keeps_memory(error: float) -> None:
    with_none = played(SLICES[0], "default", error=error)["default"].figures
    with_one = played(SLICES[0], "default", error=error, margin=error)["default"].figures
    assert with_none.out_of_memory > 20
    assert with_one.out_of_memory <= 4


def test_a_lane_for_the_small_shortens_their_longest_waits() -> None:
    rows = played(SLICES[1], "default", "lanes")
    assert rows["lanes"].figures.small_wait < 0.6 * rows["default"].figures.small_wait


def test_between_tenants_the_one_that_sends_half_is_the_one_that_loses() -> None:
    rows = played(SLICES[0], "default", "flows")
    busiest, others = rows["flows"].tenants
    assert others > busiest
    assert others >= rows["default"].tenants[1]


def test_free_bypass_starves_the_largest() -> None:
    rows = played(SLICES[1], "default", "free")
    assert rows["free"].figures.largest < rows["default"].figures.largest - 10


def test_the_forecast_is_right_within_seconds() -> None:
    default = played(SLICES[0], "default")["default"].figures
    assert default.forecast_error < 5


def test_semaphores_have_as_many_permits_as_the_size_fits() -> None:
    setup, requests = Setup(capacity=100, margin=0.1), trace(10, 10, 40)
    assert disciplines()["n-worst"].ledger(setup, requests).max_running == 2
    assert disciplines()["n-mean"].ledger(setup, requests).max_running == 4
    assert disciplines()["n-worst"].ledger(setup, trace(99)).max_running == 1


def test_the_settings_reach_the_ledger() -> None:
    setup = Setup(capacity=1000, margin=0.1, max_waiting=3, max_running=7, max_bypass=5, max_bypass_wait=2.0)
    ledger = setup.ledger()
    assert ledger.capacity == 900
    assert ledger.lanes[0].max_waiting == 3
    assert (ledger.max_running, ledger.order.max_bypass, ledger.order.max_bypass_wait) == (7, 5, 2.0)
    assert disciplines()["fifo"].ledger(setup, trace(1)).order.max_bypass == 0


def test_the_smaller_half_has_the_first_lane() -> None:
    assert lanes_of(trace(5, 1, 3, 9)) == [1, 0, 0, 1]


def test_one_tenant_sends_half() -> None:
    flows = flows_of(trace(*[1] * 4000), 5, seed=1)
    assert set(flows) == {0, 1, 2, 3, 4}
    assert flows.count(0) == pytest.approx(2000, abs=150)
    assert flows.count(3) == pytest.approx(500, abs=100)
    assert set(flows_of(trace(1, 1), 1, seed=1)) == {0}


def test_true_sizes_scatter_around_what_was_charged() -> None:
    requests = trace(*[1000] * 4000)
    assert true_sizes(requests, 0.0, seed=1) is requests.sizes
    sizes = true_sizes(requests, 0.1, seed=1)
    assert sum(sizes) / len(sizes) == pytest.approx(1000, abs=10)
    assert sum(abs(size - 1000) <= 100 for size in sizes) / len(sizes) == pytest.approx(0.68, abs=0.03)
    assert min(true_sizes(requests, 0.9, seed=1)) == 100


def replayed(waits: list[float], done: list[int], **more: object) -> Replayed:
    known: dict[str, object] = {"out_of_memory": 0, "refused": 0, "byte_seconds": 0.0}
    known["forecasts"] = known["ends"] = [math.nan] * len(waits)
    fields = known | {"waits": waits, "done": bytearray(done)} | more
    return Replayed(**fields)  # type: ignore[arg-type]


def test_the_figures_of_a_replay() -> None:
    sizes = list(range(1, 21))
    waits = [0.0] * 10 + [10.0] * 4 + [11.0] * 4 + [NEVER, 50.0]
    run = replayed(
        waits, [1] * 18 + [0, 1], out_of_memory=1, byte_seconds=95.0, forecasts=[math.nan] * 19 + [44.0]
    )
    found = figures(trace(*sizes), run, capacity=10)
    assert found.requests == 20
    assert found.completed == 95.0
    assert found.soon == 70.0
    assert found.largest == 50.0
    assert found.small_wait == 0.0
    assert found.out_of_memory == 50.0
    assert found.used == pytest.approx(50.0)
    assert found.forecast_error == 6.0
    assert list(found.waits) == sorted(waits)[:-1]


def test_what_there_is_none_of_is_not_a_number() -> None:
    found = figures(trace(5), replayed([NEVER], [0]), capacity=10)
    assert math.isnan(found.small_wait)
    assert math.isnan(found.forecast_error)
    assert math.isnan(found.used)
    assert math.isnan(completed_by_tenant(replayed([0.0], [1]), [0])[1])


@pytest.mark.parametrize(("share", "value"), [(0.0, 1), (0.5, 2), (0.51, 3), (0.99, 4), (1.0, 4)])
def test_a_percentile_is_one_of_the_values(share: float, value: float) -> None:
    assert percentile([4, 3, 2, 1], share) == value


def test_what_if_changes_settings_and_traffic() -> None:
    case = Case(
        name="default", discipline=disciplines()["default"], setup=Setup(capacity=100), drag=0.0, pace=3.0
    )
    other = case.what_if(" capacity=1KiB, traffic=1.5")
    assert other.setup.capacity == 1024
    assert other.pace == 2.0
    assert case.what_if("max_running=2,margin=0.5,timeout=0").setup.margin == 0.5


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("speed=2", "NAME is one of capacity, timeout"),
        ("capacity", "write NAME=VALUE"),
        ("capacity=much", "'much' is no value of capacity"),
        ("capacity=0", "capacity is too small"),
        ("traffic=0", "traffic is too small"),
        ("timeout=-1", "timeout is too small"),
        ("timeout=nan", "timeout is too small"),
        ("margin=1", "margin is below 1"),
        ("max_waiting=1.5", "no value of max_waiting"),
    ],
)
def test_what_is_no_question_is_refused(text: str, sentence: str) -> None:
    case = Case(name="", discipline=disciplines()["default"], setup=Setup(capacity=100), drag=0.0)
    with pytest.raises(ValueError, match=sentence):
        case.what_if(text)


def test_the_table_and_the_plot_have_a_line_for_each_row() -> None:
    rows = list(played(SLICES[0], "default", "n-worst").values())
    named = [
        Row(name, row.figures, row.tenants) for name, row in zip(["default", "n-worst"], rows, strict=True)
    ]
    lines = list(table(named).lines())
    assert [line.split("  ")[0] for line in lines[2:]] == ["default", "n-worst"]
    assert f"{named[0].figures.completed:.1f} %" in lines[2]
    axis, *bars = plot(named, 60.0)
    assert "0.1 s" in axis
    assert "60 s" in axis
    assert bars[0].endswith("█")
    assert not bars[1].endswith("█")


def test_a_figure_that_is_not_there_is_a_dash() -> None:
    row = Row("default", figures(trace(5), replayed([NEVER], [0]), capacity=10), (math.nan, math.nan))
    assert " - " in list(table([row]).lines())[-1]


def test_a_terminal_without_blocks_gets_plain_letters() -> None:
    assert blocks_for("utf-8") != blocks_for("ascii")
    assert blocks_for(None) == blocks_for("latin-1") == blocks_for("no such encoding")
    blocks_for("ascii").encode("ascii")
