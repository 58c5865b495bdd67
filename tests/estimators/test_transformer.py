"""``TransformersLM``: published peaks, and each term by itself."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_admission.estimators import TransformersLM, Vision
from gpu_admission.estimators.model.activations import AttentionPath
from gpu_admission.types import Estimate, Workload
from tests.estimators.published import (
    DEEPSEEK,
    GEMMA,
    GIB,
    JAMBA,
    LLAMA,
    QWEN_VISION,
    T5,
    WHISPER,
    load,
    table,
)

QWEN = load("qwen_speed.json")


def qwen(name: str, **options: Any) -> TransformersLM:
    return TransformersLM.from_config(
        QWEN["models"][name]["config"], dtype="bf16", attention="flash", **options
    )


def generating(prompt: int) -> Workload:
    return Workload(prompt_tokens=prompt, new_tokens=2048)


def calibrated(lm: TransformersLM, rows: str, name: str, margin: float = 0.0) -> TransformersLM:
    """On the smallest row of a model."""
    peak = next(size for model, prompt, size in QWEN[rows] if model == name and prompt == 1)
    weights = 2 * QWEN["models"][name]["parameters"]
    return lm.calibrated(generating(1), f"{peak}GiB", baseline=weights, margin=margin)


@pytest.mark.parametrize(("name", "prompt", "peak"), QWEN["qwen2.5"])
def test_peaks_since_4_45_are_met_without_calibration(name: str, prompt: int, peak: float) -> None:
    total = 2 * QWEN["models"][name]["parameters"] + qwen(name).estimate(generating(prompt)).bytes
    assert abs(total / GIB - peak) <= 0.2


@pytest.mark.parametrize(("name", "prompt", "peak"), QWEN["qwen2"])
def test_peaks_before_4_45_are_met_after_calibration_at_one_point(
    name: str, prompt: int, peak: float
) -> None:
    lm = calibrated(qwen(name, keeps_all_logits=True), "qwen2", name)
    total = 2 * QWEN["models"][name]["parameters"] + lm.estimate(generating(prompt)).bytes
    assert abs(total / GIB - peak) <= 0.25


@pytest.mark.parametrize("rows", ["qwen2.5", "qwen2"])
def test_no_peak_is_above_the_estimate_with_calibration_and_5_percent(rows: str) -> None:
    for name, prompt, peak in QWEN[rows]:
        lm = calibrated(qwen(name, keeps_all_logits=rows == "qwen2"), rows, name, margin=0.05)
        total = 2 * QWEN["models"][name]["parameters"] + lm.estimate(generating(prompt)).bytes
        assert total >= peak * GIB


def parts(config: dict[str, Any] = LLAMA, workload: Workload | None = None, **options: Any) -> dict[str, int]:
    lm = TransformersLM.from_config(config, **{"dtype": "bf16", "attention": "flash", **options})
    return dict(lm.estimate(workload or Workload(prompt_tokens=1000)).parts)


ACTIVATIONS = (3 * 14336 + 4 * 4096 + 2 * 128) * 2 + 8


def test_prefill_holds_the_cache_and_one_layers_activations() -> None:
    assert parts() == {"cache": 131_072_000, "activations": 1000 * ACTIVATIONS, "scores and masks": 0}


def test_a_long_answer_peaks_at_the_end_of_decoding() -> None:
    lm = TransformersLM.from_config(LLAMA, dtype="bf16")
    estimate = lm.estimate(Workload(prompt_tokens=10, new_tokens=4000, sequences=2))
    assert estimate.notes == ("peak at the end of decoding",)
    assert estimate.parts["cache"] == 2 * 4010 * 131072
    assert estimate.parts["logits"] == 2 * 128256 * 40
    assert estimate.parts["cache growth"] == 2 * 4010 * 131072 // 64


@pytest.mark.parametrize(
    ("positions", "vocabulary", "element"), [row[:3] for row in table("prefill-logits") if row[2] == 4]
)
def test_logits_that_are_kept_for_every_position_dominate(
    positions: int, vocabulary: int, element: int
) -> None:
    config = {**LLAMA, "vocab_size": vocabulary}
    workload = Workload(prompt_tokens=positions)
    assert parts(config, workload, keeps_all_logits=True)["logits"] == positions * vocabulary * (2 + element)
    asked = Workload(prompt_tokens=positions, prompt_logprobs=True)
    assert parts(config, asked) == parts(config, workload, keeps_all_logits=True)


def test_rows_multiply_the_prompt_too() -> None:
    assert parts(workload=Workload(prompt_tokens=1000, sequences=5))["cache"] == 5 * 131_072_000


@pytest.mark.parametrize(("dtype", "score"), [("bf16", 10), ("f16", 8), ("f32", 8)])
def test_eager_attention_stores_all_scores_of_one_layer_and_a_mask(dtype: str, score: int) -> None:
    size = 4 if dtype == "f32" else 2
    expected = 1000 * 1000 * (32 * score + size)
    assert parts(attention="eager", dtype=dtype)["scores and masks"] == expected


def test_fused_attention_needs_a_mask_only_for_padding_chunks_and_windows() -> None:
    def mask(config: dict[str, Any] = LLAMA, rows: int = 1, prompt: int = 1000, **options: Any) -> int:
        workload = Workload(prompt_tokens=prompt, sequences=rows)
        return parts(config, workload, attention="sdpa", **options)["scores and masks"]

    assert mask() == mask(rows=4, padded=False) == mask(GEMMA) == 0
    assert mask(rows=4) == 4 * 1000 * 1000 * 3
    assert mask(GEMMA, prompt=1024) == 1024 * 1024 * 3
    assert mask(GEMMA, prompt=1024, rows=2) == 2 * 1024 * 1024 * 4
    assert mask(prefill_chunk=100) == 100 * 1000 * 3


def test_chunked_prefill_holds_the_whole_cache_and_the_activations_of_a_chunk() -> None:
    chunked = parts(prefill_chunk=100)
    assert (chunked["cache"], chunked["activations"]) == (131_072_000, 100 * ACTIVATIONS)
    assert parts(prefill_chunk=5000) == parts()


def test_windowed_layers_hold_the_prompt_during_prefill_and_the_window_at_the_end() -> None:
    per_token = 62 * 2 * 16 * 128 * 2
    assert parts(GEMMA, Workload(prompt_tokens=5000))["cache"] == 5000 * per_token
    long = parts(GEMMA, Workload(prompt_tokens=1, new_tokens=5000))
    assert long["cache"] == per_token * (10 * 5001 + 52 * 1024) // 62


def test_old_caches_are_held_twice_while_decoding() -> None:
    workload = Workload(prompt_tokens=10, new_tokens=4000)
    assert parts(workload=workload, cache="tuple")["cache"] == 2 * parts(workload=workload)["cache"]


def test_a_static_cache_is_set_aside_at_once() -> None:
    static = parts(workload=Workload(prompt_tokens=5, new_tokens=5), cache="static", max_cache_len=8192)
    assert static["cache"] == 8192 * 131072
    assert static["cache growth"] == 0


def test_recurrent_state_is_held_for_each_row() -> None:
    one = parts(JAMBA, Workload(prompt_tokens=1))["cache"]
    assert parts(JAMBA, Workload(prompt_tokens=1, sequences=3))["cache"] == 3 * one
    assert one > 28 * 8192 * 16 * 4


def test_latent_attention_may_be_stored_for_every_head_or_as_it_is() -> None:
    kept = TransformersLM.from_config(DEEPSEEK, dtype="bf16").estimate(generating(1000))
    assert kept.low is None
    assert kept.bytes < 3048 * 4_997_120 / 5
    old = TransformersLM.from_config(DEEPSEEK, dtype="bf16", mla="expanded")
    estimate = old.estimate(generating(1000))
    assert estimate.parts["cache"] == 3048 * 4_997_120
    assert estimate.low is not None
    assert estimate.low < estimate.bytes / 5


def test_falcon_stores_its_heads_repeated() -> None:
    falcon = {"model_type": "falcon", "num_attention_heads": 128, "num_kv_heads": 8, "hidden_size": 8192}
    new = {**falcon, "new_decoder_architecture": True, "num_hidden_layers": 60}
    assert parts(new, Workload(prompt_tokens=1))["cache"] == 60 * 128 * 64 * 2 * 2
    old = {**falcon, "multi_query": True, "num_hidden_layers": 60}
    assert parts(old, Workload(prompt_tokens=1))["cache"] == 60 * 64 * 2 * 2


def test_an_encoder_decoder_holds_the_encoders_output_once_for_every_row() -> None:
    workload = Workload(prompt_tokens=512, new_tokens=2000, sequences=4)
    decoding = parts(T5, workload)
    assert decoding["cross-attention cache"] == 4 * 201326592
    assert decoding["cache"] == 4 * 2000 * 393216
    assert decoding["encoder output"] == 4 * 512 * 4096 * 2


def test_an_encoder_without_a_fused_kernel_peaks_at_its_scores() -> None:
    encoding = parts(T5, Workload(prompt_tokens=8192, sequences=2), attention="eager", dtype="f32")
    assert encoding["scores and masks"] == 2 * 8192**2 * (64 * 8 + 4)


def test_whisper_encodes_its_window_whatever_the_prompt() -> None:
    assert parts(WHISPER, Workload(new_tokens=448))["cross-attention cache"] == 245_760_000


def test_images_are_looked_at_before_the_prompt_is_read() -> None:
    tower = Vision.from_config(QWEN_VISION, attention="eager")
    lm = TransformersLM.from_config(LLAMA, dtype="bf16", tower=tower)
    small, photo = Workload(prompt_tokens=3000), Workload(prompt_tokens=3000, images=((1920, 1080),))
    assert lm.estimate(small) == TransformersLM.from_config(LLAMA, dtype="bf16").estimate(small)
    assert lm.estimate(photo).bytes == tower.estimate(photo).bytes > lm.estimate(small).bytes
    assert lm.estimate(photo).notes == ("peak in the vision tower",)
    assert "vision tower" in lm.explain(photo)


def test_a_factor_for_reserved_memory_is_on_top() -> None:
    plain = TransformersLM.from_config(LLAMA, dtype="bf16")
    reserved = TransformersLM.from_config(LLAMA, dtype="bf16", reserved_factor=1.25)
    assert reserved.estimate(generating(5000)).bytes == plain.estimate(generating(5000)).bytes * 5 // 4


def test_the_computing_type_may_come_from_the_config() -> None:
    named = {**LLAMA, "torch_dtype": "bfloat16"}
    assert parts(named, dtype=None) == parts(dtype="torch.bfloat16") == parts()
    with pytest.raises(ValueError, match="dtype"):
        TransformersLM.from_config(LLAMA)


def test_a_vocabulary_that_is_not_known_is_the_largest() -> None:
    with pytest.warns(match="not known"):
        unknown = TransformersLM.from_config({**LLAMA, "model_type": "x", "vocab_size": None}, dtype="f16")
    assert unknown.plan.logits == 262_208 * 6
    assert any("'x'" in note for note in unknown.estimate(Workload()).notes)


def test_calibration_gives_back_the_point_and_keeps_the_slope() -> None:
    lm = TransformersLM.from_config(LLAMA, dtype="bf16", reserved_factor=1.1)
    moved = lm.calibrated(generating(100), "3GiB", baseline="1GiB")
    assert moved.estimate(generating(100)).bytes == 2 * GIB
    apart = moved.estimate(generating(20_000)).bytes - moved.estimate(generating(10_000)).bytes
    assert apart == pytest.approx(
        lm.estimate(generating(20_000)).bytes - lm.estimate(generating(10_000)).bytes, abs=2
    )
    assert moved.calibrated(generating(100), "3GiB", baseline="1GiB").constant == moved.constant
    with pytest.raises(ValueError, match="above baseline"):
        lm.calibrated(generating(1), 5, baseline=5)


def test_explaining_names_every_phase() -> None:
    text = TransformersLM.from_config(LLAMA, dtype="bf16").explain(generating(10))
    assert all(phase in text for phase in ("prefill", "first logits", "end of decoding"))


def test_values_that_were_assumed_are_in_the_notes() -> None:
    lm = TransformersLM.from_config(LLAMA, dtype="bf16")
    estimate: Estimate = lm.estimate(Workload(prompt_tokens=1, defaulted=("max_tokens",)))
    assert any("max_tokens" in note for note in estimate.notes)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"dtype": "q4_0"}, "dtype"),
        ({"dtype": "b16"}, "b16"),
        ({"attention": "ring"}, "attention"),
        ({"cache": "quantised"}, "cache"),
        ({"cache": "static"}, "max_cache_len"),
        ({"max_cache_len": 10}, "max_cache_len"),
        ({"reserved_factor": 0.5}, "reserved_factor"),
        ({"reserved_factor": float("nan")}, "reserved_factor"),
    ],
)
def test_an_option_that_makes_no_sense_is_named(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        TransformersLM.from_config(LLAMA, **{"dtype": "bf16", **options})


def test_a_margin_that_makes_no_sense_is_named() -> None:
    with pytest.raises(ValueError, match="margin"):
        TransformersLM(TransformersLM.from_config(LLAMA, dtype="bf16").plan, margin=-0.1)


PEAKS = load("meta_peaks.json")["rows"]


@pytest.mark.parametrize("row", PEAKS, ids=[row["name"] for row in PEAKS])
def test_prefill_is_what_the_models_own_code_was_traced_to_hold(row: dict[str, Any]) -> None:
    config = {**row["config"], "model_type": row["model_type"], "num_hidden_layers": row["layers"]}
    path: AttentionPath = "eager" if row["attention"] == "eager" else "flash"
    lm = TransformersLM.from_config(config, dtype="bf16", attention=path)
    for length in (1024, 8192):
        if traced := row[f"bytes_per_token_{length}"]:
            said = lm.explain(Workload(prompt_tokens=length))
            plan = lm.plan
            prefill = length * (plan.cache + plan.activations) + length**2 * plan.score + plan.state
            assert 1 <= prefill / (length * traced) <= (1.15 if path == "flash" else 1.35), said


def test_a_decoding_step_holds_what_sampling_makes_of_the_logits() -> None:
    work = Workload(prompt_tokens=10, new_tokens=4000, sequences=2)
    for sampling, entry in (("greedy", 10), ("top_k", 19), ("top_p", 40)):
        assert parts(LLAMA, work, sampling=sampling)["logits"] == 2 * 128256 * entry
    assert parts(LLAMA, work, output_scores=True)["kept scores"] == 2 * 4000 * 128256 * 4
    with pytest.raises(ValueError, match="sampling"):
        TransformersLM.from_config(LLAMA, dtype="bf16", sampling="random")  # type: ignore[arg-type]


def test_an_eager_decoding_step_repeats_keys_and_values_to_every_head() -> None:
    work = Workload(prompt_tokens=10, new_tokens=4000)
    growth = parts(LLAMA, work)["cache growth"]
    assert parts(LLAMA, work, attention="eager")["cache growth"] == growth + 4010 * 2 * 32 * 128 * 2


def test_a_decoding_step_of_a_mixture_copies_its_experts() -> None:
    mixtral = next(row for row in PEAKS if row["model_type"] == "mixtral")
    config = {**mixtral["config"], "model_type": "mixtral", "num_hidden_layers": 32}
    work = Workload(prompt_tokens=10, new_tokens=10, sequences=8)
    assert parts(config, work)["experts"] == 5.25 * 2**30
    assert "experts" not in parts(config, Workload(prompt_tokens=5000), experts="grouped_mm")
    with pytest.raises(ValueError, match="experts"):
        TransformersLM.from_config(LLAMA, dtype="bf16", experts="all")  # type: ignore[arg-type]


def test_a_decoder_that_attends_to_images_keeps_their_keys_and_values() -> None:
    config = {
        "model_type": "mllama",
        "text_config": {"model_type": "mllama_text_model"},
        "vision_config": {"image_size": 560, "patch_size": 14, "max_num_tiles": 4},
    }
    image = parts(config, Workload(prompt_tokens=1000, images=((640, 480),)))
    assert image["cache"] - parts(config)["cache"] == 4 * 1601 * 8 * 4096
