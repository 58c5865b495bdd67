"""Files written as text in a body: base64, bare or in a data URL. Owns where it begins, and its decoding.

What the bytes are is up to ``images`` and ``audio``.
"""

from __future__ import annotations

import binascii

_MARK = ";base64,"


def decoded(text: str) -> bytes | None:
    """The bytes that ``text`` stands for, be it only a beginning; ``None`` if it is neither of these."""
    start = 0
    if text[:5].lower() == "data:":
        start = text.find(_MARK) + len(_MARK)
        if start < len(_MARK):
            return None
    encoded = "".join(text[start:].split())
    try:
        return binascii.a2b_base64(encoded[: len(encoded) // 4 * 4])
    except ValueError:
        return None
