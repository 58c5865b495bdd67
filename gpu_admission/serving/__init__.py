"""For the app behind: helpers around the model call, none of them required."""

from gpu_admission.serving.offload import offload

__all__ = ["offload"]
