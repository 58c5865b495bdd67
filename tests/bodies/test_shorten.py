"""Long strings and lists of numbers are left out of a JSON body, and nothing else of it changes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_admission.bodies.json import JSONObject, parse_json, read_object
from gpu_admission.bodies.longvalues import LongList
from gpu_admission.bodies.shorten import LONG, shorten
from gpu_admission.errors import TooComplex, UnreadableBody
from tests.workloads.asking import request

LENGTH = 3 * LONG


def restored(body: bytes) -> bytes:
    short = shorten(body)
    return short.restore(short.text)


def cut(value: Any, **options: Any) -> tuple[Any, JSONObject]:
    """What ``value`` becomes, and a body that knows what was left out of it."""
    short = shorten(json.dumps(value, **options).encode())
    return json.loads(short.text), JSONObject({}, 0, short.strings, not short.strings)


def test_a_long_string_is_replaced_by_a_short_key() -> None:
    short = shorten(json.dumps({"a": 1, "image": "x" * LENGTH, "b": [2]}).encode())
    found = json.loads(short.text)
    string = short.strings.get(found.pop("image"))
    assert found == {"a": 1, "b": [2]}
    assert string is not None
    assert (string.length, string.size, string.head(10)) == (LENGTH, LENGTH, "x" * 10)
    assert len(short.text) < 200


def test_several_are_replaced_and_all_come_back() -> None:
    body = json.dumps([{"image": letter * LENGTH} for letter in "abc"] + [[7] * LENGTH, 0.5]).encode()
    short = shorten(body)
    assert (len(short.strings), len(short.lists)) == (3, 1)
    assert len(short.text) < 500
    assert short.restore(short.text) == body


def test_keys_can_not_be_guessed() -> None:
    body = json.dumps(["x" * LENGTH]).encode()
    assert shorten(body).text != shorten(body).text


@pytest.mark.parametrize(
    "value",
    [["short", "strings"] * 20_000, {"a": " " * (LONG - 1)}, 0.1234, {"shape": [1, 3, 224, 224]}, "", []],
)
def test_short_values_stay(value: Any) -> None:
    assert cut(value)[0] == value


@pytest.mark.parametrize(
    "text",
    [
        " " * LENGTH,
        "some words " * LENGTH,
        "中" * LENGTH,
        'say "' + "x" * LENGTH,
        "x" * LENGTH + '"',
        "x" * LENGTH + "\\",
        '\\"' * LENGTH,
        "\\\\" * LENGTH,
        ': [1, 2], "' * LENGTH,
        "[" + "1," * LENGTH + "2]",
        "é\n😀\\" * LENGTH,
    ],
)
@pytest.mark.parametrize("ascii", [True, False])
def test_any_long_text_is_left_out_and_can_be_read_whole(text: str, ascii: bool) -> None:
    found, body = cut(["before", text, {"a": "after"}], ensure_ascii=ascii)
    assert len(found[1]) < 100
    assert [found[0], found[2]] == ["before", {"a": "after"}]
    assert body.whole(found[1]) == text
    assert len(text.encode()) <= body.size(found[1]) <= 1.5 * len(text.encode())
    assert max(map(len, body.pieces(found[1]))) <= LONG


@pytest.mark.parametrize("text", ["line\n", "中", "é", "a\\b", "a/b", "plain"])
def test_escapes_count_as_what_they_stand_for(text: str) -> None:
    (key,), body = cut([text * LENGTH])
    assert body.size(key) == len(text.encode()) * LENGTH


def test_characters_beyond_the_first_plane_count_as_no_less() -> None:
    (key,), body = cut(["😀" * LENGTH])
    assert 4 * LENGTH <= body.size(key) <= 6 * LENGTH
    (key,), body = cut(["😀" * LENGTH], ensure_ascii=False)
    assert body.size(key) == 4 * LENGTH


def test_a_head_ends_before_a_broken_character() -> None:
    text = "A" * 64 + "é中😀" * LENGTH
    for ascii in (True, False):
        (key,), body = cut([text], ensure_ascii=ascii)
        for length in range(60, 120):
            assert text.startswith(body.head(key, length))
            assert len(body.head(key, length).encode()) <= length
        assert body.head(key, 20 * len(text)) == text


def test_what_is_no_text_still_has_a_head_and_a_size() -> None:
    for content in (b"\xff" * LENGTH, b"\x80" * LENGTH, b"\\x" * LENGTH):
        short = shorten(b'["' + content + b'"]')
        string = short.strings.get(json.loads(short.text)[0])
        assert string is not None
        assert len(string.head(100)) > 50
        assert sum(map(len, string.pieces())) >= LENGTH


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-8-sig"])
def test_other_encodings_are_read_too(encoding: str) -> None:
    value = {"text": "∢é😀" * LENGTH, "n": 1}
    body = json.dumps(value, ensure_ascii=False).encode(encoding)
    found = read_object(request(body))
    assert found.whole(found.fields["text"]) == value["text"]
    assert parse_json(body) == value


@pytest.mark.parametrize("body", [b"", b'""', b"x" * LENGTH, b"]" * LENGTH, b'["' + b"\x01" * LENGTH + b'"]'])
def test_what_is_no_json_is_left_alone(body: bytes) -> None:
    assert restored(body) == body


@pytest.mark.parametrize(
    "body", [b'"', b'"' + b"x" * LENGTH, b"x" * LENGTH + b'"', b'"' + b'\\"' * LENGTH, b'"\\', b'["a", "\\"]']
)
def test_a_string_without_an_end_is_refused(body: bytes) -> None:
    with pytest.raises(UnreadableBody, match="no end"):
        shorten(body)


def test_only_lists_of_numbers_are_counted_unread() -> None:
    numbers, others = [1.5, -2, 3e7] * 2000, [None, True] * 2000
    fields = read_object(
        request({"a": numbers, "b": others, "c": [numbers, [1, 2]], "d": ["x"] * 9000})
    ).fields
    assert isinstance(fields["a"], LongList)
    assert (len(fields["a"]), fields["a"].size) == (6000, len(json.dumps(numbers)))
    assert fields["b"] == others
    assert [len(row) for row in fields["c"]] == [6000, 2]
    assert fields["d"] == ["x"] * 9000


# how much is parsed

MOST = 1000


def values(count: int) -> Iterator[Any]:
    """Values of ``count`` each, of every kind."""
    yield ["x"] * count
    yield [[]] * count
    yield [{}] * count
    yield [{"a": 1}] * count
    yield {f"n{number}": None for number in range(count)}
    yield [[1, 2]] * count
    yield [None] * count
    yield ["\ud800"] * count
    yield [float("nan")] * count
    yield {"deep": [{"er": [[[{"x": [1]}]]] * count}]}


@pytest.mark.parametrize("number", range(10))
def test_more_values_than_the_most_are_refused_whatever_they_are(number: int) -> None:
    few, many = list(values(MOST // 20))[number], list(values(2 * MOST))[number]
    for value in (few, {"a": few}):
        body = json.dumps(value).encode()
        assert parse_json(body, MOST) == parse_json(body) or "NaN" in body.decode()
    for value in (many, {"a": many}):
        with pytest.raises(TooComplex, match="max_json_values=1000") as caught:
            parse_json(json.dumps(value).encode(), MOST)
        assert (caught.value.status, caught.value.reason) == (413, "body_too_complex")


@pytest.mark.parametrize("text", ["[],[],{}:", 'a, "b": ', "\\,"])
def test_marks_inside_of_strings_are_no_values(text: str) -> None:
    value = {"a": text * MOST, "b": [text] * 50}
    assert parse_json(json.dumps(value).encode(), MOST) == value


def test_the_bytes_of_short_strings_count_and_those_of_long_ones_do_not() -> None:
    assert parse_json(json.dumps(["x" * 70_000] * 100).encode(), MOST) == ["x" * 70_000] * 100
    with pytest.raises(TooComplex):
        parse_json(json.dumps(["x" * 200] * 400).encode(), MOST)


def test_long_lists_count_once_where_they_are_left_out() -> None:
    info = request({"prompt": [list(range(5000))] * 100})
    info.max_json_values = MOST
    assert [len(row) for row in read_object(info).fields["prompt"]] == [5000] * 100
    with pytest.raises(TooComplex):
        _ = info.json


# what is left, against Python's own reader

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.text(alphabet='\\"[]{},:é😀\n\ud83d\ude00', max_size=40)
    | st.sampled_from(["z" * 140, "😀\n" * 60, '\\"' * 90, [0.25] * 40, list(range(60))])
)
any_values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=10,
)
layouts = st.sampled_from([{}, {"indent": 3}, {"separators": (",", ":")}, {"ensure_ascii": False}])
encodings = st.sampled_from(["utf-8", "utf-8", "utf-8-sig", "utf-16", "utf-32-be"])


@pytest.fixture
def slicing() -> Iterator[None]:
    """Every body is large, and its windows are narrow."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gpu_admission.bodies.json.LARGE", 0)
        for name, size in (("LONG", 40), ("_GAP", 20), ("_LIST", 10), ("_WINDOW", 16)):
            patch.setattr(f"gpu_admission.bodies.shorten.{name}", size)
        patch.setattr("gpu_admission.bodies.longvalues.PIECE", 32)
        yield


@pytest.mark.usefixtures("slicing")
@given(value=any_values, layout=layouts, encoding=encodings)
@settings(deadline=None, max_examples=100)
def test_any_body_reads_as_python_reads_it(value: Any, layout: dict[str, Any], encoding: str) -> None:
    body = json.dumps(value, **layout).encode(encoding, "surrogatepass")
    assert parse_json(body) == json.loads(body)
    if encoding == "utf-8":
        assert restored(body) == body


@pytest.mark.usefixtures("slicing")
@given(value=st.dictionaries(st.text(max_size=30), any_values, max_size=5), layout=layouts)
@settings(deadline=None, max_examples=100)
def test_any_object_keeps_its_lengths_and_sizes(value: dict[str, Any], layout: dict[str, Any]) -> None:
    body = json.dumps(value, **layout).encode("utf-8", "surrogatepass")
    found = read_object(request(body))
    same(found, found.fields, json.loads(body))


def same(body: JSONObject, found: Any, value: Any) -> None:
    """``found`` is ``value``, with what was left out of it known by size."""
    if type(found) is LongList:
        assert len(found) == len(value)
        assert {type(number) for number in value} <= {int, float}
    elif type(found) is str:
        assert body.whole(found) == value
        assert body.size(found) >= len(value.encode("utf-8", "surrogatepass"))
    elif type(found) is list:
        assert len(found) == len(value)
        for one, other in zip(found, value, strict=True):
            same(body, one, other)
    elif type(found) is dict:
        assert [body.whole(name) for name in found] == list(value)
        for one, other in zip(found.values(), value.values(), strict=True):
            same(body, one, other)
    else:
        assert found == value


texts = st.text(alphabet='[]{}:,"\\ 0123456789.eE+-nulltrueNaIfy\ud800é\x00\ufeff', max_size=80)


@pytest.mark.usefixtures("slicing")
@given(body=st.binary(max_size=80) | texts.map(lambda text: text.encode("utf-8", "surrogatepass")))
@settings(deadline=None, max_examples=400)
def test_no_bytes_are_read_in_another_way_or_fail_in_another(body: bytes) -> None:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        with pytest.raises(UnreadableBody):
            parse_json(body)
        return
    assert repr(parse_json(body, 1000)) == repr(value)
