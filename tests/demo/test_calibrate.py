"""What requests take, measured on a server whose costs the test knows."""

from __future__ import annotations

import asyncio
import time

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gpu_admission.demo.calibrate import COMPANY, Costs, calibrate, workload
from gpu_admission.demo.trace import PATH, Ask

# The measuring is asyncio's: these run on asyncio alone.
pytestmark = pytest.mark.anyio

EACH, SHARED = 100_000, 3_000_000
OF_PROMPT, OF_NEW = 24_000, 25_000


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def cost(ask: Ask) -> int:
    return EACH + OF_PROMPT * workload(ask).prompt_tokens + OF_NEW * ask.new_tokens


class Server:
    """Takes ``cost`` for each that runs, and ``SHARED`` beside them; answers when all have come."""

    def __init__(self, status: int = 200) -> None:
        self.status = status
        self.used = 0
        self.samples = [(0.0, 10**12, 0.0)]  # long before anything that is measured
        self.app = Starlette(
            routes=[Route(PATH, self.complete, methods=["POST"]), Route("/stats", self.stats)]
        )

    async def complete(self, request: Request) -> Response:
        asked = await request.json()
        takes = cost(Ask(len(asked["prompt"]), asked["max_tokens"]))
        self.used += takes
        for _ in range(10 * COMPANY):
            await asyncio.sleep(0)
        self.samples.append((time.monotonic(), self.used + SHARED, 0.0))
        await asyncio.sleep(0)
        self.used -= takes
        return JSONResponse({}, self.status)

    async def stats(self, request: Request) -> Response:
        since = float(request.query_params["since"])
        return JSONResponse([s for s in self.samples if s[0] >= since])


async def measured(server: Server, *, batch: bool) -> Costs:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(server.app), base_url="http://demo") as http:
        return await calibrate(http, "batch" if batch else "threads")


async def test_costs_of_a_batch_are_found_apart_from_what_is_shared() -> None:
    costs = await measured(Server(), batch=True)
    assert costs.terms == {"prompt_tokens": OF_PROMPT, "new_tokens": OF_NEW}
    assert (costs.constant, costs.shared) == (EACH, SHARED)
    assert costs.of(Ask(100, 30)) == cost(Ask(100, 30))


async def test_threads_are_charged_all_that_one_takes_alone() -> None:
    costs = await measured(Server(), batch=False)
    assert (costs.constant, costs.shared) == (EACH + SHARED, 0)


async def test_a_calibration_that_fails_says_how() -> None:
    with pytest.raises(RuntimeError, match="calibration failed: failed 500"):
        await measured(Server(status=500), batch=True)


def test_the_room_is_divided_by_the_largest_or_left_to_bytes() -> None:
    costs = Costs({"prompt_tokens": 10, "new_tokens": 10}, 100, 1000)
    asks = [Ask(1, 1), Ask(50, 47)]
    largest = costs.of(asks[1])
    assert costs.slots(1000 + 3 * largest + 5, asks).count == 3
    assert costs.slots(1000, asks).count == 1
    assert costs.budget(5000).capacity == 4000


def test_where_caches_grow_by_pages_each_may_have_one_that_is_not_full() -> None:
    costs = Costs({"prompt_tokens": 10.0, "new_tokens": 12.5}, 100, 1000).rounded_up(5)
    assert (costs.constant, costs.shared) == (163, 1000)
