"""Measuring a target whose costs the test knows, and the demonstration's model, whose cache is known."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import httpx
import msgspec
import pytest
from anyio.abc import SocketAttribute, SocketStream

from gpu_admission import cli
from gpu_admission.demo.load import Sample
from gpu_admission.demo.protect import DIALECT
from gpu_admission.demo.server import Settings, serve
from gpu_admission.demo.shape import Shape
from gpu_admission.demo.trace import PATH
from gpu_admission.devices import FixedDevice
from gpu_admission.estimators import Linear, Traced
from gpu_admission.estimators.polled import Polled, resident
from gpu_admission.planning.calibrate import Cell, Costs, Measured, grid, measure, of_alone, of_batch
from gpu_admission.planning.meters import meter_for
from gpu_admission.planning.targets import FunctionTarget, HttpTarget
from gpu_admission.types import Workload
from tests.cases.servers import serving

# HTTP clients are asyncio's and trio's alike; functions run in threads on both.
pytestmark = pytest.mark.anyio

TERMS = ("prompt_tokens", "new_tokens")
EACH, SHARED, OF_PROMPT, OF_NEW = 100_000, 3_000_000, 24_000, 25_000


def cost(features: Mapping[str, Any]) -> int:
    return EACH + OF_PROMPT * int(features["prompt_tokens"]) + OF_NEW * int(features["new_tokens"])


class Known:
    """A target and its meter in one: what runs is written down, and the most of it read."""

    def __init__(self, *, setup: int = 0) -> None:
        self.used = 5_000_000
        self.most = 0
        self.setup = setup
        self.runs = 0

    def features(self, cell: Cell) -> Mapping[str, Any]:
        return cell

    async def run(self, cell: Cell, count: int) -> None:
        self.runs += 1
        if self.runs == 1:
            self.used += self.setup
        self.most = max(self.most, self.used + SHARED + count * cost(cell))

    def start(self) -> int:
        self.most = self.used
        return self.used

    def peak(self) -> int:
        return self.most


CELLS = grid({"prompt_tokens": [8, 64, 160], "new_tokens": [8, 32]})


async def test_what_a_request_takes_is_found_apart_from_what_is_shared() -> None:
    known = Known()
    alone = await measure(known, known, CELLS)
    both = await measure(known, known, CELLS, count=16)
    costs = of_batch(alone, both, TERMS)
    assert costs.linear.coefficients == {"prompt_tokens": OF_PROMPT, "new_tokens": OF_NEW}
    assert (costs.linear.constant, costs.shared) == (EACH, SHARED)
    assert of_alone(alone, TERMS).linear.constant == EACH + SHARED


async def test_what_the_first_run_sets_up_for_good_is_charged_to_none() -> None:
    known = Known(setup=10**9)
    rows = await measure(known, known, CELLS, repeat=1)
    assert [row.peak for row in rows] == [SHARED + cost(cell) for cell in CELLS]


def test_no_row_exceeds_what_is_charged_also_where_the_cost_is_not_linear() -> None:
    bumps = [0, 9, 900_000, 5, 77, 1]
    alone = [Measured(cell, 1, cost(cell) + bump) for cell, bump in zip(CELLS, bumps, strict=True)]
    many = [Measured(cell, 16, 16 * cost(cell) + 9 * bump) for cell, bump in zip(CELLS, bumps, strict=True)]
    for costs, rows in ((of_batch(alone, many, TERMS), [*alone, *many]), (of_alone(alone, TERMS), alone)):
        assert all(row.count * costs.of(row.features) + costs.shared >= row.peak for row in rows)


def test_a_grid_that_can_not_tell_the_terms_apart_is_refused() -> None:
    rows = [Measured({"prompt_tokens": n, "new_tokens": n}, 1, n) for n in (1, 2, 3)]
    with pytest.raises(ValueError, match="can't tell the terms"):
        of_alone(rows, TERMS)


def test_a_saved_fit_is_loaded_as_it_was(tmp_path: Path) -> None:
    costs = of_alone([Measured(cell, 1, cost(cell)) for cell in CELLS], TERMS)
    costs.linear.save(tmp_path / "costs.json", about="a test")
    again = Linear.load(tmp_path / "costs.json")
    asked = Workload(prompt_tokens=77, new_tokens=3)
    assert again.estimate(asked) == costs.linear.estimate(asked)
    assert again.error == costs.linear.error


@pytest.mark.parametrize(
    "text", ["{}", "[]", '{"terms": {"no such-name": 1}}', '{"terms": {"new_tokens": -1}}', "nul"]
)
def test_a_file_that_is_no_fit_is_refused_by_its_name(text: str, tmp_path: Path) -> None:
    (tmp_path / "costs.json").write_text(text)
    with pytest.raises(ValueError, match=r"costs\.json is not a saved Linear estimator"):
        Linear.load(tmp_path / "costs.json")


async def test_a_function_that_fails_says_at_which_point() -> None:
    def work(prompt_tokens: int) -> None:
        raise MemoryError(f"no room for {prompt_tokens}")

    with pytest.raises(RuntimeError, match="prompt_tokens=4 failed: MemoryError: no room for 4"):
        await FunctionTarget(work).run({"prompt_tokens": 4}, 2)


async def test_functions_run_in_threads_and_coroutines_as_they_are() -> None:
    seen: list[tuple[str, int]] = []

    def plain(n: int) -> None:
        seen.append(("plain", n))

    async def coroutine(n: int) -> None:
        seen.append(("coroutine", n))

    await FunctionTarget(plain).run({"n": 1}, 2)
    await FunctionTarget(coroutine).run({"n": 2}, 1)
    assert seen == [("plain", 1), ("plain", 1), ("coroutine", 2)]


def test_a_body_is_filled_from_the_grid_and_read_as_an_admission_would() -> None:
    target = HttpTarget("http://somewhere/v1/chat/completions", dialect=DIALECT)
    cell = {"prompt_tokens": 5, "new_tokens": 7}
    body = msgspec.json.decode(target.body(cell))
    assert body["max_tokens"] == 7
    assert body["messages"][0]["content"] == "the the the the the"
    assert target.features(cell)["new_tokens"] == 7


def test_a_body_of_ones_own_may_name_any_value_of_the_grid() -> None:
    target = HttpTarget("http://somewhere/mine", body={"size": ["$width", "$height"], "text": "say: $prompt"})
    filled = msgspec.json.decode(target.body({"width": 64, "height": 32, "prompt_tokens": 2}))
    assert filled == {"size": [64, 32], "text": "say: the the"}


def test_a_path_that_no_body_is_known_for_needs_one() -> None:
    with pytest.raises(ValueError, match="--body is needed for /mine: known are /v1/chat/completions"):
        HttpTarget("http://somewhere/mine")


async def test_a_server_that_refuses_is_quoted() -> None:
    async def refuse(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 429, "headers": []})
        await send({"type": "http.response.body", "body": b"full"})

    with serving("uvicorn-h11", refuse) as server:
        target = HttpTarget(f"http://127.0.0.1:{server.port}/v1/completions")
        with pytest.raises(RuntimeError, match="new_tokens=1 was answered 429: full"):
            await target.run({"prompt_tokens": 1, "new_tokens": 1}, 1)


async def test_a_server_that_is_not_there_is_named() -> None:
    target = HttpTarget("http://127.0.0.1:9/v1/completions")
    sentence = (
        "new_tokens=1 was not answered: no connection to http://127.0.0.1:9/v1/completions: it was refused"
    )
    with pytest.raises(RuntimeError, match=re.escape(sentence)):
        await target.run({"prompt_tokens": 1, "new_tokens": 1}, 1)


@pytest.mark.parametrize(
    ("then", "sentence"),
    [
        (anyio.sleep_forever, "took longer than 0.2 seconds (--timeout)"),
        (anyio.lowlevel.checkpoint, "hung up ("),
    ],
)
async def test_a_server_that_is_too_slow_and_one_that_hangs_up_are_told_apart(
    then: Callable[[], Awaitable[None]], sentence: str
) -> None:
    async def hang_up(stream: SocketStream) -> None:
        async with stream:
            while b"}" not in await stream.receive():  # the end of the body
                pass
            await then()

    async with (
        await anyio.create_tcp_listener(local_host="127.0.0.1") as listener,
        anyio.create_task_group() as group,
    ):
        group.start_soon(listener.serve, hang_up)
        url = f"http://127.0.0.1:{listener.extra(SocketAttribute.local_port)}/v1/completions"
        with pytest.raises(RuntimeError, match=re.escape(f"was not answered: {url} {sentence}")):
            await HttpTarget(url, timeout=0.2).run({"prompt_tokens": 1, "new_tokens": 1}, 1)
        group.cancel_scope.cancel()


def test_a_polled_meter_keeps_the_most_it_saw() -> None:
    values, seen = iter([10, 90]), threading.Event()

    def read() -> int:
        value = next(values, 20)
        if value == 20:
            seen.set()
        return value

    meter = Polled(read, every=0.0001)
    assert meter.start() == 10
    assert seen.wait(20)
    assert meter.peak() == 90
    assert meter.start() == 20
    assert meter.peak() == 20


def test_host_memory_is_that_of_a_process() -> None:
    assert resident(os.getpid()) > 2**20
    with pytest.raises(RuntimeError, match="the memory of process 4194305 can't be read"):
        resident(4194305)


def test_a_meter_that_can_not_see_the_work_is_refused() -> None:
    with pytest.raises(ValueError, match="sees this process alone"):
        meter_for("torch", pid=None, here=False)
    with pytest.raises(ValueError, match="--meter host needs --pid"):
        meter_for("host", pid=None, here=False).start()
    with pytest.raises(ValueError, match="--meter 'nothing': write module:name"):
        meter_for("nothing", pid=None, here=True)


def work(prompt_tokens: int, new_tokens: int) -> None:
    """Holds what it is asked for long enough to be seen."""
    block = bytearray(2**20 * (prompt_tokens + new_tokens))
    for place in range(0, len(block), 4096):
        block[place] = 1
    time.sleep(0.03)


def test_a_function_is_calibrated_to_a_file_that_linear_loads(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "costs.json"
    here = f"{__name__}:work"
    axes = ["--grid", "prompt_tokens=8,32", "--grid", "new_tokens=8,64"]
    status = cli.main(["calibrate", here, *axes, "--meter", "host", "--repeat", "1", "--out", str(out)])
    said = capsys.readouterr()
    assert status == 0, said.err
    assert "never below a row" in said.out
    assert f'Linear.load("{out}")' in said.out
    found = Linear.load(out)
    assert found.coefficients["new_tokens"] == pytest.approx(2**20, rel=0.25)
    assert found.estimate(Workload(prompt_tokens=32, new_tokens=64)).bytes >= 96 * 2**20 * 0.9


BASE, BIG_PROMPT, BIG_NEW = 20 << 20, 4 << 10, 8 << 10


def reuses(prompt_tokens: int, new_tokens: int) -> None:
    """Takes blocks that an allocator keeps when they are freed, and gives out again."""
    held = [b"x" * BASE, b"x" * (BIG_PROMPT * prompt_tokens), b"x" * (BIG_NEW * new_tokens)]
    time.sleep(0.02)
    held.clear()


def test_memory_that_a_function_has_freed_before_is_seen_again(tmp_path: Path) -> None:
    out = tmp_path / "costs.json"
    axes = ["--grid", "prompt_tokens=64,1024", "--grid", "new_tokens=32,512"]
    here = ["calibrate", f"{__name__}:reuses", *axes]
    assert cli.main([*here, "--meter", "host", "--repeat", "2", "--out", str(out)]) == 0
    found = Linear.load(out)
    assert found.coefficients["prompt_tokens"] == pytest.approx(BIG_PROMPT, rel=0.05)
    assert found.coefficients["new_tokens"] == pytest.approx(BIG_NEW, rel=0.05)
    assert found.constant == pytest.approx(BASE, rel=0.05)
    assert "; host memory of this process" in out.read_text()


class Scripted:
    """A target that seems to take what ``takes`` says."""

    def __init__(self, takes: Callable[[int], int]) -> None:
        self.takes = takes
        self.most = 0

    def __call__(self, images: int) -> None:
        self.most = self.takes(images)

    def start(self) -> int:
        self.most = 0
        return 0

    def peak(self) -> int:
        return self.most


unseen = Scripted(lambda images: 0)
the_same = Scripted(lambda images: 20 << 20)
only_the_first = Scripted(lambda images: 20 << 20 if images == 1 else images << 10)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("unseen", "nothing was seen at any point"),
        ("the_same", "no value of the grid makes a difference"),
        ("only_the_first", "the largest point took 4.00 KiB, and a smaller one 20.00 MiB"),
    ],
)
def test_what_does_not_follow_the_grid_is_not_written(
    name: str, why: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "costs.json"
    meter = ["--meter", f"{__name__}:meter_of_{name}", "--grid", "images=1,2,4"]
    assert cli.main(["calibrate", f"{__name__}:{name}", *meter, "--out", str(out)]) == 1
    said = capsys.readouterr().err
    assert f"{why}: no file is written." in said
    assert "Measure larger points (--grid)" in said
    assert "MALLOC_MMAP_THRESHOLD_" in said
    assert not out.exists()


def meter_of_unseen() -> Scripted:
    return unseen


def meter_of_the_same() -> Scripted:
    return the_same


def meter_of_only_the_first() -> Scripted:
    return only_the_first


def test_a_function_without_a_gpu_says_that_host_memory_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu_admission.planning.meters.discover", lambda: Found())
    monkeypatch.setattr("gpu_admission.planning.meters._cuda", lambda: False)
    assert meter_for("auto", pid=None, here=True).says == ("host memory of this process: no GPU is seen here")
    assert meter_for("auto", pid=1, here=False).says == "host memory of process 1: no GPU is seen here"
    with pytest.raises(ValueError, match="no GPU is seen here: give --meter host --pid PID"):
        meter_for("auto", pid=None, here=False)


class Found:
    """What is discovered where there is no GPU."""

    devices = (FixedDevice(1 << 30),)


def any_of(**values: int) -> None: ...


def test_a_function_that_does_not_take_the_grid_is_refused_before_it_runs() -> None:
    with pytest.raises(ValueError, match=r"work\(prompt_tokens: .*can't be called as work\(images=\.\.\.\)"):
        FunctionTarget(work, ["images"])
    with pytest.raises(ValueError, match="The names of --grid are its keywords"):
        FunctionTarget(work, ["prompt_tokens"])
    with pytest.raises(ValueError, match="the target is 3: name a function"):
        FunctionTarget(3, ["images"])  # type: ignore[arg-type]
    FunctionTarget(any_of, ["images"])
    FunctionTarget(max, ["images"])  # tells no signature


TRACE = Path(__file__).parents[1] / "estimators" / "data" / "traces" / "gemma2.json"


def noise(prompt_tokens: int) -> None:
    """Leaves what it takes to the meter."""


class Shaky:
    """A meter that is off by up to 1 MiB, over a work of 1 KiB."""

    def __init__(self) -> None:
        self.runs = 0

    def start(self) -> int:
        self.runs += 1
        return 0

    def peak(self) -> int:
        return 1024 + self.runs % 2 * 2**20


def test_points_that_do_not_stand_out_of_the_noise_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "costs.json")
    options = ["--meter", f"{__name__}:Shaky", "--grid", "prompt_tokens=1,2,3", "--out", out]
    assert cli.main(["calibrate", f"{__name__}:noise", *options]) == 1  # nothing of it follows the grid
    said = " ".join(capsys.readouterr().out.split())
    assert "3 of 3 points took less than twice what their own runs differ by (up to 1.00 MiB)" in said


class AsTraced:
    """A target that takes four fifths of what the trace says."""

    def __init__(self) -> None:
        self.traced = Traced.load(TRACE, margin=0)
        self.most = 0

    def __call__(self, prompt_tokens: int, new_tokens: int) -> None:
        workload = Workload(prompt_tokens=prompt_tokens, new_tokens=new_tokens)
        self.most = max(self.most, self.traced.estimate(workload).bytes * 4 // 5)

    def start(self) -> int:
        self.most = 0
        return 0

    def peak(self) -> int:
        return self.most


as_traced = AsTraced()


def same_meter() -> AsTraced:
    return as_traced


def test_what_was_measured_is_compared_with_a_trace_of_the_model(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    axes = ["--grid", "prompt_tokens=64,512", "--grid", "new_tokens=8,64"]
    meter = ["--meter", f"{__name__}:same_meter", "--out", str(tmp_path / "costs.json")]
    status = cli.main(["calibrate", f"{__name__}:as_traced", *axes, *meter, "--traced", str(TRACE)])
    said = capsys.readouterr()
    assert status == 0, said.err
    assert "traced over measured: 1.31" in said.out  # 5/4, and the trace's own margin
    assert "never below a point" in said.out


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ([f"{__name__}:work", "--traced", __file__], "is no trace"),
        (["nothing"], "write module:name"),
        (["no_such_module:f"], "can't be had: No module named 'no_such_module'"),
        (["http://127.0.0.1:9/v1/completions", "--body", "{"], "--body is not JSON"),
    ],
)
def test_what_can_not_be_calibrated_is_refused_with_a_reason(
    arguments: list[str], why: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert cli.main(["calibrate", *arguments, "--out", str(tmp_path / "x.json")]) == 2
    assert why in capsys.readouterr().err


class StatsMeter:
    """The demo server's own record of its memory."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}/stats"
        self.began = 0.0

    def start(self) -> int:
        self.began = time.monotonic()
        return 0

    def peak(self) -> int:
        response = httpx.get(self.url, params={"since": self.began})
        return max(sample.used for sample in msgspec.json.decode(response.content, type=list[Sample]))


SMALL = Shape(layers=4, hidden=512, heads=8, vocabulary=4096)


@pytest.mark.slow
def test_the_bytes_that_a_token_takes_in_the_demo_model_are_found_within_3_percent() -> None:
    costs = demo_costs(SMALL)
    assert costs.linear.coefficients["new_tokens"] == pytest.approx(SMALL.cache_per_token, rel=0.03)


def demo_costs(shape: Shape) -> Costs:
    """The demo's server, measured as ``gpu-admission calibrate`` does."""
    cells = grid({"prompt_tokens": [4, 64], "new_tokens": [8, 256]})

    async def run(port: int) -> Costs:
        target = HttpTarget(f"http://127.0.0.1:{port}{PATH}", dialect=DIALECT)
        meter = StatsMeter(port)
        alone = await measure(target, meter, cells, repeat=1)
        both = await measure(target, meter, cells, count=4, repeat=1)
        return of_batch(alone, both, TERMS)

    with serve(Settings(shape=shape)) as ready:
        return anyio.run(run, ready.port)
