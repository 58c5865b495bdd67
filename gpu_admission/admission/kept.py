"""What estimators have learned, kept in a file over restarts: the setting ``state``.

Owns when it is read and written. Its content is up to each estimator.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gpu_admission.runtime import clock, statefile
from gpu_admission.runtime.fork import Mutex
from gpu_admission.types import Event

logger = logging.getLogger("gpu_admission")
EVERY_SECONDS = 60.0


class Kept:
    """An observer that keeps the file at ``path`` up to date with those ``estimators`` that can be saved.

    These have ``restore`` and ``to_dict``. Raises ``ValueError`` naming ``state`` for a file that is
    no state file, or where no estimator learns.
    """

    def __init__(self, path: str | os.PathLike[str], estimators: Sequence[tuple[str, Any]]) -> None:
        self._path = path
        self._learners = {name: each for name, each in estimators if hasattr(each, "restore")}
        if not self._learners:
            raise ValueError("state: nothing learns here: name a Learned estimator, or leave it to 'auto'")
        self._warn_of_others(os.path.realpath(path))
        self._restore()
        self._saved_at = clock.monotonic()
        self._saving = Mutex()

    def _warn_of_others(self, path: str) -> None:
        """Two that learn under one name would write over each other."""
        others = _writers().setdefault(path, weakref.WeakSet())
        both = sorted({name for other in others for name in other._learners.keys() & self._learners.keys()})
        others.add(self)
        if both:
            logger.warning(
                "state: %s is kept by two admissions of this process, and what both learn as %s is written "
                "over by whichever saves last: give each a file of its own, or use one Admission for both",
                path,
                ", ".join(map(repr, both)),
            )

    def _restore(self) -> None:
        try:
            saved = statefile.read(self._path)
            for name, state in _states(saved):
                if name in self._learners:
                    self._learners[name].restore(state)
        except (OSError, ValueError, AttributeError, OverflowError, RecursionError) as error:
            raise ValueError(f"state: {os.fspath(self._path)} can't be read: {error}") from None

    def __call__(self, event: Event) -> None:
        if event.kind == "released" and event.at - self._saved_at >= EVERY_SECONDS:
            self._saved_at = event.at
            threading.Thread(target=self.save, name="gpu-admission-state", daemon=True).start()

    def flush(self) -> None:
        """What is learned is kept at the server's shutdown, too."""
        self.save()

    def save(self) -> None:
        """Write the file, and leave what others have learned in it.

        A failure is logged; nothing that was learned is lost by it.
        """
        with self._saving:
            try:
                others = dict(_states(statefile.read(self._path)))
                learned = {name: each.to_dict() for name, each in self._learners.items()}
                statefile.write(self._path, others | learned)
            except (OSError, ValueError, RecursionError) as error:
                logger.error("state: %s can't be written: %s", os.fspath(self._path), error)


@functools.cache
def _writers() -> dict[str, weakref.WeakSet[Kept]]:
    """Those that keep each file, in this process."""
    return {}


def _states(saved: object) -> Iterable[tuple[str, Any]]:
    """What is kept of each estimator. Raises ``ValueError`` for another's file, which must stay as it is."""
    if saved is None:
        return ()
    if not isinstance(saved, Mapping) or not all(isinstance(state, Mapping) for state in saved.values()):
        raise ValueError("it is not what an admission has kept, and is not written over")
    return saved.items()
