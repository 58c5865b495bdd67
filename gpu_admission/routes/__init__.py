"""The doors of single routes: the decorator and the FastAPI dependency."""

from gpu_admission.routes.door import admit, dependency

__all__ = ["admit", "dependency"]
