"""``Processes``: one function in several worker processes, for work that holds the GIL.

Owns the caller's side. A process is an instance like any other (``instances``): lent to one
call, replaced when it dies.
"""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar

import anyio

from gpu_admission.serving.child import Child, ProcessDied
from gpu_admission.serving.instances import Instances
from gpu_admission.serving.settings import check_callable

P = ParamSpec("P")
T = TypeVar("T")


class Processes(Generic[P, T]):
    """``await processes.run(*args)`` is ``function(*args)`` in one of ``n`` worker processes.

    When you want it: decoding, resizing, tokenizing and the like around the model, in Python,
    on several cores::

        decode = Processes(decode_image, 4, start=load_profiles)
        pixels = await decode.run(data)

    Processes are spawned at first use, or all at once by ``start`` (``async with`` does it,
    for a lifespan), so ``function`` and ``start`` are functions of a module, and a script
    that makes one needs its ``if __name__ == "__main__":``. ``start()`` runs first in each:
    what is slow to load, or a share of the budget, is opened there. Arguments and results
    are pickled.

    A caller that is cancelled leaves at once and its process is killed; another one takes its
    place, as it does where a process dies: at work, ``run`` raises ``ProcessDied``. The request's
    lease is held until the work has ended. An exception of ``function`` is raised as it is,
    with the traceback of its process as a note.

    At most ``max_waiting`` wait, each for ``timeout`` seconds; ``run`` raises ``QueueFull``,
    ``QueueTimeout``, or ``Unavailable`` while no process can be started or after ``aclose``.
    """

    def __init__(
        self,
        function: Callable[P, T],
        n: int,
        *,
        start: Callable[[], object] | None = None,
        max_waiting: int = 100,
        timeout: float = 30.0,
        pause: float = 1.0,
        name: str = "processes",
    ) -> None:
        check_callable("function", function, optional=False)
        check_callable("start", start)
        _check_importable("function", function)
        _check_importable("start", start)
        self._instances = Instances(
            functools.partial(Child, function, start, name),
            n,
            devices=["cpu"],
            reset=Child.check,
            close=Child.close,
            is_fault=lambda error: isinstance(error, ProcessDied),
            max_waiting=max_waiting,
            timeout=timeout,
            pause=pause,
            name=name,
        )

    @property
    def ready(self) -> int:
        """Processes that are free now."""
        return self._instances.ready

    @property
    def waiting(self) -> int:
        """Callers that wait."""
        return self._instances.waiting

    async def start(self) -> None:
        """Start all processes now. Raises what ``start`` raised in them."""
        await self._instances.start()

    async def run(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """``function(*args, **kwargs)`` in a process that does nothing else meanwhile."""
        async with self._instances.borrow() as child:
            if child.is_alive:
                return await self._call(child, args, kwargs)
        # It died at rest, and has been replaced as it was given back.
        async with self._instances.borrow() as child:
            return await self._call(child, args, kwargs)

    async def _call(self, child: Child, args: tuple[Any, ...], kwargs: dict[str, Any]) -> T:
        """In ``child``, which has been borrowed."""
        try:
            result: T = await self._instances.run(Child.call, args, kwargs)
        except anyio.get_cancelled_exc_class():
            child.kill()
            raise
        return result

    async def aclose(self) -> None:
        """Refuse new calls, wait until those that run are done, and end all processes."""
        await self._instances.aclose()

    async def __aenter__(self) -> Processes[P, T]:
        await self._instances.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"<Processes of {self._instances!r}>"


def _check_importable(setting: str, function: object) -> None:
    try:
        pickle.dumps(function)
    except Exception as error:
        raise TypeError(f"{setting} must be a function of a module, to be found by a new process") from error
