"""Warns, once, of two budgets for one device that do not know of each other, in one process or in two.

Owns which admissions of this process give out which device, and what other processes are asked.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
import weakref
from collections.abc import Sequence

from gpu_admission.runtime.claims import Claims
from gpu_admission.types import Device

logger = logging.getLogger("gpu_admission")


class Twins:
    """Admissions by the devices that they give out, for as long as they live."""

    def __init__(self) -> None:
        self._claims = Claims()
        self._told = False
        self._owners: weakref.WeakKeyDictionary[object, frozenset[str]] = weakref.WeakKeyDictionary()

    def add(self, admission: object, name: str, devices: Sequence[Device]) -> None:
        """Note that ``admission`` gives out ``devices``; a warning where another does too."""
        keys = frozenset(device.key for device in devices)
        twins = [other for other, theirs in self._owners.items() if theirs & keys and other is not admission]
        self._owners[admission] = keys
        if twins:
            which = next(device for device in devices if any(device.key in self._owners[t] for t in twins))
            logger.warning(
                "%s is given out by two budgets in this process, %r and another, and each gives out all of "
                'it: use one Admission for both, or give both the same shared="/dev/shm/..."',
                which.name,
                name,
            )

    def drop(self) -> None:
        """Let other processes have all devices."""
        self._claims.drop()

    def begin(self, name: str, devices: Sequence[Device]) -> None:
        """The budget called ``name`` begins to give out ``devices``; a warning where another process does.

        Where a device does not tell its identity, only workers of the same server are noticed.
        """
        for device in devices:
            is_real = not device.key.startswith("fixed:")
            if self._told or self._claims.claim(device.key if is_real else _among_workers(name)):
                continue
            self._told = True
            logger.warning(
                "%s is given out by another process too, and each gives out all of it (budget %r, several "
                'workers?): give all of them the same shared="/dev/shm/...", so that they are one budget',
                device.name,
                name,
            )


def _among_workers(name: str) -> str:
    """The same for all workers that one server has started from one command line."""
    return repr((os.getppid(), sys.argv, name))


@functools.cache
def twins() -> Twins:
    """The process's one list."""
    return Twins()
