"""A body of the user's own, read by the paths of its fields."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_admission.errors import UnreadableBody
from gpu_admission.types import Workload
from gpu_admission.workloads import Fields
from tests.workloads import pictures
from tests.workloads.asking import request, upload


def read(fields: Fields, body: Any) -> Workload:
    return fields.read(request(body, "/run"))


def test_each_path_fills_its_field() -> None:
    fields = Fields(
        task="image",
        prompt="input.text",
        new_tokens="params.max_len",
        sequences="params.copies",
        beams="params.beams",
        width="size.0",
        height="size.1",
        tensor_bytes="bytes",
        context="ctx",
        model="model",
        stream="stream",
        audio="seconds",
    )
    body = {
        "input": {"text": "x" * 100},
        "params": {"max_len": 50, "copies": 3, "beams": 2},
        "size": [640, 480],
        "bytes": 1000,
        "ctx": 4096,
        "model": "m",
        "stream": True,
        "seconds": 2.5,
    }
    workload = read(fields, body)
    assert (workload.task, workload.model, workload.stream) == ("image", "m", True)
    assert (workload.prompt_tokens, workload.new_tokens, workload.sequences, workload.beams) == (43, 50, 3, 2)
    assert (workload.width, workload.height, workload.tensor_bytes, workload.context) == (
        640,
        480,
        1000,
        4096,
    )
    assert (workload.audio_seconds, workload.defaulted) == (2.5, ())


def test_what_is_absent_takes_its_default_and_says_so() -> None:
    fields = Fields(prompt="p", new_tokens="n", width="w", default_new_tokens=9, default_side=300)
    workload = read(fields, {})
    assert (workload.prompt_tokens, workload.new_tokens, workload.width, workload.height) == (1, 9, 300, 0)
    assert workload.defaulted == ("new_tokens", "width")


@pytest.mark.parametrize(
    ("body", "rows", "longest"),
    [
        ({"m": [{"text": "x" * 100}, {"text": "x"}]}, 2, 43),
        ({"m": [{"text": ["x", "y"]}, {"other": 1}]}, 2, 3),
        ({"m": {"a": {"text": "x" * 100}}}, 1, 43),
        ({"m": []}, 1, 1),
        ({"m": "x"}, 1, 1),
    ],
)
def test_a_star_is_every_item(body: Any, rows: int, longest: int) -> None:
    workload = read(Fields(prompt="m.*.text"), body)
    assert (workload.sequences, workload.prompt_tokens) == (rows, longest)


def test_a_number_is_one_item() -> None:
    assert read(Fields(prompt="m.1"), {"m": ["x" * 100, "x"]}).prompt_tokens == 3
    assert read(Fields(prompt="m.7"), {"m": ["x" * 100, "x"]}).prompt_tokens == 1
    assert read(Fields(prompt="m.1"), {"m": {"1": "x" * 100}}).prompt_tokens == 43


def test_the_largest_of_several_numbers_counts() -> None:
    assert read(Fields(new_tokens="m.*.n"), {"m": [{"n": 5}, {"n": 50}, {"n": None}]}).new_tokens == 50


def test_features_are_named_numbers() -> None:
    fields = Fields(
        features={"steps": "steps", "boxes": "boxes", "fast": "fast", "sum": "m.*.n", "none": "zzz"}
    )
    workload = read(fields, {"steps": "1.5", "boxes": [1, 2, 3], "fast": True, "m": [{"n": 1}, {"n": 2}]})
    assert workload.features == {"steps": 1.5, "boxes": 3.0, "fast": 1.0, "sum": 3.0, "none": 0.0}
    long = read(fields, {"boxes": list(range(300_000))})
    assert long.features["boxes"] == 300_000.0


@pytest.mark.parametrize("value", ["many", {}, [[5]]])
def test_a_number_that_is_none_is_refused_by_name(value: Any) -> None:
    with pytest.raises(UnreadableBody, match="new_tokens"):
        read(Fields(new_tokens="n"), {"n": value})
    if type(value) is not list:
        with pytest.raises(UnreadableBody, match="steps"):
            read(Fields(features={"steps": "n"}), {"n": value})


def test_images_may_be_text_lists_or_files() -> None:
    url = pictures.data_url(pictures.png(640, 480))
    assert read(Fields(images="i"), {"i": url}).images == ((640, 480),)
    assert read(Fields(images="i.*.url"), {"i": [{"url": url}, {"url": "https://x"}]}).images == (
        (640, 480),
        (0, 0),
    )
    info = upload(("i", "a.png", "image/png", pictures.png(640, 480)), ("i", "b.png", "", b"\0?"))
    workload = Fields(images="i", image_tokens="gemma-3").read(info)
    assert workload.images == ((640, 480), (0, 0))
    assert workload.prompt_tokens >= 2 * 256


def test_sound_may_be_text_files_or_seconds() -> None:
    sound = pictures.wav(16_000, data=320_000)
    assert read(Fields(audio="a"), {"a": pictures.data_url(sound)}).audio_seconds == pytest.approx(
        10, rel=0.01
    )
    assert read(Fields(audio="a"), {"a": [1, 2.5, None]}).audio_seconds == 3.5
    assert Fields(audio="a").read(upload(("a", "a.wav", "", sound))).audio_seconds == pytest.approx(
        10, rel=0.01
    )


def test_forms_and_uploads_have_fields_too() -> None:
    fields = Fields(prompt="text", new_tokens="n")
    form = request(b"text=" + b"x" * 100 + b"&n=7&n=8", kind="application/x-www-form-urlencoded")
    assert (fields.read(form).prompt_tokens, fields.read(form).new_tokens) == (43, 8)
    sent = upload(("text", None, "", b"x" * 100_000), ("n", None, "", b"7"))
    assert fields.read(sent).prompt_tokens >= 41_000
    assert fields.read(sent).new_tokens == 7
    filed = upload(("text", "a.txt", "text/plain", b"x" * 100), ("n", "n.txt", "", b"7"))
    assert (fields.read(filed).prompt_tokens, fields.read(filed).new_tokens) == (43, 7)


def test_clamping_finds_its_place() -> None:
    assert Fields(new_tokens="a.b.c").clamp(b'{"a":{"b":{"c":99}}}', 5) == b'{"a":{"b":{"c":5}}}'
    assert Fields(prompt="p").clamp(b"{}", 5) == b"{}"
    assert Fields(new_tokens="a.*.c").clamp(b"{}", 5) == b"{}"
    assert Fields(new_tokens="a.0").clamp(b"{}", 5) == b"{}"


@pytest.mark.parametrize(
    ("options", "error", "named"),
    [
        ({}, ValueError, "path"),
        ({"prompt": ""}, ValueError, "prompt"),
        ({"prompt": "a..b"}, ValueError, "prompt"),
        ({"new_tokens": 5}, TypeError, "new_tokens"),
        ({"features": {"x": None}}, TypeError, "x"),
        ({"prompt": "p", "task": "dance"}, ValueError, "task"),
        ({"prompt": "p", "default_side": 0}, ValueError, "default_side"),
        ({"prompt": "p", "default_new_tokens": 0}, ValueError, "default_new_tokens"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, Any], error: type[Exception], named: str) -> None:
    with pytest.raises(error, match=named):
        Fields(**options)
