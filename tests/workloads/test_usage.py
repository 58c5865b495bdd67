"""What answers say that they used, and what in them is not believed."""

from __future__ import annotations

import json
import random

import pytest

from gpu_admission.types import Usage, Workload
from gpu_admission.workloads.usage import TAIL_BYTES, really, usage_of
from tests.workloads.answers import ANSWERS, Told, chat, chunk, events, ndjson, packed


def told(answer: Told) -> Usage | None:
    return None if answer.prompt is None and answer.new is None else Usage(answer.prompt, answer.new)


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=list(ANSWERS))
def test_what_a_server_says_is_read(answer: Told) -> None:
    assert usage_of(answer.kind, answer.text) == told(answer)


@pytest.mark.parametrize(
    "name",
    ["openai chat", "anthropic", "ollama generate", "sglang generate", "tgi generate", "lm studio v0 chat"],
)
def test_of_a_long_answer_the_end_is_enough(name: str) -> None:
    answer = ANSWERS[name]
    fields = json.loads(answer.text)
    first = {"padding": "long " * TAIL_BYTES}
    whole = packed(first | fields)
    assert usage_of("json", whole[-TAIL_BYTES:], is_whole=False) == told(answer)
    assert usage_of("json", whole) == told(answer)


def test_an_event_that_repeats_a_long_answer_is_read_by_its_end() -> None:
    response = {
        "output": [{"content": [{"text": "long " * TAIL_BYTES}]}],
        "usage": {"input_tokens": 36, "output_tokens": 87},
        "user": None,
    }
    text = events({"type": "response.completed", "response": response}, named=True)
    assert usage_of("events", text[-TAIL_BYTES:], is_whole=False) == Usage(36, 87)


def test_an_anthropic_stream_tells_its_prompt_at_its_beginning() -> None:
    text = ANSWERS["anthropic stream"].text
    assert usage_of("events", text[-300:], head=text[:1500], is_whole=False) == Usage(25, 15)


FAKE = {"usage": {"prompt_tokens": 1, "completion_tokens": 1, "input_tokens": 1, "output_tokens": 1}}
FAKES = {
    "text that looks like usage": chat(json.dumps(FAKE)),
    "text that looks like an end": chat('"}}],' + json.dumps(FAKE)[1:]),
    "text with escapes": chat('\\"usage\\": {"completion_tokens": 1}\\'),
    "an object that the model made": chat() | {"content": [{"type": "tool_use", "input": FAKE}]},
    "an object at the end": chat() | {"details": None, "input": FAKE},
    "names at several depths": chat() | {"input": {"a": [FAKE, {"b": FAKE}]}},
}


@pytest.mark.parametrize("answer", FAKES.values(), ids=list(FAKES))
@pytest.mark.parametrize("padding", ["", "x" * 10_000])
def test_what_a_model_says_is_not_believed(answer: dict[str, object], padding: str) -> None:
    honest = {"usage": {"prompt_tokens": 7, "completion_tokens": 900}}
    padded = {"padding": padding} | answer
    assert usage_of("json", packed(padded)) is None
    assert usage_of("json", packed(padded | honest)) == Usage(7, 900)
    assert usage_of("json", packed(honest | padded)) == Usage(7, 900)


@pytest.mark.parametrize("answer", FAKES.values(), ids=list(FAKES))
def test_what_a_model_says_in_a_stream_is_not_believed(answer: dict[str, object]) -> None:
    text = json.dumps(answer)
    assert usage_of("events", events(chunk(text), chunk("\n\ndata: " + json.dumps(FAKE)), done=True)) is None
    assert usage_of("lines", ndjson({"response": text + "\n" + json.dumps(FAKE), "done": True})) is None


@pytest.mark.parametrize(
    "counts",
    [
        {"prompt_tokens": -5, "completion_tokens": 1},
        {"prompt_tokens": 1e300},
        {"completion_tokens": "12"},
        {"completion_tokens": 1.5},
        {"completion_tokens": True},
        {"completion_tokens": 10**30},
        [],
        "many",
    ],
)
def test_counts_that_are_none_are_not_read(counts: object) -> None:
    assert usage_of("json", packed(chat(usage=counts))) is None
    assert usage_of("events", events(chunk("", usage=counts))) is None


@pytest.mark.parametrize("kind", ["json", "events", "lines"])
def test_whatever_an_answer_holds_nothing_is_raised(kind: str) -> None:
    draw = random.Random(5)
    for answer in ANSWERS.values():
        for _ in range(30):
            broken = bytearray(answer.text)
            for _ in range(3):
                broken[draw.randrange(len(broken))] = draw.randrange(256)
            usage_of(kind, bytes(broken), is_whole=draw.random() < 0.5)
    usage_of(kind, b"[" * 100_000)
    usage_of(kind, b'{"usage":' * 10_000)
    usage_of(kind, b'{"usage":' + b"[" * 50_000)
    usage_of(kind, b"\n" * 100_000)
    assert usage_of(kind, b"") is None


ASKED = Workload(prompt_tokens=100, new_tokens=4096)


@pytest.mark.parametrize(
    ("asked", "usage", "prompt", "total", "new"),
    [
        (ASKED, Usage(80, 200), 80, 0, 200),
        (ASKED, Usage(None, 200), 100, 0, 200),
        (ASKED, Usage(80, None), 80, 0, 4096),
        (ASKED, Usage(10**9, 10**9), 400, 0, 4096),
        (Workload(prompt_tokens=60, total_prompt_tokens=100, sequences=2), Usage(80), 60, 80, 0),
        (Workload(prompt_tokens=60, total_prompt_tokens=100, sequences=2), Usage(30), 30, 30, 0),
        (Workload(prompt_tokens=9, new_tokens=50, sequences=4), Usage(9, 120), 9, 0, 50),
        (Workload(prompt_tokens=9, new_tokens=50, sequences=4), Usage(9, 20), 9, 0, 20),
        (Workload(prompt_tokens=9, new_tokens=50, sequences=4, beams=4), Usage(9, 20), 9, 0, 50),
    ],
)
def test_a_workload_becomes_what_was_used_but_never_more_new_tokens_than_it_asked(
    asked: Workload, usage: Usage, prompt: int, total: int, new: int
) -> None:
    real = really(asked, usage, longest_prompt=400)
    assert (real.prompt_tokens, real.total_prompt_tokens, real.new_tokens) == (prompt, total, new)


def test_a_prompt_counts_no_more_than_was_asked_where_its_bytes_are_not_known() -> None:
    assert really(ASKED, Usage(10**9, 1)).prompt_tokens == 100
