from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pynvml  # type: ignore[import-untyped]
import pytest

from gpu_admission.devices import FixedDevice, NvmlDevice, nvml_cards, nvml_processes
from gpu_admission.devices import torch as torch_devices
from gpu_admission.devices.cuda_order import NotVisible
from gpu_admission.types import DeviceReading

from .fake_nvml import (
    MIB,
    NOT_SUPPORTED,
    UNKNOWN,
    FakeDriver,
    Gpu,
    a10,
    a100,
    gb10,
    h100_mig,
    installed,
    rtx4090_wddm,
)

GIB = 2**30
Install = Callable[..., FakeDriver]


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def driver() -> Iterator[Install]:
    with installed(FakeDriver()) as fake:

        def fill(*gpus: Gpu) -> FakeDriver:
            fake.gpus = list(gpus)
            return fake

        yield fill


@pytest.fixture(autouse=True)
def sees_all_processes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Tests do not depend on the namespace that they happen to run in."""
    monkeypatch.setattr(nvml_processes, "_sees_all_processes", lambda root: True)
    monkeypatch.setattr(nvml_cards, "WSL_DRIVER", tmp_path / "dxg")


def device(name: int | str = 0, **options: object) -> NvmlDevice:
    return NvmlDevice(name, **{"env": {}, **options})  # type: ignore[arg-type]


def test_a_card_tells_its_memory_heat_load_and_identity(driver: Install) -> None:
    driver(a10(processes=[(os.getpid(), 200 * MIB), (1, 50 * MIB)]))
    card = device(clock=Clock())
    reading = card.read()
    assert reading == DeviceReading(
        total=23028 * MIB,
        used=301 * MIB,
        free=22727 * MIB,
        ours=200 * MIB,
        temperature=41.0,
        utilization=0.07,
        taken_at=100.0,
    )
    assert card.name == "NVIDIA A10 (cuda:0)"
    assert card.key == "GPU-a1000000-0000-4000-8000-000000000001"
    assert card.torch_name == "cuda:0"


def test_nothing_is_asked_of_the_driver_before_the_first_reading(driver: Install) -> None:
    fake = driver(a10())
    card = device("GPU-a1")
    assert (card.name, card.key, card.torch_name) == ("GPU-a1", "GPU-a1", "")
    assert repr(card) == "NvmlDevice('GPU-a1')"
    assert fake.calls == []


def test_cuda_0_is_the_first_visible_card_and_not_the_first_of_the_driver(driver: Install) -> None:
    sizes = [8 * GIB, 16 * GIB, 24 * GIB]
    driver(*(Gpu(b"NVIDIA L4", f"GPU-{n}0", total=size, used=0) for n, size in enumerate(sizes)))
    env = {"CUDA_VISIBLE_DEVICES": "2,0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert device("cuda:0", env=env).read().total == 24 * GIB
    assert device("cuda:1", env=env).read().total == 8 * GIB
    missing = device("cuda:2", env=env).read()
    assert missing.total is None
    assert missing.error == "cuda:2 does not exist: CUDA shows 2 of 3 GPUs (CUDA_VISIBLE_DEVICES='2,0')"


def test_a_card_is_found_by_uuid_prefix_nvml_index_or_bus_id_whatever_is_visible(driver: Install) -> None:
    driver(a10(), a100(pci="00000000:65:00.0"))
    env = {"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    for name in ("GPU-a18", "nvml:1", "0000:65:00.0"):
        card = device(name, env=env)
        assert card.read().total == 81920 * MIB
        assert card.torch_name == ""
    assert "there are GPU-a1000000" in str(device("GPU-ff", env=env).read().error)
    assert device("GPU-a1", env=env).read().total is None, "two cards begin like this"
    assert device("nvml:2").read().error == "nvml:2 does not exist: the driver lists 2 GPUs"
    assert device("65:01.0").read().error == "Not Found"


def test_a_mig_slice_tells_its_own_memory_and_the_heat_of_its_card(driver: Install) -> None:
    driver(a10(), h100_mig())
    env = {"CUDA_VISIBLE_DEVICES": "MIG-51ce0000-bbbb"}
    part = device(0, env=env)
    reading = part.read()
    assert (reading.total, reading.used) == (40448 * MIB, 9000 * MIB)
    assert reading.temperature == 48.0
    assert reading.utilization is None
    assert reading.error == "utilization: Not Supported"
    assert part.key.startswith("MIG-51ce0000-bbbb")
    old_name = "MIG-GPU-b1000000-0000-4000-8000-000000000003/1/0"
    assert device(old_name, env=env).read().used == 38 * MIB


@pytest.mark.parametrize("code", [NOT_SUPPORTED, pynvml.NVML_ERROR_NO_PERMISSION, UNKNOWN])
@pytest.mark.parametrize(
    ("call", "fields"),
    [
        ("nvmlDeviceGetTemperatureV", {"temperature"}),
        ("nvmlDeviceGetUtilizationRates", {"utilization"}),
        ("nvmlDeviceGetComputeRunningProcesses", {"ours"}),
        ("nvmlDeviceGetTotalEccErrors", set()),
        ("nvmlDeviceGetRemappedRows", set()),
        ("nvmlDeviceRegisterEvents", set()),
        ("nvmlEventSetWait", set()),
        ("nvmlDeviceGetMigMode", set()),
        ("nvmlDeviceGetDriverModel", set()),
        ("nvmlDeviceGetName", set()),
    ],
)
def test_a_field_that_fails_is_unknown_and_the_rest_is_kept(
    driver: Install, call: str, fields: set[str], code: int
) -> None:
    driver(a10(processes=[(os.getpid(), MIB)], errors={call: code}))
    reading = device().read()
    known = {"total", "used", "free", "ours", "temperature", "utilization"}
    assert {name for name in known if getattr(reading, name) is None} == fields
    assert (reading.error is not None) == bool(fields)


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_NO_PERMISSION, UNKNOWN])
def test_without_memory_figures_the_other_fields_still_come(driver: Install, code: int) -> None:
    driver(a10(errors={"nvmlDeviceGetMemoryInfo": code}))
    card = device()
    for _ in range(3):
        reading = card.read()
        assert (reading.total, reading.used, reading.free, reading.ours) == (None, None, None, None)
        assert (reading.temperature, reading.utilization) == (41.0, 0.07)


def test_an_older_driver_is_asked_for_the_temperature_in_the_old_way(driver: Install) -> None:
    driver(a10()).missing.add("nvmlDeviceGetTemperatureV")
    assert device().read().temperature == 41.0


def test_an_older_pynvml_that_lacks_functions_tells_less_and_does_not_fail(
    driver: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver(a10(processes=[(os.getpid(), MIB)]))
    for name in ("TotalEccErrors", "RemappedRows", "TemperatureV"):
        monkeypatch.delattr(pynvml, f"nvmlDeviceGet{name}")
    monkeypatch.delattr(pynvml, "nvmlEventSetWait_v2")
    reading = device().read()
    assert (reading.ours, reading.temperature, reading.faults) == (MIB, 41.0, ())
    assert reading.error is None


def test_wddm_plans_with_half_of_the_card_unless_told_otherwise(driver: Install) -> None:
    driver(rtx4090_wddm())
    reading = device().read()
    assert reading.total == 24564 * MIB
    assert reading.usable == 12282 * MIB
    assert reading.ours is None, "WDDM does not tell the memory of single processes"
    assert device(wddm_share=1.0).read().usable == 24564 * MIB


def test_a_card_under_tcc_can_be_planned_with_whole(driver: Install) -> None:
    driver(a10(driver_model=pynvml.NVML_DRIVER_WDM))
    assert device().read().usable is None


def test_wsl_is_wddm_behind_a_linux_driver(driver: Install) -> None:
    driver(a10())
    nvml_cards.WSL_DRIVER.touch()
    assert device().read().usable == 11514 * MIB


def test_unified_memory_is_read_from_the_host(driver: Install) -> None:
    driver(gb10())
    reading = device(host=FixedDevice("120GiB")).read()
    assert (reading.total, reading.free, reading.ours) == (120 * GIB, 120 * GIB, 0)
    assert reading.temperature == 35.0
    assert reading.error is None


def test_a_driver_that_claims_zero_bytes_means_unified_memory_too(driver: Install) -> None:
    gpu = gb10()
    gpu.errors.clear()
    driver(gpu)
    assert device(host=FixedDevice("8GiB")).read().total == 8 * GIB


def test_on_unified_memory_what_is_on_the_gpu_is_added_to_what_is_ours(
    driver: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Host(FixedDevice):
        def read(self) -> DeviceReading:
            return DeviceReading(total=100, used=40, free=60, ours=10, error="swap is not told")

    gpu = gb10()
    gpu.processes = [(os.getpid(), 20)]
    driver(gpu)
    monkeypatch.setattr(torch_devices, "cuda_allocator", lambda index: (18, 15))
    reading = device(host=Host(100)).read()
    assert (reading.ours, reading.reserved, reading.allocated) == (30, 28, 25)
    assert reading.error == "swap is not told"


def test_on_unified_memory_without_processes_what_is_ours_stays_unknown(driver: Install) -> None:
    gpu = gb10()
    gpu.errors["nvmlDeviceGetComputeRunningProcesses"] = NOT_SUPPORTED
    driver(gpu)
    reading = device(host=FixedDevice(100)).read()
    assert (reading.total, reading.ours) == (100, None)
    assert reading.error == "processes: Not Supported"


def test_a_host_that_tells_nothing_leaves_ours_unknown(driver: Install) -> None:
    class Host(FixedDevice):
        def read(self) -> DeviceReading:
            return DeviceReading(total=100, used=40, free=60)

    driver(gb10())
    assert device(host=Host(100)).read().ours is None


def test_the_allocator_of_a_running_torch_is_told_too(
    driver: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver(a10(), a10("GPU-b1"))
    monkeypatch.setattr(torch_devices, "cuda_allocator", lambda index: {1: (300, 200)}.get(index))
    reading = device(1).read()
    assert (reading.reserved, reading.allocated) == (300, 200)


@pytest.mark.parametrize(
    ("raw", "shown"), [(b"NVIDIA L4", "NVIDIA L4"), (b"\xf8\x92", "��"), (b"RTX\x1b[31m", "RTX[31m")]
)
def test_a_name_is_printable_text_whatever_the_driver_returns(
    driver: Install, raw: bytes, shown: str
) -> None:
    gpu = a10()
    gpu.name = raw
    driver(gpu)
    card = device()
    card.read()
    assert card.name == f"{shown} (cuda:0)"
    assert json.loads(json.dumps(card.name)) == card.name


@pytest.mark.parametrize("answer", [b"NVIDIA L4", "NVIDIA L4"])
def test_text_and_bytes_are_the_same_name(answer: str | bytes) -> None:
    assert nvml_cards._text(pynvml, lambda: answer) == "NVIDIA L4"


def test_processes_of_our_children_are_ours(driver: Install, tmp_path: Path) -> None:
    (tmp_path / "proc/77").mkdir(parents=True)
    (tmp_path / "proc/77/stat").write_text(f"77 (py (x) worker) S {os.getpid()} 1 1")

    class Process:
        def __init__(self, pid: int, used: int) -> None:
            self.pid, self.usedGpuMemory = pid, used

    processes = [Process(77, 5), Process(os.getpid(), 3), Process(78, 100)]
    assert nvml_processes.our_bytes(processes, root=tmp_path) == 8


def test_not_being_listed_is_zero_only_where_the_process_ids_are_the_machines(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.undo()
    (tmp_path / "proc/self/ns").mkdir(parents=True)
    assert nvml_processes.our_bytes([], root=tmp_path) is None
    namespace = tmp_path / "proc/self/ns/pid"
    namespace.touch()
    assert nvml_processes.our_bytes([], root=tmp_path) is None
    monkeypatch.setattr(nvml_processes, "FIRST_PID_NAMESPACE", namespace.stat().st_ino)
    assert nvml_processes.our_bytes([], root=tmp_path) == 0
    monkeypatch.setattr(nvml_processes, "FIRST_PID_NAMESPACE", 0)
    monkeypatch.setattr(sys, "platform", "win32")
    assert nvml_processes.our_bytes([], root=tmp_path) == 0


def test_only_errors_since_the_start_are_faults(driver: Install) -> None:
    gpu = a100(uncorrected=5)
    driver(gpu)
    card = device()
    assert card.read().faults == ()
    gpu.uncorrected = 7
    assert card.read().faults == ("2 uncorrected ECC errors",)
    gpu.remap_failed = True
    assert card.read().faults == ("2 uncorrected ECC errors", "row remapping failed")


def test_xids_are_faults_unless_they_are_one_applications_own(driver: Install) -> None:
    gpu = a100(xids=[13, 31, 79, 63])
    driver(gpu)
    card = device()
    assert card.read().faults == ("Xid 79",)
    assert card.read().faults == ("Xid 79",), "it stays"


def test_a_card_that_has_fallen_off_the_bus_is_a_fault(driver: Install) -> None:
    gpu = a100()
    driver(gpu)
    card = device()
    card.read()
    gpu.errors = {"nvmlDeviceGetMemoryInfo": pynvml.NVML_ERROR_GPU_IS_LOST}
    assert card.read().faults == ("GPU is lost",)


def test_a_driver_that_dies_is_started_anew_with_growing_pauses(driver: Install) -> None:
    fake, clock = driver(a10()), Clock()
    card = device(clock=clock)
    assert all(card.read().used == 301 * MIB for _ in range(10))
    fake.down = UNKNOWN
    starts = []
    for second in range(1, 20):
        clock.now = 100.0 + second
        before = fake.names().count("nvmlInitWithFlags")
        reading = card.read()
        assert (reading.used, reading.taken_at) == (None, clock.now)
        starts += [second] * (fake.names().count("nvmlInitWithFlags") - before)
    assert starts == [2, 4, 8, 16]
    assert "nvmlShutdown" in fake.names()
    fake.down = 0
    clock.now = 200.0
    assert card.read().used == 301 * MIB
    assert card.read().error is None


def test_three_bad_answers_do_no_lasting_harm(driver: Install) -> None:
    gpu, clock = a10(), Clock()
    driver(gpu)
    card = device(clock=clock)
    card.read()
    gpu.errors["nvmlDeviceGetMemoryInfo"] = UNKNOWN
    for _ in range(3):
        assert card.read().error == "memory: Unknown Error"
    gpu.errors.clear()
    assert card.read().used == 301 * MIB


def test_without_the_library_a_reading_says_so_and_asks_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    reading = device(clock=Clock()).read()
    assert reading.error is not None
    assert "pynvml" in reading.error


def test_a_card_that_does_not_answer_keeps_its_place_in_the_order(driver: Install) -> None:
    dead = a10("GPU-dead", errors={"nvmlDeviceGetHandleByIndex": pynvml.NVML_ERROR_GPU_IS_LOST})
    driver(dead, a10("GPU-b1"))
    env = {"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    card = device(0, env=env)
    assert card.read().total == 23028 * MIB
    assert card.key == "GPU-b1"


def test_a_card_without_a_uuid_is_still_found_by_index(driver: Install) -> None:
    driver(a10(errors={"nvmlDeviceGetUUID": NOT_SUPPORTED}))
    card = device("nvml:0")
    assert card.read().total == 23028 * MIB
    assert card.key == "nvml:0"


@pytest.mark.parametrize("name", ["gpu0", "cuda", "cuda:-1", "", -1, "GPU-"])
def test_a_name_that_can_be_no_gpu_is_refused_at_construction(name: int | str) -> None:
    with pytest.raises(ValueError, match="names no GPU"):
        NvmlDevice(name)


def test_wrong_options_are_refused_at_construction() -> None:
    with pytest.raises(TypeError, match="device must be a CUDA index"):
        NvmlDevice(True)
    with pytest.raises(ValueError, match="wddm_share must be above 0"):
        NvmlDevice(0, wddm_share=0)


def test_in_another_process_the_library_is_started_anew(
    driver: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake, parent = driver(a10()), os.getpid()
    card = device()
    card.read()
    monkeypatch.setattr(os, "getpid", lambda: parent + 1)
    assert card.read().total == 23028 * MIB
    assert [pid for pid, name in fake.calls if name == "nvmlInitWithFlags"] == [parent, parent + 1]


def test_a_running_torch_knows_the_order_of_different_cards(
    driver: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver(a10(), a100())
    bare = [gpu.uuid.removeprefix("GPU-") for gpu in (a100(), a10())]
    monkeypatch.setattr(torch_devices, "cuda_uuids", lambda: bare)
    assert device(0).read().total == 81920 * MIB
    assert device("nvml:0").read().total == 23028 * MIB


def test_where_nobody_tells_the_order_the_wrong_card_is_never_read(
    driver: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> list[str]:
        raise NotVisible("CUDA did not tell its order")

    driver(a10(), a100())
    monkeypatch.setattr(nvml_cards, "ask_child", fail)
    assert device(0).read().error == "CUDA did not tell its order"
    by_name = device("GPU-a18")
    assert by_name.read().total == 81920 * MIB
    assert by_name.torch_name == ""


FORKING = """
import os, sys
import gpu_admission.devices, gpu_admission.guards
from gpu_admission.devices import NvmlDevice
assert not {"torch", "pynvml"} & set(sys.modules), "loaded at import"
card = NvmlDevice(0, env={})
assert "pynvml" not in sys.modules, "loaded at construction"
from tests.devices.fake_nvml import FakeDriver, a10, installed
with installed(FakeDriver(a10())) as fake:
    assert not fake.calls
    if "read first" in sys.argv:
        assert card.read().total
    parent = os.getpid()
    child = os.fork()
    if not child:
        reading = card.read()
        ours = [name for pid, name in fake.calls if pid != parent]
        os._exit(0 if reading.total and ours[0] == "nvmlInitWithFlags" else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    if "read first" not in sys.argv:
        assert not fake.calls, "the parent touched the driver before the fork"
"""


@pytest.mark.parametrize("when", ["read after", "read first"])
def test_after_a_fork_each_process_starts_the_library_for_itself(when: str) -> None:
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", FORKING, when], cwd=root, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
