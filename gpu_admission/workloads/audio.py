"""Seconds of audio, from a file's first bytes and its size. Owns the header of WAV, and the
bound for all other formats. Nothing is decoded.
"""

from __future__ import annotations

import binascii
import struct
from typing import Final

AUDIO_HEAD: Final = 8 * 1024
"""Characters of base64 that a header is looked for in."""
LEAST_BYTES_PER_SECOND: Final = 500
"""Any format but WAV is taken for this little a second, so that its length is not
under-estimated: 4 kbit/s, below the lowest rates of speech codecs (AMR 4.75, Opus 6, MP3 8
kbit/s). Lossless formats that hold silence can be smaller still."""


def seconds(head: bytes, size: int) -> float:
    """The longest that a file of ``size`` bytes which starts with ``head`` can play."""
    rate = _wav_bytes_per_second(head) or LEAST_BYTES_PER_SECOND
    return size / rate


def seconds_of_text(head: str, length: int) -> float:
    """The same for base64, or a data URL, of ``length`` characters starting with ``head``."""
    start = head.find(";base64,") + len(";base64,") if head[:5].lower() == "data:" else 0
    usable = (len(head) - start) // 4 * 4
    try:
        first = binascii.a2b_base64(head[start : start + usable])
    except ValueError:
        first = b""
    return seconds(first, length * 3 // 4 + 1)


def _wav_bytes_per_second(head: bytes) -> int:
    """From the format chunk of a WAV; 0 where there is none. The smaller of its two statements."""
    if head[:4] not in (b"RIFF", b"RF64", b"RIFX") or head[8:12] != b"WAVE":
        return 0
    order = ">" if head.startswith(b"RIFX") else "<"
    at = 12
    while at + 8 <= len(head):
        kind, size = struct.unpack_from(f"{order}4sI", head, at)
        if kind == b"fmt " and at + 24 <= len(head):
            return _rate(*struct.unpack_from(f"{order}HHIIHH", head, at + 8))
        at += 8 + size + size % 2
    return 0


def _rate(_format: int, channels: int, samples: int, said: int, _block: int, bits: int) -> int:
    computed = samples * channels * bits // 8
    return min(rate for rate in (computed, said) if rate > 0) if computed or said else 0
