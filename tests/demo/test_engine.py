"""The demo's model and engines: what is computed, and what becomes of memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest

torch = pytest.importorskip("torch", reason="the demo's model needs torch")

from gpu_admission.demo.cache import Cache, PagedCache, WholeCache  # noqa: E402
from gpu_admission.demo.engine import (  # noqa: E402
    CHUNK,
    BatchEngine,
    DeviceMemoryError,
    Engine,
    Job,
    JobDroppedError,
    ThreadEngine,
)
from gpu_admission.demo.model import Decoder, Part  # noqa: E402
from gpu_admission.demo.shape import Shape  # noqa: E402

TINY = Shape(layers=2, hidden=32, heads=2, vocabulary=64, context=512)
NO_MEMORY = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes"


@pytest.fixture(scope="module")
def model() -> Decoder:
    return Decoder(TINY)


def alone(model: Decoder, prompt: list[int], new_tokens: int) -> list[int]:
    """The answer of one sequence by itself, its prompt in one pass."""
    cache = model.new_cache(len(prompt) + new_tokens)
    answer = model.advance([Part(cache, prompt)])
    while len(answer) < new_tokens:
        answer += model.advance([Part(cache, answer[-1:])])
    return answer


class Gated(Decoder):
    """A decoder whose passes wait for the test, and fail when it says so."""

    def __init__(self) -> None:
        super().__init__(TINY)
        self.entered = threading.Semaphore(0)
        self.go = threading.Semaphore(0)
        self.no_room_for: int | None = None
        self.failures: list[Exception] = []

    def new_cache(self, tokens: int) -> Cache:
        if tokens == self.no_room_for:
            raise RuntimeError(NO_MEMORY)
        return super().new_cache(tokens)

    def advance(self, parts: list[Part]) -> list[int]:  # type: ignore[override]
        self.entered.release()
        self.go.acquire()
        if self.failures:
            raise self.failures.pop()
        return super().advance(parts)

    def open(self) -> None:
        """No pass waits any more."""
        self.go.release(10**6)


@pytest.fixture
def gated() -> Iterator[tuple[Gated, BatchEngine]]:
    model = Gated()
    engine = BatchEngine(model)
    yield model, engine
    model.open()
    engine.stop()


def nothing() -> None:
    pass


@pytest.mark.parametrize("kind", [BatchEngine, ThreadEngine])
def test_answers_are_those_of_each_sequence_alone(kind: Callable[[Decoder], Engine], model: Decoder) -> None:
    asks = [([3, 1, 4], 5), ([7] * (2 * CHUNK + 5), 3), ([9], 9), (list(range(40)), 1)]
    engine = kind(model)
    jobs = [engine.submit(prompt, new, nothing) for prompt, new in asks]
    answers = [job.result.result(30) for job in jobs]
    engine.stop()
    with torch.inference_mode():
        assert answers == [alone(model, prompt, new) for prompt, new in asks]


def test_a_cache_takes_what_the_shape_says(model: Decoder) -> None:
    cache = model.new_cache(10)
    assert isinstance(cache, WholeCache)
    assert cache.tensor.nbytes == 10 * TINY.cache_per_token == 10 * 2 * 2 * 32 * 4


@pytest.mark.parametrize("page", [1, 3, 16, 200])
def test_a_cache_of_pages_answers_the_same_and_takes_only_what_is_used(page: int, model: Decoder) -> None:
    paged = Decoder(TINY, page=page)
    cache = paged.new_cache(500)
    assert isinstance(cache, PagedCache)
    with torch.inference_mode():
        answer = paged.advance([Part(cache, list(range(40)))])
        while len(answer) < 9:
            answer += paged.advance([Part(cache, answer[-1:])])
        assert answer == alone(model, list(range(40)), 9)
    full = -(-48 // page)  # the last token has no keys yet
    assert sum(held.nbytes for held in cache.pages) == full * page * TINY.cache_per_token


def test_prompts_in_pieces_fill_pages_across_their_ends(model: Decoder) -> None:
    engine = BatchEngine(Decoder(TINY, page=7))
    asks = [([7] * (2 * CHUNK + 5), 3), (list(range(40)), 6)]
    jobs = [engine.submit(prompt, new, nothing) for prompt, new in asks]
    answers = [job.result.result(30) for job in jobs]
    engine.stop()
    with torch.inference_mode():
        assert answers == [alone(model, prompt, new) for prompt, new in asks]


def test_weights_are_what_a_pass_reads(model: Decoder) -> None:
    tensors = [tensor for layer in model._layers for tensor in (layer.qkv, layer.attention_out)]
    tensors += [tensor for layer in model._layers for tensor in (layer.widen, layer.narrow)]
    assert sum(tensor.numel() for tensor in [*tensors, model._embedding]) == TINY.weights


@pytest.mark.parametrize("kind", [BatchEngine, ThreadEngine])
def test_warming_up_leaves_nothing_behind(kind: Callable[[Decoder], Engine], model: Decoder) -> None:
    engine = kind(model)
    engine.warm_up(3)
    assert engine.submit([1], 2, nothing).result.result(30) == alone(model, [1], 2)
    engine.stop()


def test_memory_is_given_back_before_anybody_hears_of_the_answer(model: Decoder) -> None:
    engine = BatchEngine(model)
    heard: list[object] = []
    ready = threading.Event()
    jobs: list[Job] = []

    def freed() -> None:
        ready.wait(30)
        heard.append((jobs[0]._cache, jobs[0].result.done()))

    jobs.append(engine.submit([1, 2], 2, freed))
    ready.set()
    jobs[0].result.result(30)
    engine.stop()
    assert heard == [(None, False)]


def test_a_job_without_room_fails_and_the_others_go_on(gated: tuple[Gated, BatchEngine]) -> None:
    model, engine = gated
    model.no_room_for = 7
    model.open()
    freed: list[str] = []
    fails = engine.submit([1, 2], 5, partial(freed.append, "fails"))
    works = engine.submit([1, 2], 2, partial(freed.append, "works"))
    with pytest.raises(DeviceMemoryError, match="can't allocate memory"):
        fails.result.result(30)
    assert len(works.result.result(30)) == 2
    assert freed == ["fails", "works"]


def test_when_a_pass_has_no_memory_the_newest_fails(gated: tuple[Gated, BatchEngine]) -> None:
    model, engine = gated
    old = engine.submit([1], 3, nothing)
    model.entered.acquire()  # the first pass has the old one alone
    new = engine.submit([2], 3, nothing)
    model.go.release()
    model.entered.acquire()  # the second has both
    model.failures.append(RuntimeError(NO_MEMORY))
    model.open()
    with pytest.raises(DeviceMemoryError):
        new.result.result(30)
    with torch.inference_mode():
        assert old.result.result(30) == alone(Decoder(TINY), [1], 3)


@pytest.mark.parametrize(
    ("raised", "kind", "said"),
    [
        (MemoryError(), DeviceMemoryError, "MemoryError"),
        (torch.OutOfMemoryError("CUDA out of memory"), DeviceMemoryError, "CUDA out of memory"),
        (RuntimeError("shapes differ"), RuntimeError, "shapes differ"),
        (IndexError("no such token"), RuntimeError, "no such token"),
    ],
)
def test_failures_are_told_apart_and_keep_no_tensor(
    gated: tuple[Gated, BatchEngine], raised: Exception, kind: type[Exception], said: str
) -> None:
    model, engine = gated
    model.failures.append(raised)
    model.open()
    error = engine.submit([1], 1, nothing).result.exception(30)
    assert type(error) is kind
    assert str(error) == said
    assert error.__traceback__ is None


def test_a_cancelled_job_is_freed_when_the_engine_sees_it(gated: tuple[Gated, BatchEngine]) -> None:
    model, engine = gated
    freed = threading.Event()
    job = engine.submit([1], 100, freed.set)
    model.entered.acquire()
    job.cancel()
    assert not freed.is_set()  # a pass still uses its cache
    model.open()
    with pytest.raises(JobDroppedError):
        job.result.result(30)
    assert freed.is_set()
    with pytest.raises(LookupError, match="no memory"):
        job.part(1)


def test_stopping_drops_what_is_left(gated: tuple[Gated, BatchEngine]) -> None:
    model, engine = gated
    running = engine.submit([1], 100, nothing)
    model.entered.acquire()
    waiting = engine.submit([1], 1, nothing)
    engine._stopping = True  # as another thread's stop() does while a pass runs
    model.open()
    engine.stop()
    for job in (running, waiting):
        assert isinstance(job.result.exception(30), JobDroppedError)


def test_a_thread_that_has_no_room_fails_alone() -> None:
    model = Gated()
    model.open()
    model.no_room_for = 7
    engine = ThreadEngine(model)
    fails, works = engine.submit([1, 2], 5, nothing), engine.submit([1, 2], 2, nothing)
    assert isinstance(fails.result.exception(30), DeviceMemoryError)
    assert len(works.result.result(30)) == 2
    engine.stop()
