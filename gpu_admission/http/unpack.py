"""Content encodings taken off a body, for reading only and never past a bound.

The app gets the bytes that came. Nothing here keeps more than the bound, however far a
bomb would unpack.
"""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any

from gpu_admission.admission.buffered import BufferedBytes, Copies
from gpu_admission.bodies.pace import give_way
from gpu_admission.errors import Rejected, TooLarge, UnreadableBody
from gpu_admission.http.body import Body
from gpu_admission.http.growing import Growing, spare
from gpu_admission.sizes import format_bytes

UNPACKED_HERE = 16 * 1024
"""A short body that unpacks to at most this much is read as if it had never been packed."""
_STEP = 256 * 1024
_DEEPEST = 3


def unpack(body: bytes, encodings: Sequence[str], limit: int, copies: Copies) -> bytes:
    """``body`` without its ``encodings`` (the last applied comes off first).

    What it makes is counted in ``copies``, whose owner forgets it. Raises ``UnreadableBody`` for
    an encoding that is unknown, broken, cut short or followed by other bytes, ``TooLarge`` past
    ``limit`` bytes.
    """
    if not body:
        return body
    if len(encodings) > _DEEPEST:
        raise UnreadableBody(f"a body packed {len(encodings)} times over is not unpacked")
    for encoding in reversed(encodings):
        body = _bounded(encoding, body, limit, copies)
    return body


def readable(body: Body, packed: Sequence[str], limit: int, copies: Copies) -> bytes:
    """The body in one piece and unpacked, as ``unpack`` says; all copies are counted in ``copies``."""
    copies.forget()
    content = body.whole
    if content is None:
        more = spare(body.size)
        copies.take(body.size + more)
        content = body.content()
        copies.take(-more)
    return unpack(content, packed, limit, copies) if packed else content


def _bounded(encoding: str, body: bytes, limit: int, copies: Copies) -> bytes:
    pieces = _decoder(encoding)(body)
    with Growing() as growing:
        for piece in _readable(encoding, pieces):
            give_way()
            copies.take(len(piece))
            growing.write(piece)
            if growing.size > limit:
                raise TooLarge(
                    "body_too_large", f"the body unpacks to more than max_body_bytes={format_bytes(limit)}"
                )
        more = spare(growing.size)
        copies.take(more)
        unpacked = growing.whole()
    copies.take(-more)
    return unpacked


def _readable(encoding: str, pieces: Iterator[bytes]) -> Iterator[bytes]:
    """``pieces``; what a decoder raises becomes ``UnreadableBody``."""
    try:
        yield from pieces
    except Rejected:
        raise
    except Exception as error:
        raise UnreadableBody(f"the body is not valid {encoding}: {type(error).__name__}") from None


def other_readings(packed: Sequence[str]) -> Sequence[Sequence[str]]:
    """The encodings that apps may take off a body of which those in ``packed`` can't be.

    Some ignore them all; some look only for the one that they know, as a word in the header.
    """
    if not packed:
        return ()
    known = tuple(dict.fromkeys(each for each in packed if each in _decoders()))
    return [(), known] if known and known != tuple(packed) else [()]


def _decoders() -> Mapping[str, Callable[[bytes], Iterator[bytes]]]:
    return {"gzip": _gzip, "x-gzip": _gzip, "deflate": _deflate, "br": _brotli, "zstd": _zstd}


def _decoder(encoding: str) -> Callable[[bytes], Iterator[bytes]]:
    decoder = _decoders().get(encoding)
    if decoder is None:
        raise UnreadableBody(f"a body with Content-Encoding {encoding[:20]!r} can't be unpacked")
    return decoder


def _gzip(body: bytes) -> Iterator[bytes]:
    """All members of a gzip file, one after the other."""
    at = 0
    while at < len(body):
        at = yield from _inflate(zlib.decompressobj(wbits=31), body, at)


def _deflate(body: bytes) -> Iterator[bytes]:
    """zlib's format as the standard says, or raw deflate as some clients send."""
    wrapped = len(body) >= 2 and body[0] & 15 == 8 and int.from_bytes(body[:2]) % 31 == 0
    end = yield from _inflate(zlib.decompressobj(wbits=15 if wrapped else -15), body, 0)
    if end < len(body):
        raise ValueError("bytes after the end")


def _inflate(stream: Any, body: bytes, at: int) -> Generator[bytes, None, int]:
    """The stream that begins at ``at``, in pieces; returns where it ends.

    It is fed in slices that grow: what is left over of a slice is copied, and a body of many tiny
    members must not cost a large copy for each.
    """
    size = 1024
    while not stream.eof:
        if at >= len(body):
            raise EOFError("cut short")
        data = body[at : at + size]
        at += len(data)
        size = min(2 * size, _STEP)
        yield from _drain(stream, data)
    return at - len(stream.unused_data)


def _drain(stream: Any, data: bytes) -> Iterator[bytes]:
    """What comes of ``data``, in pieces of at most ``_STEP``."""
    piece = b"more"
    while piece and not stream.eof:
        piece = stream.decompress(data, _STEP)
        data = stream.unconsumed_tail
        if piece:
            yield piece


def _brotli(body: bytes) -> Iterator[bytes]:
    stream = _package("brotli", "br").Decompressor()
    piece = stream.process(body, output_buffer_limit=_STEP)
    while piece or not stream.is_finished():
        if not piece and stream.can_accept_more_data():
            raise EOFError("cut short")
        yield piece
        piece = stream.process(b"", output_buffer_limit=_STEP)


def _zstd(body: bytes) -> Iterator[bytes]:
    zstandard = _package("zstandard", "zstd")
    end = 0
    while end < len(body):
        end = _zstd_frame_end(zstandard, body, end)
    if end > len(body):
        raise EOFError("cut short")
    stream = zstandard.ZstdDecompressor(max_window_size=8 * 2**20).stream_reader(
        body, read_across_frames=True
    )
    while piece := stream.read(_STEP):
        yield piece


def _zstd_frame_end(zstandard: Any, body: bytes, start: int) -> int:
    """Where a frame ends (RFC 8878 3.1.1): the decoder does not say when a frame is cut short."""
    end: int = start + zstandard.frame_header_size(body[start : start + 18])
    last = 0
    while not last:
        if end + 3 > len(body):
            raise EOFError("cut short")
        header = int.from_bytes(body[end : end + 3], "little")
        last, repeated, size = header & 1, header >> 1 & 3 == 1, header >> 3
        end += 3 + (1 if repeated else size)
    checksum: bool = zstandard.get_frame_parameters(body[start : start + 18]).has_checksum
    return end + 4 * checksum


def _package(name: str, encoding: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise UnreadableBody(
            f"a body with Content-Encoding {encoding!r} can't be unpacked: package {name} is missing"
        ) from None


def is_short(content: bytes, packed: Sequence[str], buffer: BufferedBytes) -> bool:
    """Whether it unpacks to so little that the event loop can afford it, or can't be unpacked at all."""
    try:
        with Copies(buffer) as copies:
            unpack(content, packed, UNPACKED_HERE, copies)
    except UnreadableBody:
        return True
    except Rejected:
        return False
    return True
