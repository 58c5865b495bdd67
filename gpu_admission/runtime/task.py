"""Starting a task that belongs to no request, telling which task is running, and what makes a coroutine.

On asyncio and on trio. Owns these three. What such a task does, and how it ends, is up to its
owner: a task from here must catch its own errors, since no one awaits it.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any

from gpu_admission.runtime.loop import running_asyncio


def spawn(
    function: Callable[..., Coroutine[Any, Any, None]], *args: Any, tasks: set[asyncio.Task[None]]
) -> None:
    """Start ``function(*args)`` in the running loop, in an empty context.

    A task made the usual way would copy the context of whoever happened to make it: its
    variables, its trace and its lease. ``tasks`` keeps asyncio's tasks from being collected
    while they run; trio keeps its own.
    """
    loop = running_asyncio()
    if loop is None:
        import trio

        trio.lowlevel.spawn_system_task(function, *args, context=Context())
        return
    task = loop.create_task(function(*args), context=Context())
    tasks.add(task)
    task.add_done_callback(tasks.discard)


def is_cancelled() -> bool:
    """Whether the running asyncio task is itself being cancelled.

    A ``CancelledError`` may also come from something it awaits that others have cancelled.
    """
    loop = running_asyncio()
    task = None if loop is None else asyncio.current_task(loop)
    return task is not None and task.cancelling() > 0


def running_task() -> int | None:
    """The identity of the running task; ``None`` in a thread without an event loop."""
    loop = running_asyncio()
    if loop is not None:
        return id(asyncio.current_task(loop))
    if "trio" in sys.modules:
        import trio

        if trio.lowlevel.in_trio_task():
            return id(trio.lowlevel.current_task())
    return None


def is_async(function: Any) -> bool:
    """Whether calling it makes a coroutine: a coroutine function, or an object whose ``__call__`` is one."""
    call = getattr(type(function), "__call__", None)  # noqa: B004
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)
