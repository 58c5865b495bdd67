"""A plan's numbers: capacity term by term, how many at once, and what the ledger makes of them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_admission.estimators import Linear, ModelConfig
from gpu_admission.planning.demand import Demand, at_once, at_rate, from_trace, parse_mix
from gpu_admission.planning.gpus import find_gpu
from gpu_admission.planning.plan import Memory, Plan, Sized, charges, estimator_for, make_plan, settings
from gpu_admission.planning.roofline import Roofline, engines, roofline_of
from gpu_admission.planning.waiting import SUSTAINED, Setting, Slo, largest_load, three_digits
from gpu_admission.planning.weights import weights_of
from gpu_admission.sizes import GIB

DATA = Path(__file__).parent / "data"
CODE = DATA / "azure2023_code_head.csv"
QWEN: Mapping[str, Any] = {
    "model_type": "qwen2",
    "hidden_size": 1536,
    "intermediate_size": 8960,
    "num_hidden_layers": 28,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}
"""Qwen2-1.5B."""
MIX = parse_mix("100x128+128,10x1024+128")


def card_of(gpu: str = "A10G", engine: str = "vllm") -> Roofline:
    model = ModelConfig.read(QWEN)
    return roofline_of(model, find_gpu(gpu), engines()[engine], weights_of(QWEN, model), kv_dtype="bf16")


def planned(
    demand: Demand, *, gpu: str = "A10G", engine: str = "vllm", costs: Linear | None = None, **memory: Any
) -> tuple[Plan, Setting]:
    model, card = ModelConfig.read(QWEN), card_of(gpu, engine)
    sized: Sized = costs or estimator_for(model, card, dtype="bf16", kv_dtype="bf16")
    plan = make_plan(model, card, demand, sized, memory=Memory(**memory), dtype="bf16")
    return plan, Setting(card=card, capacity=plan.capacity, charged=charges(demand, sized))


def test_the_capacity_is_the_sum_of_its_terms() -> None:
    plan, _ = planned(at_once(MIX))
    assert plan.terms["memory"] == 24 * GIB
    assert plan.terms["weights"] == -3_087_313_920
    assert plan.capacity == sum(plan.terms.values())
    assert plan.per_token == 28_672


def test_without_a_pool_a_margin_is_kept_and_activations_are_the_requests_own() -> None:
    plan, _ = planned(at_once(MIX), engine="transformers", margin=0.2)
    left = 24 * GIB - 3_087_313_920 - GIB // 2
    assert plan.capacity == left - int(left * 0.2)
    assert plan.per_prompt_token > 0
    assert "TransformersLM.from_config" in settings(plan, config="x", kv_dtype="bf16", wait=5)


def test_what_is_said_in_settings_is_python_that_makes_the_middleware(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN))
    plan, _ = planned(at_once(MIX))
    lines = settings(plan, config=str(tmp_path), kv_dtype="bf16", wait=5)
    added: list[dict[str, Any]] = []

    class App:
        def add_middleware(self, kind: object, **options: Any) -> None:
            added.append(options)

    exec(lines, {"app": App()})
    assert added[0]["timeout"] == 5
    assert added[0]["capacity"] == f"{plan.capacity / GIB:.2f}GiB"


def test_a_card_that_the_weights_fill_is_refused_term_by_term() -> None:
    with pytest.raises(ValueError, match=r"A10G has no room for requests: memory \+24.00 GiB, .*-2.88"):
        planned(at_once(MIX), context=24 * GIB)


def test_requests_that_fit_no_capacity_are_counted() -> None:
    plan, setting = planned(at_once(parse_mix("3x128+128,2x900000+1")))
    assert plan.notes == ("2 of 5 requests are larger than all the capacity, and would get 413",)
    assert plan.slots == 0
    played = setting.play(at_once(parse_mix("3x128+128,2x900000+1")))
    assert played.completed == 3 / 5


SEED = Linear({"prompt_tokens": 2_000_000}, constant=800_000_000)
"""What the worksheet of a 24 GB A10G with Qwen2-1.5B says of a request: 0.8 GB, and 0.002 GB a token."""
SEED_BASE = 3_800_000_000
"""And of the card before the first one."""


def test_the_worksheet_of_100_short_and_10_long_requests_on_an_a10g() -> None:
    """Its safe N is (24 - 3.8) / 2.848 = 7 of the longest; bytes start 19 short ones, and end sooner."""
    demand = at_once(MIX)
    weights = 3_087_313_920
    plan, setting = planned(
        demand, engine="transformers", costs=SEED, total=24 * 10**9, context=SEED_BASE - weights, margin=0.0
    )
    assert plan.capacity == 24 * 10**9 - SEED_BASE
    assert plan.slots == 7 == (24 * 10**9 - SEED_BASE) // (800_000_000 + 1024 * 2_000_000)
    worst, _, _ = plan.sizes
    assert worst.bytes == 2_848_000_000
    slots, ours = setting.play(demand, permits=plan.slots), setting.play(demand)
    assert slots.completed == ours.completed == 1
    assert slots.at_once == 7
    assert 14 <= ours.at_once <= 19


def test_bytes_let_more_run_than_the_safe_n_and_answer_sooner_where_requests_are_batched() -> None:
    demand = at_once(MIX)
    plan, setting = planned(demand, costs=SEED, total=24 * 10**9)
    slots, ours = setting.play(demand, permits=plan.slots), setting.play(demand)
    assert ours.at_once > plan.slots
    assert ours.span < slots.span
    assert ours.wait(0.95) < slots.wait(0.95)


def test_without_batching_more_at_once_is_no_faster() -> None:
    demand = at_once(parse_mix("8x128+32"))
    _, setting = planned(demand, engine="transformers")
    one, all_of_them = setting.play(demand, permits=1), setting.play(demand)
    assert all_of_them.at_once == 8
    assert all_of_them.span == pytest.approx(one.span, rel=0.01)


def test_a_request_alone_takes_what_the_roofline_says() -> None:
    demand = at_once(parse_mix("512+256"))
    _, setting = planned(demand)
    card = setting.card
    played = setting.play(demand)
    assert played.waits == [0.0]
    assert played.span == pytest.approx(card.seconds(512, 256), rel=0.02)


@given(st.integers(1, 4000), st.integers(1, 500), st.integers(1, 200))
def test_more_at_once_never_makes_one_faster_nor_all_slower(prompt: int, new: int, count: int) -> None:
    card = card_of()
    assert card.step(count + 1) >= card.step(count)
    assert card.machine(prompt, new, count + 1) * 0.999 <= card.machine(prompt, new, count)


def test_a_mixture_reads_more_experts_the_more_tokens_a_step_has() -> None:
    config = {
        "model_type": "mixtral",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 32000,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "torch_dtype": "bfloat16",
    }
    model = ModelConfig.read(config)
    weights = weights_of(config, model)
    card = roofline_of(model, find_gpu("H200"), engines()["vllm"], weights, kv_dtype="bf16")
    one, many = card.step(1) - card.overhead, card.step(64) - card.overhead
    assert one == pytest.approx(weights.read / card.bandwidth)
    assert many == pytest.approx(weights.every / card.bandwidth, rel=0.01)


def test_a_promise_is_read_and_kept_or_not() -> None:
    assert Slo.parse("p95<5s") == Slo("wait", 0.95, 5.0)
    assert Slo.parse("answer p50 < 250ms") == Slo("answer", 0.5, 0.25)
    assert str(Slo.parse("wait p99<2s")) == "wait p99<2s"
    for text in ("p95", "p95<", "p0<1s", "p100<1s", "first p95<1s", "p95>1s"):
        with pytest.raises(ValueError, match="write"):
            Slo.parse(text)


def test_the_largest_load_that_keeps_a_promise_is_found_between_too_little_and_too_much() -> None:
    demand = at_rate(parse_mix("512+256"), 1.0, count=600)
    plan, setting = planned(demand)
    slo = Slo.parse("answer p95<20s")
    found = largest_load(setting, demand, slo, most=3 * plan.load_limit)
    assert 0.2 * plan.load_limit < found < 3 * plan.load_limit
    assert slo.kept(setting.play(demand.faster(found / demand.rate)))
    assert not slo.kept(setting.play(demand.faster(1.1 * found / demand.rate)))
    assert largest_load(setting, demand, Slo.parse("answer p95<1ms"), most=1.0) == 0.0


ASKED = ("500+200", "100x128+128,10x8000+300", "3x50+500,1x4000+10")


@pytest.mark.parametrize("mix", ASKED)
@pytest.mark.parametrize("engine", ["transformers", "vllm", "llama.cpp"])
@pytest.mark.parametrize("gpu", ["RTX 4090", "T4"])
def test_a_card_that_is_full_answers_what_its_limit_says(gpu: str, engine: str, mix: str) -> None:
    demand = at_rate(parse_mix(mix), 1.0)
    plan, setting = planned(demand, gpu=gpu, engine=engine)
    full = setting.play(demand.faster(3 * plan.load_limit))
    assert full.rate == pytest.approx(plan.load_limit, rel=0.03)


@pytest.mark.parametrize("promise", ["p95<2s", "answer p95<30s", "p99<100ms"])
@pytest.mark.parametrize("mix", [*ASKED, "3x50000+500,20x15000+100"])
@pytest.mark.parametrize("engine", ["transformers", "vllm"])
def test_what_is_promised_is_kept_when_it_is_played_and_below_what_can_be_answered(
    engine: str, mix: str, promise: str
) -> None:
    parts, slo = parse_mix(mix), Slo.parse(promise)
    demand = at_rate(parts, 1.0)
    plan, setting = planned(demand, gpu="RTX 4090", engine=engine)
    found = largest_load(setting, demand, slo, most=SUSTAINED * plan.load_limit)
    assert 0 < found <= SUSTAINED * plan.load_limit
    assert slo.kept(setting.play(at_rate(parts, found)))


@pytest.mark.slow
@pytest.mark.parametrize("mix", ASKED)
@pytest.mark.parametrize("engine", ["transformers", "vllm"])
def test_the_most_that_is_promised_keeps_no_queue_however_long_it_is_played(engine: str, mix: str) -> None:
    plan, _ = planned(at_rate(parse_mix(mix), 1.0), gpu="RTX 4090", engine=engine)
    longer = at_rate(parse_mix(mix), SUSTAINED * plan.load_limit, count=20_000, seed=1)
    _, setting = planned(longer, gpu="RTX 4090", engine=engine)
    assert setting.play(longer).wait(0.99) == 0


@given(st.floats(1e-6, 1e9))
def test_a_rate_is_rounded_down_to_what_is_printed_of_it(rate: float) -> None:
    found = three_digits(rate)
    assert 0.989 * rate < found <= rate
    assert float(f"{found:.3g}") == found == three_digits(found)


def test_one_that_gave_up_counts_as_having_waited_for_ever() -> None:
    demand = at_once(parse_mix("300x4000+400"))
    _, setting = planned(demand)
    played = msgspec.structs.replace(setting, timeout=0.0).play(demand)
    assert played.completed < 1
    assert math.isinf(played.wait(0.99))


def test_a_mix_is_read_and_what_is_none_is_refused() -> None:
    assert [(part.count, part.prompt, part.new) for part in MIX] == [(100, 128, 128), (10, 1024, 128)]
    for text in ("", "12", "0x1+1", "1x0+0", "axb+c", "1x2+3,", "90000x1+1"):
        with pytest.raises(ValueError, match="--mix"):
            parse_mix(text)


def test_requests_come_all_at_once_at_a_rate_or_as_a_trace_says() -> None:
    burst, poisson, trace = at_once(MIX), at_rate(MIX, 4.0, count=2000), from_trace(CODE)
    assert burst.at_once
    assert len(burst) == 110
    assert sum(prompt == 1024 for prompt in burst.prompts) == 10
    assert poisson.rate == pytest.approx(4.0)
    assert poisson.faster(2.0).rate == pytest.approx(2 * poisson.rate)
    assert len(trace) == 1200
    with pytest.raises(ValueError, match="is a decision log"):
        from_trace(Path("x.jsonl"))


def test_weights_come_from_what_is_given_then_from_files_then_from_the_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN))
    model = ModelConfig.read(tmp_path)
    assert weights_of(tmp_path, model).bytes == 3_087_313_920
    assert weights_of(tmp_path, model, dtype="q4_0").bytes < 1_300_000_000
    index = {"metadata": {"total_size": 3_000_000_000}, "weight_map": {}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert weights_of(tmp_path, model).bytes == 3_000_000_000
    assert weights_of(tmp_path, model, given="1GiB").bytes == GIB


def test_quantised_weights_keep_their_tables_wide() -> None:
    config = {**QWEN, "quantization_config": {"quant_method": "awq", "bits": 4}}
    model = ModelConfig.read(config)
    assert model.parameters is not None
    found = weights_of(config, model)
    inner = model.parameters.total - model.parameters.embeddings
    assert found.bytes == pytest.approx(inner * 4.25 / 8 + model.parameters.embeddings * 2, rel=1e-6)
    assert found.bytes == pytest.approx(1.18 * GIB, rel=0.12)  # GPTQ-Int4 of Qwen2.5-1.5B, published peak


def test_a_model_that_does_not_tell_its_parameters_needs_its_weights_given() -> None:
    config = {"model_type": "mamba2", "num_hidden_layers": 4, "hidden_size": 64, "torch_dtype": "bfloat16"}
    model = ModelConfig.read(config)
    with pytest.raises(ValueError, match="give --weights SIZE"):
        weights_of(config, model)
    assert weights_of(config, model, given="1GiB").read == GIB
