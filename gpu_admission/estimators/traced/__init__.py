"""Estimates from a model's own code: traced once without its weights, used without torch.

``traced`` is the estimator, ``peaks`` and ``saved`` what it works on; the other files make a trace,
and import torch: nothing here does when it is imported.
"""

from gpu_admission.estimators.traced.traced import Traced

__all__ = ["Traced"]
