"""``gpu-admission plan`` as it is typed."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from gpu_admission import cli
from gpu_admission.devices import Discovery, FixedDevice
from gpu_admission.planning import plan_command
from tests.planning.test_plan import CODE, QWEN, SEED


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(QWEN))
    return str(path)


def printed(capsys: pytest.CaptureFixture[str], model: str, *arguments: str) -> str:
    status = cli.main(["plan", "--model", model, *arguments])
    said = capsys.readouterr()
    assert status == 0, said.err
    return said.out


def refused(capsys: pytest.CaptureFixture[str], model: str, *arguments: str) -> str:
    assert cli.main(["plan", "--model", model, *arguments]) == 2
    return capsys.readouterr().err


def test_one_command_says_all_of_it(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(capsys, model, "--gpu", "RTX 4090", "--mix", "20x128+64,2x1024+64")
    for words in (
        "qwen2 on RTX 4090 under transformers",
        "20 x 128+64, 2 x 1024+64 at once",
        "= for requests",
        "Semaphore(",
        "budget of bytes",
        "(50%)",
        "85% of 1,008 GB/s, 60% of 165 TFLOP/s",
        "Ada architecture whitepaper",
        "does not batch requests",
        f'TransformersLM.from_config("{model}")',
        "timeout=5",
    ):
        assert words in out


def test_the_worksheet_in_one_command_with_measured_costs(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    costs = tmp_path / "seed.json"
    SEED.save(costs)
    out = printed(
        capsys,
        model,
        *("--gpu", "A10G", "--memory", "24GB", "--context", "712686080", "--margin", "0"),
        *("--mix", "100x128+128,10x1024+128", "--costs", str(costs)),
    )
    assert "Safe N, capacity over the largest request: a semaphore of 7." in out
    row = next(line for line in out.splitlines() if line.startswith("budget of bytes"))
    assert 14 <= int(row.split()[4]) <= 19
    assert f'Linear.load("{costs}")' in out


def test_a_trace_is_played_as_it_came_and_overloaded(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(capsys, model, "--gpu", "T4", "--engine", "vllm", "--trace", str(CODE))
    assert "azure2023_code_head.csv, 1,200 requests" in out
    rows = [line for line in out.splitlines() if line.startswith(("Semaphore", "budget"))]
    assert len(rows) == 4
    assert "at 1.2 x the limit" in rows[2]
    assert "KVCache.from_config" in out


def test_a_promise_finds_the_largest_load_of_a_card(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(capsys, model, "--gpu", "L4", "--engine", "vllm", "--slo", "p95<5s", "--trace", str(CODE))
    found = re.search(r"wait p95<5s is kept up to (\S+) requests/s on L4", out)
    assert found is not None
    assert float(found[1]) > 1


def test_a_promise_is_kept_by_the_table_of_the_rate_that_it_names(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ("--gpu", "RTX 4090", "--engine", "vllm", "--mix", "100x500+200")
    out = printed(capsys, model, *asked, "--rate", "10", "--slo", "p95<2s")
    found = re.search(r"p95<2s is kept up to (\S+) requests/s on RTX 4090, 95% .* no more is promised", out)
    assert found is not None
    again = printed(capsys, model, *asked, "--rate", found[1])
    row = next(line for line in again.splitlines() if line.startswith("budget of bytes"))
    assert row.split()[7:9] == ["0", "ms"]
    assert "are above the limit" not in again


def test_a_rate_above_the_limit_is_said_to_be_so(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(capsys, model, "--gpu", "RTX 4090", "--engine", "vllm", "--mix", "500+200", "--rate", "170")
    assert "170 requests/s are above the limit, the 33.4 that it can answer in the long run" in out
    assert "of 4,000 of them" in out
    assert "One request was played" not in out


def test_one_request_alone_is_said_to_show_no_waits(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = "One request was played, which never waits"
    assert words in printed(capsys, model, "--gpu", "T4")
    assert words not in printed(capsys, model, "--gpu", "T4", "--mix", "2x16+16")


@pytest.mark.parametrize(
    ("engine", "sentence"),
    [
        ("transformers", "(--batch) or another engine (--engine vllm or tensorrt-llm or llama.cpp)"),
        ("vllm", "(Poisson): ask less of it (--rate, --mix), or promise less (--slo)"),
    ],
)
def test_where_no_card_keeps_a_promise_it_says_what_to_change(
    engine: str, sentence: str, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ("--slo", "p95<1s", "--rate", "100000", "--mix", "512+256")
    assert sentence in refused(capsys, model, "--engine", engine, *asked)


def test_help_says_what_a_promise_is_of(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["plan", "--help"])
    assert "of the waits in the queue" in " ".join(capsys.readouterr().out.split())


def test_a_promise_without_a_card_finds_the_smallest_that_keeps_it(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ("--engine", "vllm", "--slo", "answer p95<8s", "--mix", "128+64")
    small = printed(capsys, model, *asked, "--rate", "0.2")
    large = printed(capsys, model, *asked, "--rate", "40")
    name = re.compile(r"qwen2 on (.*) under vllm")
    first, second = name.search(small), name.search(large)
    assert first is not None
    assert second is not None
    assert first[1] != second[1]
    assert "is kept up to" in small


def test_the_page_needs_nothing_else_and_has_its_plots(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plan.html"
    printed(capsys, model, "--gpu", "A10G", "--mix", "9x64+32", "--html", str(path))
    text = path.read_text(encoding="utf-8")
    assert text.count("<svg") == 3
    assert not re.search(r"(?:src|href)=|https?://|<script", text)
    tags: list[str] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            if tag not in ("meta", "polyline", "line", "rect"):
                tags.append(tag)

        def handle_endtag(self, tag: str) -> None:
            if tag not in ("polyline", "line", "rect"):
                assert tags.pop() == tag

    Reader().feed(text)
    assert not tags


def test_without_a_name_the_machines_own_card_is_planned_for(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    card = FixedDevice("22GiB", name="NVIDIA A10G")
    monkeypatch.setattr(plan_command, "discover", lambda: Discovery((card,), "one card"))
    out = printed(capsys, model, "--mix", "16+16")
    assert "on A10G under" in out
    assert "22.00 GiB" in out


def test_where_there_is_no_card_one_must_be_named(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "name a card with --gpu" in refused(capsys, model)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--gpu", "Voodoo"], "--gpu 'Voodoo' is no card that is known"),
        (["--gpu", "T4", "--weights", "20GiB"], "T4 has no room for requests"),
        (["--gpu", "T4", "--trace", "/nope.csv"], "/nope.csv"),
        (["--gpu", "T4", "--costs", "/nope.json"], "/nope.json"),
        (["--slo", "p95<5s"], "say what it must carry, with --rate or --trace"),
        (["--gpu", "T4", "--dtype", "float7"], "'float7' is not a known element type"),
    ],
)
def test_what_can_not_be_planned_is_said_in_a_sentence(
    arguments: list[str], sentence: str, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sentence in refused(capsys, model, *arguments)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--mix", "x"], "write COUNTxPROMPT+NEW"),
        (["--slo", "soon"], "write [wait|answer] pNN<SECONDSs"),
        (["--rate", "0"], "--rate: must be above 0"),
        (["--margin", "1"], "--margin: must be from 0 to below 1"),
        (["--memory", "big"], "--memory"),
        (["--engine", "abacus"], "--engine"),
    ],
)
def test_options_are_checked(
    arguments: list[str], sentence: str, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["plan", "--model", model, "--gpu", "T4", *arguments])
    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err
