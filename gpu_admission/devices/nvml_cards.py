"""Which cards and slices NVIDIA's driver lists, and the handle of the one that was asked for.

Owns names, UUIDs, MIG and driver models: all that stays the same while a process runs.
What changes from one reading to the next is in ``nvml``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpu_admission.devices import torch as torch_devices
from gpu_admission.devices.cuda_order import (
    Card,
    NotVisible,
    Slice,
    ask_child,
    find_identity,
    identities,
    visible_ids,
    with_prefix,
)

WSL_DRIVER = Path("/dev/dxg")
"""Exists where Windows' driver is behind a Linux guest."""


def list_cards(nvml: Any) -> list[Card]:
    """All cards, in the driver's order. A card that does not answer keeps its place, without a UUID."""
    return [_card(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]


def _card(nvml: Any, index: int) -> Card:
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
    except nvml.NVMLError:
        return Card("", "", None)
    try:
        total = int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
    except nvml.NVMLError:
        total = None
    return Card(uuid_of(nvml, handle), name_of(nvml, handle), total, _slices(nvml, handle))


def _slices(nvml: Any, handle: Any) -> tuple[Slice, ...] | None:
    try:
        if not nvml.nvmlDeviceGetMigMode(handle)[0]:
            return None
        places = nvml.nvmlDeviceGetMaxMigDeviceCount(handle)
    except nvml.NVMLError:
        return None
    found = (_slice(nvml, handle, place) for place in range(places))
    return tuple(part for part in found if part is not None)


def _slice(nvml: Any, handle: Any, place: int) -> Slice | None:
    try:
        part = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place)
        return Slice(
            uuid_of(nvml, part),
            nvml.nvmlDeviceGetGpuInstanceId(part),
            nvml.nvmlDeviceGetComputeInstanceId(part),
        )
    except nvml.NVMLError:
        return None


def uuid_of(nvml: Any, handle: Any) -> str:
    """Its UUID; empty when the driver does not tell it."""
    return _text(nvml, lambda: nvml.nvmlDeviceGetUUID(handle))


def name_of(nvml: Any, handle: Any) -> str:
    """Its model, printable whatever the driver returned; empty when it does not tell it."""
    return _text(nvml, lambda: nvml.nvmlDeviceGetName(handle))


def _text(nvml: Any, ask: Callable[[], str | bytes]) -> str:
    """Text, or bytes, depending on the version; under WSL these may not decode."""
    try:
        answer = ask()
    except UnicodeDecodeError as error:
        answer = error.object
    except nvml.NVMLError:
        return ""
    text = answer.decode("utf-8", "replace") if isinstance(answer, bytes) else answer
    return "".join(letter for letter in text if letter.isprintable()).strip()


def cuda_ids(cards: Sequence[Card], env: Mapping[str, str]) -> list[str]:
    """UUIDs of what CUDA shows this process, in its order. Raises ``NotVisible`` when nobody knows.

    A torch that runs here knows, but for slices it gives the card's UUID.
    """
    bare = torch_devices.cuda_uuids() if all(card.slices is None for card in cards) else None
    if bare is None:
        return visible_ids(cards, env, ask_child)
    return [with_prefix(uuid, identities(cards)) for uuid in bare]


def cuda_index(uuid: str, cards: Sequence[Card], env: Mapping[str, str]) -> int | None:
    """What CUDA, and so torch, calls this device here; ``None`` where it is not visible."""
    try:
        return cuda_ids(cards, env).index(uuid)
    except (NotVisible, ValueError):
        return None


def find_handle(nvml: Any, asked: str, cards: Sequence[Card], env: Mapping[str, str]) -> Any:
    """The handle of ``asked``. Raises ``NotVisible`` with what there is, or an ``NVMLError``."""
    if asked.startswith("nvml:"):
        return _by_nvml_index(nvml, asked, len(cards))
    if asked.startswith(("GPU-", "MIG-")):
        identity = find_identity(asked, cards)
        if identity is None:
            known = ", ".join(identities(cards)) or "none"
            raise NotVisible(f"not exactly one GPU or MIG slice is called {asked}: there are {known}")
        return nvml.nvmlDeviceGetHandleByUUID(identity)
    if asked.startswith("cuda:"):
        return nvml.nvmlDeviceGetHandleByUUID(_by_cuda_index(asked, cards, env))
    return nvml.nvmlDeviceGetHandleByPciBusId(asked)


def _by_nvml_index(nvml: Any, asked: str, count: int) -> Any:
    index = int(asked.removeprefix("nvml:"))
    if index >= count:
        raise NotVisible(f"{asked} does not exist: the driver lists {count} GPUs")
    return nvml.nvmlDeviceGetHandleByIndex(index)


def _by_cuda_index(asked: str, cards: Sequence[Card], env: Mapping[str, str]) -> str:
    ids, index = cuda_ids(cards, env), int(asked.removeprefix("cuda:"))
    if index < len(ids):
        return ids[index]
    value = env.get("CUDA_VISIBLE_DEVICES")
    setting = "CUDA_VISIBLE_DEVICES is not set" if value is None else f"CUDA_VISIBLE_DEVICES={value!r}"
    raise NotVisible(f"{asked} does not exist: CUDA shows {len(ids)} of {len(cards)} GPUs ({setting})")


def whole_card(nvml: Any, handle: Any) -> Any:
    """The card that a slice is on; of a card, itself."""
    try:
        return nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
    except nvml.NVMLError:
        return handle


def is_wddm(nvml: Any, card: Any) -> bool:
    """Whether Windows' display driver manages the memory, on Windows or behind WSL."""
    try:
        return bool(nvml.nvmlDeviceGetCurrentDriverModel(card) == nvml.NVML_DRIVER_WDDM)
    except nvml.NVMLError:
        return WSL_DRIVER.exists()
