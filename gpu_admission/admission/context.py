"""Which lease the running request holds: in its context, and in its scope.

Owns entering and leaving both, and what of it a server's next request must not inherit. When a
lease begins and ends is not decided here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import TypeVar, TypeVarTuple

import anyio

from gpu_admission.admission.lease import Issuer, Lease
from gpu_admission.types import Scope

SCOPE_KEY = "gpu_admission.lease"
Arguments = TypeVarTuple("Arguments")
T = TypeVar("T")

_current: ContextVar[Lease | None] = ContextVar("gpu_admission.lease", default=None)


innermost: Callable[[], Lease | None] = _current.get
"""What was entered last here, whether it has ended since or not. ``None`` for nearly every request that arrives."""


def current_lease() -> Lease | None:
    """The lease that the running request holds, or ``None``."""
    lease = _current.get()
    while lease is not None and lease.ended:
        lease = lease.outer
    return lease


def held_lease(issuer: Issuer) -> Lease | None:
    """The open lease of ``issuer`` that the running request holds already."""
    lease = _current.get()
    while lease is not None and (lease.ended or lease.issuer is not issuer):
        lease = lease.outer
    return lease


def nesting_lease(issuer: Issuer) -> Lease | None:
    """The open lease of ``issuer`` inside whose request the arriving one was made.

    On keep-alive a server may start the next request in the previous one's task; a lease
    inherited that way does not count.
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


def enter(lease: Lease, scope: Scope | None = None) -> None:
    """Make ``lease`` the current one of this context, and of its request's ``scope``."""
    outer = _current.get()
    while outer is not None and outer.ended:
        outer = outer.outer
    lease.outer = outer
    _current.set(lease)
    if scope is not None:
        lease.covers = scope.get(SCOPE_KEY)
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


async def outside(lease: Lease, call: Callable[[*Arguments], Awaitable[T]], *args: *Arguments) -> T:
    """``await call(...)`` as if ``lease`` had not been entered: for what runs in the server.

    A server may start the connection's next request inside ``send`` or ``receive``, or in a
    callback that it registers there. That request is not nested in this one, whose lease it
    would take for its own.
    """
    inside = _current.get()
    _current.set(lease.outer)
    try:
        return await call(*args)
    finally:
        _current.set(inside)


def step_out(lease: Lease) -> Lease | None:
    """Leave ``lease`` for a call into the server (see ``outside``); ``step_in`` takes what this returns."""
    inside = _current.get()
    _current.set(lease.outer)
    return inside


step_in: Callable[[Lease | None], object] = _current.set
"""Undo ``step_out``. The variable's own method: each part of a response passes here."""
