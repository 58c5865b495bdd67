"""What pays for a batch: the leases that its callers hold already, and one of its own for the rest.

Owns the bytes that running batches use of their callers' leases. A batch whose callers hold
bytes of the same budget never waits for more: they would wait for it, and it for them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress

from gpu_admission.admission import Admission
from gpu_admission.admission.block import LeaseContext
from gpu_admission.admission.context import held_lease
from gpu_admission.admission.lease import Lease
from gpu_admission.errors import Rejected
from gpu_admission.serving.call import Call
from gpu_admission.types import Estimate


class Funding:
    """The accounts of one batcher with one admission."""

    def __init__(self, admission: Admission, lane: str | None, name: str) -> None:
        """``name`` is the batcher's; metrics and the status page tell its leases from others by it."""
        self._admission = admission
        self._lane = admission.entrance.lane_index(lane)
        self._route = f"batch {name}"
        self._used: Counter[Lease] = Counter()
        """Bytes of each caller's lease that running batches use."""

    def held(self) -> Lease | None:
        """The lease of this admission that the calling request holds."""
        return held_lease(self._admission.endings)

    @asynccontextmanager
    async def pay(self, calls: Sequence[Call], size: int) -> AsyncIterator[str | None]:
        """Hold ``size`` bytes for the block; the name of their device.

        Raises ``Rejected``, at once where a caller holds some.
        """
        with ExitStack() as stack:
            held = dict.fromkeys(call.lease for call in calls if call.lease is not None)
            holders = kept_open(held, stack)
            missing = size - self._use(holders, size, stack)
            if not missing:
                yield holders[0].device
                return
            if holders and not self._is_free(missing):
                raise self._no_room(calls, holders, size, missing)
            wait = 0 if holders else None
            async with self._own_lease(missing, wait) as lease:
                if any(holder.device_index != lease.device_index for holder in holders):
                    raise self._no_room(calls, holders, size, missing)
                yield lease.device

    def _own_lease(self, missing: int, wait: float | None) -> LeaseContext:
        entrance = self._admission.entrance
        return LeaseContext(entrance, Estimate(missing), lane=self._lane, timeout=wait, route=self._route)

    def _is_free(self, missing: int) -> bool:
        """Whether these bytes can be had now. Asking in vain counts as a client that was refused."""
        now = self._admission.snapshot()
        return now.mode != "enforce" or (missing <= now.available and not now.waiting)

    def _no_room(self, calls: Sequence[Call], holders: Sequence[Lease], size: int, missing: int) -> Rejected:
        """Why not; counted and complete where a caller gets it: several calls are run again in halves."""
        entrance, is_last = self._admission.entrance, len(calls) == 1
        least = size - sum(holder.bytes for holder in holders) if is_last else 0
        rejected = entrance.no_more(size, missing, least, self._lane)
        if is_last:
            entrance.refused(rejected, lane=self._lane, route=self._route, charged=Estimate(size))
        return rejected

    def _use(self, holders: Sequence[Lease], size: int, stack: ExitStack) -> int:
        """Use what is free of the callers' leases, up to ``size``; returns the bytes covered that way."""
        covered = 0
        for lease in holders:
            share = min(size - covered, max(0, lease.bytes - self._used[lease]))
            covered += share
            self._used[lease] += share
            stack.callback(self._give_back, lease, share)
        return covered

    def _give_back(self, lease: Lease, share: int) -> None:
        self._used[lease] -= share
        if not self._used[lease]:
            del self._used[lease]


def check_payer(admission: Admission | None, lane: str | None, *, has_cost: bool) -> None:
    """Raises ``TypeError`` or ``ValueError`` for settings of a batcher with which nothing could pay."""
    if admission is not None and not has_cost:
        raise TypeError("cost must be given with admission: the bytes of one item")
    if lane is not None:
        if admission is None:
            raise TypeError("admission must be given with lane: it is one of its lanes")
        admission.entrance.lane_index(lane)


def kept_open(leases: Iterable[Lease], stack: ExitStack) -> list[Lease]:
    """Those of ``leases`` that are open, and stay so until ``stack`` ends: a caller may leave before."""
    kept: list[Lease] = []
    for lease in leases:
        with suppress(RuntimeError):  # it has ended, perhaps just now and in another thread
            stack.enter_context(lease.keep())
            kept.append(lease)
    return kept
