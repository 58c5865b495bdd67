"""The way into one route, and how its lease ends: in Starlette with a response, in FastAPI a dependency.

Both go through the same ``Intake`` as the middleware, and end as it does. Wrappers of endpoints are
in ``endpoints``; bodies that a framework has read before us are in ``readalready``.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import anyio
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from gpu_admission.admission import Admission
from gpu_admission.admission.context import enter, leave, leave_block, step_in
from gpu_admission.admission.feedback import bind
from gpu_admission.admission.lease import Block, Lease
from gpu_admission.admission.load import HEADER
from gpu_admission.admission.threads import run_in_thread
from gpu_admission.errors import AdmissionError, ClientLeft, Rejected
from gpu_admission.http.body import Body
from gpu_admission.http.inside import block_for, run_inside
from gpu_admission.http.intake import Intake, intake_of
from gpu_admission.http.run import end, run
from gpu_admission.request import Estimator
from gpu_admission.routes.generators import Steps
from gpu_admission.routes.readalready import read_already, read_from
from gpu_admission.rules.metering import Rule, as_estimator
from gpu_admission.runtime.failure import log_failure
from gpu_admission.types import ASGIApp, Receive, Scope, Send

_LEASE = "gpu_admission_lease"
FOR_WEBSOCKETS = "name its path in websockets=, or take admission.lease(...) inside"
T = TypeVar("T")


class Door:
    """The way into one route."""

    def __init__(self, admission: Admission, estimator: Any, name: str) -> None:
        self.admission = admission
        self.name = name
        self.title = f"admit on {name}" if name else "dependency"
        self.parameter = _LEASE
        """The parameter by which FastAPI hands over the lease."""
        self.estimator: Estimator | None = None if estimator is None else as_estimator(estimator)
        if self.estimator is not None:
            bind(self.estimator, lambda: admission.largest)
            admission.startup.has_door(self)
        self._streams: dict[int, Steps] = {}

    async def depend(self, request: HTTPConnection, response: Response) -> AsyncIterator[Lease]:
        """FastAPI's side: a dependency that yields the lease and ends it after the response.

        ``response`` is FastAPI's own, whose headers it adds to what the endpoint returns.
        """
        if not isinstance(request, Request):
            raise TypeError(f"this is a WebSocket, and no request to meter: {FOR_WEBSOCKETS}")
        intake = self._intake(request)
        held = self.admission.entrance.held()
        if held is not None:
            block = await self._or_answer(block_for(intake), intake, request)
            self.report_load(response)
            try:
                yield held
            finally:
                try:
                    await self._close_stream(held)
                finally:
                    if block is not None:
                        leave_block(block)
                    intake.body.close()
            return
        lease = await self._or_answer(intake.lease(), intake, request)
        # The response is sent in this task with the lease still entered: a request that the server
        # starts meanwhile finds it in its context, and by the task sees that it is not nested.
        lease.task = anyio.get_current_task()
        enter(lease, request.scope)
        self.report_load(response)
        try:
            yield lease
            await self._close_stream(lease)
        except BaseException as error:
            await self._close_stream(lease)
            lease.finish(error)
            if error is not intake.body.refusal:
                raise
            intake.refuse(intake.body.refusal)
            raise self._answered(intake.body.refusal, intake, request) from error
        finally:
            end(lease, intake.body, request.scope)

    async def respond(self, request: Request, call: Callable[[Lease], Awaitable[Any]]) -> Any:
        """Starlette's side: the endpoint's response, which gives the bytes back once it is sent."""
        held = self.admission.entrance.held()
        intake = self._intake(request)
        try:
            if held is not None:
                block = await block_for(intake)
            else:
                lease = await intake.lease()
        except Rejected as rejected:
            return intake.answer(rejected)
        except ClientLeft:
            return _nothing
        if held is not None:
            return await self._respond_inside(held, block, intake.body, call)
        enter(lease, request.scope)
        try:
            response = await call(lease)
        except BaseException as error:
            lease.finish(error)
            end(lease, intake.body, request.scope)
            if error is not intake.body.refusal:
                raise
            intake.refuse(intake.body.refusal)
            return intake.answer(intake.body.refusal)
        leave(lease, request.scope)
        return HeldResponse(
            response, functools.partial(_run, intake, lease), functools.partial(lease.finish, None)
        )

    async def _respond_inside(
        self, held: Lease, block: Block | None, body: Body, call: Callable[[Lease], Awaitable[Any]]
    ) -> Any:
        if block is None:
            return await call(held)
        try:
            response = await call(held)
        except BaseException as error:
            leave_block(block, error)
            body.close()
            raise
        step_in(block.outer)
        return HeldResponse(response, functools.partial(_run_inside, block, body), block.close)

    def report_load(self, response: object) -> None:
        """Under ``load_header``, say the load in the headers of ``response``, if it is one."""
        if self.admission.settings.load_header and isinstance(response, Response):
            response.headers[HEADER] = self.admission.load.header(response.status_code or 200)

    def closes_at_end(self, lease: Lease, steps: Steps) -> None:
        """Have ``steps`` closed when ``lease`` ends."""
        self._streams[lease.number] = steps

    async def _close_stream(self, lease: Lease) -> None:
        """Run in a thread, since what an endpoint does when its generator is closed may block.

        This happens before its bytes come back, since closing frees what it holds on the device.
        """
        steps = self._streams.pop(lease.number, None)
        if steps is None:
            return
        try:
            with anyio.CancelScope(shield=True):
                await run_in_thread(None, steps.close)
        except Exception as error:
            log_failure(
                f"closing the stream of {self.name} failed", error, "its bytes come back all the same"
            )

    async def _or_answer(self, work: Awaitable[T], intake: Intake, request: Request) -> T:
        try:
            return await work
        except ClientLeft:
            _handlers(request).setdefault(ClientLeft, _answer)
            raise
        except Rejected as error:
            raise self._answered(error, intake, request) from error

    def _answered(self, error: Rejected, intake: Intake, request: Request) -> Rejected:
        """``error`` as it passes through the framework: with our answer, unless the app has its own."""
        handlers = _handlers(request)
        if any(kind in handlers for kind in type(error).__mro__ if issubclass(kind, AdmissionError)):
            return error  # the app's own handler for refusals comes first
        handlers.setdefault(Answered, _answer)
        return Answered(error, intake.answer(error))

    def _intake(self, request: Request) -> Intake:
        rule = self._rule(request.scope)
        read = read_already(request, rule)
        intake = intake_of(
            self.admission, rule, request.scope, read.receive, info=read.info, read_size=read.size
        )
        intake.body.keeps_besides(read.kept)
        read_from(request, intake.body)
        return intake

    def _rule(self, scope: Scope) -> Rule:
        label = self.name or getattr(scope.get("route"), "path", "*")
        return self.admission.metering.default(scope, label, self.estimator)


class HeldResponse:
    """A response that gives its bytes back once it has been sent; it looks like the response.

    ``run(response, scope, receive, send)`` sends it; ``drop()`` is called if it was never sent.
    """

    _response: Any
    _run: Callable[[ASGIApp, Scope, Receive, Send], Awaitable[None]]
    _drop: Callable[[], object]

    def __init__(
        self,
        response: Any,
        run: Callable[[ASGIApp, Scope, Receive, Send], Awaitable[None]],
        drop: Callable[[], object],
    ) -> None:
        self.__dict__.update(_response=response, _run=run, _drop=drop)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._run(self._response, scope, receive, send)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._response, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._response, name, value)

    def __del__(self) -> None:
        """A response that is thrown away is never sent: its bytes come back as it goes."""
        self._drop()


class Answered(Rejected):
    """A dependency's refusal on its way through the framework, with the answer to it."""

    def __init__(self, rejected: Rejected, answer: ASGIApp) -> None:
        super().__init__(rejected.reason, rejected.detail)
        self.__dict__.update(rejected.__dict__)
        self.status = rejected.status
        self.answer = answer


async def _run(
    intake: Intake, lease: Lease, response: ASGIApp, scope: Scope, receive: Receive, send: Send
) -> None:
    await run(response, intake, lease, scope, send)


async def _run_inside(
    block: Block, body: Body, response: ASGIApp, scope: Scope, receive: Receive, send: Send
) -> None:
    step_in(block)
    await run_inside(response, block, body, scope, receive, send)


def _handlers(request: Request) -> dict[Any, Any]:
    """Starlette's handlers of exceptions, for this request's app."""
    handlers: dict[Any, Any] = request.scope.get("starlette.exception_handlers", ({}, {}))[0]
    return handlers


async def _answer(request: Request, error: Exception) -> ASGIApp:
    """Starlette's handler for what a door raises."""
    return error.answer if isinstance(error, Answered) else _nothing


async def _nothing(scope: Scope, receive: Receive, send: Send) -> None:
    """The answer to a client that has left."""
