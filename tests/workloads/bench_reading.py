"""What reading a body costs, as ratios in one run: ``python -m tests.workloads.bench_reading``.

Not a test: it measures time. Each ratio has the bar that it is held against beside it.
"""

from __future__ import annotations

import json
import os
import statistics
import threading
import time
from collections.abc import Callable
from functools import partial

import msgspec
import orjson

from gpu_admission.request import RequestInfo
from gpu_admission.workloads.images import size_of_text
from tests.workloads.asking import request
from tests.workloads.pictures import data_url, png

PATH = "/v1/chat/completions"
SENTENCE = "The quick brown fox jumps over the lazy dog, and then it rests.\n"


def chat(messages: int, sentences: int) -> bytes:
    turns = [
        {"role": "user" if turn % 2 else "assistant", "content": SENTENCE * sentences}
        for turn in range(messages)
    ]
    return json.dumps(
        {"model": "m", "messages": turns, "max_tokens": 256, "temperature": 0.7, "stream": True}
    ).encode()


def inline_image(size: int) -> bytes:
    url = data_url(png(3000, 2000) + os.urandom(size * 3 // 4))
    parts = [{"type": "text", "text": "what is it?"}, {"type": "image_url", "image_url": {"url": url}}]
    return json.dumps({"messages": [{"role": "user", "content": parts}]}).encode()


def batch(call: Callable[[], object], runs: int) -> float:
    """Seconds of this thread's processor time for each of ``runs`` calls."""
    start = time.thread_time()
    for _ in range(runs):
        call()
    return (time.thread_time() - start) / runs


def compare(
    name: str, ours: Callable[[], object], theirs: Callable[[], object], runs: int, bar: float
) -> None:
    """Shows the median time of ``ours``, and the median of 31 ratios of batches made in turn."""
    pairs = [(batch(ours, runs), batch(theirs, runs)) for _ in range(31)]
    time_of_ours = statistics.median(pair[0] for pair in pairs)
    ratio = statistics.median(pair[0] / pair[1] for pair in pairs)
    print(f"{name:<44} {time_of_ours * 1e6:>10.1f} us  {ratio:>6.2f} x  (bar {bar} x)")


def read(body: bytes) -> Callable[[], object]:
    scope = request(body, PATH).scope
    return lambda: RequestInfo(scope, body).workload


def longest_stall(call: Callable[[], object]) -> float:
    """The longest time for which another thread could not run, in five calls."""
    done = threading.Event()
    gaps: list[float] = []

    def watch() -> None:
        before = time.perf_counter()
        while not done.is_set():
            time.sleep(0.0002)
            now = time.perf_counter()
            gaps.append(now - before)
            before = now

    watcher = threading.Thread(target=watch)
    watcher.start()
    for _ in range(5):
        call()
    done.set()
    watcher.join()
    return max(gaps)


def main() -> None:
    small = chat(4, 7)
    compare(
        f"chat of {len(small)} B over msgspec's decode",
        read(small),
        lambda: msgspec.json.decode(small),
        2000,
        10,
    )

    image = inline_image(20_000_000)
    head = image[image.find(b"data:") :][: 4 * 1024].decode()

    def find_and_decode_the_header() -> None:
        image.find(b"\x01")
        size_of_text(lambda length: head)

    compare(f"image of {len(image)} B over find + header", read(image), find_and_decode_the_header, 5, 1.2)

    bodies = {
        "12,000 messages": chat(12_000, 11),
        "100 messages": chat(100, 1600),
        "1 message": chat(1, 160_000),
    }
    idle = longest_stall(lambda: time.sleep(0.05)) * 1e3
    print(f"{'':<44} {idle:>10.1f} ms longest stall with no work at all")
    for name, body in bodies.items():
        compare(f"{name}, {len(body)} B over orjson", read(body), partial(orjson.loads, body), 1, 1.5)
        stall = longest_stall(read(body)) * 1e3
        print(f"{'':<44} {stall:>10.1f} ms longest stall of another thread (bar 10 ms)")


if __name__ == "__main__":
    main()
