"""What a call made by hand says of the answer that it has not got."""

from __future__ import annotations

import pytest

from gpu_admission.testing import Call
from gpu_admission.types import Receive, Scope, Send

pytestmark = pytest.mark.anyio


async def raises(scope: Scope, receive: Receive, send: Send) -> None:
    raise KeyError("weights")


async def says_nothing(scope: Scope, receive: Receive, send: Send) -> None: ...


async def test_what_the_app_raised_is_named_where_its_answer_is_asked_for() -> None:
    call = Call(raises)
    await call.run()
    with pytest.raises(AssertionError, match=r"the app raised KeyError\('weights'\)") as of_status:
        _ = call.status
    assert of_status.value.__cause__ is call.error
    with pytest.raises(AssertionError, match="the app raised KeyError"):
        _ = call.headers


async def test_a_call_without_an_answer_says_whether_it_still_runs() -> None:
    call = Call(says_nothing)
    with pytest.raises(AssertionError, match="no answer yet: the call still runs"):
        _ = call.status
    await call.run()
    with pytest.raises(AssertionError, match=r"^no answer$"):
        _ = call.status


async def test_two_answers_are_none() -> None:
    call = Call(says_nothing)
    call.sent = [{"type": "http.response.start", "status": 200, "headers": []}] * 2
    with pytest.raises(AssertionError, match="2 answers"):
        _ = call.status
