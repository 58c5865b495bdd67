"""Settings from the environment: typed, checked, and never silently ignored."""

from __future__ import annotations

import pytest

from gpu_admission.settings.environment import from_environment


def test_each_variable_is_the_setting_of_its_name() -> None:
    env = {
        "GPU_ADMISSION_TIMEOUT": "2.5",
        "GPU_ADMISSION_CAPACITY": "20GiB",
        "GPU_ADMISSION_MAX_WAITING": "7",
        "GPU_ADMISSION_MODE": "shadow",
        "PATH": "/bin",
    }
    found = from_environment(env)
    assert found == {"timeout": 2.5, "capacity": "20GiB", "max_waiting": 7, "mode": "shadow"}


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("GPU_ADMISSION_TIMEOUT", "soon", "GPU_ADMISSION_TIMEOUT must be a number, got 'soon'"),
        ("GPU_ADMISSION_MAX_WAITING", "1.5", "GPU_ADMISSION_MAX_WAITING must be a whole number, got '1.5'"),
        ("GPU_ADMISSION_TIMOUT", "5", "did you mean GPU_ADMISSION_TIMEOUT"),
        ("GPU_ADMISSION_ESTIMATOR", "5", "no setting that the environment may give"),
    ],
)
def test_a_wrong_one_is_refused_by_its_name(name: str, value: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        from_environment({name: value})
