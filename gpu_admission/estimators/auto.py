"""``estimator="auto"``: the estimator that is built where none is given, and the meter it measures with.

Owns the choice of a meter, and when there is none to choose. What follows from the measurements is in
``Measured`` and ``Learned``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from gpu_admission.devices.fixed import FixedDevice
from gpu_admission.devices.host import HostMemory
from gpu_admission.estimators.learned import Learned
from gpu_admission.estimators.measured import Measured
from gpu_admission.estimators.meter import PeakMeter, TorchPeak
from gpu_admission.estimators.polled import Polled, data_segment, resident
from gpu_admission.runtime.fork import in_child
from gpu_admission.types import Device

_LIBRARIES = ("torch", "onnxruntime", "tensorflow", "jax", "mlx", "llama_cpp", "ctranslate2", "cupy")
CHOICES = (
    'Constant("1.2GiB"), Linear({...}), TransformersLM.from_config("config.json"), '
    'KVCache.from_config("config.json"), or model="config.json"'
)
"""What to write in place of ``"auto"``."""


def auto(*, model: Any = None, waits: bool = True) -> Learned:
    """What ``estimator="auto"`` makes: a ``Learned`` over measurements, or over the formula of ``model``.

    ``waits`` as for ``Measured``. Raises as ``ModelConfig`` for a ``model`` that can't be read.
    """
    if model is None:
        # What is measured has a margin of its own, which covers the count of a prompt.
        return Learned(Measured(waits=waits), usage=True, tokens="learned", margin=0.0, meter=AutoMeter())
    from gpu_admission.estimators.transformer import TransformersLM

    return Learned(TransformersLM.from_config(model), usage=True, tokens="learned")


def check(capacity: object, devices: Sequence[Device]) -> None:
    """Raises ``ValueError`` where nothing could be measured.

    That is the case when the capacity is given, no device is named, and this process serves no model.
    """
    if not isinstance(capacity, int) or any(not isinstance(each, FixedDevice) for each in devices):
        return
    if any(name in sys.modules for name in _LIBRARIES):
        return
    raise ValueError(
        "estimator='auto' has nothing to measure: capacity is given in bytes, no devices=[...] are named, "
        f"and no library that runs models is loaded in this process. Name the estimator: {CHOICES}"
    )


class AutoMeter:
    """The peak as torch counts it if torch runs on a GPU here, else as the device or the process shows it.

    Chosen at the first ``start``. Raises ``RuntimeError`` where neither shows anything.
    """

    def __init__(self) -> None:
        self._devices: Callable[[], Sequence[Device]] = tuple
        self._begin_anew()
        in_child(self._begin_anew)

    def _begin_anew(self) -> None:
        """Also in a forked process, whose memory is another's."""
        self._chosen: PeakMeter | None = None
        self.idle: int | None = None
        """Bytes in use when it was last started, while nothing else ran."""

    def watch(self, devices: Callable[[], Sequence[Device]]) -> None:
        """Get the admission's devices from ``devices`` when they are needed."""
        self._devices = devices

    @property
    def is_exact(self) -> bool:
        """Whether it counts what this process allocates, and nothing else."""
        return isinstance(self._chosen, TorchPeak)

    @property
    def grows(self) -> bool:
        """Whether the last peak may have come late in the request that was measured."""
        return bool(getattr(self._chosen, "grows", True))

    def start(self) -> int:
        """Forget earlier peaks; the bytes in use now."""
        if self._chosen is None:
            self._chosen = _choose(self._devices())
        self.idle = self._chosen.start()
        return self.idle

    def resume(self) -> int:
        """The same while others run; ``idle`` stays what it is."""
        assert self._chosen is not None
        return self._chosen.start()

    def peak(self) -> int:
        """The most bytes in use at once since ``start``."""
        assert self._chosen is not None
        return self._chosen.peak()


def _choose(devices: Sequence[Device]) -> PeakMeter:
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        return TorchPeak()
    named = [device for device in devices if not isinstance(device, (FixedDevice, HostMemory))]
    if named:
        return Polled(partial(_in_use, named[0]))
    return Polled(partial(_limited() or resident, os.getpid()))


def _limited() -> Callable[[int], int] | None:
    """What counts where this process has a limit of its own on private memory."""
    try:
        import resource
    except ImportError:
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_DATA)
    return None if soft == resource.RLIM_INFINITY else data_segment


def _in_use(device: Device) -> int:
    reading = device.read()
    used = reading.used if reading.allocated is None else reading.allocated
    if used is None:
        raise RuntimeError(
            f"{device.name} does not show what is in use ({reading.error or 'no reason'}): estimator='auto' "
            f"can measure nothing. Name the estimator: {CHOICES}"
        )
    return used
