"""Helpers for the app behind the middleware, around the model call. None of them is required."""

from gpu_admission.guards.health import Health
from gpu_admission.serving.batcher import Batcher
from gpu_admission.serving.call import BatchEvent, batch_device, caller_contexts
from gpu_admission.serving.child import ProcessDied
from gpu_admission.serving.instances import Instances
from gpu_admission.serving.job import Job, job
from gpu_admission.serving.offload import offload
from gpu_admission.serving.processes import Processes
from gpu_admission.serving.sigterm import drain_at_sigterm
from gpu_admission.serving.watchdog import Watchdog

__all__ = [
    "BatchEvent",
    "Batcher",
    "Health",
    "Instances",
    "Job",
    "ProcessDied",
    "Processes",
    "Watchdog",
    "batch_device",
    "caller_contexts",
    "drain_at_sigterm",
    "job",
    "offload",
]
