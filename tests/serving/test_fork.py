"""Helpers that were used before a fork: the child begins anew, and the parent goes on."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import asyncio, os, sys, threading
from gpu_admission.serving import Batcher, Instances

begun, go_on = threading.Event(), threading.Event()

def handler(items):
    if items == [0]:
        begun.set()
        go_on.wait(20)
    return [item + 1 for item in items]

batcher = Batcher(handler)
models = Instances(threading.get_native_id, 1)

async def in_child():
    assert (batcher.waiting, batcher.running, models.ready) == (0, 0, 0)
    assert await batcher(4) == 5
    assert await models.run(lambda made_in: made_in == threading.get_native_id())
    await models.aclose()

async def main():
    assert await models.run(lambda made_in: made_in == threading.get_native_id())
    first = asyncio.create_task(batcher(0))
    await asyncio.to_thread(begun.wait, 20)
    second = asyncio.create_task(batcher(1))
    await asyncio.sleep(0)
    if (pid := os.fork()) == 0:
        threading.Thread(target=lambda: asyncio.run(in_child())).start()
        for thread in threading.enumerate():
            if thread is not threading.current_thread():
                thread.join(20)
        print("child done", flush=True)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    go_on.set()
    assert (await first, await second) == (1, 2)
    await models.aclose()

asyncio.run(main())
print("parent done")
"""


def test_a_forked_process_has_a_batcher_and_instances_of_its_own() -> None:
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60)
    assert run.stdout.split("\n")[:2] == ["child done", "parent done"], run.stderr
