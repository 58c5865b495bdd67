"""The request headers that the edge obeys."""

from __future__ import annotations

import pytest

from gpu_admission.http.headers import deadline, of_the_body

Headers = list[tuple[bytes, bytes]]


@pytest.mark.parametrize(
    ("value", "length"),
    [(b"0", 0), (b"12", 12), (b"9" * 19, int("9" * 19)), (b"9" * 20, None), (b"", None), (b"-1", None)],
)
def test_a_plain_number_is_the_length_and_anything_else_is_none(value: bytes, length: int | None) -> None:
    assert of_the_body({"headers": [(b"content-length", value)]}) == (length, ())


def test_no_headers_at_all_say_nothing() -> None:
    assert of_the_body({}) == (None, ())
    assert deadline({}) is None


@pytest.mark.parametrize(
    ("headers", "names"),
    [
        ([(b"content-encoding", b"gzip")], ["gzip"]),
        ([(b"content-encoding", b" GZIP , br ")], ["gzip", "br"]),
        ([(b"content-encoding", b"gzip"), (b"content-encoding", b"br")], ["gzip", "br"]),
        ([(b"content-encoding", b"identity")], []),
        ([(b"content-encoding", b", identity,,")], []),
        ([(b"content-encoding", b"")], []),
        ([(b"content-encoding", b"\xff")], ["ÿ"]),
    ],
)
def test_encodings_are_named_in_the_order_in_which_they_were_applied(
    headers: Headers, names: list[str]
) -> None:
    assert list(of_the_body({"headers": headers})[1]) == names


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ([], None),
        ([(b"x-request-deadline", b"2.5")], 2.5),
        ([(b"x-request-deadline", b"0")], 0.0),
        ([(b"x-request-deadline", b"10"), (b"x-stainless-read-timeout", b"3")], 3.0),
        ([(b"x-request-deadline", b"-1")], None),
        ([(b"x-request-deadline", b"nan")], None),
        ([(b"x-request-deadline", b"inf")], None),
        ([(b"x-request-deadline", b"soon")], None),
        ([(b"x-request-deadline", b"\xff")], None),
        ([(b"x-request-deadline", b"soon"), (b"x-stainless-read-timeout", b"3")], 3.0),
    ],
)
def test_the_shortest_deadline_counts_and_nonsense_does_not(headers: Headers, seconds: float | None) -> None:
    assert deadline({"headers": headers}) == seconds


def test_a_header_that_is_sent_thousands_of_times_is_one_line_of_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", logger="gpu_admission")
    headers = [(b"x-request-deadline", b"soon")] * 3000 + [(b"x-request-deadline", b"7")]
    assert deadline({"headers": headers}) == 7.0
    assert [record.getMessage() for record in caplog.records] == [
        "the request header x-request-deadline is ignored: it must be seconds from now"
    ]
