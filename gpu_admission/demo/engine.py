"""Who computes what, when: the batching engine, and a plain pool of threads to compare it with.

Both take a prompt, make its cache, answer with tokens, and free the cache. They know nothing of
budgets or HTTP. What can't have its memory fails with ``DeviceMemoryError``, as a naive engine's
would, and the engine goes on.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Protocol

import torch

from gpu_admission.demo.cache import Cache
from gpu_admission.demo.model import Decoder, Part

CHUNK = 64
"""Most prompt tokens in one forward pass: bounds what a long prompt takes beside its cache."""
THREADS = 40
"""Of the plain pool: as many as Starlette gives to ``def`` routes."""


class DeviceMemoryError(Exception):
    """The device had no room; carries the text of torch's own error."""


class JobDroppedError(Exception):
    """The engine gave the job up: it was cancelled, or the engine has stopped."""


class Job:
    """One request inside an engine."""

    __slots__ = ("_cache", "_on_free", "answer", "cancelled", "new_tokens", "prompt", "result")

    def __init__(self, prompt: Sequence[int], new_tokens: int, on_free: Callable[[], None]) -> None:
        self.prompt = prompt
        self.new_tokens = new_tokens
        self.answer: list[int] = []
        self.cancelled = False
        self.result: Future[list[int]] = Future()
        self.result.set_running_or_notify_cancel()  # from here on only the engine ends it
        self._cache: Cache | None = None
        self._on_free = on_free

    @property
    def _held(self) -> Cache:
        if self._cache is None:
            raise LookupError("this job holds no memory")
        return self._cache

    @property
    def finished(self) -> bool:
        return self.cancelled or len(self.answer) >= self.new_tokens

    def cancel(self) -> None:
        """Ask the engine to drop it, from any thread. Its memory goes when the engine notices."""
        self.cancelled = True

    def allocate(self, model: Decoder) -> None:
        self._cache = model.new_cache(len(self.prompt) + self.new_tokens)

    def part(self, most: int) -> Part | None:
        """What it adds to the next pass: its last token, or up to ``most`` of its prompt."""
        if self.answer:
            return Part(self._held, self.answer[-1:])
        start = self._held.length
        return Part(self._held, self.prompt[start : start + most]) if most else None

    def take(self, token: int) -> None:
        """The next token; it counts once the whole prompt has been seen."""
        if self._held.length >= len(self.prompt):
            self.answer.append(token)

    def end(self, error: Exception | None = None) -> None:
        """Give the memory back first, then report: whoever hears of it may start the next one."""
        self._cache = None
        self._on_free()
        if error is not None:
            self.result.set_exception(error)
        elif self.cancelled:
            self.result.set_exception(JobDroppedError())
        else:
            self.result.set_result(self.answer)


class Engine(Protocol):
    """What the app needs of an engine."""

    def submit(self, prompt: Sequence[int], new_tokens: int, on_free: Callable[[], None]) -> Job:
        """Start a job; ``on_free`` is called once, when it holds no memory any more."""
        ...

    def warm_up(self, most: int) -> None:
        """Pay what is paid once (buffers, thread stacks) for up to ``most`` jobs at a time."""
        ...

    def stop(self) -> None:
        """End its threads; what is still in it is dropped."""
        ...


class BatchEngine:
    """One thread. Each pass takes all that live one token on, and some of the new prompts with them."""

    def __init__(self, model: Decoder) -> None:
        self._model = model
        self._inbox: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._live: list[Job] = []
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def submit(self, prompt: Sequence[int], new_tokens: int, on_free: Callable[[], None]) -> Job:
        job = Job(prompt, new_tokens, on_free)
        self._inbox.put(job)
        return job

    def warm_up(self, most: int) -> None:
        _run_all([self.submit([1] * 2 * CHUNK, 4, _nothing)])
        for count in _doubling(most):
            _run_all([self.submit([1] * 8, 3, _nothing) for _ in range(count)])

    def stop(self) -> None:
        self._stopping = True
        self._inbox.put(None)
        self._thread.join()

    @torch.inference_mode()
    def _run(self) -> None:
        while not self._stopping:
            self._start(self._arrived())
            if self._live:
                self._pass()
            self._end_finished()
        for job in self._live + self._arrived():
            job.end(JobDroppedError())

    def _start(self, jobs: list[Job]) -> None:
        for job in jobs:
            if failure := _attempt(partial(job.allocate, self._model)):
                job.end(failure)
            else:
                self._live.append(job)

    def _pass(self) -> None:
        """If there is no memory for a pass, the newest job fails and the others go on without it."""
        if failure := _attempt(partial(_advance, self._model, self._live)):
            self._live.pop().end(failure)

    def _arrived(self) -> list[Job]:
        """All that have come; waits for one when there is nothing else to do."""
        jobs: list[Job] = []
        while not self._inbox.empty() or not (jobs or self._live or self._stopping):
            if job := self._inbox.get():
                jobs.append(job)
        return jobs

    def _end_finished(self) -> None:
        finished = [job for job in self._live if job.finished]
        self._live = [job for job in self._live if not job.finished]
        for job in finished:
            job.end()


class ThreadEngine:
    """A thread for each request, each reading all the weights for its own next token."""

    def __init__(self, model: Decoder) -> None:
        self._model = model
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="engine")

    def submit(self, prompt: Sequence[int], new_tokens: int, on_free: Callable[[], None]) -> Job:
        job = Job(prompt, new_tokens, on_free)
        self._pool.submit(self._work, job)
        return job

    def warm_up(self, most: int) -> None:
        together = threading.Barrier(THREADS)
        for thread in [self._pool.submit(together.wait) for _ in range(THREADS)]:
            thread.result()
        _run_all([self.submit([1] * CHUNK, 2, _nothing) for _ in range(THREADS)])

    def stop(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    @torch.inference_mode()
    def _work(self, job: Job) -> None:
        failure = _attempt(partial(job.allocate, self._model))
        while not (failure or job.finished):
            failure = _attempt(partial(_advance, self._model, [job]))
        job.end(failure)


def _advance(model: Decoder, jobs: Sequence[Job]) -> None:
    """One pass: a token of each that has begun to answer, and up to ``CHUNK`` of prompts."""
    taking, parts, room = [], [], CHUNK
    for job in jobs:
        if part := job.part(room):
            taking.append(job)
            parts.append(part)
            room -= 0 if job.answer else len(part.tokens)
    for job, token in zip(taking, model.advance(parts), strict=True):
        job.take(token)


def _attempt(work: Callable[[], None]) -> Exception | None:
    """Why ``work`` failed, as a new exception: the old one would keep its frames' tensors alive."""
    try:
        work()
    except Exception as error:
        text = str(error) or type(error).__name__
        if isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "can't allocate memory" in text:
            return DeviceMemoryError(text)
        return RuntimeError(text)
    return None


def _run_all(jobs: Sequence[Job]) -> None:
    for job in jobs:
        job.result.result()


def _doubling(most: int) -> Iterator[int]:
    count = 1
    while count < most:
        yield count
        count *= 2
    yield most


def _nothing() -> None:
    """Nobody is waiting for this memory."""
