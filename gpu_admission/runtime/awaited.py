"""Whether a task waits for another to end, as far as that can be seen from the outside.

Owns the look at where a task is suspended. What follows from it is its caller's business. asyncio
keeps no such graph before Python 3.14, so it is read off what the libraries' own waiting calls hold:
``await task``, ``gather``, ``wait``, ``wait_for`` and task groups are seen, ``shield`` and events
of the user's own are not. A wait with a time limit, or for the first of several, ends by itself.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any

from gpu_admission.runtime.loop import running_asyncio
from gpu_admission.runtime.task import running_task

_LIBRARIES = {"asyncio", "anyio", "trio", "uvloop"}
_GROUPS = ("_tasks", "child_tasks", "_children")
"""Where task groups of asyncio and AnyIO, nurseries, and futures of ``gather`` keep their tasks."""


def waits_for_this(task_id: int) -> bool:
    """Whether the task of that identity, as ``running_task`` gives it, waits for the running one to end.

    It may do so itself, or through others that do.
    """
    here = running_task()
    tasks = _tasks()
    seen: set[int] = set()
    left = [task_id]
    while left:
        for found in _awaited_by(tasks.get(left.pop())):
            if id(found) == here:
                return True
            if id(found) not in seen:
                seen.add(id(found))
                left.append(id(found))
    return False


def _tasks() -> dict[int, Any]:
    """The tasks of the running loop, by identity: of asyncio all, of trio those around this one."""
    loop = running_asyncio()
    if loop is not None:
        return {id(task): task for task in asyncio.all_tasks(loop)}
    return {id(task): task for task in _ancestors()}


def _ancestors() -> Iterator[Any]:
    if "trio" not in sys.modules:
        return
    import trio

    task: Any = trio.lowlevel.current_task() if trio.lowlevel.in_trio_task() else None
    while task is not None:
        yield task
        nursery = task.parent_nursery
        task = None if nursery is None else nursery.parent_task


def _awaited_by(task: Any) -> Iterator[Any]:
    """The tasks that ``task`` waits for."""
    if task is None:
        return
    frames = _suspended_in(task.coro if hasattr(task, "coro") else task.get_coro())
    if any(_ends_by_itself(frame.f_locals) for frame in frames):
        return
    yield from _tasks_in(getattr(task, "_fut_waiter", None))
    for frame in frames:
        for value in frame.f_locals.values():
            yield from _tasks_in(value)


def _ends_by_itself(values: Mapping[str, Any]) -> bool:
    """Tasks that ``asyncio.wait`` and ``wait_for`` wait for."""
    is_limited = values.get("timeout") is not None
    return is_limited or values.get("return_when", asyncio.ALL_COMPLETED) != asyncio.ALL_COMPLETED


def _suspended_in(coroutine: Any) -> list[FrameType]:
    """The innermost frames of a suspended coroutine that are a library's: the call that waits."""
    frames: list[FrameType] = []
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "gi_frame", None)
        if frame is None:
            break
        library = str(frame.f_globals.get("__name__", "")).partition(".")[0] in _LIBRARIES
        frames = [*frames, frame] if library else []
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None)
    return frames


def _tasks_in(value: Any) -> Iterator[Any]:
    """``value`` itself if it is a task, or the tasks in it if it is a collection or a group of them."""
    if _is_task(value):
        yield value
        return
    for group in (value, *(getattr(value, name, None) for name in _GROUPS)):
        if isinstance(group, (set, frozenset, list, tuple)):
            yield from (each for each in tuple(group) if _is_task(each))


def _is_task(value: Any) -> bool:
    return isinstance(value, asyncio.Task) or hasattr(type(value), "parent_nursery")
