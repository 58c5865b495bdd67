"""What every dialect promises, whatever a body says."""

from __future__ import annotations

import contextlib
import json
import math
from typing import Any

import pytest

from gpu_admission.bodies.numbers import CEILING
from gpu_admission.errors import UnreadableBody
from gpu_admission.request import Dialect, RequestInfo
from gpu_admission.types import Workload
from gpu_admission.workloads import Fields
from tests.workloads.asking import request
from tests.workloads.cases import CASES, UPLOADS, Case, asked, changed, limits, without

ALL = sorted(CASES)
LIMITS = sorted(limits())
SIZES = (
    "prompt_tokens",
    "new_tokens",
    "sequences",
    "beams",
    "width",
    "height",
    "frames",
    "tensor_bytes",
    "context",
    "audio_seconds",
)

NOT_SAID: list[Any] = [None, 0, -1, -2, -(10**18), -0.5, -1e300, "0", "-5"]
SAID: list[tuple[Any, int]] = [(100, 100), ("100", 100), (99.5, 100), (1e2, 100)]
HUGE: list[Any] = [2147483647, 10**18, 1e18, 2**63, 10**300, 1e308, "9" * 30]
WRONG: list[Any] = [True, False, [5], [], {}, {"a": 1}, "many", ""]


def read(case: Case, body: Any = None) -> Workload:
    return checked(case.dialect, asked(case, body))


def checked(dialect: Dialect, info: RequestInfo) -> Workload:
    """The workload, after a look at every promise that a workload makes."""
    workload = dialect.read(info)
    for name in SIZES[:-1]:
        value = getattr(workload, name)
        assert type(value) is int, name
        assert 0 <= value <= CEILING * CEILING, name
    assert workload.sequences >= 1
    assert workload.beams >= 1
    assert type(workload.audio_seconds) is float
    assert math.isfinite(workload.audio_seconds)
    assert all(min(size) >= 0 for size in workload.images)
    assert all(type(value) is float and math.isfinite(value) for value in workload.features.values())
    assert asks_something(workload)
    return workload


def asks_something(workload: Workload) -> bool:
    picture = workload.width * workload.height
    return (
        workload.prompt_tokens
        + workload.new_tokens
        + picture
        + workload.audio_seconds
        + workload.tensor_bytes
        > 0
    )


@pytest.mark.parametrize("name", ALL)
def test_an_ordinary_request_is_read(name: str) -> None:
    case = CASES[name]
    workload = read(case)
    if case.limit:
        assert getattr(workload, case.field) == 64
        assert case.limit.rpartition(".")[2] not in workload.defaulted


@pytest.mark.parametrize("name", sorted(UPLOADS))
def test_an_upload_is_read(name: str) -> None:
    checked(*UPLOADS[name])


@pytest.mark.parametrize("name", LIMITS)
def test_a_missing_limit_is_the_default_and_says_so(name: str) -> None:
    case = CASES[name]
    if name == "openai completions":
        return
    workload = read(case, without(case.body, case.limit))
    assert getattr(workload, case.field) == case.default
    assert workload.defaulted or case.field != "new_tokens"


@pytest.mark.parametrize("value", NOT_SAID)
@pytest.mark.parametrize("name", LIMITS)
def test_a_limit_that_says_no_limit_is_the_default(name: str, value: Any) -> None:
    case = CASES[name]
    assert getattr(read(case, changed(case.body, case.limit, value)), case.field) == case.default


@pytest.mark.parametrize(("value", "number"), SAID)
@pytest.mark.parametrize("name", LIMITS)
def test_digits_and_fractions_are_numbers(name: str, value: Any, number: int) -> None:
    case = CASES[name]
    assert getattr(read(case, changed(case.body, case.limit, value)), case.field) == number


@pytest.mark.parametrize("value", HUGE)
@pytest.mark.parametrize("name", LIMITS)
def test_a_huge_limit_stays_huge_and_finite(name: str, value: Any) -> None:
    case = CASES[name]
    assert 2147483647 <= getattr(read(case, changed(case.body, case.limit, value)), case.field) <= CEILING


@pytest.mark.parametrize("value", WRONG)
@pytest.mark.parametrize("name", LIMITS)
def test_a_limit_that_is_no_number_is_refused_by_name(name: str, value: Any) -> None:
    case = CASES[name]
    with pytest.raises(UnreadableBody, match=f"{case.limit.rpartition('.')[2]}|new_tokens"):
        read(case, changed(case.body, case.limit, value))


@pytest.mark.parametrize("value", [*NOT_SAID, *HUGE, *WRONG, "x" * 1000, float("nan"), float("inf")])
@pytest.mark.parametrize("name", [name for name in ALL if CASES[name].numbers])
def test_any_value_of_another_number_is_finite_or_refused(name: str, value: Any) -> None:
    case = CASES[name]
    for path in case.numbers:
        try:
            read(case, changed(case.body, path, value))
        except UnreadableBody as error:
            assert path.rpartition(".")[2] in error.detail or "sequences" in error.detail  # noqa: PT017


@pytest.mark.parametrize("name", [name for name in ALL if CASES[name].numbers])
def test_a_larger_number_never_asks_for_less(name: str) -> None:
    case = CASES[name]
    for path in case.numbers:
        few, many = (read(case, changed(case.body, path, value)) for value in (2, 300))
        assert all(getattr(few, size) <= getattr(many, size) for size in SIZES)
        assert any(getattr(few, size) < getattr(many, size) for size in SIZES), path


@pytest.mark.parametrize("name", [name for name in ALL if CASES[name].text])
def test_longer_text_asks_for_more(name: str) -> None:
    case = CASES[name]
    texts = ["one", "one two " * 10, "one two " * 10 + "é中" * 50, "long " * 20_000, "long \n" * 200_000]
    counts = [read(case, changed(case.body, case.text, text)).prompt_tokens for text in texts]
    assert counts == sorted(set(counts))


@pytest.mark.parametrize(
    "text", [None, 7, True, [], {}, "\ud800", [["x"]], {"a": {"b": "c"}}, ["x", None, 3]]
)
@pytest.mark.parametrize("name", [name for name in ALL if CASES[name].text])
def test_text_of_a_wrong_kind_is_finite_or_refused(name: str, text: Any) -> None:
    case = CASES[name]
    with contextlib.suppress(UnreadableBody):
        read(case, changed(case.body, case.text, text))


@pytest.mark.parametrize(
    "body",
    [
        b"", b"null", b"[]", b'"x"', b"7", b"{", b'{"a"}', b"\x80\x81", b'{"prompt": \x80}', b"nonsense",
        b"[" * 20_000 + b"]" * 20_000, b'{"a":' * 5_000, b'{"max_tokens": ' + b"9" * 5_000 + b"}",
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ALL)
def test_a_body_that_is_no_json_object_is_refused(name: str, body: bytes) -> None:
    with pytest.raises(UnreadableBody):
        CASES[name].dialect.read(asked(CASES[name], body))


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-be", "utf-32-le"])
@pytest.mark.parametrize("name", ALL)
def test_other_encodings_read_the_same(name: str, encoding: str) -> None:
    case = CASES[name]
    assert read(case, json.dumps(case.body).encode(encoding)) == read(case)


@pytest.mark.parametrize("name", ALL)
def test_a_body_reads_the_same_whatever_its_content_type_says(name: str) -> None:
    case = CASES[name]
    body = json.dumps(case.body).encode()
    assert checked(case.dialect, request(body, case.path, kind="text/plain")) == read(case)


@pytest.mark.parametrize("name", ALL)
def test_white_space_and_unknown_fields_change_nothing(name: str) -> None:
    case = CASES[name]
    if name.startswith(("guess", "kserve generate")):
        return
    body = {"zzz": {"max_tokens": 10**9}, **case.body, "user": "a" * 300_000}
    assert read(case, json.dumps(body, indent=8).encode()) == read(case)


@pytest.mark.parametrize("name", LIMITS)
def test_the_last_of_repeated_names_counts(name: str) -> None:
    case = CASES[name]
    last = case.limit.rpartition(".")[2]
    body = json.dumps(case.body).replace(f'"{last}": 64', f'"{last}": 5, "{last}": 100').encode()
    assert getattr(read(case, body), case.field) == 100


@pytest.mark.parametrize("name", LIMITS)
def test_an_escaped_name_is_the_name(name: str) -> None:
    case = CASES[name]
    last = case.limit.rpartition(".")[2]
    escaped = f"\\u{ord(last[0]):04x}{last[1:]}"
    assert read(case, json.dumps(case.body).replace(f'"{last}"', f'"{escaped}"').encode()) == read(case)


@pytest.mark.parametrize("name", ALL)
def test_clamping_lowers_the_limit_and_nothing_else(name: str) -> None:
    case = CASES[name]
    body = json.dumps({**case.body, "user": "é\ud800"}).encode()
    clamped = case.dialect.clamp(body, 7)  # type: ignore[attr-defined]
    assert case.dialect.clamp(clamped, 7) == clamped  # type: ignore[attr-defined]
    after = read(case, clamped)
    if case.field == "new_tokens" and case.limit:
        assert clamped == body.replace(b": 64", b": 7")
        assert after.new_tokens == 7
    elif after.new_tokens:
        assert after.new_tokens <= 448


@pytest.mark.parametrize("name", [name for name in LIMITS if CASES[name].field == "new_tokens"])
def test_clamping_a_body_without_limit_adds_one(name: str) -> None:
    case = CASES[name]
    body = without(case.body, case.limit)
    clamped = case.dialect.clamp(json.dumps(body).encode(), 7)  # type: ignore[attr-defined]
    assert read(case, clamped).new_tokens == 7
    assert len(clamped) > len(json.dumps(body))


@pytest.mark.parametrize("name", ALL)
def test_an_error_event_is_one_event_with_the_message(name: str) -> None:
    event = CASES[name].dialect.sse_error('out of "memory"\nnow', "gpu_unavailable")  # type: ignore[attr-defined]
    line = next(line for line in event.decode().split("\n") if "memory" in line)
    found = json.loads(line.removeprefix("data: "))
    error = found["error"] if isinstance(found["error"], dict) else {"message": found["error"], **found}
    assert error["message"] == 'out of "memory"\nnow'
    assert event.endswith(b"\n")


@pytest.mark.parametrize("name", ALL)
def test_a_wrong_option_is_refused_by_its_name(name: str) -> None:
    kind: Any = type(CASES[name].dialect)
    paths = {"prompt": "prompt"} if kind is Fields else {}
    with pytest.raises(TypeError, match="unknown"):
        kind(unknown=1, **paths)
    with pytest.raises(ValueError, match="tokens"):
        kind(tokens="fast", **paths)


@pytest.mark.parametrize("name", ALL)
def test_a_dialect_says_from_which_size_it_should_be_read_off_the_loop(name: str) -> None:
    class Slow:
        def encode_ordinary(self, text: str) -> list[int]:
            return [0] * len(text)

    kind: Any = type(CASES[name].dialect)
    paths = {"prompt": "prompt"} if kind is Fields else {}
    assert kind(tokens=Slow(), **paths).offload_bytes < kind(**paths).offload_bytes


@pytest.mark.parametrize("name", ALL)
def test_only_keywords_are_taken(name: str) -> None:
    kind: Any = type(CASES[name].dialect)
    with pytest.raises(TypeError, match="positional"):
        kind(1)
