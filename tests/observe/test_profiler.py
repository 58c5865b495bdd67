"""Traces of admitted requests with torch's own profiler, on the CPU."""

from __future__ import annotations

import builtins
import gzip
import json
import threading
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from gpu_admission import Admission, Estimate
from gpu_admission.observe import Profiler

pytest.importorskip("torch")
pytestmark = [pytest.mark.anyio, pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")]


def traces(folder: Path) -> dict[int, set[str]]:
    """The names of what was traced, by the number of the lease; waits for those being written."""
    for thread in threading.enumerate():
        if thread.name == "gpu-admission-trace":
            thread.join(60)
    return {int(path.name.split("-")[2].split(".")[0]): names(path) for path in folder.iterdir()}


def names(path: Path) -> set[str]:
    events: list[dict[str, Any]] = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return {str(event.get("name")) for event in events}


def multiply() -> None:
    import torch

    matrix = torch.ones(8, 8)
    torch.linalg.inv(matrix @ matrix + torch.eye(8))


async def test_the_next_requests_are_traced_and_no_more(tmp_path: Path) -> None:
    admission = Admission(capacity=100, estimator=1, observers=[Profiler(2, folder=tmp_path / "traces")])
    numbers = []
    for _ in range(3):
        async with admission.lease(10) as lease:
            numbers.append(lease.number)
            multiply()
    found = traces(tmp_path / "traces")
    assert sorted(found) == numbers[:2]
    for traced in found.values():
        assert {"aten::linalg_inv", "aten::matmul"} <= traced


async def test_work_in_a_thread_is_in_the_trace(tmp_path: Path) -> None:
    admission = Admission(capacity=100, estimator=1, observers=[Profiler(1, folder=tmp_path)])
    async with admission.lease(10):
        await anyio.to_thread.run_sync(multiply)
    (trace,) = traces(tmp_path).values()
    assert "aten::linalg_inv" in trace


async def test_a_request_beside_a_traced_one_waits_its_turn(tmp_path: Path) -> None:
    """Torch runs one profiler at a time."""
    profiler = Profiler(2, folder=tmp_path)
    admission = Admission(capacity=100, estimator=1, observers=[profiler])
    one, two = [await admission.entrance.acquire(Estimate(1)) for _ in range(2)]
    two.release()
    one.release()
    three = await admission.entrance.acquire(Estimate(1))
    three.release()
    assert set(traces(tmp_path)) == {one.number, three.number}


def test_the_setting_profile_brings_it_along() -> None:
    assert [type(each) for each in Admission(capacity=1, estimator=1, profile=3).observers] == [Profiler]


def test_a_torch_that_can_not_trace_all_threads_traces_what_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    def old(**options: Any) -> None:
        raise TypeError("unexpected keyword")

    monkeypatch.setattr(torch._C._profiler, "_ExperimentalConfig", old)
    assert Profiler(1)._all_threads() is None


@pytest.mark.parametrize(("value", "error"), [("3", TypeError), (True, TypeError), (0, ValueError)])
def test_a_wrong_number_is_refused(value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="profile must be"):
        Profiler(value)


def test_without_torch_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **options: Any) -> Any:
        if name.startswith("torch"):
            raise ImportError(name)
        return real(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r"gpu-admission\[torch\]"):
        Admission(capacity=1, estimator=1, profile=3)
