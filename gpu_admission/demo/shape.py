"""Sizes of the demo's model, and what follows from them. Needs no torch: both processes read it."""

from __future__ import annotations

import msgspec


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of the model. Embedding and output matrix are one (tied), as in many small models."""

    layers: int = 5
    hidden: int = 704
    heads: int = 11
    vocabulary: int = 36864
    context: int = 2048

    @property
    def weights(self) -> int:
        """Parameters that one decode step reads."""
        return self.layers * 12 * self.hidden**2 + self.vocabulary * self.hidden

    @property
    def cache_per_token(self) -> int:
        """Bytes of keys and values that one token keeps, over all layers."""
        return self.layers * 2 * self.hidden * 4
