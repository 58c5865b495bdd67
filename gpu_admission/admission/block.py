"""``async with admission.lease(...)``: a lease for one block, right at the model call.

Owns whether a block takes a lease of its own or a part of the one that its request holds, and
the two ways in: for tasks, and for threads.
"""

from __future__ import annotations

from typing import Unpack

import anyio

from gpu_admission.admission.context import (
    Holder,
    enter,
    enter_block,
    enter_block_here,
    holder_of,
    leave,
    leave_block,
    would_wait_for_itself,
)
from gpu_admission.admission.entrance import Asked, Entrance
from gpu_admission.admission.lease import Block, Lease
from gpu_admission.budget.ticket import Ticket
from gpu_admission.errors import ClientLeft, QueueTimeout, Rejected
from gpu_admission.sizes import format_bytes
from gpu_admission.types import Estimate, Place

_ROUTE = "lease"
_FOR_ITSELF = (
    "a lease with own=True waits in the queue, and this task, or the one that waits for it to end, holds "
    "bytes of the same budget: it would wait for itself. Start a task for it that nothing waits for, or "
    "leave own=True out"
)
_FIRST_LOOK, _LAST_LOOK = 0.05, 5.0
"""Seconds between checks whether anyone waits for the waiting task itself."""


class LeaseContext:
    """A lease for the block, or a part of the one that the request holds already. For one block."""

    __slots__ = ("_asked", "_entered", "_entrance", "_estimate", "_held", "_own", "_ticket", "for_itself")

    def __init__(
        self, entrance: Entrance, estimate: Estimate, *, own: bool = False, **asked: Unpack[Asked]
    ) -> None:
        self._entrance = entrance
        self._estimate = estimate
        self._own = own
        self.for_itself = _FOR_ITSELF
        """What a task is told that would wait for itself: in the words of whatever made this."""
        self._asked: Asked = {"route": _ROUTE, "queued": self._waits, **asked}
        self._entered = False
        self._held: Lease | Block | None = None
        self._ticket: Ticket | None = None

    @property
    def place(self) -> Place | None:
        """Where it is in the queue now; ``None`` while it does not wait."""
        return None if self._ticket is None else self._entrance.place(self._ticket)

    async def __aenter__(self) -> Lease:
        try:
            holder = self._around()
            if holder is None:
                return self._begun(await self._ask())
            self._held = block = await enter_block(holder, self._estimate.bytes)
            return block.lease
        except Rejected as rejected:
            self._refused(rejected)
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        self._end(error)

    def __enter__(self) -> Lease:
        """For threads without an event loop; one that runs elsewhere runs on while this waits.

        Raises ``RuntimeError`` in a thread that runs one.
        """
        try:
            holder = self._around()
            if holder is None:
                return self._begun(self._entrance.from_thread(self._ask))
            self._held = block = enter_block_here(holder, self._estimate.bytes)
            return block.lease
        except Rejected as rejected:
            self._refused(rejected)
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._end(error)

    def _waits(self, ticket: Ticket) -> None:
        self._ticket = ticket

    async def _ask(self) -> Lease:
        if not self._own or holder_of(self._entrance.issuer) is None:
            return await self._entrance.acquire(self._estimate, **self._asked)
        try:
            asked: Asked = {**self._asked, "gone": self._awaited}
            return await self._entrance.acquire(self._estimate, **asked)
        except ClientLeft:
            raise RuntimeError(self.for_itself) from None

    async def _awaited(self) -> None:
        """Return once the request that started this task waits for it, which may begin at any time."""
        issuer, pause = self._entrance.issuer, _FIRST_LOOK
        while holder_of(issuer) is not None:
            if would_wait_for_itself(issuer):
                return
            await anyio.sleep(pause)
            pause = min(2 * pause, _LAST_LOOK)
        await anyio.sleep_forever()

    def _around(self) -> Holder | None:
        """What gives the request its bytes, to grow to what this block needs; ``None`` where nothing does."""
        if self._entered:
            raise RuntimeError("a lease is entered once: call admission.lease(...) for each block")
        self._entered = True
        issuer = self._entrance.issuer
        if self._own:
            if would_wait_for_itself(issuer):
                raise RuntimeError(self.for_itself)
            return None
        return holder_of(issuer)

    def _begun(self, lease: Lease) -> Lease:
        self._held = lease
        enter(lease)
        return lease

    def _end(self, error: BaseException | None) -> None:
        held = self._held
        if isinstance(held, Block):
            leave_block(held, error)
        elif held is not None:
            leave(held)
            held.finish(error)

    def _refused(self, rejected: Rejected) -> None:
        holder = holder_of(self._entrance.issuer) if self._own else None
        if holder is not None and isinstance(rejected, QueueTimeout):
            rejected.detail += (
                f"; the request that started this task holds {format_bytes(holder.lease.bytes)} of the same "
                "budget still: if it waits for this task, both waited in vain"
            )
        lane = self._asked.get("lane", 0)
        self._entrance.refused(rejected, lane=lane, route=self._asked["route"], charged=self._estimate)
