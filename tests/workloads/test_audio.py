"""Seconds of audio come from a WAV's header, and are bounded by bytes otherwise."""

from __future__ import annotations

import base64

import pytest

from gpu_admission.workloads.audio import LEAST_BYTES_PER_SECOND, seconds, seconds_of_text
from tests.workloads import pictures


@pytest.mark.parametrize(("rate", "channels", "bits"), [(16_000, 1, 16), (44_100, 2, 24), (8_000, 1, 8)])
def test_a_wav_lasts_as_long_as_its_header_says(rate: int, channels: int, bits: int) -> None:
    ten_seconds = pictures.wav(rate, channels, bits, data=10 * rate * channels * bits // 8)
    assert seconds(ten_seconds[:4096], len(ten_seconds)) == pytest.approx(10, rel=0.01)


def test_a_header_that_overstates_its_rate_is_not_believed() -> None:
    liar = pictures.wav(16_000, data=320_000, said=10**9)
    assert seconds(liar[:4096], len(liar)) == pytest.approx(10, rel=0.01)


def test_a_compressed_wav_lasts_as_its_byte_rate_says() -> None:
    adpcm = pictures.wav(16_000, bits=16, said=4_000)
    assert seconds(adpcm, 40_000) == 10.0


def test_a_chunk_before_the_format_is_skipped() -> None:
    plain = pictures.wav(16_000, data=32_000)
    listed = plain[:12] + b"LIST" + (3).to_bytes(4, "little") + b"abc\0" + plain[12:]
    assert seconds(listed, len(listed)) == pytest.approx(1, rel=0.01)


@pytest.mark.parametrize(
    "head", [b"", b"ID3", b"OggS", b"RIFF", b"RIFF\0\0\0\0WAVE", pictures.wav()[:30], pictures.wav(0)]
)
def test_any_other_sound_is_bounded_by_its_bytes(head: bytes) -> None:
    assert seconds(head, 5_000) == 5_000 / LEAST_BYTES_PER_SECOND


def test_base64_and_data_urls_are_read_through() -> None:
    sound = pictures.wav(16_000, data=32_000)
    encoded = base64.b64encode(sound).decode()
    assert seconds_of_text(encoded[:8192], len(encoded)) == pytest.approx(1, rel=0.01)
    url = pictures.data_url(sound, "audio/wav")
    assert seconds_of_text(url[:8192], len(url)) == pytest.approx(1, rel=0.01)


def test_base64_in_lines_is_read_as_in_one() -> None:
    """As ``encodebytes`` and mail write it: the head that is looked at may end in the middle of four."""
    lines = base64.encodebytes(pictures.wav(16_000, data=32_000)).decode()
    assert seconds_of_text(lines[:8192], len(lines)) == pytest.approx(1, rel=0.03)


def test_text_that_is_not_base64_is_bounded_by_its_length() -> None:
    assert seconds_of_text("é" * 400, 4_000) == pytest.approx(3_001 / LEAST_BYTES_PER_SECOND)


def test_big_endian_and_64_bit_forms_are_read_too() -> None:
    large = b"RF64" + pictures.wav(16_000, data=32_000)[4:]
    assert seconds(large, len(large)) == pytest.approx(1, rel=0.01)
    form = b"\0\x10" + b"\0\x01\0\x01\0\0\x3e\x80\0\0\x7d\0\0\2\0\x10"
    assert seconds(b"RIFX\0\0\0\0WAVEfmt \0\0\0" + form[1:], 32_000) == 1.0
