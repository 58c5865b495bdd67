"""The demo as a whole, small: real servers behind a real wall, and what starts and ends them."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest

pytest.importorskip("torch", reason="the demo's model needs torch")

from gpu_admission.demo import process, rounds, server
from gpu_admission.demo.calibrate import Costs
from gpu_admission.demo.figures import Trial
from gpu_admission.demo.load import Answer, Outcome
from gpu_admission.demo.page import page
from gpu_admission.demo.plan import LEARNING, MEASURING, REPLAYING, ROUNDS, Plan, Round
from gpu_admission.demo.process import ServerError, ServerProcess
from gpu_admission.demo.protect import Bytes, Nothing, Protection, Slots, Unprotected
from gpu_admission.demo.rounds import last_level_cache, run
from gpu_admission.demo.server import Ready, Settings, serve
from gpu_admission.demo.setups import PAGE, Setup
from gpu_admission.demo.shape import Shape
from gpu_admission.demo.trace import Ask, load
from tests.demo.test_report import text, trial

SMALL = Shape(layers=4, hidden=256, heads=4, vocabulary=512)
linux = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="RLIMIT_DATA is Linux's")


@linux
def test_the_unprotected_app_runs_out_of_memory_and_the_protected_one_answers_more() -> None:
    lines: list[str] = []
    seen: dict[str, list[Answer]] = {}
    plan = Plan(
        rounds=("unprotected", "bytes"), requests=24, clients=16, room=5 * 2**20, seconds=3600, shape=SMALL
    )
    report = run(plan, lines.append, lambda label, count: seen.setdefault(label, []).append)
    plain, ours = report.rows.values()
    assert plain.count("out_of_memory") > 0
    assert "DefaultCPUAllocator: can't allocate memory" in text(report)
    # In a wall of 5 MiB even what a library allocates late can be one too many.
    assert ours.count("out_of_memory") < plain.count("out_of_memory")
    assert ours.count("ok") > plain.count("ok")
    for row in (plain, ours):
        assert row.sent == 24 == len(seen[row.label])
        assert 0 < row.mean <= row.peak <= 1
        assert row.per_cpu_second > 0
    assert lines[0].startswith("measuring")
    assert sum("at once of" in line for line in lines) == 8
    assert any("a request takes" in line for line in lines)
    assert sum("a new server loads" in line for line in lines) == 2
    assert "GPUAdmission: " in text(report)
    assert page(report).count('class="use"') == 2


@linux
@pytest.mark.slow
def test_eight_workers_on_one_budget_stay_within_the_wall_and_answer_what_an_eighth_can_not_hold() -> None:
    plan = Plan(rounds=("workers",), requests=100, workers=8, seconds=3600)
    report = run(plan, lambda line: None, lambda label, count: lambda answer: None)
    divided, one = report.rows.values()
    assert (divided.label, one.label) == ("8 workers, an eighth each", "8 workers, one budget")
    for row in (divided, one):
        assert row.count("out_of_memory") == row.count("failed") == 0
        assert row.peak <= 1
    assert one.count("ok") == one.sent == 100
    assert divided.count("refused") > 0
    assert one.mean > 1.2 * divided.mean


def answered(count: int) -> list[Outcome]:
    return ["ok"] * count


def test_the_rounds_differ_in_their_protection_and_in_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    costs = Costs({"prompt_tokens": 10.0, "new_tokens": 10.0}, 100, 1000)
    seen: list[tuple[object, ...]] = []

    def one(plan: Plan, setup: Setup, asks: list[Ask], *rest: object) -> Trial:
        seen.append((setup.label, setup.protection, plan, asks))
        return trial(setup.label, *answered(len(asks)))

    monkeypatch.setattr(rounds, "_measured", lambda plan, say: (Ready(1, "cpu", "a wall"), costs))
    monkeypatch.setattr(rounds, "_replay", one)
    plan = Plan(requests=3, room=10_000)
    report = run(plan, lambda line: None, lambda label, count: lambda answer: None)
    largest = max(map(costs.of, load(3)))
    slots = (10_000 - 1000) // largest
    assert [(label, protection) for label, protection, _, _ in seen] == [
        ("unprotected", Unprotected()),
        (f"Semaphore({slots})", Slots(slots)),
        ("GPUAdmission", Bytes(9000, costs.terms, 100)),
    ]
    assert all(rest == [plan, load(3)] for _, _, *rest in seen)
    assert report.weights == plan.shape.weights * 4
    assert list(report.trials) == ["unprotected", "semaphore", "bytes"]


def test_rounds_are_run_in_their_own_order_and_workers_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    costs = Costs({"prompt_tokens": 10.0, "new_tokens": 10.0}, 100, 1000)
    seen: list[Setup] = []

    def one(plan: Plan, setup: Setup, asks: list[Ask], *rest: object) -> Trial:
        seen.append(setup)
        return trial(setup.label, *answered(len(asks)))

    monkeypatch.setattr(rounds, "_measured", lambda plan, say: (Ready(1, "cpu", "a wall"), costs))
    monkeypatch.setattr(rounds, "_replay", one)
    plan = Plan(rounds=("workers", "bytes"), workers=4, requests=3, room=9000)
    assert run(plan, lambda line: None, lambda label, count: lambda answer: None).trials.keys() == {
        "bytes",
        "divided",
        "one budget",
    }
    whole, divided, one_budget = seen
    assert (whole.workers, divided.workers, one_budget.workers) == (0, 4, 4)
    assert divided.label == "4 workers, a quarter each"
    assert divided.protection == Bytes(2000, costs.terms, 100)
    assert isinstance(one_budget.protection, Bytes)
    assert one_budget.protection.capacity == 8000
    folder = one_budget.protection.shared
    assert folder is not None
    assert not Path(folder).exists()  # gone with the demo


def test_learning_is_replayed_with_clients_that_ask_for_more_and_on_a_cache_of_pages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = Costs({"prompt_tokens": 10.0, "new_tokens": 10.0}, 100, 1000)
    paged = Costs({"prompt_tokens": 10.0, "new_tokens": 10.0}, 100, 2000)
    seen: list[tuple[Setup, list[Ask]]] = []

    def one(plan: Plan, setup: Setup, asks: list[Ask], *rest: object) -> Trial:
        seen.append((setup, setup.asks(asks)))
        return trial(setup.label, *answered(len(asks)))

    def measured(plan: Plan, say: object, page: int = 0) -> tuple[Ready, Costs]:
        return Ready(1, "cpu", "a wall"), paged if page else whole

    monkeypatch.setattr(rounds, "_measured", measured)
    monkeypatch.setattr(rounds, "_replay", one)
    plan = Plan(rounds=("auto", "learned"), requests=3, room=9000)
    run(plan, lambda line: None, lambda label, count: lambda answer: None)
    (told_nothing, usual), *others = seen
    assert (told_nothing.protection, told_nothing.page, usual) == (Nothing(), 0, load(3))
    assert [setup.role for setup, _ in others] == ["asked", "learning", "learned"]
    for setup, sent in others:
        assert setup.page == PAGE
        assert [ask.asked for ask in sent] == [512] * 3
        assert isinstance(setup.protection, Bytes)
        assert (setup.protection.capacity, setup.protection.constant) == (7000, 100 + 10 * PAGE)
    files = [setup.protection.learned for setup, _ in others if isinstance(setup.protection, Bytes)]
    begins, learns, has_learned = files
    assert begins is None
    assert learns
    assert learns == has_learned


@pytest.mark.parametrize("shown", ROUNDS)
def test_every_round_has_its_time(shown: Round) -> None:
    plan = Plan(rounds=(shown,))
    each = LEARNING if shown == "learned" else REPLAYING
    assert plan.limit >= MEASURING + each * plan.replays
    assert Plan(rounds=(shown,), seconds=60).limit == 60


def test_the_usual_rounds_keep_to_three_minutes() -> None:
    assert Plan().limit <= 170


def test_where_time_ran_out_the_next_round_replays_the_same_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []

    def one(plan: Plan, setup: Setup, asks: list[Ask], *rest: object) -> Trial:
        sent.append(len(asks))
        return trial(setup.label, *answered(5 if setup.role == "semaphore" else len(asks)))

    costs = Costs({"prompt_tokens": 10.0, "new_tokens": 10.0}, 100, 1000)
    monkeypatch.setattr(rounds, "_measured", lambda plan, say: (Ready(1, "cpu", "a wall"), costs))
    monkeypatch.setattr(rounds, "_replay", one)
    run(Plan(requests=9), lambda line: None, lambda label, count: lambda answer: None)
    assert sent == [9, 9, 5]


def test_a_wall_that_leaves_no_room_is_said_before_anything_is_replayed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    costs = Costs({"prompt_tokens": 1.0, "new_tokens": 1.0}, 10, 2 * 2**20)
    monkeypatch.setattr(rounds, "_measured", lambda plan, say: (Ready(1, "cpu", "none"), costs))
    with pytest.raises(ValueError, match=r"--wall 1\.00 MiB is too small: a pass alone takes 2\.00 MiB"):
        run(Plan(room=2**20), lambda line: None, lambda label, count: lambda answer: None)


def test_time_is_divided_among_the_rounds_that_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    assert rounds._share(250.0, 3) == 50 - rounds.START
    assert rounds._share(100.0, 1) == rounds.LEAST


@pytest.mark.parametrize(
    "protection", [Unprotected(), Slots(3), Bytes(10, {"new_tokens": 2.0}, 1), Nothing()]
)
def test_settings_travel_to_the_process_whole(protection: Protection) -> None:
    settings = Plan(shape=SMALL, engine="threads", clients=5).settings(protection, 77)
    assert msgspec.json.decode(msgspec.json.encode(settings), type=Settings) == settings
    assert (settings.room, settings.most, settings.engine) == (77, 5, "threads")


def test_the_last_level_cache_is_the_largest(tmp_path: Path) -> None:
    for index, size in enumerate(["32K", "1024K", "?"]):
        (tmp_path / f"index{index}").mkdir()
        (tmp_path / f"index{index}" / "size").write_text(size)
    assert last_level_cache(str(tmp_path)) == 2**20
    assert last_level_cache("/nowhere") is None


class NoWall:
    """Everything fits."""

    kind = "none"

    def __init__(self) -> None:
        self.room = 0

    def raise_at(self, room: int) -> None:
        self.room = room

    def used(self) -> int:
        return 0


@pytest.mark.parametrize("engine", ["batch", "threads"])
def test_a_server_says_that_it_is_ready_and_ends_when_its_parent_does(
    engine: server.EngineName, monkeypatch: pytest.MonkeyPatch
) -> None:
    wall = NoWall()
    ours, theirs = os.pipe()
    os.close(theirs)  # the parent has gone
    monkeypatch.setattr(server, "wall_for", lambda device: wall)
    said: list[object] = []
    monkeypatch.setattr(process, "STDIN", ours)
    monkeypatch.setattr(server, "tell", said.append)
    monkeypatch.setattr(logging.getLogger("uvicorn.error"), "disabled", False)
    threads = set(threading.enumerate())
    server.main(Settings(engine=engine, room=123, most=2, shape=SMALL, protection=Slots(1)))
    os.close(ours)
    [ready] = said
    assert isinstance(ready, Ready)
    assert ready.wall == "none"
    assert 0 < ready.port < 2**16
    assert wall.room == 123
    for thread in set(threading.enumerate()) - threads:
        thread.join(30)
        assert not thread.is_alive()


def script(tmp_path: Path, text: str) -> str:
    path = tmp_path / "python"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_a_server_that_does_not_start_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", script(tmp_path, "exit 3"))
    with pytest.raises(ServerError, match="status 3"), serve(Settings()):
        raise AssertionError


def test_a_server_that_does_not_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = msgspec.json.encode(Ready(8000, "cpu", "none")).decode()
    monkeypatch.setattr(sys, "executable", script(tmp_path, f"echo '{line}'; exec sleep 1000"))
    monkeypatch.setattr(process, "PATIENCE", 0.1)
    with ServerProcess("any", Settings()) as stubborn:
        assert stubborn.hear(Ready) == Ready(8000, "cpu", "none")
    assert stubborn._process.returncode == -9
