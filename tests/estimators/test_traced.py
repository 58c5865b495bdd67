"""``Traced``: what a model's own code takes, found without its weights, and used without torch."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpu_admission.estimators import Traced
from gpu_admission.types import Workload
from tests.estimators.realpeak import real_peak

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", reason="tracing needs transformers")

DATA = Path(__file__).parent / "data"
ROWS = {row["name"]: row for row in json.loads((DATA / "meta_peaks.json").read_text())["rows"]}
QUICK = ("Llama-3-8B", "Qwen3-30B-A3B", "Falcon-7B")
SMALL = {
    "model_type": "llama",
    "num_hidden_layers": 3,
    "hidden_size": 256,
    "intermediate_size": 688,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 4000,
}


def traced_row(row: dict[str, Any]) -> Traced:
    layers = "n_layer" if row["model_type"] in ("gpt2", "gptj") else "num_hidden_layers"
    config = {"model_type": row["model_type"], layers: row["layers"], **row["config"]}
    attention: Any = "eager" if row["attention"] == "eager" else "flash"
    return Traced.transformers(config, dtype=row["dtype"], attention=attention)


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
    return Traced.transformers(SMALL, dtype="float32", sampling="greedy")


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
@pytest.mark.parametrize(("rows", "prompt", "new"), [(1, 300, 6), (2, 150, 6), (3, 20, 60)])
def test_generating_takes_what_it_really_takes_on_a_cpu(
    small: Traced, rows: int, prompt: int, new: int
) -> None:
    workload = Workload(prompt_tokens=prompt, new_tokens=new, sequences=rows)
    assert small.estimate(workload).bytes == pytest.approx(real_peak(generate(rows, prompt, new)), rel=0.03)


def test_an_encoder_takes_what_it_really_takes_on_a_cpu() -> None:
    config = transformers.BertConfig(
        num_hidden_layers=2, hidden_size=128, intermediate_size=512, num_attention_heads=4
    )
    traced = Traced.transformers(config, dtype="float32")
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
    traced = Traced.transformers(config, dtype="float32")
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
        "hidden_size": 1024,
        "intermediate_size": 3584,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "vocab_size": 1000,
        "sliding_window": None,
    }
    traced = Traced.transformers(config, dtype="bfloat16")
    copied = 8 * 2 * (2 * 3584 * 1024) * 2  # rows x experts for each token x gate and up x bytes
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
        f"traced = Traced.load({str(path)!r})\n"
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


def test_the_command_prints_terms_and_writes_a_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SMALL))
    command = [
        sys.executable,
        "-m",
        "gpu_admission.cli",
        "trace",
        str(tmp_path),
        "-o",
        str(tmp_path / "t.json"),
    ]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert "prefill: the highest of" in said
    assert "not in it: workspaces of kernels" in said
    assert Traced.load(tmp_path / "t.json").estimate(Workload(prompt_tokens=9)).bytes > 0


def test_the_command_says_what_is_wrong_with_a_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"hidden_size": 3}')
    command = [sys.executable, "-m", "gpu_admission.cli", "trace", str(tmp_path / "config.json")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert "model_type" in done.stderr
