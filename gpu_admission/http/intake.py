"""From a metered request to its lease: the one path that every door takes.

Cheap checks, body, workload, estimate, queue: in that order. It raises what the caller
renders (``Rejected``) or obeys (``ClientLeft``); it never answers by itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from typing import Any

import anyio.to_thread

from gpu_admission.admission import Admission
from gpu_admission.errors import ClientLeft, Rejected, TooLarge, UnreadableBody
from gpu_admission.http.body import Body
from gpu_admission.http.headers import deadline, declared_length, encodings, obeyed
from gpu_admission.http.unpack import unpack
from gpu_admission.lease import Lease
from gpu_admission.metering import OFFLOAD_BYTES, Rule, estimate
from gpu_admission.sizes import format_bytes
from gpu_admission.types import Estimate, Receive, RequestInfo, Scope

logger = logging.getLogger("gpu_admission")
_PACKED_OFFLOAD_BYTES = OFFLOAD_BYTES // 64


class Intake:
    """One request on its way to a lease. ``body`` is the ``receive`` for the app behind."""

    __slots__ = ("admission", "body", "flow", "headers", "info", "lane", "rule")

    def __init__(self, admission: Admission, rule: Rule, scope: Scope, receive: Receive) -> None:
        self.admission = admission
        self.rule = rule
        self.headers = obeyed(scope)
        self.body = Body(receive, admission.buffer, admission.settings.max_body_bytes)
        self.info = RequestInfo(scope, path=rule.path, dialect=rule.dialect)
        self.lane = 0
        self.flow: Any = None

    async def lease(self) -> Lease:
        """Wait for the lease. Raises ``Rejected`` (counted and complete) or ``ClientLeft``."""
        try:
            return await (self._watch() if self.admission.mode == "shadow" else self._enter())
        except Rejected as rejected:
            self.admission.refused(rejected, lane=self.lane, route=self.rule.route)
            raise
        except ClientLeft:
            self.admission.left(lane=self.lane, route=self.rule.route)
            if self.body.failure is not None:
                raise self.body.failure from None
            raise
        finally:
            self.body.hand_over()

    async def _enter(self) -> Lease:
        self.admission.check_open()
        estimated = await self._estimate()
        self._choose_lane()
        self.info.forget()
        return await self._acquire(estimated)

    async def _watch(self) -> Lease:
        """The same without a refusal or a wait; what it would have come to is recorded."""
        try:
            estimated = await self._estimate()
        except (Rejected, ClientLeft):
            estimated = Estimate(self.admission.settings.fallback or 1, notes=("the body was not read",))
        self._choose_lane()
        self.info.forget()
        return await self._acquire(estimated)

    async def _acquire(self, estimated: Estimate) -> Lease:
        return await self.admission.acquire(
            estimated,
            lane=self.lane,
            flow=self.flow,
            deadline=deadline(self.headers) if self.headers else None,
            route=self.rule.route,
            gone=self.body.watch,
        )

    async def _estimate(self) -> Estimate:
        fallback = self.admission.settings.fallback
        try:
            if self.rule.needs_body:
                await self._read()
            return await estimate(self.rule, self.info, fallback or self.admission.largest)
        except UnreadableBody as error:
            if fallback is None:
                raise
            return Estimate(fallback, notes=(f"{error.detail}: fallback charged",))

    async def _read(self) -> None:
        limit = self.admission.settings.max_body_bytes
        declared = declared_length(self.headers)
        if declared is not None and declared > limit:
            raise TooLarge(
                "body_too_large",
                f"Content-Length of {format_bytes(declared)} is above max_body_bytes={format_bytes(limit)}",
            )
        await self.body.read()
        self.info.read_from(self._content)
        if self.body.size > _PACKED_OFFLOAD_BYTES and encodings(self.headers):
            await anyio.to_thread.run_sync(lambda: self.info.body)

    def _content(self) -> bytes:
        packed = encodings(self.headers)
        content = self.body.content()
        if not packed:
            return content
        return unpack(content, packed, self.admission.settings.max_body_bytes, self.admission.buffer)

    def _choose_lane(self) -> None:
        settings = self.admission.settings
        if settings.lane is not None:
            name = self._pick("lane", settings.lane)
            self.lane = self.admission.lane_index(name if name in self.admission.lane_names else None)
        if settings.flow is not None:
            flow = self._pick("flow", settings.flow)
            self.flow = flow if isinstance(flow, Hashable) and flow is not None else ""

    def _pick(self, setting: str, picker: Callable[[RequestInfo], Any]) -> Any:
        """What ``picker`` says; a request is never lost because a picker failed on it."""
        try:
            return picker(self.info)
        except UnreadableBody:
            return None
        except Exception:
            logger.exception("%s failed on %s: the default is taken", setting, self.rule.route)
            return None
