"""Seconds of audio, from a file's first bytes and its size. Owns the header of WAV, and the
bound for all other formats. Nothing is decoded.
"""

from __future__ import annotations

import struct
from typing import Final

from gpu_admission.workloads.base64text import decoded

AUDIO_HEAD: Final = 8 * 1024
"""Characters of base64 in which a header is looked for."""
LEAST_BYTES_PER_SECOND: Final = 500
"""Bytes a second that any format but WAV is assumed to have, so low that its length is not
under-estimated: 4 kbit/s, below the lowest rates of speech codecs (AMR 4.75, Opus 6, MP3 8
kbit/s). Lossless formats that hold silence can be smaller still."""
_FORMAT_BYTES = 16
_EXTENSIBLE = 0xFFFE
_EXTENSIBLE_BYTES = 40
_SAMPLE_BITS: Final = {1: (8, 16, 24, 32), 3: (32, 64), 6: (8,), 7: (8,)}
"""Bits of a sample in PCM, floats, and the two companded forms, which are all of fixed length."""
_MOST_SAMPLES: Final = 768_000
"""The most samples a second, in each channel, that a recording may state: no device makes more. An app
that does not resample hands the model every sample, however short the header says they play."""
_SOUNDS = (b"RIFF", b"ID3", b"OggS", b"fLaC", b"\xff\xfb", b"\xff\xf3", b"\xff\xf2", b"\xff\xf1")


def seconds(head: bytes, size: int) -> float:
    """The longest, in seconds, that a file of ``size`` bytes that starts with ``head`` can play."""
    rate = _wav_bytes_per_second(head) or LEAST_BYTES_PER_SECOND
    return size / rate


def seconds_of_text(head: str, length: int) -> float:
    """The same for base64, or a data URL, of ``length`` characters starting with ``head``."""
    return seconds(decoded(head) or b"", length * 3 // 4 + 1)


def is_sound_text(head: str) -> bool:
    """Whether base64, or a data URL, starts as a known format of sound does."""
    return head[:11].lower() == "data:audio/" or (decoded(head) or b"").startswith(_SOUNDS)


def _wav_bytes_per_second(head: bytes) -> int:
    """From the format chunk of a WAV; 0 where none, or more than one, stands before its data.

    Only for uncompressed formats: in any other, the codec decides how long the data plays, and
    decoders do not hold a header to what it states.
    """
    if head[:4] not in (b"RIFF", b"RF64", b"RIFX") or head[8:12] != b"WAVE":
        return 0
    order = ">" if head.startswith(b"RIFX") else "<"
    rates: list[int] = []
    at = 12
    while at + 8 <= len(head):
        kind, size = struct.unpack_from(f"{order}4sI", head, at)
        if kind == b"data":
            break
        if kind == b"fmt ":
            rates.append(_rate(order, head[at + 8 : at + 8 + size]))
        at += 8 + size + size % 2
    return rates[0] if len(rates) == 1 else 0


def _rate(order: str, chunk: bytes) -> int:
    """Bytes of a second of uncompressed samples; 0 for other formats, and for contradictions."""
    if len(chunk) < _FORMAT_BYTES:
        return 0
    kind, channels, samples, said, block, bits = struct.unpack_from(f"{order}HHIIHH", chunk)
    if kind == _EXTENSIBLE and len(chunk) >= _EXTENSIBLE_BYTES:
        (kind,) = struct.unpack_from(f"{order}H", chunk, 24)
    computed: int = samples * channels * bits // 8
    is_odd = block * 8 != channels * bits or samples > _MOST_SAMPLES
    if bits not in _SAMPLE_BITS.get(kind, ()) or is_odd:
        return 0
    return min(computed, said or computed)
