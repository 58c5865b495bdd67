"""The trace that ships with the demo, and how the budget reads its requests."""

from __future__ import annotations

from importlib.resources import files

import pytest

from gpu_admission.demo.calibrate import workload
from gpu_admission.demo.tokenizer import ByteTokenizer
from gpu_admission.demo.trace import Ask, load

DATA = files("gpu_admission.demo") / "data"


def test_the_slice_names_its_source_its_licence_and_what_was_changed() -> None:
    text = (DATA / "ATTRIBUTION.md").read_text()
    for words in (
        "AzurePublicDataset",
        "AzureLLMInferenceTrace_conv",
        "CC-BY 4.0",
        "Splitwise",
        "Changed here",
    ):
        assert words in text


def test_lengths_are_scaled_and_rounded_up_in_order() -> None:
    lines = (DATA / "azure2023_conv_head.csv").read_text().splitlines()
    assert lines[1] == "0.000,374,44"
    assert load(2)[0] == Ask(prompt_tokens=24, new_tokens=6)  # 374 / 16, 44 / 8
    assert len(load(1000)) == len(lines) - 1 == 1000


@pytest.mark.parametrize("count", [0, 1001])
def test_more_than_the_file_has_is_an_error_that_says_so(count: int) -> None:
    with pytest.raises(ValueError, match=f"has 1000 requests, not {count}"):
        load(count)


def test_clients_that_do_not_care_ask_for_the_same_and_never_for_less_than_they_need() -> None:
    assert Ask(24, 6).asking(4096) == Ask(24, 6, asked=512)
    assert Ask(24, 700).asking(4096).asked == 700
    read = workload(Ask(24, 6).asking(4096))
    assert read.new_tokens == 512
    assert read == workload(Ask(24, 512))


@pytest.mark.parametrize("ask", [Ask(1, 1), Ask(24, 6), Ask(300, 75)])
def test_the_budget_counts_at_least_the_tokens_that_the_app_makes_of_the_body(ask: Ask) -> None:
    prompt = str(ask.body["prompt"])
    read = workload(ask)
    assert len(prompt) == ask.prompt_tokens
    assert len(ByteTokenizer().encode(prompt)) <= read.prompt_tokens <= ask.prompt_tokens + 4
    assert read.new_tokens == ask.new_tokens


def test_a_token_is_a_byte_and_one_begins() -> None:
    assert ByteTokenizer().encode("é\ud800") == [256, 0xC3, 0xA9, 0xED, 0xA0, 0x80]
