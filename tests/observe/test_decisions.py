"""The decision log: what a line says, that it can be replayed, and that nobody waits for the disk."""

from __future__ import annotations

import gc
import json
import logging
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from gpu_admission import Admission, Estimate
from gpu_admission.errors import Rejected
from gpu_admission.observe import linefile
from gpu_admission.observe.decisions import DecisionLog
from gpu_admission.observe.linefile import LineFile
from gpu_admission.planning.service import Decoder
from gpu_admission.planning.trace import read
from gpu_admission.types import Event


def event(kind: Any = "released", **fields: Any) -> Event:
    known: dict[str, Any] = {"at": time.monotonic(), "route": "/v1/*", "lane": "default", "bytes": 7}
    return Event(kind=kind, **known | fields)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def logged(tmp_path: Path, *events: Event) -> list[dict[str, Any]]:
    log = DecisionLog(tmp_path / "decisions.jsonl")
    for each in events:
        log(each)
    log.close()
    return lines(tmp_path / "decisions.jsonl")


def test_a_line_holds_the_whole_life_of_an_admitted_request(tmp_path: Path) -> None:
    before = time.time()
    (line,) = logged(
        tmp_path,
        event("admitted", lease=3, waited=1.5),
        event(
            "released",
            lease=3,
            waited=1.5,
            held=2.0,
            bytes=80,
            estimate=Estimate(100),
            outcome="ok",
            device="cuda:0",
            peak=90,
            actual=90,
        ),
    )
    assert line.pop("arrival") == pytest.approx(before - 3.5, abs=60)
    assert line == {
        "decision": "admitted",
        "route": "/v1/*",
        "lane": "default",
        "bytes": 100,
        "waited": 1.5,
        "held": 2.0,
        "held_bytes": 80,
        "peak": 90,
        "actual": 90,
        "outcome": "ok",
        "device": "cuda:0",
        "lease": 3,
    }


def test_the_arrival_is_when_it_asked(tmp_path: Path) -> None:
    first, second = logged(
        tmp_path,
        event("refused", at=100.0, waited=30.0, reason="queue_timeout", status=429),
        event("released", at=103.0, waited=1.0, held=2.0),
    )
    assert second["arrival"] - first["arrival"] == pytest.approx(30.0)
    assert (first["decision"], first["reason"], first["status"]) == ("refused", "queue_timeout", 429)


def test_a_client_that_left_has_a_line(tmp_path: Path) -> None:
    (line,) = logged(tmp_path, event("disconnected", bytes=0))
    assert line["decision"] == "disconnected"
    assert "bytes" not in line


def test_starts_and_resizes_are_no_decisions(tmp_path: Path) -> None:
    assert len(logged(tmp_path, event("started"), event("resized", lease=1), event("released", lease=1))) == 1


def test_shadow_mode_says_what_would_have_been_said(tmp_path: Path) -> None:
    found = logged(
        tmp_path,
        event("shadow", lease=1, reason="queue_full"),
        event("shadow", lease=2),
        event("released", lease=2, outcome="ok"),
        event("released", lease=1, outcome="ok"),
    )
    assert [line.get("reason") for line in found] == [None, "queue_full"]


@pytest.mark.anyio
async def test_what_an_admission_decides_can_be_replayed(tmp_path: Path) -> None:
    log = DecisionLog(tmp_path / "decisions.jsonl")
    admission = Admission(capacity=100, estimator=1, timeout=0.0, observers=[log])
    lease = await admission.entrance.acquire(Estimate(60))
    lease.resize(50)
    with pytest.raises(Rejected):
        async with admission.lease(70):
            pass
    lease.release()
    log.close()
    refused, admitted = lines(tmp_path / "decisions.jsonl")
    assert (refused["decision"], refused["bytes"]) == ("refused", 70)
    assert (admitted["decision"], admitted["bytes"], admitted["held_bytes"]) == ("admitted", 60, 50)
    trace = read(tmp_path / "decisions.jsonl", Decoder())
    assert sorted(trace.sizes) == [60, 70]


def test_a_full_file_is_turned_over_and_the_oldest_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    log = DecisionLog(path, max_bytes=500, keep=2)
    for number in range(1, 30):
        log(event(lease=number))
    log.close()
    assert sorted(file.name for file in tmp_path.iterdir()) == [path.name, f"{path.name}.1", f"{path.name}.2"]
    assert max(file.stat().st_size for file in tmp_path.iterdir()) <= 500
    kept = [
        line["lease"]
        for name in (f"{path.name}.2", f"{path.name}.1", path.name)
        for line in lines(tmp_path / name)
    ]
    assert kept == list(range(kept[0], 30))
    assert log.dropped == 0


def test_a_process_may_have_a_file_of_its_own(tmp_path: Path) -> None:
    log = DecisionLog(tmp_path / "decisions-{pid}.jsonl")
    log(event())
    log.close()
    assert len(lines(tmp_path / f"decisions-{os.getpid()}.jsonl")) == 1


def test_after_closing_it_goes_on_with_the_next_event(tmp_path: Path) -> None:
    log = DecisionLog(tmp_path / "decisions.jsonl")
    for number in (1, 2):
        log(event(lease=number))
        log.close()
        log.close()
    assert [line["lease"] for line in lines(tmp_path / "decisions.jsonl")] == [1, 2]


def test_nothing_is_touched_before_the_first_decision(tmp_path: Path) -> None:
    threads = threading.active_count()
    log = DecisionLog(tmp_path / "decisions.jsonl")
    log.close()
    assert threading.active_count() == threads
    assert list(tmp_path.iterdir()) == []


def test_a_log_that_is_forgotten_writes_what_it_has(tmp_path: Path) -> None:
    log = DecisionLog(tmp_path / "decisions.jsonl")
    log(event(lease=5))
    del log
    gc.collect()
    assert len(lines(tmp_path / "decisions.jsonl")) == 1


def test_nobody_waits_for_a_slow_disk_and_what_it_cannot_take_is_counted(tmp_path: Path) -> None:
    writing, free = threading.Event(), threading.Event()

    def slow(value: object) -> str:
        writing.set()
        free.wait(10)
        return str(value)

    file = LineFile(str(tmp_path / "lines"), slow, max_bytes=0, keep=1, max_queued=2)
    file.put("first")
    assert writing.wait(10)
    for number in range(5):
        file.put(number)
    assert file.dropped == 3
    free.set()
    file.close()
    assert (tmp_path / "lines").read_text().split() == ["first", "0", "1"]


def test_closing_does_not_wait_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writing, free = threading.Event(), threading.Event()

    def stuck(value: object) -> str:
        writing.set()
        free.wait(10)
        return str(value)

    file = LineFile(str(tmp_path / "lines"), stuck, max_bytes=0, keep=1, max_queued=1)
    file.put("first")
    assert writing.wait(10)
    file.put("second")
    monkeypatch.setattr(linefile, "_PATIENCE", 0.0)
    file.close()
    monkeypatch.undo()
    free.set()
    file.close()
    assert (tmp_path / "lines").read_text().split() == ["first", "second"]


def test_two_that_come_at_once_start_one_writer(tmp_path: Path) -> None:
    file = LineFile(str(tmp_path / "lines"), str, max_bytes=0, keep=1, max_queued=9)
    file._start()
    thread = file._thread
    file._start()
    assert file._thread is thread
    file.close()


def test_a_disk_that_fails_is_said_once_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    directory = tmp_path / "gone"
    directory.mkdir()
    log = DecisionLog(directory / "decisions.jsonl")
    directory.rmdir()
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            log(event())
        log.close()
    assert log.dropped == 3
    assert len([record for record in caplog.records if "can't be written" in record.message]) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_process_starts_a_writer_of_its_own(tmp_path: Path) -> None:
    log = DecisionLog(tmp_path / "decisions-{pid}.jsonl")
    log(event(lease=1))
    log.close()
    child = os.fork()
    if child == 0:
        log(event(lease=2))
        log.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert lines(tmp_path / f"decisions-{child}.jsonl")[0]["lease"] == 2


@pytest.mark.parametrize(
    ("options", "kind", "sentence"),
    [
        ({"keep": 0}, ValueError, "keep must be 1 or more"),
        ({"keep": True}, TypeError, "keep must be an int"),
        ({"max_queued": 0}, ValueError, "max_queued must be 1 or more"),
        ({"max_queued": 1.5}, TypeError, "max_queued must be an int"),
        ({"max_bytes": "big"}, ValueError, "max_bytes"),
    ],
)
def test_options_are_checked(
    tmp_path: Path, options: dict[str, Any], kind: type[Exception], sentence: str
) -> None:
    with pytest.raises(kind, match=sentence):
        DecisionLog(tmp_path / "decisions.jsonl", **options)


def test_a_directory_that_does_not_exist_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no directory"):
        DecisionLog(tmp_path / "none" / "decisions.jsonl")


@pytest.mark.anyio
async def test_closed_an_admission_has_written_its_decisions(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    admission = Admission(capacity=100, estimator=10, observers=[DecisionLog(path)])
    async with admission, admission.lease(10):
        pass
    assert len(path.read_text().splitlines()) == 1
