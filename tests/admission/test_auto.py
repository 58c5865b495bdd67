"""``estimator="auto"``: nothing is given, and requests are measured as they come."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from gpu_admission import Admission, Estimate, GPUAdmission, RequestInfo, Workload
from gpu_admission.estimators import Learned
from gpu_admission.estimators.auto import AutoMeter
from gpu_admission.estimators.auto import auto as built
from gpu_admission.estimators.measured import Measured
from gpu_admission.testing import FakeDevice, settle
from gpu_admission.types import Message, Receive, Scope, Send
from tests.bench.asgi import call, scope_of
from tests.workloads.answers import chat, packed

pytestmark = pytest.mark.anyio

MIB = 2**20
CAPACITY = 1000 * MIB
BASE, PER_TOKEN = 20 * MIB, 2**15
PATH = "/v1/chat/completions"
USUAL = 100


def cost(new: int) -> int:
    """Bytes that the world takes for ``new`` tokens."""
    return BASE + PER_TOKEN * new


class World:
    """An app whose memory is known: it runs a request until it is told, and tells what tokens it used."""

    def __init__(self, *, asks_back: bool = True) -> None:
        self.used = self.most = 0
        self.running = 0
        self.gates: list[anyio.Event] = []
        self.out_of_memory = 0
        self.status = 200
        self.share = 1.0
        """Of the tokens asked, those that are used."""
        self._tells = asks_back

    def start(self) -> int:
        self.most = self.used
        return self.used

    def peak(self) -> int:
        return self.most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        new = int(json.loads((await receive())["body"])["max_tokens"] * self.share)
        size = cost(new) if self.status == 200 else 0
        gate = anyio.Event()
        if self.used + size > CAPACITY:
            self.out_of_memory += 1
            raise MemoryError("CUDA out of memory")
        self.used += size
        self.most = max(self.most, self.used)
        self.running += 1
        self.gates.append(gate)
        try:
            await gate.wait()
        finally:
            self.running -= 1
            self.used -= size
        usage: dict[str, Any] = (
            {"usage": {"prompt_tokens": 10, "completion_tokens": new}} if self._tells else {}
        )
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": packed(chat(**usage))})

    def finish(self) -> None:
        for gate in self.gates:
            gate.set()
        self.gates.clear()


def body(new: int = USUAL, model: str = "m") -> bytes:
    messages = [{"role": "user", "content": "hello"}]
    return json.dumps({"model": model, "messages": messages, "max_tokens": new}).encode()


def gate_of(world: World, **options: Any) -> GPUAdmission:
    estimator = Learned(Measured(waits=options.get("mode") != "shadow"), usage=True, meter=world)
    return GPUAdmission(world, capacity=CAPACITY, estimator=estimator, guards=(), **options)


async def served(gate: GPUAdmission, world: World, *requests: bytes, path: str = PATH) -> list[list[Message]]:
    """All of them sent at once; answered as they come to run."""
    answers: list[list[Message]] = []

    async def one(content: bytes) -> None:
        try:
            answers.append(await call(gate, scope_of(path), content))
        except MemoryError:
            answers.append([])

    async with anyio.create_task_group() as group:
        for content in requests:
            group.start_soon(one, content)
        while len(answers) < len(requests):
            await settle()
            world.finish()
    return answers


def charge(gate: GPUAdmission, new: int = USUAL, path: str = PATH) -> int:
    """What such a request is charged beside others; nothing is changed by asking."""
    (estimator,) = gate.admission.metering.estimators()
    assert isinstance(estimator, Learned)
    twin = built(waits=False)
    twin.restore(estimator.to_dict())
    twin.bind(lambda: CAPACITY)
    results = [twin(RequestInfo(scope_of(path), body(new))) for _ in range(2)]
    sizes = [result.bytes for result in results if isinstance(result, Estimate)]
    return sizes[-1]


async def learned(gate: GPUAdmission, world: World, times: int = 60) -> None:
    for _ in range(times):
        await served(gate, world, body())


async def test_the_first_of_a_route_runs_alone_and_others_wait_for_it() -> None:
    world = World()
    gate = gate_of(world)
    async with anyio.create_task_group() as group:
        for _ in range(8):
            group.start_soon(call, gate, scope_of(PATH), body())
        await settle()
        assert world.running == 1
        assert gate.admission.in_use == CAPACITY
        world.finish()
        await settle()
        assert gate.admission.waiting + world.running == 7
        while world.running:
            world.finish()
            await settle()
    assert world.out_of_memory == 0


async def test_of_those_that_wait_the_largest_is_measured_next_and_the_others_are_charged_by_it() -> None:
    world = World()
    gate = gate_of(world)
    async with anyio.create_task_group() as group:
        for new in (100, 300, 10_000, 700, 1200):
            group.start_soon(call, gate, scope_of(PATH), body(new))
            await settle()
        assert world.used == cost(100)  # of which nothing could be known
        world.finish()
        await settle()
        assert world.used == cost(10_000)
        assert world.running == 1
        for _ in range(5):
            world.finish()
            await settle()
    assert world.out_of_memory == 0
    assert cost(10_000) <= charge(gate, 10_000) <= 1.5 * cost(10_000)


async def test_after_a_few_measurements_as_many_run_as_fit() -> None:
    world = World()
    gate = gate_of(world)
    await learned(gate, world)
    async with anyio.create_task_group() as group:
        for _ in range(100):
            group.start_soon(call, gate, scope_of(PATH), body())
        await settle()
        assert 0.8 * CAPACITY <= world.used <= CAPACITY
        while world.running:
            world.finish()
            await settle()
    assert world.out_of_memory == 0


async def test_a_burst_at_the_very_start_is_not_run_one_by_one() -> None:
    world = World()
    gate = gate_of(world)
    most = 0
    async with anyio.create_task_group() as group:
        for _ in range(48):
            group.start_soon(call, gate, scope_of(PATH), body())
        await settle()
        rounds = 0
        while world.running or gate.admission.waiting:
            most = max(most, world.running)
            world.finish()
            await settle()
            rounds += 1
    assert world.out_of_memory == 0
    assert rounds <= 12
    assert most >= 10


async def test_a_charge_is_never_below_what_was_seen_for_its_size_or_a_smaller_one() -> None:
    world = World()
    gate = gate_of(world)
    for new in (100, 2000, 500, 4000, 50, 1000, 3000, 250):
        await served(gate, world, body(new))
    for new in (50, 100, 250, 500, 1000, 2000, 3000, 4000):
        assert charge(gate, new) >= cost(new)
        assert charge(gate, new) <= 2 * cost(new)


async def test_the_margin_shrinks_with_evidence() -> None:
    world = World()
    gate = gate_of(world)
    charges = []
    for _ in range(30):
        await served(gate, world, *[body()] * 5)
        charges.append(charge(gate))
    assert charges[-1] < 1.12 * cost(USUAL)
    assert charges[3] > charges[-1] >= cost(USUAL)


async def test_a_size_beyond_all_that_was_seen_runs_alone_and_others_meanwhile_by_a_generous_guess() -> None:
    world = World()
    gate = gate_of(world)
    await learned(gate, world)
    async with anyio.create_task_group() as group:
        group.start_soon(call, gate, scope_of(PATH), body(1000))
        await settle()
        assert (world.running, gate.admission.in_use) == (1, CAPACITY)
        (estimator,) = gate.admission.metering.estimators()
        guess = estimator(RequestInfo(scope_of(PATH), body(1000)))
        assert isinstance(guess, Estimate)
        guessed = guess.bytes
        assert cost(1000) < guessed < CAPACITY
        world.finish()
    assert cost(1000) <= charge(gate, 1000) < guessed


async def test_what_answers_use_is_learned_on_top_of_what_was_measured() -> None:
    world = World()
    world.share = 0.1
    gate = gate_of(world)
    for _ in range(30):
        await served(gate, world, *[body(4000), body(3000)] * 3)
    assert cost(400) <= charge(gate, 4000) <= 1.3 * cost(400)
    assert world.out_of_memory == 0


async def test_where_answers_tell_nothing_what_was_asked_is_charged() -> None:
    world = World(asks_back=False)
    gate = gate_of(world)
    await learned(gate, world)
    assert cost(USUAL) <= charge(gate) <= 1.12 * cost(USUAL)


async def test_an_out_of_memory_makes_it_careful_again() -> None:
    world = World()
    gate = gate_of(world)
    await learned(gate, world)
    before = charge(gate)
    world.used += CAPACITY
    await served(gate, world, body())
    world.used -= CAPACITY
    assert charge(gate) > before


@pytest.mark.parametrize("times", [1, 8])
async def test_those_that_asked_for_far_more_than_they_used_vouch_for_no_size(times: int) -> None:
    world = World()
    gate = gate_of(world)
    await learned(gate, world)
    world.share = 5 / 10**9
    for _ in range(times):
        await served(gate, world, body(10**9))
    world.share = 1.0
    for _ in range(5):
        await served(gate, world, *[body(8000)] * 12)
    assert world.out_of_memory == 0


async def test_eight_short_answers_at_the_very_start_make_none_of_the_long_ones_run_out_of_memory() -> None:
    world = World()
    gate = gate_of(world)
    world.share = 0.001
    await served(gate, world, *[body(8000)] * 8)
    world.share = 1.0
    await served(gate, world, *[body(8000)] * 40)
    assert world.out_of_memory == 0


async def test_a_path_that_the_app_does_not_know_can_not_keep_the_device_to_itself() -> None:
    world = World()
    gate = gate_of(world)
    await learned(gate, world)
    world.status = 404
    alone = 0
    for i in range(60):
        async with anyio.create_task_group() as group:
            group.start_soon(call, gate, scope_of(f"/nothing/{i}"), body())
            await settle()
            alone += gate.admission.in_use == CAPACITY
            world.finish()
    assert alone <= 8
    assert gate.admission.report().learning == (f"learned {PATH}",)


async def test_models_that_clients_make_up_do_not_push_out_what_is_known() -> None:
    world = World()
    gate = gate_of(world)
    await learned(gate, world)
    world.status = 404
    for i in range(200):
        await served(gate, world, body(model=f"made-up-{i}"))
    world.status = 200
    assert charge(gate) < 1.2 * cost(USUAL)


@pytest.mark.parametrize("varies", ["model", "path"])
async def test_names_that_an_app_takes_whatever_they_are_can_not_keep_the_device_or_push_out_what_is_known(
    varies: str,
) -> None:
    world = World()
    gate = gate_of(world)
    await learned(gate, world)
    alone = 0
    for i in range(200):
        path, content = (PATH, body(model=f"any-{i}")) if varies == "model" else (f"/any/{i}", body())
        async with anyio.create_task_group() as group:
            group.start_soon(call, gate, scope_of(path), content)
            await settle()
            alone += gate.admission.in_use == CAPACITY
            world.finish()
    assert alone <= 80
    assert charge(gate) < 1.2 * cost(USUAL)


@pytest.mark.parametrize("path", ["", " ", " x", "*"])
async def test_a_path_that_is_blank_is_a_route_as_others_are(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    world = World()
    gate = gate_of(world)
    for _ in range(3):
        await served(gate, world, body(), path=path)
    assert gate.admission.report().learning
    assert gate.admission.in_use == 0
    assert not caplog.records


async def test_a_request_that_is_refused_while_it_waits_to_be_measured_holds_up_none(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    gate = gate_of(world, timeout=0)
    async with anyio.create_task_group() as group:
        group.start_soon(call, gate, scope_of(PATH), body())
        await settle()
        refused = await call(gate, scope_of("/v1/completions"), body())
        assert refused[0]["status"] == 429
        same = await call(gate, scope_of(PATH), body())
        assert same[0]["status"] == 429
        world.finish()
    await served(gate, world, body())
    assert world.out_of_memory == 0
    assert not caplog.records


async def test_those_that_wait_are_charged_by_what_is_learned_meanwhile() -> None:
    world = World()
    gate = gate_of(world)
    for _ in range(4):
        await served(gate, world, body())
    async with anyio.create_task_group() as group:
        for _ in range(80):
            group.start_soon(call, gate, scope_of(PATH), body())
        await settle()
        first = max(waiting.bytes for waiting in gate.admission.queue())
        for open_gate in world.gates[:20]:
            open_gate.set()
        await settle()
        now = {waiting.bytes for waiting in gate.admission.queue()}
        assert max(now) < first
        assert now == {charge(gate)}
        while world.running:
            world.finish()
            await settle()
    assert world.out_of_memory == 0
    assert gate.admission.in_use == 0


async def test_one_that_waits_with_a_generous_guess_is_charged_what_another_of_its_size_took() -> None:
    world = World()
    gate = gate_of(world)
    await learned(gate, world)
    async with anyio.create_task_group() as group:
        group.start_soon(call, gate, scope_of(PATH), body(1000))
        await settle()
        group.start_soon(call, gate, scope_of(PATH), body(1000))
        await settle()
        ((guess,),) = [[waiting.bytes for waiting in gate.admission.queue()]]
        world.finish()
        await settle()
        assert cost(1000) <= gate.admission.in_use == charge(gate, 1000) < guess
        world.finish()
    assert world.out_of_memory == 0


async def test_how_far_it_has_learned_is_reported() -> None:
    world = World()
    gate = gate_of(world)
    for _ in range(12):
        await served(gate, world, body())
    report = gate.admission.report()
    assert report.learning == (f"learning {PATH}: 12 of 40",)
    assert str(report).endswith(f"learning {PATH}: 12 of 40")
    await learned(gate, world)
    assert gate.admission.report().learning == (f"learned {PATH}",)


async def test_those_that_wait_until_one_has_run_alone_are_reported() -> None:
    world = World()
    gate = gate_of(world)
    async with anyio.create_task_group() as group:
        for _ in range(5):
            group.start_soon(call, gate, scope_of(PATH), body())
        await settle()
        said = f"learning {PATH}: 0 of 40 (4 wait until one has run alone)"
        assert gate.admission.report().learning == (said,)
        while world.running:
            world.finish()
            await settle()
    assert gate.admission.report().learning == (f"learning {PATH}: 5 of 40",)


async def test_a_refusal_says_that_the_request_was_to_be_measured_alone() -> None:
    gate = gate_of(World(), timeout=0)
    lease = await gate.admission.entrance.acquire(Estimate(1))
    _, problem = await call(gate, scope_of(PATH), body())
    lease.release()
    detail = json.loads(problem["body"])["detail"]
    assert detail.endswith(
        "; it was charged the whole capacity, to be measured alone: nothing is known of its route"
    )


async def test_in_shadow_mode_nothing_waits_to_be_measured() -> None:
    world = World()
    gate = gate_of(world, mode="shadow")
    async with anyio.create_task_group() as group:
        for _ in range(5):
            group.start_soon(call, gate, scope_of(PATH), body())
        await settle()
        assert world.running == 5
        world.finish()


async def test_a_call_into_the_same_app_is_part_of_the_request_around_it() -> None:
    world = World()

    async def outer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] != "/outer":
            await world(scope, receive, send)
            return
        await call(gate, scope_of(PATH), body())
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    estimator = Learned(Measured(), usage=True, meter=world)
    gate = GPUAdmission(outer, capacity=CAPACITY, estimator=estimator)
    for _ in range(10):
        (answer,) = await served(gate, world, body(), path="/outer")
        assert answer[0]["status"] == 200
    assert cost(USUAL) <= charge(gate, path="/outer") <= 1.3 * cost(USUAL)


class TestSettings:
    def test_alone_it_is_a_whole_setting(self) -> None:
        admission = Admission()
        (estimator,) = admission.metering.estimators()
        assert isinstance(estimator, Learned)
        assert isinstance(estimator.inner, Measured)
        assert isinstance(estimator.meter, AutoMeter)

    def test_it_may_stand_for_some_paths(self) -> None:
        admission = Admission(capacity="85%", estimator={"/a": "auto", "/b": "auto", "/c": "1GiB"})
        first, second, third = admission.metering.estimators()
        assert first is second
        assert not isinstance(third, Learned)

    def test_a_connection_can_not_be_measured_and_needs_an_estimator_of_its_own(self) -> None:
        device = FakeDevice("24GiB")
        mapping: dict[str, Any] = {"/ws": "auto", "/**": "1GiB"}
        for estimator in ("auto", mapping):
            with pytest.raises(
                ValueError, match=r"^websockets: .*estimator=\{'/ws': '1GiB', '/\*\*': 'auto'\}"
            ):
                Admission(devices=[device], estimator=estimator, websockets=["/ws"])
        mixed: dict[str, Any] = {"/ws": "1GiB", "/**": "auto"}
        Admission(devices=[device], estimator=mixed, websockets=["/ws"])

    async def test_a_connection_on_a_path_of_auto_is_charged_the_fallback(self) -> None:
        charged: list[int] = []

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            charged.append(gate.admission.in_use)

        async def silent(*message: Message) -> Any:
            await anyio.sleep_forever()

        gate = gate_of(World(), websockets=["/ws"], fallback=7)
        gate.app = app
        for _ in range(3):
            await gate({**scope_of("/ws"), "type": "websocket"}, silent, silent)
        assert charged == [7, 7, 7]
        assert gate.admission.in_use == 0

    def test_where_nothing_can_be_measured_construction_says_what_to_name(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("torch", "onnxruntime", "tensorflow", "jax", "mlx", "llama_cpp", "ctranslate2", "cupy"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        with pytest.raises(ValueError, match=r"nothing to measure.*TransformersLM.*KVCache.*model="):
            Admission(capacity="20GiB")
        Admission(capacity="20GiB", devices=[FakeDevice()])
        monkeypatch.setitem(sys.modules, "onnxruntime", SimpleNamespace())
        Admission(capacity="20GiB")

    def test_a_config_takes_the_place_of_measuring(self, tmp_path: Path) -> None:
        config = tmp_path / "config.json"
        config.write_text(json.dumps(QWEN))
        admission = Admission(capacity="20GiB", model=config)
        (estimator,) = admission.metering.estimators()
        assert isinstance(estimator, Learned)
        assert estimator.usage
        assert estimator.estimate(Workload(prompt_tokens=100, new_tokens=100)).bytes > MIB
        with pytest.raises(ValueError, match="model is for estimator='auto'"):
            Admission(capacity="20GiB", model=config, estimator=5)
        wrongs: list[Any] = [tmp_path / "nothing.json", {}, 5]
        for wrong in wrongs:
            with (
                warnings.catch_warnings(action="ignore"),
                pytest.raises(Exception, match=r"model:") as raised,
            ):
                Admission(capacity="20GiB", model=wrong)
            assert raised.type in (ValueError, TypeError)


QWEN = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_attention_heads": 14,
    "num_hidden_layers": 24,
    "num_key_value_heads": 2,
    "vocab_size": 151936,
    "torch_dtype": "bfloat16",
}


class TestState:
    async def test_what_was_learned_is_kept_over_a_restart(self, tmp_path: Path) -> None:
        file = tmp_path / "learned.json"
        world = World()
        gate = gate_of(world, state=file)
        await learned(gate, world)
        before = charge(gate)
        await gate.admission.aclose()
        again = gate_of(World(), state=file)
        assert charge(again) == before
        assert again.admission.report().learning == (f"learned {PATH}",)

    @pytest.mark.parametrize(
        "text",
        [
            json.dumps(QWEN),
            '{"version": 2, "routes": {}}',
            "[]",
            "[" * 100_000,
            '{"estimator": {"version": 2, "routes": {}, "measured": {"routes": {"/": {"fit": '
            '{"rows": [], "top": [0, 0, 0, 0, 0, 0, 0]}, "good": 1e999, "runs": 0, "grows": true}}}}}',
            '{"estimator": {"version": 2, "routes": {}, "measured": {"/": {}}}}',
        ],
    )
    def test_a_file_that_is_anothers_is_named_and_not_written_over(self, tmp_path: Path, text: str) -> None:
        file = tmp_path / "config.json"
        file.write_text(text)
        with pytest.raises(ValueError, match=r"^state: .*config\.json can't be read"):
            gate_of(World(), state=file)
        assert file.read_text() == text

    async def test_it_is_written_when_the_server_stops(self, tmp_path: Path) -> None:
        file = tmp_path / "learned.json"

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await send({"type": "lifespan.startup.complete"})
            await send({"type": "lifespan.shutdown.complete"})

        async def send(message: Message) -> None:
            pass

        async def receive() -> Message:
            return {}

        gate = GPUAdmission(app, capacity=100, estimator=Learned(lambda info: 1), state=file)
        await gate({"type": "lifespan"}, receive, send)
        assert json.loads(file.read_text())["estimator"]["version"] == 2

    @pytest.mark.parametrize("text", ["{", "[]", '{"estimator": 5}', '{"estimator": {"version": 1}}'])
    def test_a_file_that_is_none_is_an_error_that_names_the_setting(self, tmp_path: Path, text: str) -> None:
        file = tmp_path / "learned.json"
        file.write_text(text)
        with pytest.raises(ValueError, match=r"state: .*can't be read"):
            gate_of(World(), state=file)

    def test_where_nothing_learns_there_is_nothing_to_keep(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="state: nothing learns"):
            Admission(capacity=100, estimator=1, state=tmp_path / "learned.json")


class TestMeter:
    def test_a_device_that_is_read_shows_what_is_in_use(self) -> None:
        device = FakeDevice("24GiB", ours="1GiB")
        meter = AutoMeter()
        meter.watch(lambda: [device])
        before = meter.start()
        device.ours += 5 * MIB
        assert meter.peak() - before == 5 * MIB
        assert not meter.is_exact

    def test_torch_counts_what_it_allocates_itself(self, monkeypatch: pytest.MonkeyPatch) -> None:
        cuda = SimpleNamespace(
            is_available=lambda: True,
            reset_peak_memory_stats=lambda device: None,
            memory_allocated=lambda device: 100,
            max_memory_allocated=lambda device: 150,
        )
        torch = SimpleNamespace(cuda=cuda, version=SimpleNamespace(cuda="12.8", hip=None))
        monkeypatch.setitem(sys.modules, "torch", torch)
        meter = AutoMeter()
        assert (meter.start(), meter.peak(), meter.is_exact) == (100, 150, True)

    def test_without_a_device_the_process_is_looked_at(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delitem(sys.modules, "torch", raising=False)
        meter = AutoMeter()
        before = meter.start()
        held = bytearray(64 * MIB)
        assert meter.peak() - before >= 60 * MIB
        del held

    def test_a_device_that_shows_nothing_says_what_to_name(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delitem(sys.modules, "torch", raising=False)
        device = FakeDevice()
        device.error = "no driver"
        meter = AutoMeter()
        meter.watch(lambda: [device])
        with pytest.raises(RuntimeError, match=r"can measure nothing.*Constant"):
            meter.start()


async def test_the_first_measurement_of_an_exact_meter_is_a_warm_up() -> None:
    class Exact(World):
        is_exact = True

        def peak(self) -> int:
            self.asked = getattr(self, "asked", 0) + 1
            return super().peak() + (500 * MIB if self.asked == 1 else 0)

    world = Exact()
    gate = gate_of(world)
    await served(gate, world, body())
    assert charge(gate) > 500 * MIB or charge(gate) == CAPACITY
    await served(gate, world, body())
    await served(gate, world, body())
    await served(gate, world, body())
    assert charge(gate) < 2 * cost(USUAL)


async def test_a_meter_that_does_not_know_when_a_peak_came_is_left_alone_while_several_run() -> None:
    class Exact(World):
        is_exact, idle, resumed = True, 0, 0

        def resume(self) -> int:
            self.resumed += 1
            return self.start()

    world = Exact()
    gate = gate_of(world)
    for _ in range(6):
        await served(gate, world, *[body()] * 6)
    assert world.resumed == 0
    assert world.out_of_memory == 0


def test_it_is_a_learned_underneath() -> None:
    estimator = built()
    assert isinstance(estimator, Learned)
    assert estimator.usage
