"""What a person would expect to be metered on this machine, and why.

Owns the order of looking: the GPUs that CUDA shows, then what a running torch shows, then
host memory. It asks drivers, so it is called when the app has started, off the event loop,
and never at import or before a fork.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

import msgspec

from gpu_admission.devices.cuda_order import NotVisible
from gpu_admission.devices.host import HostMemory
from gpu_admission.devices.nvml import NvmlDevice, reason_of
from gpu_admission.devices.nvml_cards import cuda_ids, list_cards
from gpu_admission.devices.torch import TorchDevice
from gpu_admission.types import Device


class Discovery(msgspec.Struct, frozen=True):
    """The devices that this process can use, best first, and the sentence that says why these."""

    devices: tuple[Device, ...]
    reason: str
    has_gpu: bool = True
    """Whether these are GPUs; else host memory stands in for one."""


def discover(*, env: Mapping[str, str] | None = None) -> Discovery:
    """The devices of this process: blocks while drivers are asked; always at least one."""
    env = os.environ if env is None else env
    found, seen = _by_nvml(env)
    if found:
        return Discovery(found, f"{seen}: {_names(found)}")
    of_torch = _by_torch()
    if of_torch:
        return Discovery(of_torch, f"{seen}; torch shows {_names(of_torch)}")
    return Discovery((HostMemory(),), f"{seen}; {_torch_state()}: host memory is metered", has_gpu=False)


def _names(devices: tuple[Device, ...]) -> str:
    return ", ".join(device.name for device in devices)


def _by_nvml(env: Mapping[str, str]) -> tuple[tuple[Device, ...], str]:
    try:
        import pynvml  # type: ignore[import-untyped]

        pynvml.nvmlInit()
        cards = list_cards(pynvml)
    except Exception as error:  # a missing module, no driver, a broken library
        return (), f"no NVIDIA driver answers ({reason_of(error)})"
    try:
        ids = cuda_ids(cards, env)
    except NotVisible as error:
        # Nobody knows which of them is cuda:0, but each of them exists.
        return tuple(NvmlDevice(card.uuid, env=env) for card in cards if card.uuid), str(error)
    value = env.get("CUDA_VISIBLE_DEVICES")
    why = "" if value is None else f" (CUDA_VISIBLE_DEVICES={value!r})"
    seen = f"CUDA shows {len(ids)} of {len(cards)} NVIDIA GPUs{why}"
    return tuple(NvmlDevice(index, env=env) for index in range(len(ids))), seen


def _by_torch() -> tuple[Device, ...]:
    """Accelerators of a torch that the app has loaded; it is not loaded for this."""
    torch = sys.modules.get("torch")
    if torch is None:
        return ()
    for kind in ("cuda", "xpu"):
        count: int = getattr(torch, kind).device_count()
        if count:
            return tuple(TorchDevice(f"{kind}:{index}") for index in range(count))
    return (TorchDevice("mps"),) if torch.backends.mps.is_available() else ()


def _torch_state() -> str:
    return "torch shows no accelerator" if "torch" in sys.modules else "torch is not loaded"
