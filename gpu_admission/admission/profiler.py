"""Traces of the next few admitted requests, made with ``torch.profiler``.

Owns when a trace begins and ends, and its file. Torch runs one profiler at a time, so
requests are traced one after the other; work of others that runs meanwhile is in the trace
too. Starting a trace takes torch up to some seconds: a switch for looking, not for service.
"""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path
from typing import Any

from gpu_admission.runtime.turn import Turn
from gpu_admission.types import Event

logger = logging.getLogger("gpu_admission")


class Profiler:
    """An observer that traces ``requests`` admitted requests, each into a file in ``folder``.

    A trace covers the time from the lease to its end, on the CPU and every accelerator that
    torch can profile; open it in Perfetto or ``chrome://tracing``. Raises ``ImportError``
    without torch.
    """

    def __init__(self, requests: int, *, folder: str | Path = "gpu-admission-traces") -> None:
        if isinstance(requests, bool) or not isinstance(requests, int):
            raise TypeError(f"profile must be an int, not {type(requests).__name__}")
        if requests < 1:
            raise ValueError(f"profile must be 1 or more requests, got {requests}")
        try:
            import torch.profiler
        except ImportError:
            raise ImportError(
                "profile needs torch, which is not installed: pip install 'gpu-admission[torch]'"
            ) from None
        self._torch: Any = torch
        self._folder = Path(folder)
        self._left = requests
        self._lease = 0
        self._trace: Any = None
        self._lock = Turn()

    def __call__(self, event: Event) -> None:
        if event.kind in ("admitted", "shadow"):
            self._begin(event.lease)
        elif event.kind == "released" and event.lease == self._lease:
            self._end()

    def _begin(self, lease: int) -> None:
        with self._lock:
            if not self._left or self._lease:
                return
            self._left -= 1
            self._lease = lease
            profiler = self._torch.profiler
            self._trace = profiler.profile(
                activities=profiler.supported_activities(), experimental_config=self._all_threads()
            )
            self._trace.start()

    def _all_threads(self) -> Any:
        """Plain functions run in worker threads; a torch that can't trace those traces the loop's alone."""
        try:
            return self._torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
        except TypeError:
            return None

    def _end(self) -> None:
        with self._lock:
            trace, lease = self._trace, self._lease
            self._trace, self._lease = None, 0
            trace.stop()
        threading.Thread(target=self._write, args=(trace, lease), name="gpu-admission-trace").start()

    def _write(self, trace: Any, lease: int) -> None:
        """Write the file, away from the event loop; the process does not exit before it is whole."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"lease-{os.getpid()}-{lease}.json.gz"
        trace.export_chrome_trace(str(path))
        logger.info("the trace of lease %d is in %s (%d more to come)", lease, path, self._left)
