"""``gpu-admission explain`` as it is typed: the terms of what is charged, for each kind of file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpu_admission import Workload, cli
from gpu_admission.estimators import KVCache, Linear, TransformersLM
from tests.planning.test_plan import QWEN

TRACES = Path(__file__).parents[1] / "estimators" / "data" / "traces"


def written(tmp_path: Path, **changes: Any) -> str:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**QWEN, **changes}))
    return str(path)


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    status = cli.main(["explain", *arguments])
    said = capsys.readouterr()
    assert status == 0, said.err
    return said.out


def test_a_config_is_explained_for_generate_and_for_a_pool(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = written(tmp_path)
    out = printed(capsys, config, "--prompt", "2000", "--new", "500", "--sequences", "2")
    workload = Workload(prompt_tokens=2000, new_tokens=500, sequences=2)
    for estimator in (TransformersLM.from_config(config), KVCache.from_config(config)):
        estimate = estimator.estimate(workload)
        assert f"{estimate.bytes:,}" in out
        for name, size in estimate.parts.items():
            assert not size or f"{size:,}" in out, name
    assert f"estimator=TransformersLM.from_config({config!r})" in out
    assert f"estimator=KVCache.from_config({config!r}, kv_dtype='f16')" in out


def test_it_says_how_many_fit_in_a_capacity(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = written(tmp_path)
    size = KVCache.from_config(config).estimate(Workload(prompt_tokens=1000, new_tokens=200)).bytes
    out = printed(capsys, config, "--as", "pool", "--capacity", "1GiB")
    assert f"{2**30 // size} such requests fit in 1.00 GiB" in out
    assert "generate" not in out


def test_what_calibrate_wrote_is_explained_as_it_was_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "costs.json"
    Linear({"prompt_tokens": 1000, "new_tokens": 2000}, constant=5000).save(path)
    out = printed(capsys, str(path), "--prompt", "10", "--new", "20")
    assert "as it was measured: 53.71 KiB of device memory" in out
    assert "55,000" in out


def test_what_trace_wrote_is_explained_as_it_was_traced(capsys: pytest.CaptureFixture[str]) -> None:
    path = next(TRACES.glob("*.json"))
    assert "as it was traced" in printed(capsys, str(path))


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"architectures": ["BertModel"], "model_type": "bert"}, "an encoder:"),
        ({"architectures": ["Qwen2ForCausalLM"]}, "plain generate()"),
    ],
)
def test_the_kind_follows_from_the_config(
    changes: dict[str, Any], kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert kind in printed(capsys, written(tmp_path, **changes))


@pytest.mark.parametrize("text", ["no json", "[]", "{}"])
def test_another_file_is_refused_with_a_sentence(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    assert cli.main(["explain", str(path)]) == 2
    assert capsys.readouterr().err.startswith("gpu-admission explain: ")


def test_a_model_that_is_not_known_is_explained_with_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["explain", written(tmp_path, model_type="qwen99")]) == 0
    said = capsys.readouterr()
    assert said.err.count("model_type 'qwen99' is not known") == 1
    assert "plain generate()" in said.out


def test_a_file_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "nowhere.json"]) == 2
    assert "nowhere.json" in capsys.readouterr().err
