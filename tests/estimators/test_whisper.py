"""``Whisper``: windows, beams, and caches."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_admission.estimators import Whisper
from gpu_admission.types import Estimate, Workload
from tests.estimators.published import LLAMA, WHISPER

CROSS, SELF, OUTPUT = 245_760_000, 73_400_320, 1500 * 1280 * 2
STEP = (2 * 5120 + 4 * 1280) * 2 + 51865 * 6


def estimate(workload: Workload | None = None, **options: Any) -> Estimate:
    return Whisper.from_config(WHISPER, **{"dtype": "f16", **options}).estimate(workload or Workload())


def test_a_window_takes_its_cross_cache_and_a_self_cache() -> None:
    assert estimate().bytes == CROSS + OUTPUT + SELF + STEP


def test_time_costs_nothing_while_windows_run_one_by_one() -> None:
    assert estimate(Workload(audio_seconds=3600)) == estimate(Workload(audio_seconds=5))


def test_batched_windows_count_as_far_as_the_audio_fills_them() -> None:
    assert estimate(Workload(audio_seconds=61), windows=16).bytes == 3 * estimate().bytes
    assert estimate(Workload(audio_seconds=3600), windows=16).bytes == 16 * estimate().bytes
    assert estimate(Workload(), windows=16).bytes == 16 * estimate().bytes


def test_beams_copy_the_cross_cache_or_share_it() -> None:
    beams = estimate(Workload(sequences=5, beams=5))
    assert beams.bytes == 5 * estimate().bytes
    assert beams.low == CROSS + OUTPUT + 5 * (SELF + STEP)
    assert estimate(beams=5) == beams


def test_a_padded_self_cache_is_counted_as_padded() -> None:
    assert estimate(positions=512).bytes - estimate().bytes == 83_886_080 - SELF


def test_without_a_fused_kernel_the_encoder_is_the_peak() -> None:
    eager = estimate(attention="eager")
    assert eager.parts == {"encoder activations": eager.bytes}
    assert eager.bytes == 1500 * (2 * 5120 + 4 * 1280) * 2 + 1500**2 * 20 * 8


@pytest.mark.parametrize(
    ("config", "options", "complaint"),
    [
        (LLAMA, {}, "audio encoder"),
        (WHISPER, {"beams": 0}, "beams"),
        (WHISPER, {"windows": 0}, "windows"),
        (WHISPER, {"dtype": None}, "dtype"),
    ],
)
def test_what_makes_no_sense_is_named(
    config: dict[str, Any], options: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        Whisper.from_config(config, **{"dtype": "f16", **options})
