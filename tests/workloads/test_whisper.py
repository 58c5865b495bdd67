"""Speech recognition uploads."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_admission.errors import UnreadableBody
from gpu_admission.types import Workload
from gpu_admission.workloads import Whisper
from tests.workloads import pictures
from tests.workloads.asking import request, upload

SOUND = pictures.wav(16_000, data=320_000)


def transcribe(*fields: tuple[str, str], dialect: Whisper | None = None) -> Workload:
    parts = [(name, None, "text/plain", value.encode()) for name, value in fields]
    info = upload(("file", "a.wav", "audio/wav", SOUND), *parts, path="/v1/audio/transcriptions")
    return (dialect or Whisper()).read(info)


def test_an_upload_says_how_long_it_is() -> None:
    workload = transcribe(("model", "whisper-1"), ("prompt", "x" * 100), ("stream", "true"))
    assert (workload.task, workload.model, workload.stream) == ("transcribe", "whisper-1", True)
    assert workload.audio_seconds == pytest.approx(10, rel=0.01)
    assert (workload.new_tokens, workload.prompt_tokens) == (448, 41)


@pytest.mark.parametrize(
    ("fields", "beams", "sequences"),
    [
        ([], 5, 5),
        ([("beam_size", "2")], 2, 2),
        ([("beam_size", "2"), ("temperature", "0.5")], 5, 5),
        ([("beam_size", "2"), ("best_of", "9")], 9, 9),
        ([("num_beams", "3"), ("batch_size", "8")], 5, 40),
        ([("beams", "1")], 5, 5),
        ([("beams", "9"), ("beam_size", "2")], 9, 9),
        ([("beam_size", "0")], 5, 5),
    ],
)
def test_beams_and_batches_multiply(fields: list[tuple[str, str]], beams: int, sequences: int) -> None:
    workload = transcribe(*fields)
    assert (workload.beams, workload.sequences) == (beams, sequences)


def test_the_servers_own_values_are_options() -> None:
    workload = transcribe(dialect=Whisper(beam_size=1, best_of=1, new_tokens=200))
    assert (workload.sequences, workload.new_tokens, workload.defaulted) == (1, 200, ("beam_size",))


def test_several_files_add_up() -> None:
    info = upload(("file", "a.wav", "audio/wav", SOUND), ("file", "b.mp3", "audio/mpeg", bytes(5_000)))
    assert Whisper().read(info).audio_seconds == pytest.approx(20, rel=0.01)


def test_an_upload_without_file_is_refused() -> None:
    with pytest.raises(UnreadableBody, match="file"):
        Whisper().read(upload(("model", None, "", b"x")))


@pytest.mark.parametrize("kind", ["audio/wav", "video/mp4", "application/octet-stream; x=y"])
def test_a_body_may_be_the_sound_itself(kind: str) -> None:
    assert Whisper().read(request(SOUND, "/asr", kind=kind)).audio_seconds == pytest.approx(10, rel=0.01)


@pytest.mark.parametrize("body", [{"url": "https://x/a.mp3"}, {"file": "AAAA"}])
def test_sound_that_is_elsewhere_is_long(body: Any) -> None:
    assert Whisper().read(request(body)).audio_seconds == 4 * 3600


def test_an_empty_file_is_still_something() -> None:
    assert Whisper().read(upload(("file", "a.wav", "audio/wav", b""))).audio_seconds > 0


@pytest.mark.parametrize("field", ["beam_size", "best_of", "batch_size", "temperature"])
def test_a_field_that_is_no_number_is_named(field: str) -> None:
    with pytest.raises(UnreadableBody, match=field):
        transcribe((field, "many"))
