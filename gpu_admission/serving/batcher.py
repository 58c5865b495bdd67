"""``Batcher``: items of many callers through one handler, in batches that fit.

Owns the life of a batch, from the task that forms it to the last result. Who waits and which batch
closes is in ``waitingcalls``, who shares a batch in ``packing``, what pays for it in ``funding``.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Hashable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, Generic, TypeVar

import anyio

from gpu_admission.admission import Admission
from gpu_admission.admission.refusals import retry_after
from gpu_admission.errors import QueueFull, Rejected, TooLarge, Unavailable
from gpu_admission.guards.exceptions import classify
from gpu_admission.runtime.failure import log_failure
from gpu_admission.runtime.fork import in_child
from gpu_admission.runtime.loop import is_running, running_loop
from gpu_admission.runtime.task import spawn
from gpu_admission.serving.call import (
    Batch,
    BatchEvent,
    Call,
    ClosedBy,
    Ending,
    enter_batch,
    is_inside,
    on_device,
)
from gpu_admission.serving.comebacks import Comebacks
from gpu_admission.serving.funding import Funding, check_payer
from gpu_admission.serving.handler import Handler, Rows
from gpu_admission.serving.packing import Limits, halves
from gpu_admission.serving.pricing import Pricing
from gpu_admission.serving.run import Run
from gpu_admission.serving.settings import check_callable, check_seconds, check_share
from gpu_admission.serving.waitingcalls import Line
from gpu_admission.settings.checks import count

Item = TypeVar("Item")
Result = TypeVar("Result")


class Batcher(Generic[Item, Result]):
    """``await batcher(item)`` is that item's entry of ``handler([item, ...])``, run with others' items.

    ``handler`` takes a list and returns as many results, in the same order; an exception among
    them goes to that item's caller alone. A coroutine function runs on the event loop, a plain
    one in a thread of its own. It runs outside of any request's context: see ``caller_contexts``.
    An item that comes while nothing runs starts at once. Otherwise a batch closes when it is
    full, when its first item has waited ``max_wait`` seconds, or when the handler is idle;
    if callers come back at once with their next item, it waits for them (see ``comebacks``)::

        embed = Batcher(model.encode, cost=lambda text: len(text) * 2048, max_bytes="2GiB")

        @app.post("/embed")
        async def endpoint(text: str) -> list[float]:
            return await embed(text)

    Nothing needs to be started. ``async with`` it, or await ``aclose``, to end it well.

    ``cost``: bytes of one row as long as the item (a size, or a callable of the item). A batch
    takes rows x its costliest row, at most ``max_bytes`` (or what ``admission`` can ever grant):
    for attention scores, let the callable square the length. ``rows``: how many rows an item has,
    if not one; ``max_items`` counts rows.
    ``max_padding``: the share of a batch that may be padding; items too unlike the oldest wait for
    others like them, and each in time becomes the oldest. ``key``: items with different keys (models,
    settings) never share a batch. ``max_running``: how many batches run at once, such as one per instance.
    ``max_waiting``: items that may wait; the next one is refused. ``observer`` gets a
    ``BatchEvent`` for each run of the handler.

    With ``admission`` each batch holds its bytes; a handler that took a lease itself would wait
    for what its callers hold. A request that holds a lease of it, because
    it came through the middleware, brings its bytes along: its batch holds a lease of its own
    only for what its callers' leases together do not cover, so nothing is charged twice. Let
    the route's estimator charge what one item costs, or that / (1 - ``max_padding``), which
    covers the padding too. Such a batch never waits for the rest, since its callers hold bytes
    that others wait for: where it is not free, the batch is halved, and a single item refused.
    Callers without a lease (a route in ``exclude``, a job) wait in the admission's queue, in ``lane``.
    With several devices a handler finds the one of its batch by ``batch_device``.

    A batch that runs out of memory is run again in halves, so the handler must tolerate that. Later
    batches get no more than half its size until a hundred in a row have ended well.

    ``await batcher(item)`` raises the handler's error, ``QueueFull``, ``TooLarge`` (no batch can
    hold the item, by ``max_bytes`` or ``max_items``), ``Unavailable`` after ``aclose``, or another
    ``Rejected`` from the admission; all name their setting. A caller may be cancelled at any time;
    once all callers of a batch are cancelled, so is a coroutine handler.
    """

    def __init__(
        self,
        handler: Callable[[list[Item]], Rows[Result | Exception] | Awaitable[Rows[Result | Exception]]],
        *,
        cost: int | str | Callable[[Item], int] | None = None,
        max_bytes: int | str | None = None,
        rows: Callable[[Item], int] | None = None,
        key: Callable[[Item], Hashable] | None = None,
        max_items: int = 32,
        max_wait: float = 0.005,
        max_padding: float = 0.3,
        max_running: int = 1,
        max_waiting: int = 1024,
        admission: Admission | None = None,
        lane: str | None = None,
        observer: Callable[[BatchEvent], object] | None = None,
        name: str = "batcher",
    ) -> None:
        check_payer(admission, lane, has_cost=cost is not None)
        check_callable("handler", handler, optional=False)
        check_callable("observer", observer)
        count(1)("max_running", max_running)
        count(1)("max_waiting", max_waiting)
        check_seconds("max_wait", max_wait)
        check_share("max_padding", max_padding)
        self._pricing = Pricing(cost=cost, max_bytes=max_bytes, rows=rows, key=key, max_items=max_items)
        self._limits = Limits(max_items, self._pricing.max_bytes, max_padding)
        self._function = handler
        self._max_wait = max_wait
        self._max_running = max_running
        self._max_waiting = max_waiting
        self._admission = admission
        self._lane = lane
        self._observer = observer
        self.name = name
        self._closed = False
        if admission is not None:
            admission.metering.batchers.add(self)
        self._live()
        in_child(self._live)

    def _live(self) -> None:
        """Make what belongs to one event loop. After a fork, what waited here waits only in the parent."""
        self._loop: Any = None
        self._funding = None if self._admission is None else Funding(self._admission, self._lane, self.name)
        self._lines: dict[int | None, Line] = {}
        """Lines by the device on which the callers hold their bytes; ``None``: they hold none."""
        self._handle = Handler(self._function, anyio.CapacityLimiter(self._max_running), self.name)
        self._tasks: set[asyncio.Task[None]] = set()
        self._batches: dict[Call, Batch] = {}
        """The batch of each call that runs."""
        self._running = 0
        self._pace: float | None = None
        """Seconds from batch to batch for each item, lately."""
        self._comebacks = Comebacks()
        self._rested = anyio.Event()

    @property
    def waiting(self) -> int:
        """Items that no batch has taken yet."""
        return sum(line.waiting for line in self._lines.values())

    @property
    def running(self) -> int:
        """Batches that hold bytes, wait for them, or run."""
        return self._running

    async def __call__(self, item: Item) -> Result:
        """The handler's result for ``item``."""
        call, line = self._join(item)
        try:
            await call.done.wait()
        except BaseException:
            self._leave(call, line)
            raise
        result: Result = call.outcome()
        return result

    async def aclose(self) -> None:
        """Refuse new items, run those that wait, and return when the last batch has ended."""
        if is_inside(self):
            raise RuntimeError(f"the handler of {self.name!r} closed its own batcher, which waits for it")
        self._closed = True
        if self._loop is running_loop():
            self._wake()
            while any(line.batches for line in self._lines.values()):
                await self._rested.wait()
        self._handle.close()

    async def __aenter__(self) -> Batcher[Item, Result]:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    # arriving and leaving

    def _join(self, item: Item) -> tuple[Call, Line]:
        if is_inside(self):
            raise RuntimeError(f"the handler of {self.name!r} called its own batcher, which waits for it")
        if self._closed:
            raise self._complete(Unavailable("draining", f"{self.name} is closed: aclose() was called"))
        if self._loop is not running_loop():
            self._come_home()
        if self.waiting >= self._max_waiting:
            detail = f"max_waiting={self._max_waiting} items of {self.name} wait already"
            raise self._complete(QueueFull("queue_full", detail))
        try:
            price, rows, key = self._pricing.weigh(item)
        except TooLarge as rejected:
            raise self._complete(rejected) from None
        lease = None if self._funding is None else self._funding.held()
        call = Call(item, price=price, rows=rows, key=key, lease=lease, at=anyio.current_time())
        return call, self._line_for(call)

    def _line_for(self, call: Call) -> Line:
        place = None if call.lease is None else call.lease.device_index
        line = self._lines.get(place)
        if line is None:
            line = self._lines[place] = Line(self._limits)
        line.add(call)
        if self._comebacks.came(call.at):
            self._wake()
        self._start(line)
        return line

    def _wake(self) -> None:
        for line in self._lines.values():
            line.wake()

    def _leave(self, call: Call, line: Line) -> None:
        if line.remove(call):
            return
        batch = self._batches.get(call)
        if batch is not None:
            batch.leave(call)

    def _come_home(self) -> None:
        """Bind to the running event loop. A second one, while the first has work, is refused."""
        if (self._running or self.waiting) and is_running(self._loop):
            raise RuntimeError(
                f"{self.name} has work in another event loop; give each loop (thread) a batcher of its own"
            )
        self._live()
        self._loop = running_loop()

    def _complete(self, rejected: Rejected) -> Rejected:
        forecast = None if self._pace is None else self._pace * self.waiting
        rejected.complete(
            needed=None,
            capacity=self._pricing.max_bytes or 0,
            waiting=self.waiting,
            retry_after=retry_after(forecast, 0.0),
        )
        return rejected

    # the life of a batch

    def _start(self, line: Line) -> None:
        """Have a task form the next batch of ``line``, if none does and another batch may run."""
        if line.waiting and line.forming is None and line.batches < self._max_running:
            line.forming = anyio.Event()
            line.batches += 1
            spawn(self._drive, line, tasks=self._tasks)

    async def _drive(self, line: Line) -> None:
        """One batch, from the first item that waits to the last result."""
        batch: Batch | None = None
        try:
            batch = await self._form(line)
            if batch is not None:
                with batch.scope:
                    await self._attempt(batch.calls, batch.closed_by)
        except GeneratorExit:
            # The loop has gone without ending its tasks: nothing is left to be woken.
            raise
        except BaseException as error:
            self._break_off(line, batch, error)
        self._end(line, batch)

    async def _form(self, line: Line) -> Batch | None:
        """The next batch when it closes; ``None`` when all that waited have left."""
        while line.waiting and line.forming is not None:
            now = anyio.current_time()
            is_early = not self._running and self._comebacks.are_expected(now)
            patience = math.inf if is_early else self._max_wait
            closed = line.close(now, patience, hurry=self._hurry(is_early))
            if closed is not None:
                return self._take(line, Batch(*closed, now))
            with anyio.CancelScope(deadline=self._comebacks.until if is_early else line.oldest() + patience):
                await line.forming.wait()
            line.forming = anyio.Event()
        return None

    def _hurry(self, is_early: bool) -> ClosedBy | None:
        if self._closed:
            return "close"
        return None if self._running or is_early else "idle"

    def _take(self, line: Line, batch: Batch) -> Batch:
        self._batches.update(dict.fromkeys(batch.calls, batch))
        self._running += 1
        line.forming = None
        self._start(line)
        return batch

    async def _attempt(self, calls: Sequence[Call], closed_by: ClosedBy) -> None:
        """Run ``calls``, and again in halves where it shows that they do not fit."""
        calls = [call for call in calls if not call.left]
        if not calls:
            return
        run = Run(calls, closed_by, anyio.current_time())
        try:
            results = await self._pay_and_handle(run)
        except Exception as error:
            run.outcome = self._outcome(error)
            if len(calls) == 1 or not self._must_split(run, error):
                for call in calls:
                    call.fail(error)
                return
        else:
            run.outcome = "ok"
            self._limits.ran_well()
            run.hand_out(results)
            return
        finally:
            self._tell(run)
        # Outside the handler's frame, so that the error's traceback keeps no memory alive.
        for half in halves(calls):
            await self._attempt(half, "split")

    async def _pay_and_handle(self, run: Run) -> Sequence[Any]:
        enter_batch(self, run.calls)
        paid: AbstractAsyncContextManager[str | None] = nullcontext()
        if self._funding is not None and run.size:
            paid = self._funding.pay(run.calls, run.size)
        async with paid as run.device:
            on_device(run.device)
            return await self._handle([call.item for call in run.calls], run.leases)

    def _outcome(self, error: Exception) -> Ending:
        if isinstance(error, Rejected):
            return "refused"
        if self._admission is not None:
            return self._admission.endings.classify(error)[0]
        return classify(error) or "error"

    def _must_split(self, run: Run, error: Exception) -> bool:
        """Whether running fewer at a time may help. What this says about their size is remembered."""
        if run.outcome == "oom" or isinstance(error, TooLarge):
            self._limits.shrink(run.rows, run.size, getattr(error, "capacity", None))
            return True
        return run.outcome == "refused" and any(call.lease is not None for call in run.calls)

    def _break_off(self, line: Line, batch: Batch | None, error: BaseException) -> None:
        """Its task was cancelled as its loop ended, or its handler raised something that ends the program."""
        calls = [] if batch is None else list(batch.calls)
        if isinstance(error, anyio.get_cancelled_exc_class()):
            error = RuntimeError(f"a batch of {self.name} was cancelled: its event loop ends")
            calls += line.clear()
        for call in calls:
            call.fail(error)

    def _end(self, line: Line, batch: Batch | None) -> None:
        line.batches -= 1
        if batch is None:
            line.forming = None
        else:
            self._running -= 1
            for call in batch.calls:
                del self._batches[call]
            self._measure(batch)
        for each in self._lines.values():
            self._start(each)
        if not self._running:
            self._wake()
        if self._closed:
            self._rested.set()
            self._rested = anyio.Event()

    def _measure(self, batch: Batch) -> None:
        now = anyio.current_time()
        took, items = now - batch.taken_at, len(batch.calls)
        pace = took / items / self._max_running
        self._pace = pace if self._pace is None else 0.9 * self._pace + 0.1 * pace
        self._comebacks.answered(items, now, min(self._max_wait, took))

    def _tell(self, run: Run) -> None:
        if self._observer is None:
            return
        try:
            self._observer(run.event(self.name, anyio.current_time()))
        except Exception as error:
            log_failure(f"the observer of {self.name} failed", error, "the event is lost to it")

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        return f"<Batcher {self.name!r} {self.waiting} waiting, {self._running} running, {state}>"
