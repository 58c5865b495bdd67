"""One thread that runs calls one after the other, awaited from asyncio or trio.

AnyIO uses whichever thread is free, but a model whose stream and device belong to a thread
needs one of its own. It is a daemon: a call that hangs in a driver must not keep the
process from ending.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeAlias, TypeVar

import anyio

from gpu_admission.runtime.loop import call_soon, running_loop

T = TypeVar("T")
Calls: TypeAlias = "SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]"


class Worker:
    """A thread called ``name``, from now until ``stop``, or until nobody knows the worker any more."""

    def __init__(self, name: str) -> None:
        self._calls: Calls = SimpleQueue()
        self.stop = weakref.finalize(self, self._calls.put, None)
        """End the thread when all that was submitted is done."""
        self.stop.atexit = False
        threading.Thread(target=_work, args=(self._calls,), name=name, daemon=True).start()

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Have ``call()`` done after those that were submitted before."""
        future: Future[T] = Future()
        self._calls.put((future, call))
        return future


def _work(calls: Calls) -> None:
    while (job := calls.get()) is not None:
        _do(*job)
        # Kept until the next call came, it would hold its arguments' memory.
        del job


def _do(future: Future[Any], call: Callable[[], Any]) -> None:
    try:
        result = call()
    except BaseException as error:
        future.set_exception(error)
        # The error's traceback leads here: it must not keep itself, and all it refers to, alive.
        del future, call
    else:
        future.set_result(result)


async def result_of(future: Future[T]) -> T:
    """Its result, or its exception. A cancelled task stops waiting at once, and the thread works on."""
    await settled(future)
    return future.result()


async def settled(future: Future[Any]) -> None:
    """Return when it is done, however it ended."""
    done, loop = anyio.Event(), running_loop()
    future.add_done_callback(lambda _: call_soon(loop, done.set))
    await done.wait()
