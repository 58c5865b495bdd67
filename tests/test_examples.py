"""Every example runs, says what it charges, and is short enough to read."""

from __future__ import annotations

import importlib
import io
import signal
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from PIL import Image

from examples import any_asgi, drain, fastapi_routes, jobs, minimal, streaming
from tests.test_openai_client import served

pytestmark = pytest.mark.anyio
GIB = 2**30
EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))
LONGER = {"gate": 180, "locustfile": 90}
"""Lines of those that are a whole service, or a whole load test, in one file."""


def client(app: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_one_idea_in_under_60_lines(path: Path) -> None:
    assert len(path.read_text().splitlines()) < LONGER.get(path.stem, 60)


async def test_minimal_charges_by_tokens() -> None:
    async with client(minimal.app) as http:
        short = await http.post("/generate", json={"prompt": "hello", "max_tokens": 1})
        long = await http.post("/generate", json={"prompt": "hello", "max_tokens": 1001})
    assert short.json()["text"] == "olleh"
    assert long.json()["held_bytes"] - short.json()["held_bytes"] == 1000 * 128 * 1024


async def test_minimal_refuses_what_can_never_fit() -> None:
    async with client(minimal.app) as http:
        answer = await http.post("/generate", json={"prompt": "hello", "max_tokens": 1_000_000})
    assert answer.status_code == 413
    assert "capacity=2.00 GiB" in answer.json()["detail"]


async def test_fastapi_routes_each_hold_their_own_bytes() -> None:
    prompt = {"prompt": "x", "max_tokens": 36}
    async with client(fastapi_routes.app) as http:
        assert (await http.post("/generate", json=prompt)).json() == {"held_bytes": 100 * 2**20}
        assert (await http.post("/classify", json=prompt)).json() == {"label": "short"}
        assert (await http.post("/embed", json=prompt)).json() == {"held_bytes": 128 * 2**20}
        assert (await http.post("/pipeline", json=prompt)).json() == {"held_bytes": 512 * 2**20}
    assert fastapi_routes.admission.snapshot().in_use == 0


async def test_streaming_sends_every_event() -> None:
    async with client(streaming.app) as http:
        answer = await http.post("/v1/chat/completions", json={"max_tokens": 3})
    assert answer.text.splitlines()[::2] == [
        "data: token-0",
        "data: token-1",
        "data: token-2",
        "data: [DONE]",
    ]


async def test_any_asgi_charges_by_route() -> None:
    async with client(any_asgi.app) as http:
        image = await http.post("/images/new", json={"width": 512, "height": 512})
        vector = await http.post("/embed", json={})
        other = await http.post("/other", content=b"12345")
    assert image.json()["held_bytes"] == 512 * 512 * 4096
    assert vector.json()["held_bytes"] == 300 * 2**20
    assert other.json() == {"received": 5, "held_bytes": 0}


def photo(shade: int) -> dict[str, bytes]:
    file = io.BytesIO()
    Image.new("RGB", (80, 60), (shade, 255 - shade, 128)).save(file, "PNG")
    return {"upload": file.getvalue()}


async def test_image_batches_answers_each_upload_with_its_own_class_and_charges_it_once() -> None:
    pytest.importorskip("torch", reason="its model needs torch")
    from examples import image_batches

    alone = [
        image_batches.classify_all([image_batches.decode(photo(shade)["upload"])])[0] for shade in range(12)
    ]
    answers: list[Any] = [None] * 12
    before = image_batches.admission.snapshot().counts.get("admitted", 0)

    async def post(place: int) -> None:
        answer = await http.post("/classify", files=photo(place))
        answers[place] = answer.json()["class"]

    async with client(image_batches.app) as http:
        async with anyio.create_task_group() as tasks:
            for place in range(12):
                tasks.start_soon(post, place)
        broken = await http.post("/classify", files={"upload": b"not an image"})
        empty = await http.post("/classify")
    assert answers == alone
    assert (broken.status_code, empty.status_code) == (400, 422)
    state = image_batches.admission.snapshot()
    assert (state.in_use, state.counts["admitted"] - before) == (0, 14), (
        "one lease a request, none for a batch"
    )


async def test_drain_streams_and_puts_the_signal_back() -> None:
    importlib.reload(drain)  # what has drained serves no more
    before = signal.getsignal(signal.SIGTERM)
    async with client(drain.app) as http, drain.lifespan(drain.app):
        answer = await http.post("/stream", json={"max_tokens": 2})
        assert answer.text.split() == ["token-0", "token-1"]
        assert (await http.get("/health/ready")).json()["ready"]
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before
    assert drain.admission.snapshot().draining


def test_jobs_wait_work_and_stop_by_a_real_client() -> None:
    with served(jobs.app) as url, httpx.Client(base_url=url) as http:

        def look(name: str) -> dict[str, Any]:
            state: dict[str, Any] = http.get(f"/jobs/{name}").json()
            return state

        def post(seconds: float) -> str:
            answer = http.post("/jobs", json={"seconds": seconds})
            assert answer.status_code == 202
            name: str = answer.json()["id"]
            return name

        names = [post(600) for _ in range(6)]
        assert [look(name)["state"] for name in names] == ["running"] * 4 + ["waiting"] * 2
        assert [look(name)["place"] for name in names] == [None] * 4 + [1, 2]
        assert jobs.admission.in_use == 4 * 2 * GIB, "each holds its bytes after its 202"
        assert http.delete(f"/jobs/{names[4]}").json()["state"] == "stopped"
        assert look(names[5])["place"] == 1
        assert http.delete(f"/jobs/{names[0]}").json()["state"] == "stopped"
        assert look(names[5])["state"] == "running"
        for name in names:
            http.delete(f"/jobs/{name}")
        assert jobs.admission.in_use == 0
        short = post(0)
        while look(short)["state"] != "done":
            assert look(short)["error"] == ""
        assert http.get("/jobs/none").status_code == 404
