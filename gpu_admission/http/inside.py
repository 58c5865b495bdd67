"""A request made under another's lease: its part of that lease is held while it runs.

Owns the way in and out of such a request. It never waits, and it is never refused for what others
hold unless it is known to need more than the lease around it has.
"""

from __future__ import annotations

from gpu_admission.admission.context import SCOPE_KEY, enter_block, leave_block
from gpu_admission.admission.lease import Block
from gpu_admission.errors import Rejected
from gpu_admission.http.body import Body
from gpu_admission.http.headers import of_the_body
from gpu_admission.http.intake import Intake
from gpu_admission.types import ASGIApp, Receive, Scope, Send


async def block_for(intake: Intake) -> Block | None:
    """The part of the lease around it that the request needs; that lease grows if it is too small.

    ``None``: that lease was given for this very request. Raises as ``Intake.lease`` does.
    """
    holder = intake.admission.entrance.holder()
    assert holder is not None
    rule, body, scope = intake.rule, intake.body, intake.scope
    if rule.estimator is holder.lease.estimator and (
        scope.get(SCOPE_KEY) is holder.lease or getattr(rule.estimator, "covers_calls_inside", False)
    ):
        return None
    try:
        intake.charged = rule.fixed or await intake.estimate(of_the_body(scope)[1])
        return await enter_block(holder, intake.charged.bytes)
    except Rejected as rejected:
        if intake.admission.mode == "shadow":
            return None
        intake.refuse(rejected)
        body.close()
        raise
    except BaseException:
        body.close()
        raise
    finally:
        body.hand_over()
        body.is_free = True  # the limits are those of the request around it


async def run_inside(
    app: ASGIApp, block: Block | None, body: Body, scope: Scope, receive: Receive, send: Send
) -> None:
    """Run ``app`` for a request that ``block`` was opened for; ``receive`` is of its ``body``."""
    try:
        await app(scope, receive, send)
    except BaseException as error:
        if block is not None:
            leave_block(block, error)
        raise
    else:
        if block is not None:
            leave_block(block)
    finally:
        body.close()
