"""The demo's app, in front of an engine that the test drives."""

from __future__ import annotations

import asyncio
import random
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("torch", reason="the demo's engine needs torch")

from gpu_admission import GPUAdmission
from gpu_admission.demo.app import build_app
from gpu_admission.demo.cache import Cache, WholeCache
from gpu_admission.demo.engine import BatchEngine, DeviceMemoryError, Job, JobDroppedError
from gpu_admission.demo.model import Decoder
from gpu_admission.demo.protect import DIALECT, Bytes, Nothing, Slots, Unprotected
from gpu_admission.demo.shape import Shape
from gpu_admission.demo.trace import PATH, Ask
from gpu_admission.demo.wall import Meter
from gpu_admission.estimators import Constant, Learned, Linear
from gpu_admission.types import ASGIApp, Message
from tests.http.test_lifespan import run_lifespan

# The app is asyncio's, as its server process is: these run on asyncio alone.
pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Watched(Job):
    """A job that says when it was cancelled."""

    def __init__(self, prompt: Sequence[int], new_tokens: int, on_free: Callable[[], None]) -> None:
        super().__init__(prompt, new_tokens, on_free)
        self.asked_to_stop = asyncio.Event()

    def cancel(self) -> None:
        super().cancel()
        self.asked_to_stop.set()


class ByHand:
    """An engine that does nothing by itself."""

    def __init__(self) -> None:
        self.jobs: asyncio.Queue[Watched] = asyncio.Queue()

    def submit(self, prompt: Sequence[int], new_tokens: int, on_free: Callable[[], None]) -> Job:
        job = Watched(prompt, new_tokens, on_free)
        self.jobs.put_nowait(job)
        return job

    def warm_up(self, most: int) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        raise NotImplementedError


class NoMeter(Meter):
    """Two samples, and no thread."""

    def __init__(self) -> None:
        self.samples = [(1.0, 10, 0.1), (2.0, 20, 0.2)]


def app_on(engine: ByHand) -> ASGIApp:
    app: ASGIApp = build_app(engine, NoMeter(), context=64)
    return app


def client(app: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://demo")


async def answered(engine: ByHand, app: ASGIApp, error: Exception | None = None) -> httpx.Response:
    async with client(app) as http:
        request = asyncio.create_task(http.post(PATH, json=Ask(5, 3).body))
        job = await engine.jobs.get()
        job.answer = [7] * job.new_tokens
        job.end(error)
        return await request


async def test_an_answer_has_the_tokens_and_their_counts() -> None:
    engine = ByHand()
    response = await answered(engine, app_on(engine))
    assert response.status_code == 200
    body = response.json()
    assert body["choices"][0]["text"] == "7 7 7"
    assert body["usage"] == {"prompt_tokens": 6, "completion_tokens": 3}  # one begins the sequence


async def test_an_answer_may_end_before_the_most_that_was_asked_for() -> None:
    engine = ByHand()
    async with client(app_on(engine)) as http:
        request = asyncio.create_task(http.post(PATH, json=Ask(5, 3).asking(160).body))
        job = await engine.jobs.get()
        job.answer = [7] * job.new_tokens
        job.end()
        assert (await request).json()["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (DeviceMemoryError("can't allocate memory"), 500, "out_of_memory"),
        (RuntimeError("shapes differ"), 500, "engine_failed"),
    ],
)
async def test_a_failed_job_is_a_500_with_the_engines_words(error: Exception, status: int, code: str) -> None:
    engine = ByHand()
    response = await answered(engine, app_on(engine), error)
    assert response.status_code == status
    assert response.json()["error"] == {"message": str(error), "type": "server_error", "code": code}


async def test_a_dropped_job_is_nobodys_answer() -> None:
    engine = ByHand()
    assert (await answered(engine, app_on(engine), JobDroppedError())).status_code == 499


async def test_more_than_the_context_is_refused_before_it_takes_memory() -> None:
    engine = ByHand()
    async with client(app_on(engine)) as http:
        response = await http.post(PATH, json=Ask(60, 4).body)
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"
    assert engine.jobs.empty()


async def test_stats_are_those_since_the_time_asked_for() -> None:
    async with client(app_on(ByHand())) as http:
        stats = (await http.get("/stats", params={"since": 1.5})).json()
    assert stats == [[2.0, 20, 0.2]]


async def call(app: ASGIApp, messages: asyncio.Queue[Message]) -> list[Message]:
    """One request of which the test gives each message, as the server would."""
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": PATH, "headers": [], "query_string": b""}
    await app(scope, messages.get, send)
    return sent


def body_of(ask: Ask) -> Message:
    return {"type": "http.request", "body": httpx.Request("POST", "http://x", json=ask.body).content}


async def test_when_the_client_leaves_its_bytes_are_held_until_the_engine_has_freed_them() -> None:
    engine = ByHand()
    door = GPUAdmission(app_on(engine), capacity=100, estimator=Constant(100))
    messages: asyncio.Queue[Message] = asyncio.Queue()
    messages.put_nowait(body_of(Ask(5, 3)))
    request = asyncio.create_task(call(door, messages))
    job = await engine.jobs.get()
    request.cancel()  # as some servers do when the client has left
    with pytest.raises(asyncio.CancelledError):
        await request
    assert job.cancelled
    assert door.admission.snapshot().in_use == 100
    job.end()  # the step loop has noticed
    assert door.admission.snapshot().in_use == 0


async def test_a_client_that_hangs_up_cancels_its_job() -> None:
    engine = ByHand()
    messages: asyncio.Queue[Message] = asyncio.Queue()
    messages.put_nowait(body_of(Ask(5, 3)))
    request = asyncio.create_task(call(app_on(engine), messages))
    job = await engine.jobs.get()
    messages.put_nowait({"type": "http.disconnect"})
    await job.asked_to_stop.wait()
    job.end()
    assert (await request)[0]["status"] == 499


async def test_a_client_that_left_before_its_turn_takes_nothing() -> None:
    engine = ByHand()
    messages: asyncio.Queue[Message] = asyncio.Queue()
    messages.put_nowait({"type": "http.disconnect"})
    assert (await call(app_on(engine), messages))[0]["status"] == 499
    assert engine.jobs.empty()


async def test_slots_let_so_many_in_and_stats_past_them() -> None:
    engine = ByHand()
    async with client(Slots(1).wrap(app_on(engine))) as http:
        first = asyncio.create_task(http.post(PATH, json=Ask(1, 1).body))
        job = await engine.jobs.get()
        second = asyncio.create_task(http.post(PATH, json=Ask(2, 1).body))
        assert (await http.get("/stats", params={"since": 0})).status_code == 200
        assert engine.jobs.empty()
        job.end()
        (await engine.jobs.get()).end()
        assert (await first).status_code == (await second).status_code == 200


async def test_unprotected_is_the_app_itself() -> None:
    app = app_on(ByHand())
    assert Unprotected().wrap(app) is app


async def test_bytes_put_the_budget_in_front_and_count_with_the_demos_own_tokenizer() -> None:
    engine = ByHand()
    door = Bytes(1000, {"prompt_tokens": 10, "new_tokens": 50}, 100).wrap(app_on(engine))
    assert isinstance(door, GPUAdmission)
    async with client(door) as http:
        request = asyncio.create_task(http.post(PATH, json=Ask(20, 3).body))
        job = await engine.jobs.get()
        assert 1000 >= door.admission.snapshot().in_use >= 100 + 10 * len(job.prompt) + 50 * 3
        refused = await http.post(PATH, json=Ask(20, 30).body)
        job.end()
        assert (await request).status_code == 200
    assert refused.status_code == 413
    assert engine.jobs.empty()


async def lived(app: ASGIApp) -> None:
    """One lifespan of ``app``, which starts and ends well."""
    assert all(message["type"].endswith(".complete") for message in await run_lifespan(app))


async def test_what_was_learned_from_answers_is_there_for_the_next_server(tmp_path: Path) -> None:
    file = tmp_path / "learned.json"
    learning = Bytes(10**6, {"prompt_tokens": 1.0, "new_tokens": 10.0}, 0, learned=str(file))

    async def serve(ask: Ask) -> None:
        engine = ByHand()
        door = learning.wrap(app_on(engine))
        async with client(door) as http:
            request = asyncio.create_task(http.post(PATH, json=ask.body))
            job = await engine.jobs.get()
            job.answer = [7] * job.new_tokens
            job.end()
            assert (await request).status_code == 200
        await lived(door)

    for count in (1, 2):  # the second begins with what the first has seen
        await serve(Ask(5, 3).asking(240))
        learned = Learned(Linear({"prompt_tokens": 1.0, "new_tokens": 10.0}), usage=True)
        assert learned.load(file)
        assert f"{count} observations" in repr(learned)


def test_told_nothing_it_measures_what_it_can_not_know() -> None:
    door = Nothing().wrap(app_on(ByHand()))
    assert isinstance(door, GPUAdmission)
    told = door.admission.settings
    assert (told.estimator, told.capacity, told.dialect) == ("auto", None, None)


class Counted(Decoder):
    """A decoder that knows how much cache there is, and the most that there ever was."""

    live = most = 0

    def new_cache(self, tokens: int) -> Cache:
        cache = super().new_cache(tokens)
        assert isinstance(cache, WholeCache)
        size = cache.tensor.nbytes
        self.live += size
        self.most = max(self.most, self.live)
        weakref.finalize(cache.tensor, self._gone, size)
        return cache

    def _gone(self, size: int) -> None:
        self.live -= size


async def test_with_a_fifth_of_the_clients_hanging_up_the_caches_stay_within_the_budget() -> None:
    shape = Shape(layers=2, hidden=32, heads=2, vocabulary=300, context=128)
    model = Counted(shape)
    engine = BatchEngine(model)
    capacity = 4 * 80 * shape.cache_per_token
    door = GPUAdmission(
        build_app(engine, NoMeter(), context=shape.context),
        capacity=capacity,
        estimator=Linear({"tokens": shape.cache_per_token}),
        dialect=DIALECT,
    )
    chance = random.Random(7)

    async def client(ask: Ask, *, leaves: bool) -> int:
        messages: asyncio.Queue[Message] = asyncio.Queue()
        messages.put_nowait(body_of(ask))
        request = asyncio.create_task(call(door, messages))
        if leaves:
            for _ in range(chance.randrange(200)):
                await asyncio.sleep(0)
            request.cancel()
        try:
            return int((await request)[0]["status"])
        except asyncio.CancelledError:
            return 0

    asks = [Ask(chance.randint(1, 60), chance.randint(1, 20)) for _ in range(60)]
    statuses = await asyncio.gather(*(client(ask, leaves=n % 5 == 0) for n, ask in enumerate(asks)))
    await asyncio.to_thread(engine.stop)
    assert [status for n, status in enumerate(statuses) if n % 5] == [200] * 48
    assert capacity // 2 < model.most <= capacity
    assert model.live == 0
    assert door.admission.snapshot().in_use == 0
