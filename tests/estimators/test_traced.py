"""``Traced``: what a model's own code takes, found without its weights, and used without torch."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from gpu_admission.cli import main
from gpu_admission.estimators import Traced, Vision
from gpu_admission.types import Workload

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", reason="tracing needs transformers")

from tests.estimators.realpeak import real_peak  # noqa: E402  (it needs torch)

DATA = Path(__file__).parent / "data"
ROWS = {row["name"]: row for row in json.loads((DATA / "meta_peaks.json").read_text())["rows"]}
QUICK = ("Llama-3-8B",)
SMALL = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 256,
    "intermediate_size": 688,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 4000,
}
LOOKS = {
    "model_type": "qwen2_5_vl",
    "text_config": {
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "intermediate_size": 160,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 500,
        "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]},
    },
    "vision_config": {"depth": 2, "hidden_size": 64, "intermediate_size": 128, "num_heads": 4},
}
PLAIN: Any = {"inputs": False, "margin": 0}
"""What the measurements have: the inputs were there before, and nothing is put on top."""


def traced_row(row: dict[str, Any]) -> Traced:
    layers = "n_layer" if row["model_type"] in ("gpt2", "gptj") else "num_hidden_layers"
    config = {"model_type": row["model_type"], layers: row["layers"], **row["config"]}
    attention: Any = "eager" if row["attention"] == "eager" else "flash"
    return Traced.transformers(config, dtype=row["dtype"], attention=attention, **PLAIN)


def misses(row: dict[str, Any]) -> list[float]:
    """How far each of the lengths that were measured is missed, as a share."""
    traced = traced_row(row)
    wanted = {length: row[f"bytes_per_token_{length}"] for length in (1024, 8192)}
    return [
        abs(traced.estimate(Workload(prompt_tokens=length)).bytes / (length * per_token) - 1)
        for length, per_token in wanted.items()
        if per_token
    ]


@pytest.mark.parametrize("name", QUICK)
def test_a_prefill_takes_what_was_measured(name: str) -> None:
    assert max(misses(ROWS[name])) < 0.03


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in ROWS if name not in QUICK])
def test_a_prefill_of_any_architecture_takes_what_was_measured(name: str) -> None:
    assert max(misses(ROWS[name])) < 0.03


@pytest.fixture(scope="module")
def small() -> Traced:
    return Traced.transformers(SMALL, dtype="float32", sampling="greedy", **PLAIN)


def generate(rows: int, prompt: int, new: int) -> Callable[[], Any]:
    values = {name: value for name, value in SMALL.items() if name != "model_type"}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**values)).eval()
    ids = torch.zeros((rows, prompt), dtype=torch.long)
    mask = torch.ones_like(ids)
    if rows > 1:
        mask[0, :3] = 0
    config = transformers.GenerationConfig(max_new_tokens=new, pad_token_id=0, eos_token_id=None)
    return lambda: model.generate(ids, attention_mask=mask, generation_config=config)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("rows", "prompt", "new"), [(1, 300, 4), (2, 150, 4), (3, 20, 12)])
def test_generating_takes_what_it_really_takes_on_a_cpu(
    small: Traced, rows: int, prompt: int, new: int
) -> None:
    workload = Workload(prompt_tokens=prompt, new_tokens=new, sequences=rows)
    assert small.estimate(workload).bytes == pytest.approx(real_peak(generate(rows, prompt, new)), rel=0.03)


def test_an_encoder_takes_what_it_really_takes_on_a_cpu() -> None:
    config = transformers.BertConfig(
        num_hidden_layers=2, hidden_size=128, intermediate_size=512, num_attention_heads=4
    )
    traced = Traced.transformers(config, dtype="float32", **PLAIN)
    model = transformers.BertModel(config).eval()
    ids = torch.zeros((3, 100), dtype=torch.long)
    mask = torch.ones_like(ids)
    mask[0, :5] = 0
    real = real_peak(lambda: model(ids, attention_mask=mask))
    assert traced.estimate(Workload(prompt_tokens=100, sequences=3)).bytes == pytest.approx(real, rel=0.03)


def test_images_are_the_rows_of_a_vision_model() -> None:
    config = transformers.ViTConfig(
        num_hidden_layers=2, hidden_size=64, intermediate_size=256, num_attention_heads=4
    )
    traced = Traced.transformers(config, dtype="float32", **PLAIN)
    model = transformers.ViTModel(config).eval()
    pictures = torch.zeros((4, 3, 224, 224))
    real = real_peak(lambda: model(pictures))
    assert traced.estimate(Workload(images=((224, 224),) * 4)).bytes == pytest.approx(real, rel=0.03)


def test_log_probabilities_of_the_prompt_are_charged_only_when_asked_for(small: Traced) -> None:
    plain = Workload(prompt_tokens=1000, new_tokens=1)
    asked = Workload(prompt_tokens=1000, new_tokens=1, prompt_logprobs=True)
    assert small.estimate(asked).bytes >= 1000 * 4000 * 4 > 0.9 * small.estimate(plain).bytes


def test_a_decode_step_is_charged_for_the_experts_that_it_copies() -> None:
    config = {
        "model_type": "mixtral",
        "num_hidden_layers": 2,
        "hidden_size": 256,
        "intermediate_size": 896,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "vocab_size": 1000,
        "sliding_window": None,
    }
    traced = Traced.transformers(config, dtype="bfloat16", **PLAIN)
    copied = 8 * 2 * (2 * 896 * 256) * 2  # rows x experts for each token x gate and up x bytes
    assert traced.estimate(Workload(prompt_tokens=4, new_tokens=4, sequences=8)).bytes >= copied


class Search(torch.nn.Module):  # type: ignore[misc, name-defined]
    def forward(self, x: Any) -> Any:
        return torch.unique(x, dim=0), torch.nonzero(x > 0)


def test_operators_without_a_meta_form_are_named_and_run_for_real() -> None:
    traced = Traced.of(Search, lambda sequences: torch.zeros(sequences, 64))
    assert any("aten.unique_dim" in note and "CPU" in note for note in traced.trace.notes)
    assert traced.estimate(Workload(sequences=100)).bytes >= 100 * 64 * 2 * 8


def test_a_saved_trace_is_used_without_torch(small: Traced, tmp_path: Path) -> None:
    path = tmp_path / "small.json"
    small.save(path)
    workload = Workload(prompt_tokens=500, new_tokens=100, sequences=2)
    program = (
        "import sys\nfrom gpu_admission import Workload\nfrom gpu_admission.estimators import Traced\n"
        f"traced = Traced.load({str(path)!r}, margin=0)\n"
        "print(traced.estimate(Workload(prompt_tokens=500, new_tokens=100, sequences=2)).bytes)\n"
        "print('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert said.split() == [str(small.estimate(workload).bytes), "False"]


@pytest.mark.parametrize("text", ["", "{}", '{"format": "other", "trace": {}}', "[1"])
def test_a_file_that_is_no_trace_is_refused_with_its_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "wrong.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"wrong\.json"):
        Traced.load(path)


def test_a_damaged_phase_is_refused_by_its_name(small: Traced, tmp_path: Path) -> None:
    path = tmp_path / "cut.json"
    small.save(path)
    file = json.loads(path.read_text())
    file["trace"]["phases"][0]["degrees"] = [1]
    path.write_text(json.dumps(file))
    with pytest.raises(ValueError, match="prefill"):
        Traced.load(path)


def test_a_margin_is_put_on_top_and_told(small: Traced) -> None:
    workload = Workload(prompt_tokens=500)
    more = Traced(small.trace, margin=0.1, constant="1MiB").estimate(workload)
    assert more.bytes == pytest.approx(1.1 * (small.estimate(workload).bytes + 2**20), rel=1e-6)
    assert sum(more.parts.values()) == pytest.approx(more.bytes, abs=8)


@pytest.mark.parametrize(
    ("options", "named"),
    [({"attention": "fast"}, "attention"), ({"experts": "x"}, "experts"), ({"sampling": "x"}, "sampling")],
)
def test_an_unknown_choice_is_refused_by_its_name(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        Traced.transformers(SMALL, **options)


def test_the_command_prints_terms_and_writes_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SMALL))
    assert main(["trace", str(tmp_path), "-o", str(tmp_path / "t.json")]) == 0
    said = capsys.readouterr().out
    assert "prefill: the highest of" in said
    assert "not in it: workspaces of kernels" in said
    assert Traced.load(tmp_path / "t.json").estimate(Workload(prompt_tokens=9)).bytes > 0


def test_the_command_says_what_is_wrong_with_a_config(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text('{"hidden_size": 3}')
    assert main(["trace", str(tmp_path / "config.json")]) == 1
    assert "model_type" in capsys.readouterr().err


def test_a_request_that_says_no_new_tokens_still_pays_for_its_prompt(small: Traced) -> None:
    estimate = small.estimate(Workload(prompt_tokens=1000))
    assert estimate.notes == ("peak at prefill",)
    assert estimate.bytes == small.estimate(Workload(prompt_tokens=1000, new_tokens=1)).bytes > 1000 * 688 * 4


def test_a_default_margin_is_for_what_can_not_be_seen(small: Traced) -> None:
    workload = Workload(prompt_tokens=1000)
    assert Traced(small.trace).estimate(workload).bytes == pytest.approx(
        1.05 * small.estimate(workload).bytes, rel=1e-6
    )


@pytest.mark.parametrize(("options", "tensors"), [({}, 2), ({"inputs": False}, 1)])
def test_inputs_of_a_module_are_counted_unless_said_otherwise(options: dict[str, Any], tensors: int) -> None:
    traced = Traced.of(torch.nn.ReLU, lambda sequences: torch.zeros(sequences, 1000), margin=0, **options)
    assert traced.estimate(Workload(sequences=5)).bytes == tensors * 5 * 1000 * 4


def test_pictures_of_a_vision_model_count_as_its_inputs() -> None:
    config = transformers.ViTConfig(
        num_hidden_layers=1, hidden_size=32, intermediate_size=64, num_attention_heads=2
    )
    without, counted = (
        Traced.transformers(config, dtype="float32", inputs=inputs, margin=0) for inputs in (False, True)
    )
    workload = Workload(sequences=3)
    picture = 3 * 224 * 224 * 4
    assert counted.estimate(workload).bytes == without.estimate(workload).bytes + 3 * picture


def test_images_are_charged_on_top_of_the_text_and_for_each_row() -> None:
    traced = Traced.load(DATA / "traces" / "qwen25vl.json", margin=0)
    assert traced.trace.tower is not None
    vision = traced.trace.tower.vision()
    for rows in (1, 3):
        text = Workload(prompt_tokens=400, sequences=rows)
        looks = Workload(prompt_tokens=400, sequences=rows, images=((640, 480), (0, 0)))
        estimate = traced.estimate(looks)
        seen = vision.estimate(looks).bytes * rows
        assert estimate.parts["images"] == seen
        assert estimate.bytes == pytest.approx(traced.estimate(text).bytes + seen, abs=1)


def test_images_that_a_config_says_nothing_of_are_refused_and_can_be_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unknown(config: Any, **options: Any) -> Vision:
        raise ValueError("the vision config lacks patch_size")

    monkeypatch.setattr(Vision, "from_config", unknown)
    with pytest.raises(
        ValueError, match=r"qwen2_5_vl.*lacks patch_size.*vision=Vision\(\.\.\.\).*vision=None"
    ):
        Traced.transformers(LOOKS)
    given = Vision(patch=1000, patch_size=14, max_pixels=14 * 14 * 100)
    traced = Traced.transformers(LOOKS, vision=given)
    assert traced.estimate(Workload(prompt_tokens=9, images=((0, 0),))).parts["images"] == 100_000


def test_a_server_without_images_says_so_of_a_request_that_has_some() -> None:
    traced = Traced.transformers(LOOKS, vision=None)
    assert "images are not counted" in traced.estimate(Workload(prompt_tokens=9, images=((8, 8),))).notes[-1]
    assert len(traced.estimate(Workload(prompt_tokens=9)).notes) == 1


def test_an_estimate_of_images_that_is_none_is_refused() -> None:
    with pytest.raises(TypeError, match="vision"):
        Traced.transformers(LOOKS, vision=3)  # type: ignore[arg-type]


def test_beams_that_the_server_uses_are_charged_to_requests_that_ask_for_none() -> None:
    traced = Traced.load(DATA / "traces" / "llama_beams.json")
    asks = Workload(prompt_tokens=100, new_tokens=9, sequences=8, beams=4)
    assert traced.estimate(Workload(prompt_tokens=100, new_tokens=9, sequences=2)).bytes == (
        traced.estimate(asks).bytes
    )


@pytest.mark.slow
def test_a_longer_prompt_adds_what_was_published() -> None:
    table = json.loads((DATA / "qwen_speed.json").read_text())
    traced = Traced.transformers(table["models"]["0.5B"]["config"], dtype="bfloat16", attention="flash")
    rows = [(prompt, peak) for model, prompt, peak in table["qwen2.5"] if model == "0.5B"]
    for (short, low), (long, high) in pairwise(rows):
        charged = [traced.estimate(Workload(prompt_tokens=p, new_tokens=2048)).bytes for p in (short, long)]
        assert charged[1] - charged[0] >= (high - low - 0.01) * 2**30  # peaks were printed to 0.01 GiB


WHISPER = {
    "d_model": 384,
    "encoder_layers": 4,
    "decoder_layers": 4,
    "encoder_attention_heads": 6,
    "decoder_attention_heads": 6,
    "encoder_ffn_dim": 1536,
    "decoder_ffn_dim": 1536,
}
UNET = {
    "_class_name": "UNet2DConditionModel",
    "cross_attention_dim": 768,
    "attention_head_dim": 8,
    "block_out_channels": [64, 128, 256, 256],
}
VAE = {
    "_class_name": "AutoencoderKL",
    "block_out_channels": [128, 256, 512, 512],
    "layers_per_block": 2,
    "down_block_types": ["DownEncoderBlock2D"] * 4,
    "up_block_types": ["UpDecoderBlock2D"] * 4,
    "sample_size": 512,
}


@pytest.mark.slow
def test_a_resnet_50_takes_what_it_really_takes_on_a_cpu() -> None:
    def make() -> Any:
        return transformers.ResNetModel(transformers.ResNetConfig())

    def call(sequences: int, width: int, height: int) -> Any:
        return torch.zeros(sequences, 3, height, width)

    traced = Traced.of(make, call, device="cpu", **PLAIN)
    model, pictures = make().eval(), torch.zeros(2, 3, 192, 256)
    real = real_peak(lambda: model(pictures))
    assert traced.estimate(Workload(sequences=2, width=256, height=192)).bytes == pytest.approx(
        real, rel=0.03
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_whisper_takes_what_it_really_takes_on_a_cpu() -> None:
    config = transformers.WhisperConfig(**WHISPER)
    traced = Traced.transformers(config, dtype="float32", sampling="greedy", **PLAIN)
    model = transformers.WhisperForConditionalGeneration(config).eval()
    sound, ids = torch.zeros(1, 80, 3000), torch.zeros((1, 1), dtype=torch.long)
    options = transformers.GenerationConfig(max_new_tokens=8, pad_token_id=0, eos_token_id=None)
    generate = transformers.GenerationMixin.generate
    real = real_peak(
        lambda: generate(model, input_features=sound, decoder_input_ids=ids, generation_config=options)
    )
    assert traced.estimate(Workload(new_tokens=9)).bytes == pytest.approx(real, rel=0.03)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_an_unet_takes_what_it_really_takes_on_a_cpu() -> None:
    diffusers = pytest.importorskip("diffusers")
    traced = Traced.diffusers({"unet": UNET}, dtype="float32", device="cpu", **PLAIN)
    model = diffusers.UNet2DConditionModel.from_config(UNET).eval()
    latents, text, step = (
        torch.zeros(2, 4, 32, 32),
        torch.zeros(2, 77, 768),
        torch.zeros((), dtype=torch.long),
    )
    real = real_peak(lambda: model(latents, step, encoder_hidden_states=text))
    assert traced.estimate(Workload(width=256, height=256)).bytes == pytest.approx(real, rel=0.03)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_vae_takes_what_it_really_takes_on_a_cpu() -> None:
    diffusers = pytest.importorskip("diffusers")
    traced = Traced.diffusers(VAE, dtype="float32", device="cpu", **PLAIN)
    model, latents = diffusers.AutoencoderKL.from_config(VAE).eval(), torch.zeros(1, 4, 16, 16)
    real = real_peak(lambda: model.decode(latents))
    assert traced.estimate(Workload(width=128, height=128)).bytes == pytest.approx(real, rel=0.03)
