"""An upload is read from its parts' headers and sizes."""

from __future__ import annotations

import contextlib

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_admission import RequestInfo
from gpu_admission.bodies.multipart import ALL_HEADS, HEAD, MOST_PARTS, SHORT_HEAD, part_text, read_parts
from gpu_admission.errors import UnreadableBody

MARK = "multipart/form-data; boundary=b"


def test_what_a_client_sends_is_read_back() -> None:
    sound = bytes(range(256)) * 20_000
    sent = httpx.Request(
        "POST",
        "http://test/",
        data={"model": "whisper-1", "language": "dé"},
        files={"file": ("a.wav", sound, "audio/wav"), "empty": ("e.txt", b"")},
    )
    model, language, file, empty = read_parts(sent.read(), sent.headers["content-type"])
    assert (model.name, model.filename, model.head, model.size) == ("model", None, b"whisper-1", 9)
    assert language.head.decode() == "dé"
    assert (file.name, file.filename, file.content_type, file.size) == (
        "file",
        "a.wav",
        "audio/wav",
        len(sound),
    )
    assert file.head == sound[:HEAD]
    assert (empty.filename, empty.size, empty.head) == ("e.txt", 0, b"")


def test_names_may_be_quoted_bare_or_encoded() -> None:
    body = (
        b'--b\r\nContent-Disposition: form-data; name="a \\"b\\" \\\\c"\r\n\r\n1\r\n'
        b"--b\r\ncontent-disposition: form-data; name=plain; filename*=UTF-8''x.png\r\n\r\n2\r\n--b--"
    )
    first, second = read_parts(body, 'Multipart/Form-Data; charset=utf-8; Boundary="b"')
    assert first.name == 'a "b" \\c'
    assert (second.name, second.filename) == ("plain", "UTF-8''x.png")


def test_a_preamble_is_skipped_and_an_epilogue_ignored() -> None:
    (part,) = read_parts(b"hello\r\n--b\r\nA: b\r\n\r\nx\r\n--b--\r\n--b\r\nC: d\r\n\r\ny\r\n", MARK)
    assert (part.name, part.head) == ("", b"x")


def test_a_body_that_breaks_off_keeps_its_last_part() -> None:
    (part,) = read_parts(b"--b\r\n\r\nhel", MARK)
    assert (part.head, part.size) == (b"hel", 3)


def test_a_boundary_inside_a_line_is_content() -> None:
    (part,) = read_parts(b"--b\r\n\r\nx --b y\n--b\r\n--b--", MARK)
    assert part.head == b"x --b y\n--b"


def test_a_boundary_across_search_windows_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    body = b"".join(b"--b\r\n\r\n" + bytes(n) + b"\r\n" for n in range(40)) + b"--b--"
    for window in range(1, 12):
        monkeypatch.setattr("gpu_admission.bodies.multipart._WINDOW", window)
        assert [part.size for part in read_parts(body, MARK)] == list(range(40))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"x",
        b"--b",
        b"--b--",
        b"--bx\r\n\r\n\r\n--b--",
        b"--b\r\n--b\r\n\r\n--b--",
        b"--b\r\nA: b",
        b"--b\n\nx\n--b--",
    ],
)
def test_what_is_not_multipart_is_refused(body: bytes) -> None:
    with pytest.raises(UnreadableBody):
        read_parts(body, MARK)


@pytest.mark.parametrize(
    "kind",
    ["", "application/json", "multipart/form-data", "multipart/form-data; boundary=", "text/x; boundary=b"],
)
def test_a_content_type_without_boundary_is_refused(kind: str) -> None:
    with pytest.raises(UnreadableBody, match="boundary"):
        read_parts(b"--b\r\n\r\n\r\n--b--", kind)


def test_too_many_parts_are_refused() -> None:
    parts = b"--b\r\n\r\n\r\n" * MOST_PARTS
    assert len(read_parts(parts + b"--b--", MARK)) == MOST_PARTS
    with pytest.raises(UnreadableBody, match="more than"):
        read_parts(parts + b"--b\r\n\r\n\r\n--b--", MARK)


def test_headers_that_never_end_are_refused() -> None:
    with pytest.raises(UnreadableBody, match="headers"):
        read_parts(b"--b\r\nA: " + b"x" * 20_000 + b"\r\n\r\n\r\n--b--", MARK)


def test_a_long_text_field_keeps_its_size() -> None:
    (part,) = read_parts(b"--b\r\n\r\n" + b"x" * 200_000 + b"\r\n--b--", MARK)
    assert len(part_text(part)) == 200_000


@pytest.mark.parametrize(
    "kind",
    [
        'boundary="a"b', 'boundary=a"b"', "boundary=a; boundary=b", 'boundary=b; boundary="a"',
        "boundary=b; BOUNDARY=b", "boundary*=utf-8''b", "boundary=a; boundary*=b",
        "boundary*0=a; boundary*1=b", 'boundary="a b"', 'boundary="b "', "boundary=a b", "boundary=a,b",
        'boundary="a;b"', 'boundary="a\\b"', "boundary='b';x", "boundary=é", "boundary", "boundary=",
        'boundary=""', "x; boundary=b", 'x="; boundary=b', "boundary=" + "b" * 201, 'x="y" boundary=b',
        "boundary=b\x00", "boundary = b", 'x="y; boundary=c"; boundary=b',
    ],
)  # fmt: skip
def test_a_boundary_that_readers_take_differently_is_refused(kind: str) -> None:
    with pytest.raises(UnreadableBody, match="one plain boundary"):
        read_parts(b"--b\r\n\r\n\r\n--b--", f"multipart/form-data; {kind}")


@pytest.mark.parametrize(
    ("kind", "boundary"),
    [
        ("boundary=----WebKitFormBoundaryA1+b", "----WebKitFormBoundaryA1+b"),
        ('boundary="=_Part_1:2/3?(4),5"', "=_Part_1:2/3?(4),5"),
        ("charset=utf-8; boundary=b;", "b"),
        ("boundary='b'", "'b'"),
        ("boundary=b ", "b"),
    ],
)
def test_a_plain_boundary_is_read(kind: str, boundary: str) -> None:
    body = f"--{boundary}\r\n\r\nx\r\n--{boundary}--".encode()
    (part,) = read_parts(body, f"multipart/form-data; {kind}")
    assert part.head == b"x"


def test_an_upload_with_two_content_types_is_refused() -> None:
    scope = {"type": "http", "path": "/x", "method": "POST"}
    headers = [(b"content-type", b"multipart/form-data; boundary=" + each) for each in (b"a", b"b")]
    info = RequestInfo({**scope, "headers": headers}, b"--a\r\n\r\nx\r\n--a--")
    with pytest.raises(UnreadableBody, match="one Content-Type"):
        _ = info.parts


def test_the_heads_of_many_parts_are_bounded_together() -> None:
    parts = [b"--b\r\n\r\n" + bytes(HEAD) + b"\r\n"] * 200 + [b"--b\r\n\r\n100\r\n--b--"]
    found = read_parts(b"".join(parts), MARK)
    assert sum(len(part.head) for part in found) <= ALL_HEADS + HEAD + 200 * SHORT_HEAD
    assert found[-1].head == b"100"
    assert {part.size for part in found[:-1]} == {HEAD}


@given(kind=st.text(alphabet="ab;=\"'\\ ,*boundary\t", max_size=30))
def test_no_header_takes_long_or_fails_in_another_way(kind: str) -> None:
    for header in (f"multipart/form-data; boundary={kind}", f"multipart/form-data;{kind * 500}"):
        with contextlib.suppress(UnreadableBody):
            read_parts(b"--b\r\n\r\nx\r\n--b--", header)


@pytest.mark.parametrize(
    "disposition",
    [
        b'Content-Disposition: form-data;\r\n name="n"',
        b'Content-Disposition: form-data\r\n\t; name="n"',
        b'Content-Disposition: form-data; name="n"; name="x"',
        b'Content-Disposition: form-data; name="x"; NAME=n',
        b"Content-Disposition: form-data; name*=utf-8''n",
        b"""Content-Disposition: form-data; name="x"; name*=utf-8''n""",
        b'Content-Disposition: form-data; name*0="n"',
        b'Content-Disposition: form-data; name="\\n"',
        b'Content-Disposition: form-data; name="n"\r\nContent-Disposition: form-data; name="x"',
        b'Content-Disposition: form-data; name="n"\r\ncontent-type: a/b\r\nContent-Type: c/d',
    ],
)
def test_a_part_of_which_frameworks_would_not_read_the_same_name_is_refused(disposition: bytes) -> None:
    with pytest.raises(UnreadableBody, match="a part of the multipart body"):
        read_parts(b"--b\r\n" + disposition + b"\r\n\r\n9\r\n--b--\r\n", "multipart/form-data; boundary=b")


def test_a_windows_path_in_a_file_name_is_no_reason_to_refuse() -> None:
    body = b'--b\r\nContent-Disposition: form-data; name="f"; filename="C:\\new\\x.png"\r\n\r\n9\r\n--b--\r\n'
    (part,) = read_parts(body, "multipart/form-data; boundary=b")
    assert (part.name, part.size) == ("f", 1)
