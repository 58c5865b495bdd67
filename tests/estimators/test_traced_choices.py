"""What a server may choose, and models that torch's meta device does not run by itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpu_admission.cli import main
from gpu_admission.estimators import Traced
from gpu_admission.types import Workload

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", reason="tracing needs transformers")

from tests.estimators.realpeak import real_peak  # noqa: E402  (it needs torch)

PLAIN: Any = {"inputs": False, "margin": 0, "sampling": "greedy"}
NARROW = {"num_hidden_layers": 2, "hidden_size": 64, "vocab_size": 500}
MAMBA2 = {
    **NARROW,
    "model_type": "mamba2",
    "num_heads": 8,
    "head_dim": 16,
    "state_size": 16,
    "n_groups": 1,
    "chunk_size": 64,
}
MAMBA = {**NARROW, "model_type": "mamba", "state_size": 16}
QWEN_NEXT = {
    **NARROW,
    "model_type": "qwen3_next",
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "layer_types": ["linear_attention", "full_attention"],
}
MIXTRAL = {
    **NARROW,
    "model_type": "mixtral",
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_local_experts": 4,
    "sliding_window": None,
}
FALCON = {**NARROW, "model_type": "falcon", "num_attention_heads": 4, "multi_query": True}
BLENDERBOT = {
    "model_type": "blenderbot",
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 96,
    "decoder_ffn_dim": 96,
    "vocab_size": 500,
}


def generate(config: dict[str, Any], prompt: int) -> Callable[[], Any]:
    values = {name: value for name, value in config.items() if name != "model_type"}
    made = transformers.AutoConfig.for_model(config["model_type"], **values)
    model = transformers.AutoModelForCausalLM.from_config(made, dtype=torch.float32).eval()
    ids = torch.arange(prompt)[None] % 400 + 3
    options = transformers.GenerationConfig(
        max_new_tokens=3, do_sample=False, pad_token_id=0, eos_token_id=None
    )
    return lambda: model.generate(ids, generation_config=options)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("config", [MIXTRAL, FALCON], ids=lambda config: config["model_type"])
def test_experts_and_shared_heads_in_full_precision_take_what_they_really_take_on_a_cpu(
    config: dict[str, Any],
) -> None:
    traced = Traced.transformers(config, dtype="float32", padded=False, **PLAIN)
    charged = traced.estimate(Workload(prompt_tokens=200, new_tokens=3)).bytes
    assert charged == pytest.approx(real_peak(generate(config, 200)), rel=0.05)


LLAMA = {
    **NARROW,
    "model_type": "llama",
    "intermediate_size": 160,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
BERT = {**NARROW, "model_type": "bert", "intermediate_size": 160, "num_attention_heads": 4}


def checked(config: dict[str, Any], path: Path, capsys: pytest.CaptureFixture[str], *more: str) -> list[str]:
    """What ``--check`` has printed, by lines."""
    path.write_text(json.dumps(config))
    assert main(["trace", str(path), "--check", "-o", str(path.with_suffix(".trace")), *more]) == 0
    return capsys.readouterr().out.splitlines()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("config", [LLAMA, BERT, BLENDERBOT], ids=lambda config: config["model_type"])
def test_a_check_prints_what_was_traced_beside_what_was_measured(
    config: dict[str, Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    lines = checked(config, tmp_path / "config.json", capsys, "--dtype", "float32")
    ratios = ratios_of(lines, "measured on cpu")
    assert len(ratios) >= 2
    assert all(0.94 <= ratio <= 1.1 for ratio in ratios), lines
    assert sum(0.99 <= ratio <= 1.01 for ratio in ratios) >= len(ratios) / 2, lines


def ratios_of(lines: list[str], where: str) -> list[float]:
    """Traced by measured, of each row of the table that is headed ``where``."""
    (head,) = (number for number, line in enumerate(lines) if where in line)
    (end,) = (number for number, line in enumerate(lines) if "take more than they are charged" in line)
    return [float(row.split()[-3]) for row in lines[head + 1 : end]]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("config", [LLAMA, MIXTRAL], ids=lambda config: config["model_type"])
def test_a_check_on_a_card_is_near_what_its_allocator_counts(
    config: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wide = {**config, "hidden_size": 1024, "intermediate_size": 2816, "num_attention_heads": 16}
    lines = checked(wide, tmp_path / "config.json", capsys, "--dtype", "bfloat16")
    assert all(0.95 <= ratio <= 1.1 for ratio in ratios_of(lines, "measured on cuda")), lines


def test_a_check_of_weights_that_do_not_fit_says_how_much_they_take(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("os.sysconf", lambda name: 10)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert main(["trace", str(tmp_path / "config.json"), "--check"]) == 1
    assert "100 B are free on cpu" in capsys.readouterr().err


def test_rules_on_what_may_be_repeated_need_no_text() -> None:
    traced = Traced.transformers(BLENDERBOT, **PLAIN)
    assert traced.estimate(Workload(prompt_tokens=50, new_tokens=5)).bytes > 0


@pytest.mark.parametrize("config", [MAMBA, MAMBA2, QWEN_NEXT], ids=lambda config: config["model_type"])
def test_fused_kernels_take_less_than_torch_and_no_less_than_their_output(config: dict[str, Any]) -> None:
    workload = Workload(prompt_tokens=512, new_tokens=8)
    plain, fused = (
        Traced.transformers(config, kernels=kernels, dtype="bfloat16", padded=False, **PLAIN)
        for kernels in ("torch", "fused")
    )
    assert fused.trace.settings["kernels"] == "fused"
    least = 512 * 128 * 2  # positions x inner width x bytes
    assert least < fused.estimate(workload).bytes < 0.9 * plain.estimate(workload).bytes


def test_stand_ins_are_gone_after_the_trace() -> None:
    module = __import__("transformers.models.mamba2.modeling_mamba2", fromlist=["x"])
    before = module.mamba2_chunk_scan
    Traced.transformers(MAMBA2, kernels="fused", padded=False, **PLAIN)
    assert module.mamba2_chunk_scan is before


def test_a_model_without_such_layers_says_that_fused_kernels_change_nothing() -> None:
    traced = Traced.transformers(MIXTRAL, kernels="fused", padded=False, **PLAIN)
    assert "no layer of the model takes fused state-space kernels" in traced.trace.notes


def test_kernels_of_another_name_are_refused() -> None:
    with pytest.raises(ValueError, match="kernels must be one of 'torch', 'fused'"):
        Traced.transformers(MAMBA2, kernels="cuda")  # type: ignore[arg-type]


@pytest.mark.parametrize("config", [FALCON, {"model_type": "doge", **NARROW, "intermediate_size": 96}])
def test_a_model_that_does_not_run_with_flash_attention_is_traced_without(config: dict[str, Any]) -> None:
    traced = Traced.transformers(config, attention="flash", padded=False, **PLAIN)
    assert any("no layer of the model takes flash attention" in note for note in traced.trace.notes)
    assert traced.estimate(Workload(prompt_tokens=64)).bytes > 64 * 64 * 2


def test_a_vision_model_of_no_size_is_traced_at_the_usual_one() -> None:
    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1])
    traced = Traced.transformers(config, dtype="float32", inputs=True, margin=0)
    assert traced.estimate(Workload(images=((224, 224),) * 2)).bytes >= 2 * 3 * 224 * 224 * 4


def test_a_model_of_texts_and_pictures_gets_both() -> None:
    config = transformers.CLIPConfig(
        text_config={"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 99},
        vision_config={"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 64},
    )
    traced = Traced.transformers(config, dtype="float32", inputs=True, margin=0)
    assert traced.estimate(Workload(prompt_tokens=9, sequences=3)).bytes >= 3 * 3 * 64 * 64 * 4
