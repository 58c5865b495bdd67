"""A card that is always full: what runs together then, and how many requests a second it answers.

Owns the averages over time: requests of much work are there for longer, so that they are more of
those that run than of those that come. How requests queue for it is played in ``waiting``.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import mul

import msgspec

from gpu_admission.planning.roofline import Roofline


class Steady(msgspec.Struct, frozen=True, kw_only=True):
    """Requests on ``card``, each of them counted for as long as its work takes."""

    card: Roofline
    seconds: float
    """Of a request alone, on the mean."""
    prefill: float
    """Seconds of a prompt, on the mean."""
    new: float
    """New tokens, on the mean."""
    size: float
    """Bytes of one of those that run."""
    read: float
    """Share of the bytes held that a step reads: the cache, grown half way on the mean."""

    @classmethod
    def of(cls, card: Roofline, rows: Sequence[tuple[int, int]], sizes: Sequence[int]) -> Steady:
        """``rows`` of (prompt, new tokens), and what each is charged."""
        alone = {row: card.seconds(*row) for row in set(rows)}
        work = [alone[row] for row in rows]
        held = sum(map(mul, sizes, work))
        read = sum(card.cache * (row[0] + row[1] / 2) * alone[row] for row in rows)
        prefill = {prompt: card.prefill(prompt) for prompt, _ in alone}
        count = len(rows)
        return cls(
            card=card,
            seconds=sum(work) / count,
            prefill=sum(prefill[prompt] for prompt, _ in rows) / count,
            new=sum(new for _, new in rows) / count,
            size=held / sum(work),
            read=min(1.0, read / held),
        )

    def rate(self, capacity: int) -> float:
        """Requests a second while as many run as fit ``capacity``."""
        if not self.card.engine.batches:
            return 1 / self.seconds
        count = max(1, int(capacity / self.size))
        step = self.card.step(count, count * self.size * self.read)
        return 1 / (self.prefill + self.new * step / count)
