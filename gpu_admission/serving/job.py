"""Work that outlives its request: with a place in the queue and bytes of its own, and a state to report.

Owns the state of one job. Who may start is up to the ledger; where jobs are kept, under which
names and for how long, is up to the app: see ``examples/jobs.py``.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from gpu_admission.admission import Admission
from gpu_admission.admission.lease import Lease
from gpu_admission.errors import Rejected

_FOR_ITSELF = (
    "job(...) waits in the queue, and this task, or the one that waits for it to end, holds bytes of the "
    "same budget: it would wait for itself. Enter it in a task that nothing waits for; for a step of the "
    "request itself take admission.lease(...), which is a part of what the request holds"
)

State: TypeAlias = Literal["waiting", "running", "done", "refused", "failed", "stopped"]


def job(
    admission: Admission,
    size: int | str,
    *,
    lane: str | None = None,
    flow: Any = None,
    timeout: float | None = None,
) -> Job:
    """``async with job(admission, "2GiB") as lease:`` in a task of its own, after a 202.

    It waits in the queue for at most ``timeout`` seconds (``math.inf``: for as long as it takes;
    ``None``: as requests do), whatever becomes of the client that asked for it. Raises
    ``Rejected``, and ``RuntimeError`` in the task of a request that holds a lease, or in a task that
    the request waits for: the two would wait for each other.
    """
    return Job(admission, size, lane=lane, flow=flow, timeout=timeout)


class Job:
    """One piece of work. ``state``, ``place`` and ``forecast`` may be read at any time, from any thread."""

    def __init__(self, admission: Admission, size: int | str, **asked: Any) -> None:
        self.state: State = "waiting"
        self._entered = False
        self.error = ""
        """Why it was refused, or the class of the exception that its work has raised."""
        self._context = admission.lease(size, own=True, **asked)
        self._context.for_itself = _FOR_ITSELF

    @property
    def place(self) -> int | None:
        """Its place in the queue, from 1; ``None`` while it does not wait there."""
        found = self._context.place
        return None if found is None else found.number

    @property
    def forecast(self) -> float | None:
        """Seconds until it should start; ``None`` where that is not known, or it does not wait."""
        found = self._context.place
        return None if found is None else found.forecast

    async def __aenter__(self) -> Lease:
        if self._entered:
            raise RuntimeError("a job is entered once: call job(...) for each piece of work")
        self._entered = True
        try:
            lease = await self._context.__aenter__()
        except BaseException as error:
            self._ended(error)
            raise
        self.state = "running"
        return lease

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        await self._context.__aexit__(kind, error, trace)
        self._ended(error)

    def _ended(self, error: BaseException | None) -> None:
        if error is None:
            self.state = "done"
        elif isinstance(error, Exception):
            refused = isinstance(error, Rejected)
            self.state, self.error = ("refused", str(error)) if refused else ("failed", type(error).__name__)
        else:
            self.state = "stopped"
