"""A body is read as Python's json reads it, however large it is."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest

from gpu_admission.bodies.json import LARGE, JSONObject, LongList, largest, parse_json, read_object
from gpu_admission.errors import UnreadableBody
from tests.workloads.asking import request


def written(body: JSONObject, value: Any) -> str:
    text = body.json_text(value)
    assert text is not None
    return text


@pytest.mark.parametrize(
    "body",
    [
        b'{"a": NaN, "b": [Infinity, -Infinity]}',
        b'{"a": "\\ud800"}',
        b'\xef\xbb\xbf{"a": 1}',
        '{"a": "é"}'.encode("utf-16"),
        '{"a": "é"}'.encode("utf-32-be"),
        b'{"a": 123456789012345678901234567890, "a": 1e400}',
        b' {"a": 1, "a": 2} ',
    ],
)
def test_what_python_accepts_is_accepted(body: bytes) -> None:
    assert repr(parse_json(body)) == repr(json.loads(body))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"a": \x80}',
        b'{"a": "\x80"}',
        b'{"a":' * 5_000,
        b"1" * 5_000,
        b"nope",
    ],
)
def test_what_python_refuses_is_refused(body: bytes) -> None:
    with pytest.raises(UnreadableBody, match="not JSON"):
        parse_json(body)


@pytest.mark.parametrize("opening", [b"[", b'{"a":', b'[{"content":'])
def test_what_is_nested_deeply_is_read_or_refused(opening: bytes) -> None:
    """How deep Python reads depends on its version and stack."""
    closing = opening.translate(bytes.maketrans(b"[{", b"]}"), b'"a:content')[::-1]
    for wrapping in (b'{"messages":%s}', b'{"prompt":%s}', b'{"messages":[{"content":%s}]}'):
        info = request(wrapping % (opening * 20_000 + b"1" + closing * 20_000))
        with contextlib.suppress(UnreadableBody):
            assert info.workload.prompt_tokens


@pytest.mark.parametrize("body", [b"null", b"[]", b'"x"', b"7", b"true", b" 1.5 "])
def test_only_objects_have_fields(body: bytes) -> None:
    with pytest.raises(UnreadableBody, match="object"):
        read_object(request(body))


@pytest.mark.parametrize(
    "value",
    [
        {"messages": [{"role": "user", "content": "héllo\n" * 10}] * 12_000},
        {"deep": {"deeper": {"deepest": {"more": {"texts": ["ab" * 20] * 40_000}}}}},
        {"texts": [f"text {n}" for n in range(70_000)], "n": 1},
    ],
)
def test_a_large_body_reads_the_same_as_a_small_one(value: dict[str, Any]) -> None:
    body = json.dumps(value).encode()
    assert len(body) > LARGE
    assert read_object(request(b"\n " + body)).fields == value


@pytest.mark.parametrize(
    "tail", [b', "x": NaN}', b', "x": "\\ud800"}', b', "x": [NaN, ' + b"1, " * 10_000 + b"2]}"]
)
def test_a_large_body_falls_back_to_the_second_reader(tail: bytes) -> None:
    body = json.dumps({"texts": ["abc"] * 60_000}).encode()
    assert len(read_object(request(body[:-1] + tail)).fields["texts"]) == 60_000


def test_a_large_body_that_is_no_json_is_refused() -> None:
    with pytest.raises(UnreadableBody):
        read_object(request(json.dumps(["abc"] * 400_000).encode()[:-1]))


def test_a_long_list_of_numbers_is_only_counted() -> None:
    ids = list(range(300_000))
    found = read_object(request({"prompt": ids, "nested": [ids, ids]})).fields
    assert isinstance(found["prompt"], LongList)
    assert len(found["prompt"]) == 300_000
    assert found["prompt"].size == len(json.dumps(ids))
    assert [len(row) for row in found["nested"]] == [300_000, 300_000]


def test_a_long_string_keeps_its_size_and_head() -> None:
    text = "A" * 64 + "héllo " * 50_000
    body = read_object(request({"prompt": text, "short": "é"}))
    assert not body.is_whole
    assert len(body.fields["prompt"]) < 100
    assert body.size(body.fields["prompt"]) == len(text.encode())
    assert body.head(body.fields["prompt"], 84) == text[:74]
    assert body.whole(body.fields["prompt"]) == text
    assert (body.size("é"), body.head("abc", 2), body.whole("abc")) == (2, "ab", "abc")


def test_the_size_of_json_has_its_long_texts() -> None:
    text = "x" * 200_000
    body = read_object(request({"tools": [{"description": text}], "numbers": list(range(300_000))}))
    assert body.json_size(body.fields["tools"]) >= 200_000
    assert text in written(body, body.fields["tools"])
    assert body.json_size(body.fields["numbers"]) >= len(json.dumps(list(range(300_000))))
    assert len(written(body, body.fields["numbers"])) >= len(json.dumps(list(range(300_000))))


def test_only_the_long_texts_of_a_value_count_with_it() -> None:
    body = read_object(request({"tools": ["x" * 200_000], "other": ["y" * 200_000], "more": {"a": "z"}}))
    assert 200_000 <= body.json_size(body.fields["tools"]) < 200_100
    assert body.json_size(body.fields["more"]) < 20
    assert "y" not in written(body, body.fields["tools"])


def test_json_that_can_not_be_written_counts_as_the_whole_body() -> None:
    assert JSONObject({}, 50).json_size({"a": "\ud800"}) == 100


def test_other_values_are_written_as_nothing() -> None:
    assert JSONObject({}, 50).json_size({"a": object()}) == len('{"a":null}')


def test_lists_in_lists_are_not_written_with_all_their_white_space() -> None:
    deep: Any = []
    for _ in range(200):
        deep = [deep]
    body = read_object(request({"tools": [deep] * 400, "plain": [{"name": "f", "about": "x" * 50}] * 400}))
    assert body.json_text(body.fields["tools"]) is None
    assert body.spaced_size(body.fields["tools"]) > 20 * body.total
    assert written(body, body.fields["plain"]) == json.dumps(body.fields["plain"], indent=4)


def test_the_size_with_white_space_is_never_less_than_what_a_template_writes() -> None:
    for value in ([], {}, [1, [2, {"a": []}]], {"a": {"b": [None] * 9}}, [[[[["x"]]]]], "é", 1.5):
        text = json.dumps(value, ensure_ascii=False, indent=4)
        assert JSONObject({}, 10**6).spaced_size(value) >= len(text.encode())


@pytest.mark.parametrize("prefix", [b"", b'{"pad": "' + b"x:" * LARGE + b'"}'])
@pytest.mark.parametrize(
    ("body", "fields"),
    [
        (b'{"n": 7, "n": 1}', {"n": 7}),
        (b'{"n": 1, "n": 7.5, "n": 3}', {"n": 7.5}),
        (b'{"n": null, "n": 2, "n": null}', {"n": 2}),
        (b'{"o": {"n": 5, "n": 1}}', {"o": {"n": 5}}),
        (b'{"l": [{"n": 5, "n": 1}, 3]}', {"l": [{"n": 5}, 3]}),
        (b'{"s": "longer text", "s": "x"}', {"s": "longer text"}),
        (b'{"shape": [9, 9], "shape": [9, 9]}', {"shape": [9, 9]}),
        (b'{"\\u006e": 7, "n": 1}', {"n": 7}),
        (b'{"n" : 7, "n"\n: 1}', {"n": 7}),
        (b'{"a": "b: c", "n": NaN, "n": 1e400}', {"a": "b: c", "n": float("inf")}),
    ],
)
def test_of_a_repeated_name_the_largest_value_counts_where_it_is_asked_for(
    prefix: bytes, body: bytes, fields: dict[str, Any]
) -> None:
    if prefix:
        body = prefix[:-1] + b", " + body[1:]
    found = read_object(request(body), repeats=largest).fields
    found.pop("pad", None)
    assert found == fields


def test_a_limit_of_values_holds_for_small_bodies_too() -> None:
    info = request({"messages": list(range(50))})
    info.max_json_values = 20
    with pytest.raises(UnreadableBody, match="max_json_values=20"):
        read_object(info)
    with pytest.raises(UnreadableBody, match="max_json_values=20"):
        _ = info.json


@pytest.mark.parametrize("body", [b"{" * 9, b"\xff" * 9, b"[" * 100_000, b'{"a": "' + b"x" * 99, b"[1,]"])
def test_the_error_of_an_unreadable_body_holds_nothing_of_it(body: bytes) -> None:
    with pytest.raises(UnreadableBody) as caught:
        parse_json(body)
    assert (caught.value.__context__, caught.value.__cause__) == (None, None)


@pytest.mark.parametrize(
    "twice",
    [
        b'{"shape": [9, 9, 9], "shape": [0, 0, 0, 0]}',
        b'{"options": {"n": 9}, "options": {"n": 1, "pad": "long enough to be the longer one"}}',
        b'{"options": {"n": 9}, "options": "a text that is longer than that object is"}',
        b'{"options": null, "options": {"n": 1}}',
        b'{"prompt": ["many", "texts"], "prompt": "one"}',
    ],
)
def test_a_list_or_object_beside_another_value_of_its_name_is_refused_where_servers_may_take_either(
    twice: bytes,
) -> None:
    with pytest.raises(UnreadableBody, match="twice"):
        read_object(request(twice), repeats=largest)
    assert read_object(request(twice)).fields
