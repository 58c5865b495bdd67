"""The doors of single routes: the decorator and the FastAPI dependency."""

from gpu_admission.routes.endpoints import admit, dependency

__all__ = ["admit", "dependency"]
