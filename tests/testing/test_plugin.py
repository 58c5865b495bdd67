"""The fixture that users put into their own tests, and the recipes that the README shows with it."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_admission.testing import Call, working

pytest_plugins = ["pytester"]

RECIPES = """
import pytest
from gpu_admission import GPUAdmission, current_lease
from gpu_admission.testing import Call, FakeDevice, cost, look, scenario, settle, working

pytest_plugins = ["gpu_admission.testing.plugin"]
pytestmark = pytest.mark.anyio


async def test_a_request_that_can_never_fit_is_refused(admission):
    call = Call(GPUAdmission(working, admission=admission(capacity=100, estimator=cost)), cost=101)
    await call.run()
    assert call.status == 413
    assert call.problem()["reason"] == "too_large"


async def test_the_second_waits_for_the_first():
    async with scenario(capacity=100) as scene:
        first = await scene.start(cost=60)
        second = await scene.start(cost=60)
        assert scene.waiting == 1
        first.finish()
        await settle()
        assert second.reached_app
        second.finish()


async def test_out_of_memory_lowers_the_ceiling(admission):
    async def app(scope, receive, send):
        raise MemoryError

    device = FakeDevice(100)
    budget = admission(capacity=100, devices=[device], estimator=cost)
    call = Call(GPUAdmission(app, admission=budget), cost=10)
    await call.run()
    assert isinstance(call.error, MemoryError)
    assert budget.snapshot().ceiling == 80


async def test_a_device_that_fills_up_leaves_less_to_others(admission):
    device = FakeDevice("24GiB", ours="4GiB")
    budget = admission(capacity="100%", margin=0, devices=[device], estimator=cost)
    await budget.startup.begin()
    assert budget.snapshot().capacity == 20 * 2**30
    device.foreign = 8 * 2**30
    look(budget)
    assert budget.snapshot().ceiling == 12 * 2**30
    await budget.aclose()
"""


def test_the_recipes_pass(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(RECIPES)
    pytester.makeconftest("import pytest\n@pytest.fixture\ndef anyio_backend(): return 'asyncio'")
    done = pytester.runpytest_subprocess("-q", "-p", "no:cacheprovider")
    done.assert_outcomes(passed=4)


def test_what_was_not_given_back_fails_the_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        pytest_plugins = ["gpu_admission.testing.plugin"]

        def test_leaks(admission):
            import asyncio
            from gpu_admission import Estimate
            budget = admission(capacity=100, estimator=1)
            asyncio.run(budget.entrance.acquire(Estimate(60)))
        """
    )
    done = pytester.runpytest_subprocess("-q", "-p", "no:cacheprovider")
    done.assert_outcomes(passed=1, errors=1)
    done.stdout.fnmatch_lines(["*not all was given back*'in_use': 60*"])


@pytest.mark.parametrize("wrong", ["header", "costs", "content", "method_"])
def test_a_call_refuses_a_keyword_that_is_no_key_of_a_scope(wrong: str) -> None:
    unknown: dict[str, Any] = {wrong: b"x", "path": "/x"}
    with pytest.raises(TypeError, match=f"Call got '{wrong}', which is neither .* http_version, "):
        Call(working, **unknown)


@pytest.mark.anyio
async def test_a_call_takes_keys_of_a_scope_and_those_with_a_dot() -> None:
    mine: dict[str, Any] = {"mine.key": 1}
    assert Call(working, path="/x", **mine).scope["mine.key"] == 1
