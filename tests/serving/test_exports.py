"""Where users look for the helpers around a model."""

from __future__ import annotations

import gpu_admission.guards
import gpu_admission.serving
from gpu_admission.serving import Batcher, Health, Instances, Processes, Watchdog


def test_helpers_are_found_beside_each_other_and_health_with_the_guards_too() -> None:
    assert set(gpu_admission.serving.__all__) >= {
        kind.__name__ for kind in (Batcher, Health, Instances, Processes, Watchdog)
    }
    assert Health is gpu_admission.guards.Health
