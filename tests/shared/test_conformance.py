"""Every log passes the same checks; and the checks find logs that are wrong."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_admission.shared.folder import FolderLog
from gpu_admission.shared.memory import MemoryHub, MemoryLog
from gpu_admission.shared.opening import open_log
from gpu_admission.shared.process import boot_seconds
from gpu_admission.shared.protocol import Log
from gpu_admission.shared.redisaddress import parse
from gpu_admission.shared.redislog import RedisLog
from gpu_admission.testing import check_log, check_same_grants
from tests.shared.redisserver import Server, needs_server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path / "redis")
    yield server
    server.stop()


def test_a_log_in_memory_conforms() -> None:
    hub = MemoryHub(knows_deaths=True)
    check_log(lambda: MemoryLog(hub))


def test_a_folder_conforms(tmp_path: Path) -> None:
    check_log(lambda: FolderLog(tmp_path / "gpu0"))


@needs_server
def test_a_redis_stream_conforms(server: Server) -> None:
    check_log(lambda: RedisLog(parse(server.address)))


@pytest.mark.parametrize("seed", range(3))
def test_processes_on_a_log_in_memory_grant_what_one_ledger_does(seed: int) -> None:
    hub = MemoryHub(knows_deaths=True, clock=boot_seconds)
    check_same_grants(lambda: MemoryLog(hub), seed=seed)


@pytest.mark.parametrize("seed", range(3))
def test_processes_on_a_folder_grant_what_one_ledger_does(seed: int, tmp_path: Path) -> None:
    check_same_grants(lambda: FolderLog(tmp_path / "gpu0"), seed=seed, processes=2 + seed)


@needs_server
def test_processes_on_a_redis_stream_grant_what_one_ledger_does(server: Server) -> None:
    check_same_grants(lambda: RedisLog(parse(server.address), settle=0.0))


@pytest.mark.slow
def test_processes_on_a_folder_grant_the_same_however_long_they_run(tmp_path: Path) -> None:
    check_same_grants(lambda: FolderLog(tmp_path / "gpu0"), steps=100_000, processes=5)


class Lossy(MemoryLog):
    """Now and then one process doesn't hear of an entry."""

    def deliver(self, most: int = 1 << 62) -> int:
        self.place += self.place % 50 == 49
        return super().deliver(most)


def test_processes_that_do_not_hear_the_same_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = MemoryHub(knows_deaths=True, clock=boot_seconds)
    monkeypatch.setattr("gpu_admission.testing.samegrants._WITHIN", 0.5)
    with pytest.raises(AssertionError, match=r"must agree|each entry|each process"):
        check_same_grants(lambda: Lossy(hub))


class Twice(MemoryLog):
    """Appends everything twice."""

    def append(self, data: bytes) -> None:
        super().append(data)
        super().append(data)


class Deaf(MemoryLog):
    """Never hears of others."""

    def catch_up(self) -> bool:
        return True


class Ghost(MemoryLog):
    """Calls everybody dead."""

    def is_alive(self, process: str) -> bool | None:
        return False


@pytest.mark.parametrize(
    ("kind", "sentence"), [(Twice, "once|same entries"), (Deaf, "every process"), (Ghost, "is_alive is true")]
)
def test_a_log_that_is_wrong_is_found(
    kind: type[MemoryLog], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = MemoryHub(knows_deaths=True)
    monkeypatch.setattr("gpu_admission.testing.logs.time.sleep", lambda seconds: None)
    clock = iter(range(10_000_000))
    monkeypatch.setattr("gpu_admission.testing.logs.time.monotonic", lambda: next(clock) / 100)
    with pytest.raises(AssertionError, match=sentence):
        check_log(lambda: kind(hub))


def test_what_users_write_is_opened_as_the_log_that_it_means() -> None:
    assert isinstance(open_log("/dev/shm/gpu0"), FolderLog)
    assert isinstance(open_log(Path("/dev/shm/gpu0")), FolderLog)
    assert isinstance(open_log("redis://host/0?name=gpu0"), RedisLog)
    own: Log = MemoryLog(MemoryHub())
    assert open_log(own) is own


def test_what_is_no_place_for_a_budget_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="absolute path"):
        open_log("gpu0")
    with pytest.raises(TypeError, match=r"shared must be a folder.*int"):
        open_log(3)
