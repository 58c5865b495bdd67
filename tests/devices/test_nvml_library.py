"""NVIDIA's own ``pynvml`` against a library that answers as the driver's does, compiled here.

Structures, error codes and symbols are the real binding's; only the cards are made up.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SOURCE = Path(__file__).parent / "nvml_library" / "nvml.c"
READ = """
import json, sys
from gpu_admission.devices import NvmlDevice, discover, nvml_processes
from gpu_admission.devices.plausible import plausible
nvml_processes._sees_all_processes = lambda root: True
device = NvmlDevice(sys.argv[1])
reading = plausible(device.read())
again = plausible(device.read())
fields = ("total", "free", "used", "ours", "temperature", "utilization", "error")
print(json.dumps({
    "name": device.name, "key": device.key, "faults": list(again.faults),
    "found": [each.read() and each.key for each in discover().devices],
    **{field: getattr(reading, field) for field in fields},
}))
"""
MIB = 2**20
A10, H100 = "GPU-a1000000-0000-4000-8000-000000000001", "GPU-b2000000-0000-4000-8000-000000000002"
SLICE = "MIG-d4000000-0000-4000-8000-000000000004"


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        if os.environ.get("CI"):
            pytest.fail("CI has no C compiler: these tests must run there")
        pytest.skip("no C compiler here")
    folder = tmp_path_factory.mktemp("nvml")
    command = [compiler, "-shared", "-fPIC", "-o", str(folder / "libnvidia-ml.so.1"), str(SOURCE)]
    subprocess.run(command, check=True, timeout=60)
    return folder


def read(library: Path, device: str, odd: str = "", **env: str) -> dict[str, Any]:
    """What a process sees that finds this library in place of the driver's."""
    done = subprocess.run(
        [sys.executable, "-c", READ, device],
        env={**os.environ, "LD_LIBRARY_PATH": str(library), "FAKE_NVML": odd, **env},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def test_the_real_binding_reads_a_card_through_the_drivers_structures(library: Path) -> None:
    told = read(library, A10)
    assert (told["name"], told["key"]) == (f"NVIDIA A10 ({A10})", A10)
    assert (told["total"], told["used"], told["free"]) == (23028 * MIB, 301 * MIB, 22727 * MIB)
    assert told["ours"] == 200 * MIB
    assert (told["temperature"], told["utilization"], told["error"]) == (41.0, 0.07, None)


def test_cuda_counts_what_is_visible_and_slices_have_their_own_memory(library: Path) -> None:
    told = read(library, "cuda:0", CUDA_VISIBLE_DEVICES=SLICE)
    assert told["key"] == SLICE
    assert told["total"] == 40448 * MIB
    assert told["temperature"] == 41.0, "of the card"
    assert told["found"] == [SLICE]


def test_cards_and_bus_ids_are_found(library: Path) -> None:
    assert read(library, "nvml:1")["key"] == H100
    assert read(library, "0000:17:00.0")["key"] == A10
    assert read(library, "0000:99:00.0")["error"] == "Not Found"


def test_memory_that_is_not_supported_is_the_machines(library: Path) -> None:
    told = read(library, A10, "unified")
    assert told["total"] is not None
    assert told["total"] != 23028 * MIB


def test_n35_a_process_list_in_another_drivers_struct_is_not_taken_for_ours(library: Path) -> None:
    told = read(library, A10, "other")
    assert told["ours"] is None
    assert told["used"] == 301 * MIB


def test_n19_our_process_with_0_bytes_is_not_told(library: Path) -> None:
    assert read(library, A10, "zero")["ours"] is None


def test_a_card_that_fell_off_the_bus_is_a_fault_and_not_a_crash(library: Path) -> None:
    told = read(library, A10, "lost")
    assert told["total"] is None
    assert "GPU is lost" in told["error"]
    assert told["faults"] == ["GPU is lost"]


def test_an_xid_is_told(library: Path) -> None:
    assert read(library, A10, "xid")["faults"] == ["Xid 79"]
