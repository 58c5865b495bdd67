"""The clients: a fixed number of them, each sending its next request when the last was answered.

Owns what was sent and what came back. The requests, and their order, are the same whatever stands
in front of the app.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import httpx
import msgspec

from gpu_admission.demo.trace import PATH, WORKER, Ask

Outcome = Literal["ok", "out_of_memory", "refused", "failed", "unfinished"]
GRACE = 5.0
"""Seconds kept for the last answers: no request is sent that late."""


class Answer(msgspec.Struct, frozen=True):
    """How one request ended; times are ``time.monotonic()``."""

    ask: Ask
    outcome: Outcome
    sent: float
    ended: float
    detail: str = ""
    worker: str = ""
    """Which web process answered, where there are several."""

    @property
    def seconds(self) -> float:
        return self.ended - self.sent


class Sample(NamedTuple):
    """What the engine's process used at one moment (``time.monotonic()``): memory now, CPU so far."""

    at: float
    used: int
    cpu_seconds: float


class Run(msgspec.Struct, frozen=True):
    """One replay: every answer, in the order of sending, and what the engine used meanwhile."""

    answers: list[Answer]
    samples: list[Sample]


def connect(port: int, clients: int) -> httpx.AsyncClient:
    """A client of the server at ``port`` that may have so many requests under way."""
    return httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{port}", timeout=None, limits=httpx.Limits(max_connections=clients + 1)
    )


async def replay(
    http: httpx.AsyncClient,
    asks: Sequence[Ask],
    *,
    clients: int,
    seconds: float,
    progress: Callable[[Answer], None] = lambda answer: None,
    engine: httpx.AsyncClient | None = None,
) -> Run:
    """Send ``asks`` from ``clients`` at once, for at most ``seconds``.

    ``engine`` is asked for what was used, where it is a process behind the one that answers.
    """
    began = time.monotonic()
    answers = await _send_all(http, asks, clients, seconds, progress)
    return Run(answers, await samples(engine or http, since=began))


async def samples(http: httpx.AsyncClient, *, since: float) -> list[Sample]:
    """The ``/stats`` of the engine's process, from ``since`` (``time.monotonic()``) on."""
    response = await http.get("/stats", params={"since": since})
    return msgspec.json.decode(response.content, type=list[Sample])


async def _send_all(
    http: httpx.AsyncClient,
    asks: Sequence[Ask],
    clients: int,
    seconds: float,
    progress: Callable[[Answer], None],
) -> list[Answer]:
    answers: list[Answer] = []
    started = time.monotonic()
    left = iter(asks)

    async def client() -> None:
        for ask in _until(started + seconds - GRACE, left):
            answer = await send(http, ask, started + seconds)
            answers.append(answer)
            progress(answer)

    async with asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(client())
    return sorted(answers, key=lambda answer: answer.sent)


def _until(deadline: float, asks: Iterator[Ask]) -> Iterator[Ask]:
    for ask in asks:
        if time.monotonic() > deadline:
            return
        yield ask


async def send(http: httpx.AsyncClient, ask: Ask, deadline: float) -> Answer:
    """Send one request; what is not answered at ``deadline`` stays ``unfinished``."""
    sent = time.monotonic()
    worker = ""
    try:
        async with asyncio.timeout(deadline - sent):
            response = await http.post(PATH, json=ask.body)
        outcome, detail = _outcome(response)
        worker = response.headers.get(WORKER, "")
    except TimeoutError:
        outcome, detail = "unfinished", ""
    except httpx.TransportError as error:
        outcome, detail = "failed", type(error).__name__
    return Answer(ask, outcome, sent, time.monotonic(), detail, worker)


def _outcome(response: httpx.Response) -> tuple[Outcome, str]:
    if response.status_code == 200:
        return "ok", ""
    error = _error(response)
    if error.get("code") == "out_of_memory":
        return "out_of_memory", str(error.get("message"))
    if "x-gpu-admission-reason" in response.headers:
        return "refused", response.headers["x-gpu-admission-reason"]
    return "failed", f"{response.status_code} {response.text[:200]}"


def _error(response: httpx.Response) -> dict[str, Any]:
    try:
        error = response.json()["error"]
    except (ValueError, KeyError, TypeError):
        return {}
    return error if isinstance(error, dict) else {}
