"""``examples/migrating``: each pair serves the same, and the one that came after does what is said of it."""

from __future__ import annotations

import importlib
from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from gpu_admission import Admission

# slowapi still asks asyncio for what Python 3.14 has moved to inspect
OF_SLOWAPI = "ignore:'asyncio.iscoroutinefunction' is deprecated:DeprecationWarning"
pytestmark = [pytest.mark.anyio, pytest.mark.filterwarnings(OF_SLOWAPI)]
PAIRS = ("semaphore", "slowapi", "threads")
FOLDER = Path(__file__).parents[1] / "examples" / "migrating"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def module(name: str) -> Any:
    return importlib.reload(importlib.import_module(f"examples.migrating.{name}"))


def client(app: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")


async def statuses(app: Any, asked: list[dict[str, Any]]) -> Counter[int]:
    """Of all these at once."""
    found: Counter[int] = Counter()

    async def post(one: dict[str, Any]) -> None:
        found[(await http.post("/generate", json=one)).status_code] += 1

    async with client(app) as http, anyio.create_task_group() as tasks:
        for one in asked:
            tasks.start_soon(post, one)
    return found


def budget_of(app: Any) -> Admission:
    """The budget of the middleware that was added last."""
    app.middleware_stack = app.middleware_stack or app.build_middleware_stack()
    inner = app.middleware_stack
    while not hasattr(inner, "admission"):
        inner = inner.app
    budget: Admission = inner.admission
    return budget


def test_every_example_is_one_of_a_pair() -> None:
    names = {path.stem for path in FOLDER.glob("*.py")}
    assert names == {f"{pair}_{when}" for pair in PAIRS for when in ("before", "after")}


@pytest.mark.parametrize("pair", PAIRS)
async def test_both_of_a_pair_serve_the_same(pair: str) -> None:
    answers = []
    for when in ("before", "after"):
        async with client(module(f"{pair}_{when}").app) as http:
            answer = await http.post("/generate", json={"prompt": "hello", "max_tokens": 8})
            wrong = await http.post("/generate", json={"max_tokens": 8})
            answers.append((answer.status_code, answer.json(), wrong.status_code))
    assert answers[0] == answers[1] == (200, {"text": "olleh"}, 422)


async def test_where_four_of_any_size_ran_as_many_run_as_fit() -> None:
    at_once = 0

    class Counting:
        """In place of the model: counts how many are in it."""

        running = 0

        async def sleep(self, _: float) -> None:
            nonlocal at_once
            self.running += 1
            at_once = max(at_once, self.running)
            for _ in range(50):
                await anyio.lowlevel.checkpoint()
            self.running -= 1

    small = [{"prompt": "x", "max_tokens": 4}] * 40
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("asyncio.sleep", Counting().sleep)
        assert await statuses(module("semaphore_before").app, small) == {200: 40}
        assert at_once == 4
        after = module("semaphore_after").app
        assert await statuses(after, small) == {200: 40}
        assert at_once == 40
        at_once = 0
        large = [{"prompt": "x", "max_tokens": 2000}] * 12
        assert await statuses(after, large) == {200: 12}
        assert at_once == 4, "of the largest no more than before"


async def test_a_burst_that_a_rate_refuses_is_served_where_it_fits() -> None:
    burst = [{"prompt": "x", "max_tokens": 8}] * 20
    assert (await statuses(module("slowapi_before").app, burst))[429] >= 10
    after = module("slowapi_after")
    assert await statuses(after.app, burst) == {200: 20}
    assert after.admission.snapshot().counts["admitted"] == 20


async def test_what_can_never_fit_is_told_so() -> None:
    for pair in PAIRS:
        asked = [{"prompt": "x", "max_tokens": 100_000}]
        assert await statuses(module(f"{pair}_after").app, asked) == {413: 1}


async def test_threads_hold_their_bytes_and_give_them_back() -> None:
    after = module("threads_after")
    assert await statuses(after.app, [{"prompt": "x", "max_tokens": 1000}] * 20) == {200: 20}
    state = budget_of(after.app).snapshot()
    assert (state.counts["admitted"], state.in_use) == (20, 0)
