"""What a hundred hostile requests take of the host's memory, measured in a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]
BUFFERED = 256
"""MiB of ``max_buffered_bytes``."""
SLACK = 64

PROGRAM = """
import asyncio, gc, gzip, re, sys, threading, time
from gpu_admission import Admission, GPUAdmission
from gpu_admission.estimators import Linear

MIB = 2**20
kind, cut = sys.argv[1], sys.argv[2]
units = {"prose": b"a ", "numbers": b"12,", "nested": b"[],"}
heads = {"prose": b'{"messages":[{"content":"', "numbers": b'{"prompt":[', "nested": b'{"messages":[['}
tails = {"prose": b'"}]}', "numbers": b"1]}", "nested": b"1]]}"}
room = 64 * MIB - len(heads[kind]) - len(tails[kind])
body = heads[kind] + units[kind] * (room // len(units[kind])) + tails[kind]
packed = gzip.compress(body, 1)
step = 64 * MIB if cut == "whole" else 64 * 1024

def resident():
    return int(re.search("VmRSS:\\\\s+(\\\\d+)", open("/proc/self/status").read())[1]) / 1024

async def app(scope, receive, send):
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": []})

async def call(gpu, content, number, headers=()):
    at = 0
    async def receive():
        nonlocal at
        await asyncio.sleep(0)
        piece = bytes(memoryview(content)[at : at + step])
        at += step
        return {"type": "http.request", "body": piece, "more_body": at < len(content)}
    async def send(message):
        await asyncio.sleep(0.05)  # a client that is slow to take its answer
    await gpu({"type": "http", "method": "POST", "path": "/v1/chat/completions", "query_string": b"",
               "headers": list(headers), "client": (f"10.0.0.{number % 50}", 1)}, receive, send)

async def main():
    linear = Linear({"prompt_tokens": 1})
    gpu = GPUAdmission(app, capacity=2**60, estimator=linear, max_buffered_bytes="256MiB")
    await call(gpu, b"{}", 0)
    gc.collect()
    before, most, over = resident(), 0.0, threading.Event()
    def watch():
        nonlocal most
        while not over.wait(0.002):
            most = max(most, resident() - before)
    watching = threading.Thread(target=watch)
    watching.start()
    gz = [(b"content-encoding", b"gzip")]
    await asyncio.gather(*(
        call(gpu, packed, n, gz) if cut == "half packed" and n % 2 else call(gpu, body, n) for n in range(100)
    ))
    over.set()
    watching.join()
    print(most)

asyncio.run(main())
"""


@pytest.mark.parametrize("cut", ["pieces", "whole", "half packed"])
@pytest.mark.parametrize("kind", ["prose", "numbers", "nested"])
def test_a_hundred_bodies_at_the_limit_take_no_more_than_may_be_buffered_and_one_of_them(
    kind: str, cut: str
) -> None:
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, kind, cut], capture_output=True, text=True, timeout=300, check=True
    )
    assert float(run.stdout) < BUFFERED + SLACK
