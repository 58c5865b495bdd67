"""``examples/gate.py`` in front of engines of each kind, with the clients that people use."""

from __future__ import annotations

import importlib.util
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import ollama
import openai
import pytest
from starlette.applications import Starlette

from gpu_admission.shared.folder import FolderLog
from gpu_admission.shared.ledger import SharedLedger
from gpu_admission.shared.operations import TERMS, Terms
from tests import engines
from tests.engines import Engine
from tests.observe.serving import asking, served
from tests.waiting import LONGEST, free_port, until

EXAMPLES = Path(__file__).parents[1] / "examples"
TOKEN = 128 * 2**10
MAKE: dict[str, Callable[[Engine], Starlette]] = {
    "vllm": engines.vllm,
    "sglang": engines.sglang,
    "llamacpp": engines.llamacpp,
    "ollama": engines.ollama,
}
NOT_THE_CAPACITY = tuple(name for name in TERMS if name != "capacities")
ASK: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "you"}], "max_tokens": 4}


POOLS = {
    "vllm": engines.VLLM_TOKENS,
    "sglang": engines.SGLANG_TOKENS,
    "llamacpp": engines.LLAMACPP_TOKENS,
    "ollama": 32768,
}


class Gate:
    """A gate before an engine, both served."""

    def __init__(self, url: str, engine: Engine, module: ModuleType) -> None:
        self.url, self.engine, self.module = url, engine, module
        self.admission = module.admission

    @contextmanager
    def filled(self) -> Iterator[None]:
        """A block in which a request runs that leaves room for 100 tokens."""
        pool = int(POOLS[self.module.KIND] * TOKEN * 0.95)
        until(lambda: self.admission.snapshot().capacity == pool)
        tokens = pool // TOKEN - 100
        path = {"ollama": "/api/generate", "llamacpp": "/completion"}.get(self.module.KIND, "/v1/completions")
        limit = {"max_tokens": tokens, "n_predict": tokens, "options": {"num_predict": tokens}}
        self.engine.go.clear()
        asked = len(self.engine.paths())
        filling = threading.Thread(target=self._ask, args=(path, {"prompt": "", **limit, "stream": False}))
        filling.start()
        until(lambda: len(self.engine.paths()) > asked)
        yield
        self.engine.go.set()
        filling.join(LONGEST)

    def _ask(self, path: str, body: Any) -> None:
        httpx.post(f"{self.url}{path}", json=body, timeout=LONGEST)

    def openai(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="secret", max_retries=0)


def fresh(name: str) -> ModuleType:
    """An example that reads the environment anew."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextmanager
def gate_before(kind: str, address: str, **environment: str) -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("POOL_TOKENS", raising=False)
        for name, value in {"KIND": kind, "ENGINE": address, **environment}.items():
            patch.setenv(name, value)
        module = fresh("gate")
        patch.setattr(module, "LOOK_EVERY", 0.02)
        yield module


@contextmanager
def gated(kind: str, **environment: str) -> Iterator[Gate]:
    engine = Engine()
    with ExitStack() as stack:
        address = stack.enter_context(served(MAKE[kind](engine)))
        module = stack.enter_context(gate_before(kind, address, **environment))
        url = stack.enter_context(served(module.app))
        gate = Gate(url, engine, module)
        yield gate
        engine.go.set()
        until(lambda: gate.admission.snapshot().running == 0)
        assert gate.admission.in_use == 0


@pytest.mark.parametrize("kind", ["vllm", "sglang", "llamacpp"])
def test_the_engines_own_pool_is_the_capacity(kind: str) -> None:
    with gated(kind) as gate:
        until(lambda: gate.admission.snapshot().capacity == int(POOLS[kind] * TOKEN * 0.95))


def test_an_engine_that_does_not_tell_has_the_pool_that_was_named() -> None:
    with gated("ollama", POOL_TOKENS="1000") as gate:
        assert gate.admission.snapshot().capacity == int(1000 * TOKEN * 0.95)


def test_the_openai_client_gets_answers_and_streams_as_they_come() -> None:
    with gated("vllm") as gate, gate.openai() as client:
        assert client.chat.completions.create(**ASK).choices[0].message.content == "to you"
        (model,) = client.models.list().data
        assert model.id == "m"
        gate.engine.go.clear()
        stream = iter(client.chat.completions.create(**ASK, stream=True))
        assert next(stream).choices[0].delta.content == "one "
        assert gate.admission.in_use > 4 * TOKEN
        gate.engine.go.set()
        assert [event.choices[0].delta.content for event in stream] == ["two"]


def test_headers_and_bodies_pass_as_they_are() -> None:
    with gated("vllm") as gate, httpx.Client(base_url=gate.url) as http:
        plain = httpx.Request("GET", f"{gate.url}/v1/models?a=1&b=%2F", headers={"authorization": "Bearer k"})
        answer = http.send(plain)
        assert answer.json() == {"zipped": False}, "the gate adds no header of its own"
        assert len(answer.headers.get_list("date")) == len(answer.headers.get_list("server")) == 1
        zipped = http.get("/v1/models", headers={"accept-encoding": "gzip"})
        assert zipped.headers["content-encoding"] == "gzip"
        assert zipped.json()["data"][0]["id"] == "m"
        http.post("/v1/chat/completions", json=ASK)
    (path, headers, _), _, (_, _, body) = gate.engine.asked
    assert path == "/v1/models?a=1&b=%2F"
    assert headers["authorization"] == "Bearer k"
    assert body == httpx.Request("POST", "http://x", json=ASK).content


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_hangs_up_is_passed_on_to_the_engine(stream: bool) -> None:
    with gated("vllm") as gate:
        gate.engine.go.clear()
        with asking(gate.url, "/v1/chat/completions", {**ASK, "stream": stream}):
            until(lambda: gate.engine.paths() == ["/v1/chat/completions"])
        until(lambda: gate.engine.cut_off == ["/v1/chat/completions"])
        until(lambda: gate.admission.in_use == 0)


def test_one_that_leaves_the_queue_is_never_sent_to_the_engine() -> None:
    with gated("vllm") as gate:
        with gate.filled():
            with asking(gate.url, "/v1/chat/completions", {**ASK, "max_tokens": 1000}):
                until(lambda: gate.admission.waiting == 1)
            until(lambda: gate.admission.waiting == 0)
        assert gate.engine.paths() == ["/v1/completions"]


def test_what_does_not_fit_waits_while_control_calls_pass() -> None:
    with gated("sglang") as gate, httpx.Client(base_url=gate.url, timeout=LONGEST) as http:
        asked = {"text": "you", "sampling_params": {"max_new_tokens": 1000}}
        answers: list[int] = []
        waiter = threading.Thread(
            target=lambda: answers.append(http.post("/generate", json=asked).status_code)
        )
        with gate.filled():
            waiter.start()
            until(lambda: gate.admission.waiting == 1)
            (waiting,) = gate.admission.queue()
            assert waiting.bytes > 1000 * TOKEN, "its own dialect was read"
            assert httpx.post(f"{gate.url}/abort_request", json={"rid": "1"}).status_code == 200
            assert gate.engine.paths() == ["/v1/completions", "/abort_request"]
        waiter.join(LONGEST)
        assert answers == [200]


def test_llama_cpps_own_paths_are_metered_and_its_slots_are_not() -> None:
    with gated("llamacpp") as gate, httpx.Client(base_url=gate.url, timeout=LONGEST) as http:
        assert http.post("/completion", json={"prompt": "you", "n_predict": 4}).json() == {"content": "made"}
        assert gate.admission.snapshot().counts["admitted"] == 1
        with gate.filled():
            assert http.post("/slots/0?action=erase").json() == {"n_erased": 1}
        assert gate.engine.paths() == ["/completion", "/completion", "/slots/0?action=erase"]


def test_the_ollama_client_chats_streams_and_steers() -> None:
    with gated("ollama") as gate, ollama.Client(host=gate.url) as client:
        you = [{"role": "user", "content": "you"}]
        assert client.chat("m", you).message.content == "made"
        assert [part.message.content for part in client.chat("m", you, stream=True)] == ["one ", "two"]
        assert client.generate("m", "you").response == "made"
        assert list(client.list().models) == []
        assert gate.admission.snapshot().counts["admitted"] == 3
        with gate.filled():
            assert client.show("m").details is not None
            assert client.pull("m").status == "success"


def test_the_ollama_client_hears_why_it_was_refused() -> None:
    with gated("ollama", POOL_TOKENS="100") as gate, ollama.Client(host=gate.url) as client:
        with pytest.raises(ollama.ResponseError, match="can never fit") as refused:
            client.generate("m", "you", options={"num_predict": 5000})
        assert refused.value.status_code == 413


def test_the_openai_client_hears_why_it_was_refused() -> None:
    with gated("vllm") as gate, gate.openai() as client:
        until(lambda: gate.admission.snapshot().capacity < 8000 * TOKEN)
        with pytest.raises(openai.APIStatusError, match="can never fit") as refused:
            client.chat.completions.create(**{**ASK, "max_tokens": 9000})
        assert refused.value.code == "too_large"


def test_an_engine_that_is_away_is_told_as_such_and_found_when_it_is_back() -> None:
    port = free_port()
    with gate_before("vllm", f"http://127.0.0.1:{port}") as module, served(module.app) as url:
        away = httpx.post(f"{url}/v1/chat/completions", json=ASK, timeout=LONGEST)
        assert (away.status_code, away.headers["retry-after"]) == (502, "5")
        assert away.json()["error"]["code"] == "engine_unreachable"
        assert module.admission.snapshot().capacity == int(32768 * TOKEN * 0.95)
        with served(engines.vllm(Engine()), port=port):
            until(lambda: module.admission.snapshot().capacity == int(engines.VLLM_TOKENS * TOKEN * 0.95))
            assert httpx.post(f"{url}/v1/chat/completions", json=ASK, timeout=LONGEST).status_code == 200


def test_gates_that_share_a_budget_keep_the_pool_where_one_starts_while_its_engine_is_away(
    tmp_path: Path,
) -> None:
    folder, pool = str(tmp_path / "gpu0"), int(engines.VLLM_TOKENS * TOKEN * 0.95)
    with gated("vllm", GPU_ADMISSION_SHARED=folder) as gate:
        until(lambda: gate.admission.snapshot().capacity == pool)
        away = f"http://127.0.0.1:{free_port()}"
        with gate_before("vllm", away, GPU_ADMISSION_SHARED=folder) as late, served(late.app):
            until(lambda: late.admission.snapshot().capacity == pool)


def test_a_gate_puts_the_pool_over_the_guess_of_one_that_could_not_ask(tmp_path: Path) -> None:
    """Which is in force where the budget was lost meanwhile, and with it what it was resized from."""
    folder, pool = str(tmp_path / "gpu0"), int(engines.VLLM_TOKENS * TOKEN * 0.95)
    with gated("vllm", GPU_ADMISSION_SHARED=folder) as gate:
        until(lambda: gate.admission.snapshot().capacity == pool)
        guess = SharedLedger(FolderLog(folder), Terms((7 * TOKEN,), defaults=NOT_THE_CAPACITY))
        guess.start()
        until(lambda: guess.ledger.capacity == pool)
        guess.stop()


def test_an_engine_that_breaks_off_leaves_the_answer_unfinished() -> None:
    with gated("vllm") as gate, httpx.Client(base_url=gate.url, timeout=LONGEST) as http:
        gate.engine.breaks = True
        with http.stream("POST", "/v1/chat/completions", json={**ASK, "stream": True}) as answer:
            assert answer.status_code == 200
            with pytest.raises(httpx.RemoteProtocolError):
                answer.read()


def test_an_engine_that_breaks_off_before_its_answer_is_a_bad_gateway() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=hang_up_on_all, args=[listening], daemon=True).start()
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"
        with gate_before("vllm", address) as module, served(module.app) as url:
            answer = httpx.post(f"{url}/v1/chat/completions", json=ASK, timeout=LONGEST)
            assert answer.status_code == 502
            until(lambda: module.admission.in_use == 0)


def hang_up_on_all(listening: socket.socket) -> None:
    with suppress(OSError):
        while True:
            connection, _ = listening.accept()
            with connection:
                connection.recv(1)


def test_more_streams_run_than_a_pool_of_connections_would_hold() -> None:
    with gated("vllm") as gate, ExitStack() as stack:
        until(lambda: gate.admission.snapshot().capacity == int(POOLS["vllm"] * TOKEN * 0.95))
        gate.engine.go.clear()
        for _ in range(110):
            http = stack.enter_context(httpx.Client(base_url=gate.url, timeout=LONGEST))
            stream = http.stream("POST", "/v1/chat/completions", json={**ASK, "stream": True})
            assert stack.enter_context(stream).status_code == 200
        assert gate.admission.snapshot().running == 110
        gate.engine.go.set()


def test_a_pool_that_is_named_is_not_asked_for() -> None:
    with gated("llamacpp", POOL_TOKENS="16384") as gate, httpx.Client(base_url=gate.url) as http:
        http.post("/completion", json={"prompt": "you", "n_predict": 4})
        assert gate.admission.snapshot().capacity == int(16384 * TOKEN * 0.95)


def test_the_gates_own_paths_are_not_the_engines() -> None:
    with gated("vllm") as gate, httpx.Client(base_url=gate.url, timeout=LONGEST) as http:
        assert http.get("/gate/health/ready").json()["ready"]
        assert 'gpu_admission_capacity_bytes{budget="gate"' in http.get("/gate/metrics/").text
        assert http.get("/gate/status/", headers={"accept": "application/json"}).json()["capacity"] > 0
        assert "vllm:cache_config_info" in http.get("/metrics").text
        assert http.get("/nowhere").status_code == 404
