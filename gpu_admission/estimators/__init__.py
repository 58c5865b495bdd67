"""What a request takes on the device, in bytes: one estimator a file.

Each is a callable of a ``RequestInfo``; each with a formula also has ``estimate(workload)``,
pure, and ``explain(workload)``. What a request *asks* is read in ``workloads``.
"""

from gpu_admission.estimators.config import ModelConfig, UnknownModelType
from gpu_admission.estimators.constant import Constant
from gpu_admission.estimators.kvcache import KVCache
from gpu_admission.estimators.linear import FitError, Linear
from gpu_admission.estimators.table import Table

__all__ = ["Constant", "FitError", "KVCache", "Linear", "ModelConfig", "Table", "UnknownModelType"]
