from __future__ import annotations

import importlib
import sys
import types
from pathlib import Path

import pytest

from gpu_admission.devices import HostMemory
from gpu_admission.devices.capacity import find_baseline, room

KIB, MIB, GIB = 2**10, 2**20, 2**30


class Machine:
    """A made-up ``/proc`` and ``/sys/fs/cgroup``: 64 GiB, 40 GiB available."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write("proc/meminfo", f"MemTotal: {64 * MIB} kB\nMemFree: 1 kB\nMemAvailable: {40 * MIB} kB\n")
        self.write(
            "proc/self/status", "Name:\tx\nRssAnon:\t 2048 kB\nRssFile:\t 99 kB\nRssShmem:\t 1024 kB\n"
        )
        self.write("proc/self/cgroup", "0::/\n")
        self.write("proc/self/mountinfo", "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n")

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def cgroup(self, path: str, mounts: str) -> None:
        self.write("proc/self/cgroup", path)
        self.write("proc/self/mountinfo", mounts)

    def v2(self, folder: str, limit: str, used: int, cache: int = 0) -> None:
        self.write(f"sys/fs/cgroup/{folder}memory.max", f"{limit}\n")
        self.write(f"sys/fs/cgroup/{folder}memory.current", f"{used}\n")
        self.write(f"sys/fs/cgroup/{folder}memory.stat", f"anon 1\ninactive_file {cache}\nactive_file 9\n")

    def v1(self, folder: str, limit: int, used: int, cache: int = 0) -> None:
        base = f"sys/fs/cgroup/memory/{folder}memory."
        self.write(f"{base}limit_in_bytes", f"{limit}\n")
        self.write(f"{base}usage_in_bytes", f"{used}\n")
        self.write(f"{base}stat", f"inactive_file 1\ntotal_inactive_file {cache}\n")


V2_MOUNT = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
V1_MOUNT = "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_without_cgroups_the_system_counts(machine: Machine) -> None:
    reading = HostMemory(root=machine.root, clock=lambda: 7.0).read()
    assert (reading.total, reading.free, reading.used) == (64 * GIB, 40 * GIB, 24 * GIB)
    assert reading.ours == reading.reserved == reading.allocated == 3 * MIB
    assert (reading.taken_at, reading.error) == (7.0, None)


def test_a_container_limit_is_the_total_and_its_reclaimable_cache_is_free(machine: Machine) -> None:
    machine.cgroup("0::/\n", V2_MOUNT)
    machine.v2("", str(8 * GIB), used=6 * GIB, cache=1 * GIB)
    reading = HostMemory(root=machine.root).read()
    assert (reading.total, reading.free, reading.used) == (8 * GIB, 3 * GIB, 5 * GIB)


def test_the_tightest_of_all_levels_counts(machine: Machine) -> None:
    machine.cgroup("0::/pod/app\n", V2_MOUNT)
    machine.v2("pod/app/", str(16 * GIB), used=1 * GIB)
    machine.v2("pod/", str(8 * GIB), used=7 * GIB)
    machine.v2("", "max", used=7 * GIB)
    reading = HostMemory(root=machine.root).read()
    assert (reading.total, reading.free) == (8 * GIB, 1 * GIB)


def test_a_machine_fuller_than_the_cgroup_counts(machine: Machine) -> None:
    machine.cgroup("0::/\n", V2_MOUNT)
    machine.v2("", str(60 * GIB), used=1 * GIB)
    reading = HostMemory(root=machine.root).read()
    assert (reading.total, reading.free) == (60 * GIB, 40 * GIB)


def test_version_1_is_read_where_version_2_does_not_control_memory(machine: Machine) -> None:
    unified = "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
    pids = "39 31 0:36 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n"
    machine.cgroup("8:pids:/a\n4:cpu,memory:/a\n0::/a\n", unified + pids + V1_MOUNT)
    machine.v1("a/", 4 * GIB, used=3 * GIB, cache=1 * GIB)
    machine.v1("", 2**63 - 4096, used=9 * GIB)
    reading = HostMemory(root=machine.root).read()
    assert (reading.total, reading.free) == (4 * GIB, 2 * GIB)


def test_a_path_from_outside_the_container_means_the_mount_point(machine: Machine) -> None:
    docker = "35 31 0:32 /docker/1f2e /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    machine.cgroup("4:memory:/docker/1f2e\n", docker)
    machine.v1("", 4 * GIB, used=3 * GIB)
    assert HostMemory(root=machine.root).read().total == 4 * GIB
    machine.cgroup("0::/../other\n", V2_MOUNT)
    machine.v2("", str(2 * GIB), used=1 * GIB)
    assert HostMemory(root=machine.root).read().total == 2 * GIB
    machine.cgroup("0::/gone\n", V2_MOUNT)
    assert HostMemory(root=machine.root).read().total == 2 * GIB


def test_a_hierarchy_that_we_are_not_in_is_left_alone(machine: Machine) -> None:
    machine.cgroup("4:memory:/\n", V2_MOUNT)
    machine.v2("", str(2 * GIB), used=1 * GIB)
    assert HostMemory(root=machine.root).read().total == 64 * GIB


def limited(machine: Machine, limit: str) -> None:
    """The made-up process has 2 GiB mapped, of which 3 MiB are touched."""
    machine.write("proc/self/status", f"VmData:\t {2 * MIB} kB\nRssAnon:\t 2048 kB\nRssShmem:\t 1024 kB\n")
    machine.write(
        "proc/self/limits",
        f"Limit                     Soft Limit           Hard Limit           Units     \n"
        f"Max file size             unlimited            unlimited            bytes     \n"
        f"Max data size             {limit:<20} unlimited            bytes     \n",
    )


def test_a_limit_of_the_process_itself_is_its_allowance_and_counts_what_is_mapped(machine: Machine) -> None:
    limited(machine, str(3 * GIB))
    reading = HostMemory(root=machine.root).read()
    assert reading.allowance == 3 * GIB
    assert reading.ours == reading.allocated == 2 * GIB
    assert (reading.total, reading.free) == (64 * GIB, 38 * GIB + 3 * MIB)
    baseline = find_baseline(reading)
    assert baseline is not None
    assert room(reading, baseline) == GIB


def test_a_process_without_a_limit_counts_what_it_has_touched(machine: Machine) -> None:
    limited(machine, "unlimited")
    reading = HostMemory(root=machine.root).read()
    assert (reading.allowance, reading.ours, reading.free) == (None, 3 * MIB, 40 * GIB)


def test_a_limit_that_is_overrun_leaves_nothing(machine: Machine) -> None:
    machine.cgroup("0::/\n", V2_MOUNT)
    machine.v2("", str(1 * GIB), used=2 * GIB)
    reading = HostMemory(root=machine.root).read()
    assert (reading.free, reading.used) == (0, 1 * GIB)


def test_a_stat_without_the_cache_counts_all_of_it(machine: Machine) -> None:
    machine.cgroup("0::/\n", V2_MOUNT)
    machine.v2("", str(2 * GIB), used=1 * GIB)
    machine.write("sys/fs/cgroup/memory.stat", "anon 1\n")
    assert HostMemory(root=machine.root).read().free == 1 * GIB


def test_this_machine_can_be_read() -> None:
    reading = HostMemory().read()
    if sys.platform != "linux":
        pytest.skip("reads /proc, which only Linux has")
    assert reading.total is not None
    assert reading.free is not None
    assert reading.ours is not None
    assert 0 < reading.ours < reading.total
    assert 0 < reading.free <= reading.total


def test_without_proc_and_psutil_nothing_is_claimed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psutil", None)
    reading = HostMemory(root=tmp_path).read()
    assert reading.total is None
    assert reading.error == "/proc: FileNotFoundError; psutil is not installed"


def test_without_proc_psutil_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    psutil = types.SimpleNamespace(
        virtual_memory=lambda: types.SimpleNamespace(total=100, available=60),
        Process=lambda: types.SimpleNamespace(memory_info=lambda: types.SimpleNamespace(rss=5)),
    )
    monkeypatch.setattr(importlib, "import_module", {"psutil": psutil}.__getitem__)
    reading = HostMemory(root=tmp_path).read()
    assert (reading.total, reading.free, reading.ours) == (100, 60, 5)


def test_a_torn_proc_file_is_an_unknown_and_no_crash(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "psutil", None)
    machine.write("proc/self/cgroup", "nonsense\n")
    assert HostMemory(root=machine.root).read().error == "/proc: ValueError; psutil is not installed"


@pytest.mark.parametrize(
    ("resident", "used", "ours"),
    [
        ([10, 10], [30], 10),
        ([50, 10, 10], [70, 30], 10),
        ([10, 50, 10, 50, 10, 50], [30, 70, 30, 70, 70], 10),
    ],
    ids=["still", "once", "all the time"],
)
def test_what_we_give_back_while_it_is_read_is_not_taken_for_others(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, resident: list[int], used: list[int], ours: int
) -> None:
    """Our memory is read before and after everyone's; where it has changed between, both are read again."""
    host = HostMemory(root=machine.root)
    told, system = iter(resident), iter(used)
    monkeypatch.setattr(host, "_resident", lambda: next(told) * GIB)
    monkeypatch.setattr(host, "_system", lambda: (100 * GIB, (100 - next(system)) * GIB))
    reading = host.read()
    assert (reading.used, reading.ours) == (used[-1] * GIB, ours * GIB)
    assert next(told, None) is None
