"""What a request takes on the device, in bytes: one estimator a file.

Each is a callable of a ``RequestInfo``; each with a formula also has ``estimate(workload)``,
pure, and ``explain(workload)``. What a request *asks for* is read in ``workloads``.
"""

from gpu_admission.estimators.constant import Constant
from gpu_admission.estimators.diffusion import Diffusion, DiffusionFamily
from gpu_admission.estimators.encoder import Encoder
from gpu_admission.estimators.goodness import FitError
from gpu_admission.estimators.kserve import KServeTensors
from gpu_admission.estimators.kvcache import KVCache
from gpu_admission.estimators.learned import Learned
from gpu_admission.estimators.linear import Linear
from gpu_admission.estimators.meter import PeakMeter, TorchPeak
from gpu_admission.estimators.model.config import ModelConfig, UnknownModelType
from gpu_admission.estimators.table import Table
from gpu_admission.estimators.traced import Traced
from gpu_admission.estimators.transformer import TransformersLM
from gpu_admission.estimators.vision import Vision
from gpu_admission.estimators.whisper import Whisper

__all__ = [
    "Constant",
    "Diffusion",
    "DiffusionFamily",
    "Encoder",
    "FitError",
    "KServeTensors",
    "KVCache",
    "Learned",
    "Linear",
    "ModelConfig",
    "PeakMeter",
    "Table",
    "TorchPeak",
    "Traced",
    "TransformersLM",
    "UnknownModelType",
    "Vision",
    "Whisper",
]
