"""The demo's tokenizer: one token for each byte, and one that begins the sequence.

The app encodes with it, and the budget counts with it, as with any model's own tokenizer.
"""

from __future__ import annotations

BEGIN = 256


class ByteTokenizer:
    """UTF-8 bytes as tokens."""

    def encode(self, text: str) -> list[int]:
        return [BEGIN, *text.encode("utf-8", "surrogatepass")]
