"""From a metered request to its lease: the one path that every door takes.

Cheap checks, body, workload, estimate, queue: in that order. It raises what the caller
renders (``Rejected``) or obeys (``ClientLeft``); it never answers by itself.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any

from gpu_admission.admission import Admission
from gpu_admission.admission.buffered import BufferedBytes
from gpu_admission.admission.lease import Lease
from gpu_admission.bodies.large import read_aside
from gpu_admission.errors import ClientLeft, Rejected, TooLarge, UnreadableBody
from gpu_admission.http.body import Body
from gpu_admission.http.clamp import clamped
from gpu_admission.http.headers import deadline, of_the_body
from gpu_admission.http.request_id import name_request
from gpu_admission.http.unpack import unpack
from gpu_admission.request import RequestInfo
from gpu_admission.rules.metering import Rule, estimate
from gpu_admission.sizes import format_bytes
from gpu_admission.types import Estimate, Receive, Scope

logger = logging.getLogger("gpu_admission")


class Intake:
    """One request on its way to a lease. ``body`` is the ``receive`` for the app behind."""

    __slots__ = (
        "admission",
        "body",
        "clamped_to",
        "flow",
        "info",
        "lane",
        "may_clamp",
        "needed",
        "rule",
        "scope",
    )

    def __init__(self, admission: Admission, rule: Rule, scope: Scope, receive: Receive) -> None:
        self.admission = admission
        self.rule = rule
        self.scope = scope
        self.body = Body(receive, admission.buffer, admission.settings.max_body_bytes)
        self.info = RequestInfo(scope, path=rule.path, dialect=rule.dialect)
        self.lane = 0
        self.flow: Any = None
        self.needed: int | None = None
        """Bytes, once they are estimated."""
        self.may_clamp = False
        """Whether the app will read the body from us, so that it may be rewritten."""
        self.clamped_to: int | None = None
        """The token limit that was set in the body for a hot device."""

    async def lease(self) -> Lease:
        """Wait for the lease. Raises ``Rejected`` (counted and complete) or ``ClientLeft``."""
        admission = self.admission
        if admission.events.needs_request_id:
            name_request(self.scope)
        if admission.mode == "off":
            return await admission.entrance.acquire(self._unread(), route=self.rule.route)
        try:
            if not admission.monitor.is_measured:
                await admission.entrance.measure()
            admission.entrance.check_open()
            declared, packed = of_the_body(self.scope)
            if declared is not None and declared > admission.settings.max_body_bytes:
                raise self._too_large(declared)
            estimated = await self._estimate(packed)
            self.needed = estimated.bytes
            if admission.picks_lanes:
                self._choose_lane()
            lease = await admission.entrance.acquire(
                estimated,
                lane=self.lane,
                flow=self.flow,
                deadline=self._deadline,
                route=self.rule.route,
                gone=self.body.watch,
            )
            if self.rule.learns:
                admission.endings.teach(lease, self.rule.estimator, self.info)
            return lease
        except (Rejected, ClientLeft) as error:
            if admission.mode == "shadow":
                return await admission.entrance.acquire(self._unread(), route=self.rule.route)
            cause = self.body.failure or error
            self._count(cause)
            self.body.close()
            raise cause from None
        except BaseException:
            self.body.close()
            raise
        finally:
            self.body.hand_over()

    async def _estimate(self, packed: Sequence[str]) -> Estimate:
        fallback = self.admission.settings.fallback
        try:
            if (self.rule.needs_body or self.admission.pickers_read) and not self.body.complete:
                await self.body.read()
                self.info.read_from(self._unpacking(packed) if packed else self.body.content)
                if packed:
                    await self._unpack()
                elif self.may_clamp:
                    await self._clamp()
            return await estimate(self.rule, self.info, self._otherwise)
        except UnreadableBody as error:
            if fallback is None:
                raise
            return Estimate(fallback, notes=(f"{error.detail}: fallback charged",))
        finally:
            self.info.forget()

    def _otherwise(self) -> int:
        """Bytes charged where the estimator fails."""
        return self.admission.settings.fallback or self.admission.largest

    def _too_large(self, declared: int) -> TooLarge:
        limit = self.admission.settings.max_body_bytes
        return TooLarge(
            "body_too_large",
            f"Content-Length of {format_bytes(declared)} is above max_body_bytes={format_bytes(limit)}",
        )

    async def _clamp(self) -> None:
        factor = self.admission.monitor.clamp
        if factor is not None:
            self.clamped_to = await clamped(self.scope, self.body, self.info, factor)

    def _unpacking(self, packed: Sequence[str]) -> Callable[[], bytes]:
        """What unpacks the body. It does not hold this object: that would be a cycle."""
        limit = self.admission.settings.max_body_bytes
        return functools.partial(_unpacked, self.body, packed, limit, self.admission.buffer)

    def _deadline(self) -> float | None:
        return deadline(self.scope)

    def _unread(self) -> Estimate:
        return Estimate(self.admission.settings.fallback or 1, notes=("the body was not read",))

    def _count(self, error: Exception) -> None:
        if isinstance(error, Rejected):
            self.admission.entrance.refused(error, lane=self.lane, route=self.rule.route, needed=self.needed)
        else:
            self.admission.entrance.left(lane=self.lane, route=self.rule.route)

    async def _unpack(self) -> None:
        """In a thread, however short it is: a few bytes may unpack to all that is allowed."""
        try:
            await read_aside(_read_ahead, self.info)
        except UnreadableBody:
            if self.rule.needs_body:
                raise  # else only a picker reads it, and takes its default

    def _choose_lane(self) -> None:
        settings = self.admission.settings
        if settings.lane is not None:
            name = self._pick("lane", settings.lane)
            known = name if name in self.admission.lane_names else None
            self.lane = self.admission.entrance.lane_index(known)
        if settings.flow is not None:
            self.flow = _key(self._pick("flow", settings.flow))
        self.info.forget()

    def _pick(self, setting: str, picker: Callable[[RequestInfo], Any]) -> Any:
        """What ``picker`` says; a request is never lost because a picker failed on it."""
        try:
            return picker(self.info)
        except UnreadableBody:
            return None
        except Exception:
            logger.exception("%s failed on %s: the default is taken", setting, self.rule.route)
            return None


def _read_ahead(info: RequestInfo) -> None:
    """Unpack the body here. It is not returned: trio would keep it while the request waits."""
    _ = info.body


def _key(flow: Any) -> Any:
    """``flow`` as a key; what can't be one, ``None`` too, shares the flow of those without."""
    try:
        hash(flow)
    except TypeError:
        return ""
    return "" if flow is None else flow


def _unpacked(body: Body, packed: Sequence[str], limit: int, buffer: BufferedBytes) -> bytes:
    return unpack(body.content(), packed, limit, buffer)
