"""The settings of an ``Admission``: what users write, what is in force, and the checks in between."""

from gpu_admission.settings.environment import from_environment, named_by_variable, variable
from gpu_admission.settings.options import EstimatorSetting, OnReject, Options, Size
from gpu_admission.settings.settings import Settings

__all__ = [
    "EstimatorSetting",
    "OnReject",
    "Options",
    "Settings",
    "Size",
    "from_environment",
    "named_by_variable",
    "variable",
]
