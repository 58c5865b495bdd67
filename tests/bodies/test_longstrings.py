"""Long strings are left out of a JSON body, and nothing else of it changes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_admission.bodies.longstrings import LONG, cut_long_strings, restore

LENGTH = 3 * LONG
BASE64 = "A" * 64
"""What a string begins with to be taken for base64."""


def restored(body: bytes) -> bytes:
    return restore(*cut_long_strings(body))


def cut(value: Any, **options: Any) -> tuple[Any, list[int]]:
    """What ``value`` becomes, with the sizes of what was left out."""
    short, strings = cut_long_strings(json.dumps(value, **options).encode())
    return json.loads(short), [string.size for string in strings.values()]


def test_a_long_string_is_replaced_by_a_short_key() -> None:
    body = json.dumps({"a": 1, "image": "x" * LENGTH, "b": [2]}).encode()
    short, strings = cut_long_strings(body)
    ((key, string),) = strings.items()
    assert json.loads(short) == {"a": 1, "image": key, "b": [2]}
    assert (string.length, string.size) == (LENGTH, LENGTH)
    assert string.head(10) == "x" * 10
    assert len(short) < 200


def test_several_are_replaced_and_all_come_back() -> None:
    body = json.dumps([{"image": letter * LENGTH} for letter in "abc"]).encode()
    assert len(cut_long_strings(body)[1]) == 3
    assert restored(body) == body


def test_keys_can_not_be_guessed() -> None:
    body = json.dumps(["x" * LENGTH]).encode()
    assert set(cut_long_strings(body)[1]).isdisjoint(cut_long_strings(body)[1])


@pytest.mark.parametrize(
    "value",
    [
        ["short", "strings"] * 20_000,
        [0] * LENGTH,
        {"a": " " * LENGTH},
        ["some words " * LENGTH],
        ["中" * LENGTH],
        'say "' + "x" * LENGTH,
        "x" * LENGTH + '"',
        "x" * LENGTH + "\\",
    ],
)
def test_what_is_not_surely_one_plain_string_stays(value: Any) -> None:
    assert cut(value) == (value, [])


def test_numbers_between_two_strings_stay() -> None:
    value = {"a": "b", "ids": list(range(60_000)), "c": "d"}
    assert cut(value) == (value, [])


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_other_encodings_stay_whole(encoding: str) -> None:
    body = json.dumps(["∢" * LENGTH], ensure_ascii=False).encode(encoding)
    assert cut_long_strings(body) == (body, {})


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b'"',
        b'""',
        b"x" * LENGTH,
        b'"' + b"x" * LENGTH,
        b"x" * LENGTH + b'"',
        b'["' + b"\x01" * LENGTH + b'"]',
    ],
)
def test_what_is_no_json_is_left_alone(body: bytes) -> None:
    assert restored(body) == body


@pytest.mark.parametrize("text", ["line\n", "中", "é", "a\\b", "a/b"])
def test_escapes_count_as_what_they_stand_for(text: str) -> None:
    text = BASE64 + text * LENGTH
    _, (size,) = cut([text])
    assert len(text.encode()) <= size <= 1.5 * len(text.encode())


def test_characters_beyond_the_first_plane_count_as_no_less() -> None:
    _, (size,) = cut([BASE64 + "😀" * LENGTH])
    assert 4 * LENGTH <= size <= 64 + 6 * LENGTH
    assert cut([BASE64 + "😀" * LENGTH], ensure_ascii=False)[1] == [64 + 4 * LENGTH]


def test_a_head_ends_before_a_broken_character() -> None:
    text = BASE64 + "é中" * LENGTH
    for ascii in (True, False):
        (string,) = cut_long_strings(json.dumps([text], ensure_ascii=ascii).encode())[1].values()
        for length in range(60, 80):
            assert text.startswith(string.head(length))
            assert len(string.head(length).encode()) <= length
        assert string.head(string.length) == text


def test_a_head_leaves_out_what_is_no_text() -> None:
    body = b'["' + BASE64.encode() + b"\xff" * LENGTH + b'"]'
    (string,) = cut_long_strings(body)[1].values()
    assert string.head(100) == "A" * 64


def test_a_head_with_a_broken_escape_is_empty() -> None:
    body = b'["' + BASE64.encode() + b"\\x" * LENGTH + b'"]'
    (string,) = cut_long_strings(body)[1].values()
    assert string.head(100) == ""


@given(st.lists(st.tuples(st.text(), st.integers(0, 3)), max_size=6), st.booleans())
@settings(deadline=None)
def test_any_list_of_strings_reads_the_same_with_them_put_back(
    pieces: list[tuple[str, int]], ascii: bool
) -> None:
    value = [BASE64 * times + text * (1 + times * 1000 // max(1, len(text))) for text, times in pieces]
    body = json.dumps(value, ensure_ascii=ascii).encode("utf-8", "surrogatepass")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gpu_admission.bodies.longstrings.LONG", 100)
        assert restored(body) == body
        short, strings = cut_long_strings(body)
    kept = json.loads(short.decode("utf-8", "surrogatepass"))
    assert all(left == right for left, right in zip(kept, value, strict=True) if left not in strings)
    sizes = [(strings[key].size, text) for key, text in zip(kept, value, strict=True) if key in strings]
    assert all(size >= len(text.encode("utf-8", "surrogatepass")) for size, text in sizes)
