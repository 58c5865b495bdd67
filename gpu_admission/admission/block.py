"""``async with admission.lease(...)``: a lease for one block, right at the model call."""

from __future__ import annotations

from typing import Unpack

from gpu_admission.admission.context import enter, held_lease, leave
from gpu_admission.admission.entrance import Asked, Entrance
from gpu_admission.admission.lease import Lease
from gpu_admission.errors import Rejected
from gpu_admission.types import Estimate

_ROUTE = "lease"


class LeaseContext:
    """A lease for the block, or the one that the request holds already. For one block."""

    __slots__ = ("_asked", "_entered", "_entrance", "_estimate", "_lease")

    def __init__(self, entrance: Entrance, estimate: Estimate, **asked: Unpack[Asked]) -> None:
        self._entrance = entrance
        self._estimate = estimate
        self._asked: Asked = {"route": _ROUTE, **asked}
        self._entered = False
        self._lease: Lease | None = None

    async def __aenter__(self) -> Lease:
        if self._entered:
            raise RuntimeError("a lease is entered once: call admission.lease(...) for each block")
        self._entered = True
        entrance = self._entrance
        held = held_lease(entrance.issuer)
        if held is not None:
            return held
        try:
            lease = await entrance.acquire(self._estimate, **self._asked)
        except Rejected as rejected:
            entrance.refused(
                rejected, lane=self._asked.get("lane", 0), route=_ROUTE, needed=self._estimate.bytes
            )
            raise
        self._lease = lease
        enter(lease)
        return lease

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        if self._lease is None:
            return
        leave(self._lease)
        self._lease.finish(error)
