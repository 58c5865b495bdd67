"""OpenAI's requests, field by field."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_admission.bodies.json import read_object
from gpu_admission.errors import UnreadableBody
from gpu_admission.types import Workload
from gpu_admission.workloads import OpenAI
from gpu_admission.workloads.openai import UNKNOWN_CONTEXT
from tests.workloads import pictures
from tests.workloads.asking import request

HELLO = [{"role": "user", "content": "hello"}]


def chat(**fields: Any) -> Workload:
    return OpenAI().read(request({"messages": HELLO, **fields}))


def tokens_of(messages: Any, **options: Any) -> int:
    return OpenAI(**options).read(request({"messages": messages})).prompt_tokens


def test_a_chat_says_what_it_asks() -> None:
    workload = chat(model="llama", stream=True, max_tokens=256, n=2)
    assert (workload.task, workload.model, workload.stream) == ("generate", "llama", True)
    assert (workload.new_tokens, workload.sequences, workload.beams) == (256, 2, 1)
    assert workload.total_prompt_tokens == 0
    assert workload.defaulted == ()


def test_tokens_are_counted_by_bytes_with_the_template() -> None:
    assert tokens_of(HELLO, tokens="bound") >= 5 + 8 + 40
    assert (
        tokens_of([{"role": "user", "content": "x" * 1000}]) - tokens_of([{"role": "user", "content": ""}])
        == 410
    )
    assert (
        tokens_of([{"role": "user", "content": "中" * 1000}]) - tokens_of([{"role": "user", "content": ""}])
        == 1080
    )


@pytest.mark.parametrize("key", ["role", "type", "detail"])
def test_text_can_not_hide_in_a_word(key: str) -> None:
    assert tokens_of([{**HELLO[0], key: "x" * 1000}]) >= 410
    assert tokens_of([{**HELLO[0], key: ["x" * 1000]}]) >= 410
    assert tokens_of([{**HELLO[0], key: "x" * 300_000}]) >= 123_000


def test_every_text_of_a_message_counts() -> None:
    plain = tokens_of(HELLO)
    for extra in (
        {"name": "x" * 100},
        {"reasoning_content": "x" * 100},
        {"tool_calls": [{"function": {"arguments": "x" * 100}}]},
        {"unheard_of": "x" * 100},
    ):
        assert tokens_of([{**HELLO[0], **extra}]) >= plain + 40
    assert tokens_of([{"content": "x" * 100, "name": "x" * 100}]) >= plain + 75


@pytest.mark.parametrize(
    "part", [{"type": "text", "text": "x" * 100}, "x" * 100, {"type": "input_text", "text": "x" * 100}]
)
def test_parts_count_as_the_text_that_they_are(part: Any) -> None:
    assert (
        tokens_of([{"role": "user", "content": [part]}])
        == tokens_of([{"role": "user", "content": "x" * 100}]) - 1
    )


@pytest.mark.parametrize(
    "messages", [None, "x" * 100, {"role": "user"}, 7, [None], ["x"], [[]], [{"role": 1, "content": 5}]]
)
def test_messages_of_a_wrong_kind_are_charged_as_they_are_written(messages: Any) -> None:
    assert tokens_of(messages) >= 40


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"max_tokens": 5}, 5),
        ({"max_completion_tokens": 5}, 5),
        ({"max_completion_tokens": 5, "max_tokens": 500}, 500),
        ({"max_completion_tokens": 500, "max_tokens": None}, 500),
        ({"max_tokens": 5, "min_tokens": 50}, 50),
        ({"max_tokens": 5, "n_predict": -1}, 1024),
        ({"min_tokens": 5000}, 5000),
    ],
)
def test_the_largest_limit_that_is_said_counts(limits: dict[str, Any], expected: int) -> None:
    assert chat(**limits).new_tokens == expected


def test_without_a_limit_the_rest_of_the_context_is_taken() -> None:
    workload = OpenAI(context=1000).read(request({"messages": HELLO}))
    assert workload.prompt_tokens + workload.new_tokens == 1000
    assert workload.defaulted == ("max_tokens",)
    full = OpenAI(context=10).read(request({"messages": HELLO}))
    assert full.new_tokens == 1


@pytest.mark.parametrize(
    ("fields", "sequences", "beams"),
    [
        ({}, 1, 1),
        ({"n": 3}, 3, 1),
        ({"n": 2, "best_of": 5}, 5, 1),
        ({"n": 4, "use_beam_search": True}, 4, 4),
        ({"n": 2, "num_beams": 3}, 6, 3),
        ({"n": None, "best_of": -1}, 1, 1),
    ],
)
def test_choices_and_beams_multiply_the_sequences(fields: dict[str, Any], sequences: int, beams: int) -> None:
    workload = chat(**fields)
    assert (workload.sequences, workload.beams) == (sequences, beams)


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({}, False),
        ({"logprobs": True}, False),
        ({"echo": True}, False),
        ({"echo": True, "logprobs": None}, False),
        ({"echo": True, "logprobs": 0}, True),
        ({"echo": True, "logprobs": 5}, True),
        ({"echo": True, "logprobs": True}, True),
        ({"prompt_logprobs": 0}, True),
        ({"prompt_logprobs": None}, False),
        ({"prompt_logprobs": None, "echo": True, "logprobs": 1}, True),
    ],
)
def test_prompt_logprobs_are_seen(fields: dict[str, Any], kept: bool) -> None:
    assert chat(**fields).prompt_logprobs is kept


def test_tools_count_with_their_preamble() -> None:
    tool = {"type": "function", "function": {"name": "f", "description": "x" * 1000}}
    assert chat(tools=[tool]).prompt_tokens >= chat().prompt_tokens + 410 + 200
    assert chat(functions=[tool]).prompt_tokens == chat(tools=[tool]).prompt_tokens
    assert chat(tools=[]).prompt_tokens == chat().prompt_tokens
    assert chat(chat_template="x" * 1000).prompt_tokens == chat().prompt_tokens + 410
    assert chat(system=[{"type": "text", "text": "x" * 1000}]).prompt_tokens == chat().prompt_tokens + 410
    assert chat(chat_template_kwargs={"documents": ["x" * 1000]}).prompt_tokens > chat().prompt_tokens + 400


def test_history_that_the_server_keeps_costs_the_context() -> None:
    asked = {"input": "and then?", "previous_response_id": "resp_1", "max_output_tokens": 9}
    path = "/v1/responses"
    assert OpenAI(context=4096).read(request(asked, path)).prompt_tokens == 4096
    unknown = OpenAI().read(request(asked, path))
    assert unknown.prompt_tokens == UNKNOWN_CONTEXT
    assert unknown.defaulted == ("previous_response_id",)
    assert OpenAI().read(request({"input": "x", "prompt": {"id": "p"}})).prompt_tokens == UNKNOWN_CONTEXT
    assert OpenAI().read(request({"input": "x", "conversation": None})).prompt_tokens < 100


def test_items_of_responses_are_messages() -> None:
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "x" * 100}]},
        {
            "type": "function_call_output",
            "call_id": "c",
            "output": [{"type": "input_text", "text": "x" * 100}],
        },
        {"type": "reasoning", "summary": [], "content": None},
    ]
    workload = OpenAI().read(request({"input": items, "instructions": "x" * 100}, "/v1/responses"))
    assert workload.prompt_tokens >= 150 + 40
    assert (workload.sequences, workload.defaulted) == (1, ("max_output_tokens",))


def test_completions_run_one_row_for_each_prompt() -> None:
    workload = OpenAI().read(request({"prompt": ["x" * 100, "x" * 10], "n": 2}, "/v1/completions"))
    assert (workload.prompt_tokens, workload.total_prompt_tokens, workload.sequences) == (43, 50, 4)
    assert (workload.new_tokens, workload.defaulted) == (16, ("max_tokens",))


@pytest.mark.parametrize(("limit", "expected"), [(None, 1024), (0, 1024), (-1, 1024), (3, 3)])
def test_a_completion_that_says_no_limit_is_not_short(limit: Any, expected: int) -> None:
    assert OpenAI().read(request({"prompt": "x", "max_tokens": limit})).new_tokens == expected


def test_token_ids_are_exact() -> None:
    ids = OpenAI().read(request({"prompt": [1] * 1234, "max_tokens": 1}))
    assert ids.prompt_tokens == 1234
    several = OpenAI().read(request({"prompt": [[1] * 5, [1] * 7], "max_tokens": 1}))
    assert (several.prompt_tokens, several.total_prompt_tokens, several.sequences) == (7, 12, 2)


@pytest.mark.parametrize(
    ("input", "sequences"), [("x", 1), (["x", "y"], 2), ([1, 2, 3], 1), ([[1], [2]], 2), ([{"text": "x"}], 1)]
)
def test_embeddings_generate_nothing(input: Any, sequences: int) -> None:
    workload = OpenAI().read(request({"input": input, "dimensions": 256}, "/v1/embeddings"))
    assert (workload.task, workload.new_tokens, workload.sequences) == ("embed", 0, sequences)
    assert workload.prompt_tokens >= 1


def image_tokens(url: Any, **options: Any) -> tuple[int, tuple[tuple[int, int], ...]]:
    """What an image part adds, and the sizes that were found."""
    part = {"type": "image_url", "image_url": url}
    workload = OpenAI(**options).read(request({"messages": [{"role": "user", "content": [part]}]}))
    return workload.prompt_tokens - tokens_of([{"role": "user", "content": []}]), workload.images


@pytest.mark.parametrize("kind", ["png", "jpeg", "gif", "webp", "avif"])
def test_an_inline_image_costs_its_size(kind: str) -> None:
    url = {"url": pictures.data_url(getattr(pictures, kind)(1024, 1024)), "detail": "high"}
    assert image_tokens(url, image_tokens="qwen2-vl") == (1369 + 2, ((1024, 1024),))


def test_a_remote_image_costs_the_most() -> None:
    for url in ("https://example.org/a.png", {"url": "https://example.org/a.png"}, {}, 5, None):
        expected = (0, ()) if url is None else (16384 + 2, ((0, 0),))
        assert image_tokens(url, image_tokens="qwen2-vl") == expected


def test_more_images_than_anyone_sends_are_refused() -> None:
    assert len(image_tokens(["x"] * 10_000)[1]) == 10_000
    with pytest.raises(UnreadableBody, match="images"):
        image_tokens(["x"] * 10_001)


def test_a_long_inline_image_is_not_text() -> None:
    url = {"url": pictures.data_url(pictures.png(640, 480) + bytes(3_000_000))}
    assert image_tokens(url, image_tokens="gemma-3") == (256 + 2, ((640, 480),))


def test_long_base64_in_a_text_stays_text() -> None:
    text = pictures.data_url(pictures.png(640, 480) + bytes(300_000))
    part = {"type": "text", "text": text}
    assert tokens_of([{"role": "user", "content": [part]}]) >= len(text) // 2


def test_one_image_can_not_stand_for_anothers_bytes() -> None:
    text = pictures.data_url(bytes(300_000))
    parts = [{"type": "text", "text": text}, {"type": "image_url", "image_url": {"url": "0" * 48 + ":0"}}]
    assert tokens_of([{"role": "user", "content": parts}]) >= len(text) // 2


def test_sound_costs_by_its_length() -> None:
    sound = pictures.data_url(pictures.wav(16_000, data=320_000), "audio/wav").partition(",")[2]
    part = {"type": "input_audio", "input_audio": {"data": sound, "format": "wav"}}
    workload = OpenAI().read(request({"messages": [{"role": "user", "content": [part]}]}))
    assert workload.audio_seconds == pytest.approx(10, rel=0.01)
    assert 250 <= workload.prompt_tokens <= 350
    remote = {"type": "audio_url", "audio_url": {"url": "https://example.org/a.mp3"}}
    assert OpenAI().read(request({"messages": [{"role": "user", "content": [remote]}]})).audio_seconds == 1800


@pytest.mark.parametrize(
    "part", [{"video_url": {"url": "https://x"}}, {"file": {"file_data": "x" * 200_000}}]
)
def test_video_and_files_cost_much(part: Any) -> None:
    assert tokens_of([{"role": "user", "content": [part]}]) > 50_000


def test_what_is_nested_deeply_is_charged_as_json() -> None:
    content: Any = "x" * 100
    for _ in range(400):
        content = [{"content": content}]
    assert tokens_of([{"role": "user", "content": content}]) >= 100


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens", "n", "best_of", "min_tokens"])
def test_a_field_of_a_wrong_kind_is_refused_by_name(field: str) -> None:
    with pytest.raises(UnreadableBody, match=field):
        chat(**{field: [5]})


def test_a_product_of_large_numbers_stays_finite() -> None:
    workload = OpenAI().read(request({"prompt": ["x"] * 100, "n": 2**50, "best_of": 2**53}))
    assert workload.sequences == 2**53


@pytest.mark.parametrize(
    ("body", "inserted"),
    [({"input": "x"}, "max_output_tokens"), ({"messages": []}, "max_tokens"), ({}, "max_tokens")],
)
def test_a_new_limit_has_the_name_of_its_endpoint(body: Any, inserted: str) -> None:
    assert f'"{inserted}": 5'.encode() in OpenAI().clamp(request(body).body, 5)


@pytest.mark.parametrize("option", ["default_new_tokens", "completion_new_tokens", "context"])
def test_a_wrong_option_is_named(option: str) -> None:
    with pytest.raises(ValueError, match=option):
        OpenAI(**{option: 0})


# the usual chat, read in fewer steps

ODD: list[Any] = [
    None,
    0,
    -1,
    7,
    2**53,
    2**53 + 1,
    10**30,
    1.5,
    "9",
    True,
    "",
    [],
    {},
    float("nan"),
    "x" * 40,
]
messages = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "role": st.sampled_from(["user", "r" * 40, 3]),
            "content": st.sampled_from(
                ["hello 42", "Grüße, 世界", "", None, [{"type": "text", "text": "a"}]]
            ),
            "name": st.just("n"),
        },
    )
    | st.sampled_from(["hello", [{"role": "user", "content": "a"}], None]),
    max_size=4,
)
fields = st.fixed_dictionaries(
    {"messages": messages | st.sampled_from(ODD)},
    optional={
        name: st.sampled_from(ODD)
        for name in (
            *("max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict", "min_tokens", "n"),
            *("model", "stream", "input", "prompt", "tools", "background", "other"),
        )
    },
)


@given(
    st.lists(fields, min_size=1, max_size=2), st.sampled_from(["/v1/chat/completions", "/completions", "/x"])
)
@settings(max_examples=1500, database=None, derandomize=True)
def test_a_usual_chat_is_read_as_any_other(bodies: list[dict[str, Any]], path: str) -> None:
    members = [
        json.dumps({name: value}, allow_nan=True)[1:-1] for body in bodies for name, value in body.items()
    ]
    info = request(f"{{{','.join(members)}}}".encode(), path=path)  # with two bodies most names come twice
    dialect = OpenAI()
    try:
        expected = dialect.of(read_object(info), path)
    except UnreadableBody as error:
        with pytest.raises(UnreadableBody, match=re.escape(error.detail)):
            dialect.read(info)
        return
    assert dialect.read(info) == expected
