"""What others' shared limits were reported to do wrong, done to one budget of several processes."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from gpu_admission import Admission, Rejected, Unavailable
from gpu_admission.guards.health import readiness
from gpu_admission.shared.ledger import SharedLedger
from gpu_admission.types import Estimate
from tests.shared.proxy import Proxy
from tests.shared.redisserver import Server, needs_server
from tests.waiting import until_async

pytestmark = [needs_server, pytest.mark.anyio]

TTL = 1.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path / "redis")
    yield server
    server.stop()


def on(server: Server, **settings: object) -> Admission:
    options = {"capacity": 100, "estimator": 1, "timeout": 5.0, "lease_ttl": TTL, "shared": server.address}
    return Admission(**(options | settings))  # type: ignore[arg-type]


@asynccontextmanager
async def begun(*admissions: Admission) -> AsyncIterator[None]:
    """All take part, and a new log grants."""
    for admission in admissions:
        await admission.startup.begin()
    try:
        (await admissions[0].entrance.acquire(Estimate(1))).release()
        yield
    finally:
        with anyio.CancelScope(shield=True):
            for admission in admissions:
                await admission.aclose()


async def refused(admission: Admission, size: int, timeout: float) -> Rejected | None:
    try:
        (await admission.entrance.acquire(Estimate(size), timeout=timeout)).release()
    except Rejected as rejected:
        return rejected
    return None


async def test_n_24_what_was_evicted_is_not_known_and_never_taken_for_empty(server: Server) -> None:
    first, second = on(server), on(server)
    async with begun(first, second):
        held = await first.entrance.acquire(Estimate(60))
        server.do("FLUSHALL")
        end = time.monotonic() + TTL
        while time.monotonic() < end:
            assert await refused(second, 60, 0.1) is not None
        await until_async(lambda: second.snapshot().in_use == 60)
        held.release()
        late = await second.entrance.acquire(Estimate(60))
        await until_async(lambda: first.snapshot().in_use == 60)
        late.release()


async def test_the_first_start_on_an_empty_server_says_that_it_grants_nothing_yet(server: Server) -> None:
    admission = on(server, lease_ttl=50.0, timeout=2.0)
    await admission.startup.begin()
    try:
        said = await refused(admission, 60, 2.0)
        assert said is not None
        admission.entrance.refused(said)
        assert (said.reason, said.status, admission.snapshot().in_use) == ("budget_unreachable", 503, 0)
        assert f"{admission.locked.where} begins anew and grants nothing for another" in said.detail
        assert 35 <= (said.retry_after or 0) <= 51
        assert not readiness(admission.snapshot())["ready"]
    finally:
        await admission.aclose()


async def test_n_24_a_server_that_may_evict_the_budget_is_warned_of_once_at_start(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    server.do("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    with caplog.at_level(logging.WARNING, "gpu_admission"):
        async with begun(on(server)):
            pass
    said = [record.message for record in caplog.records if "maxmemory-policy" in record.message]
    assert len(said) == 1
    assert "maxmemory-policy=allkeys-lru" in said[0]


async def test_n_25_after_a_failover_nothing_hangs_and_the_new_master_is_used_within_five_seconds(
    server: Server,
) -> None:
    admission = on(server, shared_fallback=0.25)
    async with begun(admission):
        held = await admission.entrance.acquire(Estimate(50))
        made = int(server.client().info()["total_connections_received"])
        server.do("REPLICAOF", "127.0.0.1", "1")  # it answers, and refuses to write
        await until_async(lambda: admission.snapshot().away is not None)
        taken, reasons = [], set()
        for _ in range(10):
            started = time.monotonic()
            try:
                taken.append(await admission.entrance.acquire(Estimate(10), timeout=0.1))
            except Unavailable as rejected:
                reasons.add(rejected.reason)
            assert time.monotonic() - started < 2.0
        assert reasons == {"budget_unreachable"}
        assert len(taken) == 2, "a quarter of 100, in tens"
        server.do("REPLICAOF", "NO", "ONE")
        assert await until_async(lambda: admission.snapshot().away is None) < 5.0
        await until_async(lambda: admission.snapshot().in_use == 70)
        (await admission.entrance.acquire(Estimate(30))).release()
        assert int(server.client().info()["total_connections_received"]) - made < 20
        for lease in (held, *taken):
            lease.release()
        await until_async(lambda: admission.snapshot().in_use == 0)


async def test_bl_58_a_server_that_is_away_is_a_refusal_in_time_and_comes_back(
    server: Server,
) -> None:
    admission = on(server)
    async with begun(admission):
        held = await admission.entrance.acquire(Estimate(60))
        server.kill()
        await until_async(lambda: admission.snapshot().away is not None)
        started = time.monotonic()
        said = await refused(admission, 10, 0.2)
        assert said is not None
        admission.entrance.refused(said)
        assert (said.reason, said.status) == ("budget_unreachable", 503)
        assert said.retry_after
        assert time.monotonic() - started < 3.0
        held.release()  # while it can't be told
        server.start()
        assert await until_async(lambda: admission.snapshot().away is None) < 5.0
        (await admission.entrance.acquire(Estimate(100))).release()
        await until_async(lambda: admission.snapshot().in_use == 0)


async def test_bl_58_a_network_that_swallows_everything_is_a_refusal_in_time_and_comes_back(
    server: Server,
) -> None:
    """Nothing is refused and nothing closed: only time tells."""
    proxy = Proxy(server.port)
    admission = on(server, shared=f"{proxy.address}&socket_timeout=1")
    async with begun(admission):
        held = await admission.entrance.acquire(Estimate(60))
        proxy.cut()
        started = time.monotonic()
        said = await refused(admission, 10, 2.5)
        assert said is not None
        assert said.reason == "budget_unreachable"
        assert time.monotonic() - started < 4.0
        held.release()  # while it can't be told
        proxy.mend()
        assert await until_async(lambda: admission.snapshot().away is None) < 5.0
        (await admission.entrance.acquire(Estimate(100))).release()
        await until_async(lambda: admission.snapshot().in_use == 0)
    proxy.stop()


async def test_bl_66_four_processes_on_one_budget_hold_no_more_than_one(server: Server) -> None:
    """That workers which do not share are warned of is said in ``tests.admission.test_twins``."""
    members = [on(server) for _ in range(4)]
    async with begun(*members):
        refusals = [await refused(member, 60, 0.3) for member in members]
        assert refusals == [None] * 4
        held = [await member.entrance.acquire(Estimate(30)) for member in members[:3]]
        assert await refused(members[3], 30, 0.3) is not None
        assert all(member.snapshot().in_use == 90 for member in members)
        for lease in held:
            lease.release()


async def test_bl_59_a_server_without_its_script_cache_goes_on_as_before(server: Server) -> None:
    admission = on(server)
    async with begun(admission):
        server.do("SCRIPT", "FLUSH")
        (await admission.entrance.acquire(Estimate(100), timeout=1.0)).release()
        assert "evalsha" not in server.client().info("commandstats")


async def test_bl_61_all_keys_of_a_budget_lie_in_one_slot(server: Server) -> None:
    async with begun(on(server)):
        keys = server.client().keys("*")
        assert keys
        assert all(b"{gpu0}" in key for key in keys)


@pytest.mark.parametrize("size", [10**14, 2**53 + 1])
async def test_bl_62_large_numbers_keep_their_digits(server: Server, size: int) -> None:
    first, second = on(server, capacity=2**60), on(server, capacity=2**60)
    async with begun(first, second), first.lease(size):
        await until_async(lambda: second.snapshot().in_use == size)


async def test_bl_63_a_client_that_leaves_while_its_ask_is_on_the_wire_leaks_nothing(server: Server) -> None:
    admission = on(server)
    async with begun(admission):
        for turn in range(100):
            with anyio.move_on_after(turn % 5 / 10_000):
                (await admission.entrance.acquire(Estimate(60))).release()
        await until_async(lambda: admission.snapshot().in_use == 0)
        (await admission.entrance.acquire(Estimate(100))).release()


HOLDS = """
import asyncio, sys, time
from gpu_admission import Admission
async def main():
    admission = Admission(capacity=100, estimator=1, shared=sys.argv[1], lease_ttl=float(sys.argv[2]))
    async with admission.lease(60):
        print("held", flush=True)
        time.sleep(60)  # the loop is blocked
asyncio.run(main())
"""


def blocked_worker(server: Server) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", HOLDS, server.address, str(TTL)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONWARNINGS": ""})


async def test_bl_64_bytes_of_a_blocked_worker_stay_and_of_a_killed_one_come_back(
    server: Server,
) -> None:
    admission = on(server)
    async with begun(admission):
        worker = blocked_worker(server)
        assert worker.stdout is not None
        assert await anyio.to_thread.run_sync(worker.stdout.readline) == b"held\n"
        assert await refused(admission, 60, 2.5 * TTL) is not None, "its loop is blocked, and it lives"
        worker.kill()
        worker.wait()
        worker.stdout.close()
        (await admission.entrance.acquire(Estimate(100), timeout=4 * TTL)).release()


async def test_bl_64_a_lost_lease_is_counted_and_its_late_end_frees_nothing(
    server: Server,
) -> None:
    first, second = on(server), on(server)
    async with begun(first, second):
        held = await first.entrance.acquire(Estimate(60))
        lost: SharedLedger = first.locked._shared  # type: ignore[attr-defined]
        await until_async(lambda: len(second.snapshot().members) == 2)
        from gpu_admission import cli

        assert await anyio.to_thread.run_sync(cli.main, ["budget", "evict", lost.member, server.address]) == 0
        await until_async(lambda: lost.leases_lost == 1)
        other = await second.entrance.acquire(Estimate(40))
        held.release()
        held.release()
        await until_async(lambda: second.snapshot().in_use == 40)
        other.release()


async def test_a_server_that_stands_still_while_a_lease_grows_holds_up_nobody_else(server: Server) -> None:
    admission = on(server)
    inside: list[int] = []

    async def work() -> None:
        async with admission.lease(10), admission.lease(30) as lease:
            inside.append(lease.bytes)

    async with begun(admission), admission.lease(10):
        server.pause()
        async with anyio.create_task_group() as group:
            group.start_soon(work)
            await until_async(lambda: bool(admission.locked._shared.unheard))  # type: ignore[attr-defined]
            assert not inside, "and this task runs"
            server.resume()
        assert inside == [30]
        server.pause()
        with pytest.raises(Unavailable, match="did not answer") as said:
            await work()
        assert said.value.reason == "budget_unreachable"
        server.resume()
        await until_async(lambda: admission.locked._shared.leases_lost == 1)  # type: ignore[attr-defined]
        # What it asked for meanwhile, and has withdrawn, may count for a moment.
        await until_async(lambda: admission.locked._shared.is_in and admission.snapshot().in_use == 10)  # type: ignore[attr-defined]
        assert inside == [30]
