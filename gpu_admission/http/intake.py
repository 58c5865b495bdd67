"""From a metered request to its lease: the one path that every door takes.

Cheap checks, body, workload, estimate, queue: in that order. It raises what the caller
renders (``Rejected``) or obeys (``ClientLeft``); it never answers by itself.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import anyio
import msgspec

from gpu_admission.admission import Admission
from gpu_admission.admission.buffered import Copies
from gpu_admission.admission.lease import Lease
from gpu_admission.admission.recharging import again_of
from gpu_admission.bodies.large import SMALL_BYTES, LineTimeout, is_large, read_aside
from gpu_admission.bodies.share import UNCOUNTED_BYTES
from gpu_admission.budget.ticket import Ticket
from gpu_admission.errors import ClientLeft, Rejected, TooLarge, UnreadableBody
from gpu_admission.http.body import WATCHED_BYTES, Body
from gpu_admission.http.charge import AsksForNothing, ask, checked, heard, is_async, read_ahead
from gpu_admission.http.clamp import clamp, clamped_body
from gpu_admission.http.headers import deadline, has_no_body, of_the_body
from gpu_admission.http.pickers import flow_of, lane_of, lane_of_unreadable
from gpu_admission.http.request_id import name_request
from gpu_admission.http.respond import response_for
from gpu_admission.http.unpack import UNPACKED_HERE, is_short, other_readings, readable
from gpu_admission.request import RequestInfo
from gpu_admission.rules.metering import Rule
from gpu_admission.runtime.failure import forget_trace, log_failure
from gpu_admission.sizes import format_bytes
from gpu_admission.types import ASGIApp, Estimate, Receive, Scope


class Intake(msgspec.Struct, eq=False):
    """One request on its way to a lease, made by ``intake_of``. ``body`` is the app's ``receive``."""

    admission: Admission
    rule: Rule
    scope: Scope
    body: Body
    _info: RequestInfo | None = None
    _is_read: bool = False
    """A framework has read the body before us: ``info`` has what is left of it."""
    _read_size: int = 0
    lane: int = 0
    flow: Any = None
    charged: Estimate | None = None
    """What it is charged, once that is estimated."""
    watch: Callable[[], Awaitable[None]] | None = None
    """Returns when the client has left; ``None``: the body's own."""
    queued: Callable[[Ticket], object] | None = None
    """Called with its place in the queue, where it has to wait."""
    clamped_to: int | None = None
    """The token limit that was set in the body for a hot device."""
    _copies: Copies | None = None
    _has_lane: bool = False
    """Lane and flow were chosen by what it asks."""
    _arrived: float | None = None
    """When it first had to wait for its estimate: that wait counts towards its time in the queue."""

    @property
    def info(self) -> RequestInfo:
        """The request as estimators, pickers and ``on_reject`` see it."""
        info = self._info
        if info is None:
            self._info = info = RequestInfo(
                self.scope,
                path=self.rule.path,
                dialect=self.rule.reader,
                max_json_values=self.admission.settings.max_json_values,
            )
        return info

    async def lease(self, *, may_clamp: bool = False) -> Lease:
        """Wait for the lease. Raises ``Rejected`` (counted and complete) or ``ClientLeft``.

        Also raises ``AsksForNothing`` for an empty request, if the rule allows that.
        ``may_clamp``: the app will read the body from us, so it may be rewritten.
        """
        admission, rule, loop = self.admission, self.rule, self.body.loop
        if admission.events.needs_request_id:
            name_request(self.scope)
        if admission.mode == "off":
            return await self._unread()
        try:
            # A fixed size that starts at once has been let in: only otherwise look for the reason.
            estimated = None if admission.picks_lanes else rule.fixed
            if estimated is None and not admission.entrance.is_open(loop):
                await self._check_open()
            declared, packed = of_the_body(self.scope)
            size = declared or self._read_size
            if size > WATCHED_BYTES or size > admission.settings.max_body_bytes:
                await self._check_size(size, declared)
            if estimated is None:
                estimated = self._picked() or await self.estimate(packed, may_clamp=may_clamp)
            self.charged = estimated
            lease = None
            if self._arrived is None:
                lease = admission.entrance.start(estimated, self.lane, self.flow, rule.route, loop)
            if lease is None:
                lease = await self._acquired(estimated)
            self.body.lease = lease
            lease.estimator = rule.estimator
            if rule.learns:
                admission.endings.teach(lease, rule.estimator, self.info)
            return lease
        except BaseException as error:
            return await self._without(error)
        finally:
            if self.body.counted:
                self.body.hand_over()

    async def _without(self, error: BaseException) -> Lease:
        """``error`` came in place of a lease: raise it, unless ``shadow`` mode gives a lease all the same."""
        if isinstance(error, (Rejected, ClientLeft)):
            if self.admission.mode == "shadow":
                return await self._unread()
            error = self._lost(error)
        elif isinstance(error, AsksForNothing):
            self.body.is_free = True
        else:
            if self.body.lease is not None:  # a ``SystemExit`` from a meter, or an interrupt, as it began
                self.body.lease.release()
            self.body.close()
        try:
            raise error from None
        finally:
            del error  # which holds this frame, and so would hold the body until a collection

    async def _check_open(self) -> None:
        entrance = self.admission.entrance
        if not self.admission.monitor.is_measured:
            await entrance.measure()
        if not (self.rule.may_be_empty and has_no_body(self.scope)):
            entrance.check_open()

    async def _acquired(self, estimated: Estimate) -> Lease:
        """The lease of a request that does not start at once."""
        if estimated is self.rule.fixed:
            await self._check_open()
        return await self.admission.entrance.acquire(
            estimated,
            lane=self.lane,
            flow=self.flow,
            deadline=deadline(self.scope),
            waited_before=self._waited(),
            route=self.rule.route,
            gone=self.watch or self.body.watch,
            queued=self.queued,
            again=again_of(self.rule.estimator, self.info, estimated) if self.rule.learns else None,
        )

    def _lost(self, error: Exception) -> Exception:
        """Close the body and count the end. Returns what to raise: a failure of the server's goes first."""
        cause = self.body.failure or error
        if isinstance(cause, Rejected):
            self.refuse(cause)
        else:
            self.admission.entrance.left(lane=self.lane, route=self.rule.route)
            self.body.drop()
        self.body.close()
        return cause

    async def _unread(self) -> Lease:
        charged = Estimate(self.admission.settings.fallback or 1, notes=("the body was not read",))
        self.body.lease = lease = await self.admission.entrance.acquire(charged, route=self.rule.route)
        return lease

    async def _check_size(self, size: int, declared: int | None) -> None:
        """Refuse a large body by what it says of its size, before it is received."""
        is_read_here = (self.rule.needs_body or self.admission.pickers_read) and not self._is_read
        try:
            if size > self.admission.settings.max_body_bytes:
                raise self._too_large(declared)
            if is_read_here:
                self.body.check_room(size)
        except Rejected:
            await self._check_open()  # a closed admission says so first
            raise

    def _too_large(self, declared: int | None) -> TooLarge:
        limit = format_bytes(self.admission.settings.max_body_bytes)
        if self._read_size:
            return TooLarge("body_too_large", f"the body is larger than max_body_bytes={limit}")
        return TooLarge(
            "body_too_large",
            f"Content-Length of {format_bytes(declared or 0)} is above max_body_bytes={limit}",
        )

    # what it takes

    def _picked(self) -> Estimate | None:
        """The size, if it is fixed, with the lane chosen; ``None`` if the body has to be read for either."""
        fixed = self.rule.fixed
        if fixed is None or self.admission.pickers_read:
            return None
        self._choose_lane()
        return fixed

    async def estimate(self, packed: Sequence[str] = (), *, may_clamp: bool = False) -> Estimate:
        """What is charged; lane and flow are chosen on the way.

        If the estimator fails, that is logged and ``fallback``, or the whole capacity, is charged. Raises
        ``Rejected`` or ``ClientLeft``.
        """
        body, info = self.body, self._info or self.info
        try:
            if (self.rule.needs_body or self.admission.pickers_read) and not self._is_read:
                more = None if body.complete else body.read_here()
                if more is not None:
                    await more
                whole = None if packed else body.whole
                info.read_from(self._copying(packed) if whole is None else body.content, whole)
                if may_clamp and not packed and self.admission.monitor.clamp is not None:
                    await self._clamp(self.admission.monitor.clamp)
            small = not packed and (body.size or self._read_size) <= SMALL_BYTES
            share = self.admission.share
            if body.size > UNCOUNTED_BYTES and small and not share.has_room(body.size, body.loop):
                await share.enter(body.size)
            result = self._decided() if small else await self._decide(packed)
            return result if isinstance(result, Estimate) else checked(await self._awaited(result))
        except UnreadableBody as error:
            return await self._unreadable(error, packed)
        except (Rejected, ClientLeft):
            raise
        except Exception as error:
            return self._failed(error)
        finally:
            info.forget()
            if self._copies is not None:
                self._copies.forget()

    def _copying(self, packed: Sequence[str]) -> Callable[[], bytes]:
        """A function that makes the body of ``info`` again, where that is a copy.

        It holds no reference to this object: such a cycle would keep the body until a collection.
        """
        self._copies = copies = Copies(self.admission.buffer)
        limit = self.admission.settings.max_body_bytes
        return functools.partial(readable, self.body, packed, limit, copies)

    async def _decide(self, packed: Sequence[str]) -> Estimate | Awaitable[object]:
        """Ask the estimator and the pickers, all in one turn: here, or in a thread if the body is large.

        With two turns, copies made in the first would be held, however many, until the second.
        """
        size = self.body.size
        if packed and size:
            if size <= SMALL_BYTES:
                await self.admission.share.enter(UNPACKED_HERE)
                if is_short(self.body.content(), packed, self.admission.buffer):
                    return self._decided()
            size = self.admission.settings.max_body_bytes  # the limit on what it may unpack to
        elif not is_large(size := size or self._read_size, self.info.dialect):
            await self.admission.share.enter(size)
            return self._decided()
        if not is_async(self.rule):
            result: Estimate | Awaitable[object] = (await self._aside(self._decided_aside, size))[0]
            return result
        await self._aside(self._read_ahead, size)
        return ask(self.rule, self.info)

    def _decided(self) -> Estimate | Awaitable[object]:
        result = ask(self.rule, self._info or self.info)
        if self.admission.picks_lanes:
            self._choose_lane()
        return result

    def _decided_aside(self) -> tuple[Estimate | Awaitable[object]]:
        # In a tuple: trio takes no awaitable out of a thread.
        return (self._decided(),)

    def _read_ahead(self) -> None:
        read_ahead(self.info)
        if self.admission.picks_lanes:
            self._choose_lane()

    async def _aside(self, read: Callable[[], Any], size: int) -> Any:
        """``read()`` in a reader's thread; the wait for it is part of the request's wait."""
        self.body.count()
        longest, setting = self._patience()
        try:
            return await read_aside(read, size=size, seconds=longest - self._waited(), gone=self.body.watch)
        except LineTimeout:
            raise self.admission.entrance.unread(longest, setting) from None

    async def _awaited(self, work: Awaitable[object]) -> object:
        """What an async estimator says, for as long as somebody waits for it."""
        entrance = self.admission.entrance
        closed = entrance.closed if entrance.held() is None else anyio.sleep_forever  # what runs may end
        longest, _ = self._patience()
        return await heard(work, seconds=longest - self._waited(), gone=self.body.watch, closed=closed)

    async def _clamp(self, factor: float) -> None:
        shorter = functools.partial(clamped_body, self.info, factor)
        size = self.body.size
        found = await self._aside(shorter, size) if is_large(size, self.info.dialect) else shorter()
        if found is not None:
            self.clamped_to = clamp(self.scope, self.body, self.info, *found)

    async def _unreadable(self, error: UnreadableBody, packed: Sequence[str]) -> Estimate:
        """At least ``fallback``, and at least what it asks of an app that takes its encodings otherwise."""
        fallback = self.admission.settings.fallback
        if fallback is None:
            if self.rule.may_be_empty and self.body.complete and not self.body.size:
                raise AsksForNothing
            try:
                raise error
            finally:
                del error  # which holds this frame
        others = [(await self.estimate(each)).bytes for each in other_readings(packed) if self.body.size]
        lane = lane_of_unreadable(self.admission)
        if lane is not None:
            self.lane = lane
        forget_trace(error)
        return Estimate(max([fallback, *others]), notes=(f"{error.detail}: fallback charged",))

    def _failed(self, error: Exception) -> Estimate:
        charged = max(1, self.admission.settings.fallback or self.admission.largest)
        try:
            return Estimate(charged, notes=(self._failure(error, charged),))
        finally:
            if error is not self.body.failure:
                forget_trace(error)

    def _failure(self, error: Exception, charged: int) -> str:
        """What failed, in a few words; logged where it is a fault."""
        if self.body.failure is not None:  # the app hears of it when it reads
            return "the body could not be received"
        if isinstance(error, TimeoutError) and getattr(self.rule.estimator, "waits", False):
            return "what it takes was not measured in time"
        what = f"the estimator of {self.rule.route} failed"
        if self.rule.estimator is None:
            what = f"no pattern of the estimator mapping matches {self.rule.route}: the estimate failed"
        log_failure(what, error, f"{format_bytes(charged)} charged instead")
        return f"the estimator failed with {type(error).__name__}"

    # how long it may wait

    def _patience(self) -> tuple[float, str]:
        """How long it may wait in all, from now on if it has not waited yet, and which setting says so.

        Until its lane is chosen, that is as long as in any lane.
        """
        if self.admission.mode != "enforce":
            return math.inf, "mode"
        if self._arrived is None:
            self._arrived = anyio.current_time()
        lane = self.lane if self._has_lane or not self.admission.picks_lanes else None
        return self.admission.entrance.patience(lane, deadline(self.scope))

    def _waited(self) -> float:
        """Seconds that it has waited, unless it is in the queue."""
        return 0.0 if self._arrived is None else anyio.current_time() - self._arrived

    def _choose_lane(self) -> None:
        route, info = self.rule.route, self.info
        self.lane = lane_of(self.admission, route, info)
        self.flow = flow_of(self.admission, route, info)
        self._has_lane = True

    def refuse(self, rejected: Rejected) -> None:
        """Complete and count a refusal of this request."""
        if self.body.lease is None and not rejected.waited:
            rejected.waited = self._waited()
        self.admission.entrance.refused(rejected, lane=self.lane, route=self.rule.route, charged=self.charged)

    def answer(self, rejected: Rejected) -> ASGIApp:
        """The answer to its refusal; nothing else is kept of it."""
        answer = response_for(self.admission.settings.on_reject, self.info, rejected)
        self.forget(rejected)
        return answer

    def forget(self, rejected: Rejected) -> None:
        """Keep nothing of a request that was refused: its client may be slow to take the answer."""
        self.body.drop()
        self.info.forget()
        if self._copies is not None:
            self._copies.forget()
        forget_trace(rejected)


def intake_of(
    admission: Admission,
    rule: Rule,
    scope: Scope,
    receive: Receive,
    *,
    info: RequestInfo | None = None,
    read_size: int = 0,
) -> Intake:
    """``read_size``: bytes of the body that were read before; ``info``: for a body that is gone by now."""
    body = Body(receive, admission.buffer, admission.settings, scope, admission.mode != "enforce")
    return Intake(admission, rule, scope, body, info, info is not None, read_size)
