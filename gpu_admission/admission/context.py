"""Which lease the running request holds: in its context, and in its scope.

Owns entering and leaving both, and keeping a lease from leaking into a server's next request. When
a lease begins and ends is not decided here.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop, current_task
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import TypeAlias, TypeVar, TypeVarTuple

import anyio

from gpu_admission.admission.lease import Block, Issuer, Lease
from gpu_admission.runtime.awaited import waits_for_this
from gpu_admission.runtime.task import running_task
from gpu_admission.types import Scope

SCOPE_KEY = "gpu_admission.lease"
Arguments = TypeVarTuple("Arguments")
T = TypeVar("T")
Holder: TypeAlias = "Lease | Block"
"""What gives the running code its bytes: the lease of its request, or a block inside it."""

_current: ContextVar[Holder | None] = ContextVar("gpu_admission.lease", default=None)


innermost: Callable[[], Holder | None] = _current.get
"""The holder entered last in this context, ended or not; ``None`` for nearly every arriving request."""


def current_lease() -> Lease | None:
    """The lease that the running request holds, or ``None``."""
    holder = _open(_current.get())
    return None if holder is None else holder.lease


def _open(holder: Holder | None) -> Holder | None:
    """``holder``, or the innermost one around it that is not over."""
    while holder is not None and holder.is_over:
        holder = holder.outer
    return holder


def holder_of(issuer: Issuer) -> Holder | None:
    """The holder that gives the running code bytes of ``issuer``."""
    holder = _current.get()
    while holder is not None and (holder.is_over or holder.issuer is not issuer):
        holder = holder.outer
    return holder


def held_lease(issuer: Issuer) -> Lease | None:
    """The open lease of ``issuer`` that the running request holds already."""
    holder = holder_of(issuer)
    return None if holder is None else holder.lease


def would_wait_for_itself(issuer: Issuer) -> bool:
    """Whether bytes of ``issuer`` are held by the running task, or by one that waits for it to end.

    A thread counts as part of the request that it runs for. Waiting tasks are found as far as they can
    be seen from outside: see ``runtime.awaited``.
    """
    holder = holder_of(issuer)
    task = running_task()
    while holder is not None:
        is_open = not holder.is_over and holder.issuer is issuer
        if is_open and (task in (None, holder.task_id) or waits_for_this(holder.task_id)):
            return True
        holder = holder.outer
    return False


def nesting_lease(issuer: Issuer) -> Lease | None:
    """The open lease of ``issuer`` inside whose request the arriving one was made.

    On a keep-alive connection, a server may start the next request in the previous one's task; a
    lease inherited that way does not count.
    """
    if _current.get() is None:
        return None
    lease = held_lease(issuer)
    if lease is None or lease.task is None:
        return lease
    return None if _started_alike(lease.task, anyio.get_current_task()) else lease


def _started_alike(task: anyio.TaskInfo, other: anyio.TaskInfo) -> bool:
    """Whether two tasks run the same coroutine function for the same parent, as a server's requests do."""
    if task.id == other.id or task.parent_id != other.parent_id:
        return False
    code: object = getattr(task.coro, "cr_code", None)
    return code is getattr(other.coro, "cr_code", None)


def enter(lease: Lease, scope: Scope | None = None, loop: AbstractEventLoop | None = None) -> None:
    """Make ``lease`` the current one of this context, and of its request's ``scope``.

    ``loop``: the running asyncio loop, where the caller knows it.
    """
    around = _current.get()
    if around is not None:
        lease.outer = _open(around)
    # What ``running_task`` does, without two calls: every request passes here.
    lease.task_id = (running_task() or 0) if loop is None else id(current_task(loop))
    _current.set(lease)
    if scope is None:
        return
    if SCOPE_KEY in scope:
        lease.covers = scope[SCOPE_KEY]
    scope[SCOPE_KEY] = lease


def leave(lease: Lease, scope: Scope | None = None) -> None:
    """Undo ``enter``; where another context runs (a generator closed elsewhere) only in the scope."""
    if _current.get() is lease:
        _current.set(lease.outer)
    if scope is None or scope.get(SCOPE_KEY) is not lease:
        return
    if lease.covers is None:
        del scope[SCOPE_KEY]
    else:
        scope[SCOPE_KEY] = lease.covers


async def enter_block(holder: Holder, size: int) -> Block:
    """A block inside ``holder`` that holds at least ``size`` bytes. Raises ``Rejected`` without queueing.

    Only a shared budget that has to be asked is waited for: a cancelled task then holds nothing.
    """
    block = Block(holder.lease, size, holder.share)
    await block.fund()
    return _entered(block)


def enter_block_here(holder: Holder, size: int) -> Block:
    """The same for a thread, where it waits."""
    block = Block(holder.lease, size, holder.share)
    block.fund_here()
    return _entered(block)


def _entered(block: Block) -> Block:
    block.outer = _open(_current.get())
    block.task_id = running_task() or 0
    _current.set(block)
    return block


def leave_block(block: Block, error: BaseException | None = None) -> None:
    """Close ``block``, whose work may have raised ``error``."""
    if _current.get() is block:
        _current.set(block.outer)
    block.close(error)


async def outside(lease: Lease, call: Callable[[*Arguments], Awaitable[T]], *args: *Arguments) -> T:
    """``await call(...)`` as if ``lease`` had not been entered: for what runs in the server.

    A server may start the connection's next request inside ``send`` or ``receive``, or in a
    callback that it registers there. That request is not nested in this one, but would take
    this one's lease for its own.
    """
    inside = _current.get()
    _current.set(lease.outer)
    try:
        return await call(*args)
    finally:
        _current.set(inside)


step_in: Callable[[Holder | None], object] = _current.set
"""Make a lease the innermost one, as ``outside`` does and undoes. It is the variable's own method: each
request passes here several times."""
