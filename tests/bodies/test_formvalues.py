"""Forms and uploads with long values: what is known of them without making one text of each."""

from __future__ import annotations

from urllib.parse import quote, quote_plus, unquote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_admission.bodies.formvalues import FormString, FormStrings, Lines, PartString, decoded
from gpu_admission.bodies.longvalues import PIECE
from gpu_admission.bodies.multipart import Part
from gpu_admission.bodies.shorten import LONG
from gpu_admission.errors import UnreadableBody
from gpu_admission.workloads import Fields, Guess
from gpu_admission.workloads.forms import read_form
from tests.workloads.asking import request, upload

FORM = "application/x-www-form-urlencoded"
TEXT = "é中😀 =&+%;\r\n" * 20_000


@given(text=st.text(), plus=st.booleans())
def test_a_value_says_what_was_encoded(text: str, plus: bool) -> None:
    text = text.encode("utf-8", "replace").decode()
    assert decoded((quote_plus if plus else quote)(text).encode()) == text


@given(raw=st.text("a4%+=\r\nZ").map(str.encode))
def test_escapes_that_are_none_never_become_shorter(raw: bytes) -> None:
    assert len(decoded(raw)) >= len(unquote_plus(raw.decode())) - raw.endswith(b"%")


@pytest.mark.parametrize("encode", [quote_plus, quote, lambda text: text.replace("%", "").replace("&", "")])
def test_a_long_value_is_read_in_pieces_that_split_nothing_that_matters(encode: object) -> None:
    raw = encode(TEXT).encode()  # type: ignore[operator]
    string = FormString(raw, 0, len(raw))
    pieces = list(string.pieces())
    whole = unquote_plus(raw.decode())
    assert max(map(len, pieces)) <= PIECE
    assert len(whole) <= len("".join(pieces)) <= len(whole) + 10 * len(pieces)
    assert len(whole.encode()) <= string.size <= len(whole.encode()) + 12 * len(pieces)
    assert whole.startswith(string.head(100))
    assert string.length == len(raw)


def test_the_content_of_a_part_is_its_first_bytes_and_zeros() -> None:
    string = PartString(Part("a", None, "", 3 * PIECE + 5, b"abc\xc3\xa9"))
    text = "".join(string.pieces())
    assert text.startswith("abcé0")
    assert len(text.encode()) == string.size == string.length == 3 * PIECE + 5
    assert string.head(2) == "ab"


def test_several_texts_are_one_with_a_line_each() -> None:
    lines = Lines(["short", FormString(b"x%41", 0, 4)])
    assert "".join(lines.pieces()) == "short\nxA"
    assert (lines.size, lines.length, lines.head(3)) == (8, 9, "sho")
    assert Lines([FormString(b"x%41", 0, 4)]).head(9) == "xA"


def test_a_key_stands_for_its_text_and_for_nothing_else() -> None:
    strings = FormStrings()
    assert strings.find("anything") == []
    text = FormString(b"x", 0, 1)
    key = strings.add(text)
    assert strings.get(key) is text
    assert strings.get("other") is None
    assert strings.find(f'{{"a": "{key}"}}') == [(key, text)]


def test_long_fields_of_a_form_are_left_out_and_counted() -> None:
    body = read_form(b"prompt=" + b"a+" * LONG + b"&n=2&n=3&prompt=more")
    prompt = body.fields["prompt"]
    assert body.fields["n"] == "3"
    assert body.size(prompt) == 2 * LONG + len("\nmore")
    assert body.head(prompt, 5) == "a a a"
    assert body.whole(prompt).endswith("a \nmore")
    assert body.json_size(prompt) >= 2 * LONG


@pytest.mark.parametrize("body", [b"&" * 10_000, b"a=1&" * 2_000, b";" * 10_000])
def test_a_form_of_too_many_fields_is_refused_and_empty_ones_count(body: bytes) -> None:
    with pytest.raises(UnreadableBody, match="more than 2000 fields"):
        read_form(body, b"&;")


def test_a_form_is_charged_as_readers_see_it_that_take_semicolons_for_separators() -> None:
    workload = Guess().read(request(b"prompt=hello;max_tokens=5000", "/generate", kind=FORM))
    assert workload.new_tokens == 5000


def test_a_long_name_is_no_fields_name() -> None:
    body = read_form(b"n" * 100_000 + b"=1")
    assert [len(name) for name in body.fields] == [256]


def test_a_prompt_that_comes_as_a_file_is_as_long_as_the_file() -> None:
    body = upload(("prompt", "prompt.txt", "text/plain", b"word " * LONG), path="/run")
    workload = Fields(task="generate", prompt="prompt").read(body)
    assert workload.prompt_tokens > LONG


def test_a_long_text_of_an_upload_is_left_out_and_counted() -> None:
    workload = Guess().read(upload(("prompt", None, "text/plain", b"word " * LONG)))
    assert workload.prompt_tokens > LONG
