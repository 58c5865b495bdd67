"""Pictures and speech that are made."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_admission.errors import UnreadableBody
from gpu_admission.types import Workload
from gpu_admission.workloads import OpenAIMedia
from tests.workloads import pictures
from tests.workloads.asking import request, upload


def generate(**fields: Any) -> Workload:
    return OpenAIMedia().read(request({"prompt": "a ferry", **fields}, "/v1/images/generations"))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"size": "1792x1024"}, (1792, 1024)),
        ({"size": " 512 X 768 "}, (512, 768)),
        ({"size": "auto"}, (1024, 1024)),
        ({"size": None}, (1024, 1024)),
        ({}, (1024, 1024)),
        ({"width": 640, "height": 480}, (640, 480)),
        ({"width": 640}, (640, 1024)),
        ({"size": "64x64", "width": 2048, "height": 512}, (2048, 512)),
        ({"size": "640x480", "extra_body": {"height": 512}}, (640, 512)),
        ({"size": "0x0"}, (1024, 1024)),
    ],
)
def test_the_size_that_is_asked_for_counts(fields: dict[str, Any], expected: tuple[int, int]) -> None:
    workload = generate(**fields)
    assert (workload.task, workload.width, workload.height) == ("image", *expected)
    assert workload.defaulted == (("size",) if 1024 in expected and 1792 not in expected else ())


@pytest.mark.parametrize("size", ["large", "5", "axb", 5, ["512x512"], "9999999999999999x1", ""])
def test_a_size_that_is_none_is_refused(size: Any) -> None:
    with pytest.raises(UnreadableBody, match="size"):
        generate(size=size)


def test_copies_run_together() -> None:
    workload = generate(n=4, model="m")
    assert (workload.sequences, workload.model, workload.prompt_tokens) == (4, "m", 3)


def test_pictures_that_come_are_measured() -> None:
    info = upload(
        ("image[]", "a.png", "image/png", pictures.png(640, 480)),
        ("image", "a.png", "image/png", pictures.png(64, 48)),
        ("image", "b.png", "image/png", b"\0?"),
        ("prompt", None, "", b"x" * 100),
        ("size", None, "", b"256x512"),
        path="/v1/images/edits",
    )
    workload = OpenAIMedia().read(info)
    assert set(workload.images) == {(640, 480), (64, 48), (0, 0)}
    assert (workload.width, workload.height, workload.prompt_tokens) == (256, 512, 41)
    sent = OpenAIMedia().read(request({"images": [{"image_url": pictures.data_url(pictures.png(9, 9))}]}))
    assert sent.images == ((9, 9),)


def test_speech_grows_with_its_text() -> None:
    workload = OpenAIMedia().read(
        request({"input": "x" * 100, "voice": "v", "model": "m"}, "/v1/audio/speech")
    )
    assert (workload.task, workload.prompt_tokens, workload.new_tokens) == ("speech", 41, 1312)


@pytest.mark.parametrize("option", ["default_side", "speech_tokens"])
def test_a_wrong_option_is_named(option: str) -> None:
    with pytest.raises(ValueError, match=option):
        OpenAIMedia(**{option: 0})
