"""The memory wall, met for real: each of these runs in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gpu_admission.demo import wall as walls
from gpu_admission.demo.wall import ENVIRONMENT, HEAP_RESERVE, DataSegmentWall, Meter, wall_for

resource = pytest.importorskip("resource", reason="Windows has no limits of this kind")
linux = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="RLIMIT_DATA is Linux's")

BEHIND_THE_WALL = """
import json, torch
from gpu_admission.demo.wall import DataSegmentWall

MIB = 2**20
wall = DataSegmentWall()
torch.empty(8 * MIB)  # what costs once, before
wall.raise_at(32 * MIB)
facts = {"before": wall.used()}
held = torch.empty(20 * MIB, dtype=torch.uint8)
facts["held"] = wall.used()
try:
    torch.empty(20 * MIB, dtype=torch.uint8)
except RuntimeError as error:
    facts["error"] = str(error)
facts["small"] = len([{"a": str(n)} for n in range(10_000)])
del held
facts["freed"] = wall.used()
facts["again"] = torch.empty(20 * MIB, dtype=torch.uint8).nbytes
print(json.dumps(facts))
"""


def in_a_process(code: str) -> dict[str, object]:
    child = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | ENVIRONMENT, capture_output=True, timeout=120
    )
    assert child.returncode == 0, child.stderr.decode()
    facts: dict[str, object] = json.loads(child.stdout)
    return facts


@linux
def test_past_the_wall_torch_raises_its_own_error_and_the_process_lives() -> None:
    pytest.importorskip("torch", reason="it is torch's error")
    facts = in_a_process(BEHIND_THE_WALL)
    mib = 2**20
    assert facts["before"] == facts["freed"] == 0
    assert 20 * mib <= int(str(facts["held"])) < 20.1 * mib
    assert "DefaultCPUAllocator: can't allocate memory" in str(facts["error"])
    assert facts["small"] == 10_000
    assert facts["again"] == 20 * mib


@linux
def test_the_heap_is_reserved_in_holes_that_no_tensor_fits() -> None:
    facts = in_a_process("""
import json
from gpu_admission.demo.wall import HEAP_RESERVE, HOLE, DataSegmentWall
wall = DataSegmentWall()
wall.raise_at(2**20)
small = [bytearray(HOLE // 2) for _ in range(HEAP_RESERVE // HOLE)]
facts = {"small": wall.used()}
try:
    bytearray(2 * 2**20)
except MemoryError:
    facts["large"] = "refused"
print(json.dumps(facts))
""")
    assert facts == {"small": 0, "large": "refused"}


@linux
def test_a_kernel_that_does_not_enforce_the_limit_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "setrlimit", lambda *_: None)
    with pytest.raises(OSError, match="does not enforce RLIMIT_DATA"):
        DataSegmentWall().raise_at(2**20)


@linux
def test_the_limit_is_what_is_in_use_and_the_room(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, tuple[int, int]]] = []
    monkeypatch.setattr(resource, "setrlimit", lambda kind, limits: asked.append((kind, limits)))
    monkeypatch.setattr(walls, "_allocates", lambda size: False)
    wall = DataSegmentWall()
    wall.raise_at(5 * 2**20)
    [(kind, (soft, hard))] = asked
    assert kind == resource.RLIMIT_DATA
    assert hard == resource.getrlimit(resource.RLIMIT_DATA)[1]
    assert soft - 5 * 2**20 == wall._baseline > HEAP_RESERVE
    assert abs(wall.used()) < 2**20


def test_memory_that_there_is_not_is_not_had() -> None:
    assert not walls._allocates(2**62)
    assert walls._allocates(1)


def test_without_proc_there_is_no_wall(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walls, "STATUS", "/nowhere/status")
    with pytest.raises(OSError, match="the demo needs Linux"):
        wall_for("cpu")


@linux
def test_a_cpu_has_the_data_segment() -> None:
    assert isinstance(wall_for("cpu"), DataSegmentWall)


class Counting:
    """A wall that says how often it was asked."""

    kind = "counting"

    def __init__(self) -> None:
        self.asked = 0
        self.enough = threading.Event()

    def raise_at(self, room: int) -> None:
        raise NotImplementedError

    def used(self) -> int:
        self.asked += 1
        if self.asked == 3:
            self.enough.set()
        return self.asked


def test_the_meter_writes_down_what_it_sees_until_it_is_stopped() -> None:
    wall = Counting()
    meter = Meter(wall, every=0.001)
    assert wall.enough.wait(30)
    meter.stop()
    assert [used for _, used, _ in meter.samples] == list(range(1, wall.asked + 1))
    for column in (0, 2):  # time, and CPU time so far
        values = [sample[column] for sample in meter.samples]
        assert values == sorted(values)
        assert values[0] > 0


class FakeCuda:
    """torch.cuda, as far as the wall asks it. Sizes in bytes."""

    def __init__(self) -> None:
        self.allocated = 1000
        self.fraction = 0.0

    def empty_cache(self) -> None:
        self.reserved = 1500

    def memory_allocated(self) -> int:
        return self.allocated

    def memory_reserved(self) -> int:
        return self.reserved

    def get_device_properties(self, index: int) -> FakeCuda:
        self.total_memory = 10_000
        return self

    def set_per_process_memory_fraction(self, fraction: float) -> None:
        self.fraction = fraction


@pytest.mark.parametrize(("room", "fraction"), [(3500, 0.5), (10**6, 1.0)])
def test_a_cuda_wall_is_torchs_share_of_the_device(
    monkeypatch: pytest.MonkeyPatch, room: int, fraction: float
) -> None:
    torch = pytest.importorskip("torch", reason="it is torch's limit")
    cuda = FakeCuda()
    monkeypatch.setattr(torch, "cuda", cuda)
    wall = wall_for("cuda")
    wall.raise_at(room)
    assert cuda.fraction == fraction
    cuda.allocated += 700
    assert wall.used() == 700


@pytest.mark.gpu
def test_past_the_wall_of_a_cuda_device_torch_raises_its_own_error() -> None:
    torch = pytest.importorskip("torch", reason="it is torch's error")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    facts = in_a_process("""
import json, torch
from gpu_admission.demo.wall import CudaWall
weights = torch.empty(64 * 2**20, dtype=torch.uint8, device="cuda")
wall = CudaWall()
wall.raise_at(64 * 2**20)
held = torch.empty(40 * 2**20, dtype=torch.uint8, device="cuda")
facts = {"used": wall.used()}
try:
    torch.empty(40 * 2**20, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError:
    facts["error"] = "out of memory"
print(json.dumps(facts))
""")
    assert facts == {"used": 40 * 2**20, "error": "out of memory"}
