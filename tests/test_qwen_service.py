"""``examples/qwen_service`` on a real server, with the official OpenAI client."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from fastapi import FastAPI

pytest.importorskip("torch", reason="the chat service needs torch")

import torch

from examples.qwen_service import app as service
from examples.qwen_service.chat import Chat, Generation
from examples.qwen_service.model import Answer, Model, load
from gpu_admission import Admission
from tests.observe.serving import asking, served
from tests.waiting import free_port, until, wait_for

ROOT = Path(__file__).parents[1]


def said(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


HELLO = said("Hello")


@pytest.fixture(scope="module")
def app() -> FastAPI:
    with pytest.MonkeyPatch.context() as patch:
        for name in os.environ:
            if name.startswith(("GPU_", "MODEL")):
                patch.delenv(name)
        patch.setenv("GPU_ADMISSION_TIMEOUT", "600")  # how soon the model answers depends on the machine
        return service.build()


@pytest.fixture
def admission(app: FastAPI) -> Iterator[Admission]:
    budget: Admission = app.state.admission
    yield budget
    until(lambda: (budget.in_use, budget.snapshot().running, budget.waiting) == (0, 0, 0))


@pytest.fixture(scope="module")
def url(app: FastAPI) -> Iterator[str]:
    with served(app) as address:
        yield address


@pytest.fixture
def client(url: str, admission: Admission) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as one:
        yield one


def test_an_answer_has_the_tokens_that_were_asked_for(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    answer = client.chat.completions.create(model=model.id, messages=HELLO, max_tokens=12)
    assert answer.choices[0].finish_reason == "length"
    assert set(answer.choices[0].message.content or "") <= set("abcdefghijklmnopqrstuvwxyz ")
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len(answer.choices[0].message.content or "") == 12
    assert answer.usage.prompt_tokens == len("<user\nHello<\n<assistant\n")


def test_a_stream_brings_the_same_words_as_the_whole_answer(client: openai.OpenAI) -> None:
    greedy: dict[str, Any] = {"model": "any", "messages": HELLO, "max_tokens": 20, "temperature": 0}
    whole = client.chat.completions.create(**greedy)
    chunks = list(
        client.chat.completions.create(**greedy, stream=True, stream_options={"include_usage": True})
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "length"
    assert chunks[-1].usage == whole.usage


def test_each_request_is_charged_by_its_own_tokens_in_its_own_lane(
    client: openai.OpenAI, url: str, admission: Admission
) -> None:
    before = admission.snapshot().counts["admitted"]
    client.chat.completions.create(model="any", messages=HELLO, max_tokens=4)
    client.chat.completions.create(model="any", messages=said("a" * 900), max_tokens=4)
    assert admission.snapshot().counts["admitted"] == before + 2
    scraped = httpx.get(f"{url}/metrics/").text
    lanes = ('lane="short"', 'lane="long"')
    admitted = [line for line in scraped.splitlines() if line.startswith("gpu_admission_requests_total")]
    assert all(any(lane in line and 'budget="qwen"' in line for line in admitted) for lane in lanes)


def test_what_can_never_fit_is_refused_by_name_and_what_is_too_long_for_the_model_too(
    client: openai.OpenAI, admission: Admission
) -> None:
    with pytest.raises(openai.BadRequestError, match="context of 4096"):
        client.chat.completions.create(model="any", messages=HELLO, max_tokens=4090)
    admission.resize("8MiB")
    try:
        with pytest.raises(openai.APIStatusError, match="can never fit") as refused:
            client.chat.completions.create(model="any", messages=said("a" * 3000), max_tokens=4)
        assert (refused.value.status_code, refused.value.code) == (413, "too_large")
    finally:
        admission.resize("96MiB")


def test_more_than_fits_waits_its_turn_and_all_are_served(
    client: openai.OpenAI, admission: Admission
) -> None:
    admission.resize("24MiB")
    held = []

    def ask(length: int) -> None:
        answer = client.chat.completions.create(model="any", messages=said("a" * length), max_tokens=24)
        held.append((admission.in_use, answer.choices[0].finish_reason))

    try:
        threads = [threading.Thread(target=ask, args=(600 + 20 * n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(600)
    finally:
        admission.resize("96MiB")
    assert [reason for _, reason in held] == ["length"] * 8
    assert max(used for used, _ in held) <= 24 * 2**20


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tokens the model made for each answer: the last may be on its way."""
    counts: list[int] = []
    generate = Model.answer

    def counting(model: Model, prompt: Any, streamer: Any, *asked: Any, **sampling: Any) -> Answer:
        put = streamer.put
        counts.append(-1)  # the prompt is put first

        def count(token: Any) -> None:
            counts[-1] += 1
            put(token)

        monkeypatch.setattr(streamer, "put", count)
        answer = generate(model, prompt, streamer, *asked, **sampling)
        assert counts[-1] == answer.new_tokens
        return answer

    monkeypatch.setattr(Model, "answer", counting)
    return counts


def test_a_client_that_hangs_up_stops_the_model_and_gives_its_bytes_back(
    client: openai.OpenAI, admission: Admission, made: list[int]
) -> None:
    stream = client.chat.completions.create(model="any", messages=HELLO, max_tokens=3500, stream=True)
    next(iter(stream))
    assert admission.in_use > 0
    stream.close()
    until(lambda: admission.in_use == 0)
    assert 0 < made.pop() < 3500


def test_one_that_waits_for_a_whole_answer_and_hangs_up_stops_it_too(
    url: str, admission: Admission, made: list[int]
) -> None:
    with asking(url, "/v1/chat/completions", {"messages": HELLO, "max_tokens": 3500}):
        until(lambda: made and made[-1] > 0)
    until(lambda: admission.in_use == 0)
    assert 0 < made.pop() < 3500


def test_operators_find_health_metrics_and_the_page(url: str, admission: Admission) -> None:
    assert httpx.get(f"{url}/health/live").status_code == 200
    assert httpx.get(f"{url}/health/ready").json()["capacity_bytes"] == 96 * 2**20
    page = httpx.get(f"{url}/gpu/", headers={"accept": "application/json"}).json()
    assert [lane["name"] for lane in page["lanes"]] == ["short", "long"]


def test_an_error_of_the_model_ends_the_stream_and_is_told(
    client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("examples.qwen_service.model.StoppingCriteriaList", fail_for_lack_of_memory)
    with pytest.raises(openai.InternalServerError) as refused:
        client.chat.completions.create(model="any", messages=HELLO, max_tokens=4)
    assert refused.value.status_code == 503
    with pytest.raises(openai.APIError, match="memory"):
        list(client.chat.completions.create(model="any", messages=HELLO, max_tokens=4, stream=True))


def fail_for_lack_of_memory(*_: Any) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


def test_an_answer_that_reaches_its_end_says_stop() -> None:
    generation = Generation(load(None), Chat(messages=HELLO), torch.zeros(1, 5), ended=Answer(3, True))
    assert generation.finish_reason() == "stop"
    assert generation.usage() == {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}


def test_real_weights_come_from_a_folder(tmp_path: Path) -> None:
    random = load(None)
    folder = tmp_path / "tiny"
    random.network.generation_config.save_pretrained(folder)
    random.network.save_pretrained(folder)
    random.tokenizer.save_pretrained(folder)
    model = load(str(folder))
    assert (model.name, model.context) == ("tiny", 4096)
    prompt = model.prompt(HELLO)
    assert torch.equal(prompt, random.prompt(HELLO))
    assert torch.equal(model.network(prompt).logits, random.network(prompt).logits)


@pytest.mark.slow
def test_sigterm_serves_the_queue_and_lets_a_stream_end_whole() -> None:
    port = free_port()
    command = [sys.executable, "-m", "examples.qwen_service", f"--port={port}", "--grace=600"]
    budget = {"GPU_ADMISSION_CAPACITY": "24MiB", "GPU_ADMISSION_TIMEOUT": "600"}
    environment = {**os.environ, **budget, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, cwd=ROOT, env=environment) as process:
        try:
            wait_for(port)
            url = f"http://127.0.0.1:{port}"
            long = {"messages": said("a" * 1000), "max_tokens": 400, "stream": True}
            with httpx.stream("POST", f"{url}/v1/chat/completions", json=long, timeout=600) as stream:
                lines = stream.iter_lines()
                next(lines)
                waiter = Waiter(url, long)
                waiter.start()
                until(lambda: httpx.get(f"{url}/health/ready", timeout=60).json()["waiting"] == 1)
                process.send_signal(signal.SIGTERM)
                events = [line.removeprefix("data: ") for line in lines if line]
            assert events[-1] == "[DONE]"
            assert json.loads(events[-2])["choices"][0]["finish_reason"] == "length"
            waiter.join(600)
            assert waiter.answer is not None
            assert waiter.answer.status_code == 200
            assert waiter.answer.text.splitlines()[-2] == "data: [DONE]"
            assert process.wait(120) in (0, -signal.SIGTERM)
        finally:
            process.kill()


class Waiter(threading.Thread):
    """Asks while the budget is full."""

    def __init__(self, url: str, asked: dict[str, Any]) -> None:
        super().__init__()
        self.url, self.asked = url, asked
        self.answer: httpx.Response | None = None

    def run(self) -> None:
        self.answer = httpx.post(f"{self.url}/v1/chat/completions", json=self.asked, timeout=600)
