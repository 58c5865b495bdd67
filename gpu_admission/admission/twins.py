"""Two budgets of one process for one device, that do not know of each other: said once.

Owns which admissions of this process give out which device.
"""

from __future__ import annotations

import functools
import logging
import weakref
from collections.abc import Sequence

from gpu_admission.types import Device

logger = logging.getLogger("gpu_admission")


class Twins:
    """Admissions by the devices that they give out, for as long as they live."""

    def __init__(self) -> None:
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


@functools.cache
def twins() -> Twins:
    """The process's one list."""
    return Twins()
