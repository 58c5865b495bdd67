"""What must be made anew in a forked process: once, for all that has a lock, a thread or a loop.

A child inherits locks as they were: one that another thread of the parent held at the fork is
never released in the child. Nothing here knows what its callers renew.
"""

from __future__ import annotations

import functools
import os
import weakref
from collections.abc import Callable

_Renewal = weakref.WeakMethod[Callable[[], object]]


def in_child(renew: Callable[[], object]) -> None:
    """Call the bound method ``renew`` in every process that is forked from this one.

    For as long as its object lives, in the order in which they were named, before anything
    else runs in the child.
    """
    renewals = _registered()
    renewals.append(weakref.WeakMethod(renew, _forgetting(renewals)))


@functools.cache
def _registered() -> list[_Renewal]:
    """The process's one list. The interpreter is asked only when there is something to renew."""
    renewals: list[_Renewal] = []
    os.register_at_fork(after_in_child=functools.partial(renew_all, renewals))
    return renewals


def _forgetting(renewals: list[_Renewal]) -> Callable[[_Renewal], None]:
    def forget(gone: _Renewal) -> None:
        if gone in renewals:
            renewals.remove(gone)

    return forget


def renew_all(renewals: list[_Renewal] | None = None) -> None:
    """What the interpreter calls in the child."""
    for renewal in tuple(_registered() if renewals is None else renewals):
        renew = renewal()
        if renew is not None:
            renew()
