"""What the settings of ``Learned`` must be.

Owns the sentences that say so; what they mean is in ``learned``.
"""

from __future__ import annotations

from gpu_admission.request import Estimator


def check_reading(inner: Estimator, usage: bool, tokens: str | None) -> None:
    """Raises ``ValueError`` where usage can't be read, or made bytes of by ``inner``."""
    if tokens not in (None, "learned"):
        raise ValueError(f"tokens must be 'learned' or None, got {tokens!r}")
    if tokens and not usage:
        raise ValueError("tokens='learned' needs usage=True: prompts are counted by what answers say of them")
    if usage and not (hasattr(inner, "estimate") and getattr(inner, "needs_body", True)):
        raise ValueError(
            "usage=True needs an inner that makes bytes of tokens, such as KVCache, TransformersLM or "
            f"Linear, and has estimate(workload): {type(inner).__name__} does not"
        )


def check_between(**settings: tuple[float, float, float]) -> None:
    """Raises ``ValueError`` for a setting, of (value, least, most), that is out of its bounds."""
    for name, (value, low, high) in settings.items():
        if not low <= value <= high:
            raise ValueError(f"{name} must be between {low} and {high}, got {value!r}")


def check_counts(**settings: int) -> None:
    """Raises ``ValueError`` for a setting below 1."""
    for name, count in settings.items():
        if count < 1:
            raise ValueError(f"{name} must be at least 1, got {count!r}")


def check_clip(clip: tuple[float, float]) -> None:
    """Raises ``ValueError`` for bounds that do not lie on both sides of 1."""
    if not 0 < clip[0] <= 1 <= clip[1] < 1e6:
        raise ValueError(f"clip must be (low, high) with 0 < low <= 1 <= high, got {clip!r}")
