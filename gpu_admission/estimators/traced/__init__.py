"""Estimates from a model's own code: traced once without its weights, used without torch.

``traced`` is the estimator, ``peaks`` and ``saved`` are what it works on. The other files make a trace
and need torch; importing this package does not import it.
"""

from gpu_admission.estimators.traced.traced import Traced

__all__ = ["Traced"]
