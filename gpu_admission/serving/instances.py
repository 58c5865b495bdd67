"""``Instances``: several copies of a model, each lent to one at a time.

Owns the borrower's side: what a loan is, and where its calls run. Who gets which, and what
happens after a fault, is in ``pool``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Concatenate, Generic, ParamSpec, TypeVar

from gpu_admission.admission.context import current_lease
from gpu_admission.guards.exceptions import classify
from gpu_admission.runtime.worker import result_of, settled
from gpu_admission.serving.instance import Instance, Recipe
from gpu_admission.serving.pool import Pool
from gpu_admission.serving.settings import check_callable, check_seconds
from gpu_admission.serving.stream import devices_for
from gpu_admission.settings.checks import count

Model = TypeVar("Model")
P = ParamSpec("P")
T = TypeVar("T")


class Loan:
    """An instance that a task has borrowed, and what it had borrowed before."""

    __slots__ = ("instance", "is_open", "outer", "pool")

    def __init__(self, pool: Pool, instance: Instance) -> None:
        self.pool = pool
        self.instance = instance
        self.is_open = True
        self.outer = _loans.get()


_loans: ContextVar[Loan | None] = ContextVar("gpu_admission.loan", default=None)


class Instances(Generic[Model]):
    """``n`` instances of ``factory()``, each with a thread, a device and a CUDA stream of its own.

    When you want it: a model that serves one call at a time, on a card that has room for
    several, or on several cards::

        models = Instances(load, 2, devices=["cuda:0", "cuda:1"], warm_up=lambda model: model(example))

        result = await models.run(classify, image)       # classify(model, image) in its thread
        async with models.borrow() as model:             # one model for several steps
            first = await models.run(encode, image)      # in here, on the borrowed one
            second = await models.run(decode, first)

    Instances are made at first use, or all at once by ``start`` (``async with`` does it, for a
    lifespan). ``factory`` and ``warm_up(model)`` run in the instance's thread, with its device
    and stream current, one instance after the other, so that ``resident_bytes`` is what each
    took. ``devices`` are taken in turn: ``"cuda:0"`` or ``"cpu"``; by default all that torch
    shows, once the process has loaded it. A forked process makes instances of its own; CUDA, once
    used, survives no fork.

    Call the model through ``run``: its results are complete when it returns. A caller that is
    cancelled leaves at once; the thread works on, keeps the request's lease as long, and only
    then is the instance lent again. ``reset(model)`` runs between two borrowers. When it
    raises, or ``is_fault(error)`` holds of an error (by default: sticky device faults), the
    instance is given up with ``close(model)`` and another one is made in its place. A factory
    that fails is tried again after ``pause`` seconds, then twice that, up to a minute.

    At most ``max_waiting`` wait, each for ``timeout`` seconds. ``run`` and ``borrow`` raise
    ``QueueFull``, ``QueueTimeout``, or ``Unavailable`` while no instance works or after
    ``aclose``.
    """

    def __init__(
        self,
        factory: Callable[[], Model],
        n: int,
        *,
        devices: Sequence[str] | None = None,
        warm_up: Callable[[Model], object] | None = None,
        reset: Callable[[Model], object] | None = None,
        close: Callable[[Model], object] | None = None,
        is_fault: Callable[[Exception], bool] | None = None,
        max_waiting: int = 100,
        timeout: float = 30.0,
        pause: float = 1.0,
        name: str = "instances",
    ) -> None:
        check_callable("factory", factory, optional=False)
        for setting, function in (("warm_up", warm_up), ("reset", reset), ("close", close)):
            check_callable(setting, function)
        check_callable("is_fault", is_fault)
        count(1)("n", n)
        count(0)("max_waiting", max_waiting)
        check_seconds("timeout", timeout)
        check_seconds("pause", pause)
        recipe = Recipe(
            factory, warm_up=warm_up, reset=reset, close=close, is_fault=is_fault or _is_device_fault
        )
        self._pool = Pool(
            recipe,
            devices_for(devices, n),
            name=name,
            max_waiting=max_waiting,
            timeout=timeout,
            pause=pause,
        )

    @property
    def ready(self) -> int:
        """Instances that can be borrowed now."""
        return self._pool.count("ready")

    @property
    def waiting(self) -> int:
        """Borrowers that wait."""
        return self._pool.waiting

    @property
    def resident_bytes(self) -> tuple[int | None, ...]:
        """Bytes that each instance took on its device when it was made; ``None``: not known."""
        return tuple(slot.resident for slot in self._pool.slots)

    async def start(self) -> None:
        """Make all instances now. Raises what the factory or ``warm_up`` raised."""
        pool = self._pool
        pool.build_all()
        await pool.until(lambda: not pool.count("building"))
        for slot in pool.slots:
            if slot.state == "broken" and slot.error is not None:
                raise slot.error

    async def run(self, function: Callable[Concatenate[Model, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """``function(model, *args, **kwargs)`` in the thread of an instance that nobody else uses."""
        loan = self._own_loan()
        if loan is not None:
            return await self._call(loan.instance, function, *args, **kwargs)
        slot = await self._pool.borrow()
        try:
            return await self._call(slot.instance, function, *args, **kwargs)
        finally:
            self._pool.give_back(slot)

    @asynccontextmanager
    async def borrow(self) -> AsyncIterator[Model]:
        """``async with instances.borrow() as model``: an instance that nobody else uses for the block."""
        slot = await self._pool.borrow()
        loan = Loan(self._pool, slot.instance)
        _loans.set(loan)
        try:
            yield slot.instance.model
        except Exception as error:
            slot.instance.blame(error)
            raise
        finally:
            loan.is_open = False
            if _loans.get() is loan:
                _loans.set(loan.outer)
            self._pool.give_back(slot)

    async def aclose(self) -> None:
        """Refuse new borrowers, wait until every instance is back, and end them all."""
        pool = self._pool
        pool.close()
        await pool.until(lambda: not pool.count("lent", "building"))
        for ended in pool.empty():
            await settled(ended)

    async def __aenter__(self) -> Instances[Model]:
        try:
            await self.start()
        except BaseException:
            self._pool.close()
            self._pool.empty()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    async def _call(
        self,
        instance: Instance,
        function: Callable[Concatenate[Model, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        lease = current_lease()
        handle = None if lease is None else lease.keep()
        future = instance.call(lambda model: function(model, *args, **kwargs))
        if handle is not None:
            future.add_done_callback(lambda _: handle.close())
        result: T = await result_of(future)
        return result

    def _own_loan(self) -> Loan | None:
        loan = _loans.get()
        while loan is not None and not (loan.is_open and loan.pool is self._pool):
            loan = loan.outer
        return loan

    def __repr__(self) -> str:
        pool = self._pool
        return f"<Instances {pool.name!r} {self.ready} of {len(pool.slots)} ready, {self.waiting} waiting>"


def _is_device_fault(error: Exception) -> bool:
    return classify(error) == "fault"
