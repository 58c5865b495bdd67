"""Makes anew in a forked process whatever has a lock, a thread or a loop: one place for all of it.

A child inherits locks as they were: one that another thread of the parent held at the fork is
never released in the child. Nothing here knows what its callers renew.
"""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections.abc import Callable

_Renewal = weakref.WeakMethod[Callable[[], object]]


def in_child(renew: Callable[[], object]) -> None:
    """Call the bound method ``renew`` in every process that is forked from this one.

    For as long as the method's object lives; in the order of these calls, and before anything else
    runs in the child.
    """
    renewals = _registered()
    key = object()
    renewals[key] = weakref.WeakMethod(renew, lambda gone: renewals.pop(key, None))


@functools.cache
def _registered() -> dict[object, _Renewal]:
    """The process's one list. The interpreter is asked only when there is something to renew."""
    os.register_at_fork(after_in_child=renew_all)
    return {}


def renew_all() -> None:
    """What the interpreter calls in the child."""
    for renewal in _registered().copy().values():
        renew = renewal()
        if renew is not None:
            renew()


class Mutex:
    """``with mutex:`` lets in one thread at a time; it is free in a forked process. Not reentrant."""

    __slots__ = ("__weakref__", "_lock")

    def __init__(self) -> None:
        self._make()
        in_child(self._make)

    def _make(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()
