"""The image example under 64 clients: its batcher, none, and two others, each in a server of its own.

Owns the contenders (``python -m tests.bench.batching NAME PORT`` serves one) and the load on them.
All have the example's model, its decoding and its admission in front; only what stands between the
endpoint and the model differs. Processor seconds are the server's: the clients' are not in them. Nearly
all of them are the model's, so what an item costs without one stands in a table of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import io
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Annotated, Any, NamedTuple, TypeAlias

import anyio
import anyio.to_thread
import uvicorn
from fastapi import Depends, FastAPI
from PIL import Image
from torch import Tensor

from examples import image_batches
from gpu_admission import Admission, GPUAdmission
from gpu_admission.serving import Batcher
from tests.bench.server import processor_seconds
from tests.bench.sidebyside import table
from tests.waiting import HOST, free_port, wait_for

CLIENTS, REQUESTS, ROUNDS = 64, 512, 3
MOST, PATIENCE = 64, 0.1
"""Of a batch, for all of them: items, and seconds that its first may wait."""

Classify: TypeAlias = Callable[[Any], Awaitable[Any]]
Handler: TypeAlias = Callable[[list[Any]], list[Any]]

UNBATCHED = "no batching: one image at a time, in a thread"
OURS = "Batcher (the example as it is)"
BATCHED = "batched (mixedbread), aio.dynamically"
TUTORIAL = "a queue as tutorials write it"


def unbatched(handler: Handler) -> Classify:
    one = anyio.CapacityLimiter(1)

    async def classify(image: Any) -> Any:
        return (await anyio.to_thread.run_sync(handler, [image], limiter=one))[0]

    return classify


def batched(handler: Handler) -> Classify:
    dynamically = importlib.import_module("batched").aio.dynamically
    made: Classify = dynamically(
        handler, batch_size=MOST, timeout_ms=PATIENCE * 1000, small_batch_threshold=0
    )
    return made


class TutorialQueue:
    """Futures in a queue, and a task that takes what comes within a while."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._queue: asyncio.Queue[tuple[Any, asyncio.Future[Any]]] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    async def __call__(self, image: Any) -> Any:
        if self._task is None:
            self._task = asyncio.create_task(self._work())
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        await self._queue.put((image, future))
        return await future

    async def _work(self) -> None:
        while True:
            batch = [await self._queue.get()]
            end = time.monotonic() + PATIENCE
            while len(batch) < MOST and (left := end - time.monotonic()) > 0:
                with contextlib.suppress(asyncio.TimeoutError):
                    batch.append(await asyncio.wait_for(self._queue.get(), left))
            classes = await asyncio.to_thread(self._handler, [image for image, _ in batch])
            for (_, future), found in zip(batch, classes, strict=True):
                future.set_result(found)


CONTENDERS: dict[str, Callable[[Handler], Classify]] = {
    UNBATCHED: unbatched,
    BATCHED: batched,
    TUTORIAL: TutorialQueue,
}


def app_of(name: str) -> FastAPI:
    if name == OURS:
        return image_batches.app
    app, classify = FastAPI(), CONTENDERS[name](image_batches.classify_all)
    app.add_middleware(GPUAdmission, admission=image_batches.admission)

    @app.post("/classify")
    async def classify_one(image: Annotated[Tensor, Depends(image_batches.decode)]) -> dict[str, int]:
        return {"class": await classify(image)}

    return app


class Load(NamedTuple):
    rate: float
    """Requests a second."""
    cpu: float
    """Processor seconds of the server for each request."""
    p95: float
    """Seconds."""


def run() -> str:
    names = [UNBATCHED, TUTORIAL, BATCHED, OURS]
    with contextlib.ExitStack() as stack:
        servers = {name: stack.enter_context(server(name)) for name in names}
        found: dict[str, list[Load]] = {name: [] for name in names}
        for _ in range(ROUNDS):
            for name, (pid, port) in servers.items():
                found[name].append(loaded(pid, port))
    medians = {name: Load(*map(statistics.median, zip(*loads, strict=True))) for name, loads in found.items()}
    one = medians[UNBATCHED]
    rows = [
        [
            *(name, f"{load.rate:.0f}", f"{load.p95 * 1000:.0f}", f"{load.cpu * 1000:.2f}"),
            f"{one.cpu / load.cpu:.2f} x",
        ]
        for name, load in medians.items()
    ]
    title = f"Images through a small vision model, {CLIENTS} clients, torch on one thread"
    header = ["between endpoint and model", "requests/s", "p95 ms", "ms of processor a request"]
    return f"{table(title, [*header, 'requests a processor second'], rows)}\n{own_costs()}"


def own_costs() -> str:
    """What stands between endpoint and model costs by itself, with a model that does nothing.

    Without ``batched``, whose callers sometimes hang where the handler takes no time.
    """
    admission = Admission(capacity=CLIENTS * 100, estimator=100)
    settings: dict[str, Any] = {"cost": 100, "max_items": MOST, "max_wait": PATIENCE}
    makers: dict[str, Callable[[], Classify]] = {
        TUTORIAL: lambda: TutorialQueue(_same),
        "Batcher": lambda: Batcher(_same, **settings),
        "Batcher, with its callers' leases": lambda: Batcher(_same, admission=admission, **settings),
    }
    rows = []
    for name, make in makers.items():
        leases = admission if "leases" in name else None
        rows.append([name, f"{asyncio.run(_own_cost(make(), leases)) * 1e6:.1f}"])
    title = f"The same without a model: {CLIENTS} callers, each with one item at a time"
    return table(title, ["", "us of processor an item"], rows)


def _same(items: list[Any]) -> list[Any]:
    return items


async def _own_cost(classify: Classify, admission: Admission | None) -> float:
    async def caller(number: int) -> None:
        async with admission.lease(100) if admission else contextlib.nullcontext():
            for _ in range(300):
                await classify(number)

    start = time.process_time()
    await asyncio.gather(*map(caller, range(CLIENTS)))
    return (time.process_time() - start) / (CLIENTS * 300)


@contextlib.contextmanager
def server(name: str) -> Iterator[tuple[int, int]]:
    port = free_port()
    command = [sys.executable, "-m", "tests.bench.batching", name, str(port)]
    with subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}) as process:
        try:
            wait_for(port, 180)
            asyncio.run(clients(port, CLIENTS * 2))  # warm
            yield process.pid, port
        finally:
            process.terminate()


def loaded(pid: int, port: int) -> Load:
    before, start = processor_seconds(pid), time.monotonic()
    latencies = asyncio.run(clients(port, REQUESTS))
    seconds = time.monotonic() - start
    cpu = (processor_seconds(pid) - before) / REQUESTS
    return Load(REQUESTS / seconds, cpu, statistics.quantiles(latencies, n=20)[-1])


async def clients(port: int, requests: int) -> list[float]:
    """Latencies of ``requests``, by ``CLIENTS`` that each have a connection and one request at a time."""
    left = iter(range(requests))
    each = await asyncio.gather(*(client(port, left) for _ in range(CLIENTS)))
    return [latency for latencies in each for latency in latencies]


async def client(port: int, left: Iterator[int]) -> list[float]:
    request = upload()
    reader, writer = await asyncio.open_connection(HOST, port)
    latencies = []
    for _ in left:
        start = time.monotonic()
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"the load failed: {head!r}")
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        await reader.readexactly(int(length.partition(b":")[2]))
        latencies.append(time.monotonic() - start)
    writer.close()
    return latencies


def upload() -> bytes:
    """A request that uploads a 64 x 64 JPEG."""
    file = io.BytesIO()
    Image.effect_noise((64, 64), 60).convert("RGB").save(file, "JPEG")
    body = b'--x\r\nContent-Disposition: form-data; name="upload"; filename="a.jpg"\r\n'
    body += b"Content-Type: image/jpeg\r\n\r\n" + file.getvalue() + b"\r\n--x--\r\n"
    head = f"POST /classify HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: multipart/form-data; boundary=x\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def serve(name: str, port: str) -> Any:
    uvicorn.run(app_of(name), host=HOST, port=int(port), access_log=False, log_level="warning")


if __name__ == "__main__":
    serve(*sys.argv[1:])
