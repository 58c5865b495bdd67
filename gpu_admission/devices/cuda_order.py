"""Which GPU is ``cuda:0``: from CUDA's order and visibility to identities.

CUDA numbers devices by speed unless ``CUDA_DEVICE_ORDER=PCI_BUS_ID``, and shows only those
that ``CUDA_VISIBLE_DEVICES`` names; the driver's management library numbers them by bus and
shows all. So a position is turned into a UUID here, and nowhere else. No driver is called
by this process: where only CUDA knows its order, a short-lived child asks it.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence

import msgspec

CHILD_SECONDS = 20.0
_CHILD = """
import ctypes, sys, uuid
try:
    cuda = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
except OSError as error:
    sys.exit(str(error))
count, ident = ctypes.c_int(), (ctypes.c_ubyte * 16)()
ask = getattr(cuda, "cuDeviceGetUuid_v2", cuda.cuDeviceGetUuid)
code = cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count))
if code:
    sys.exit(f"CUDA error {code}")
for index in range(count.value):
    code = ask(ident, index)
    if code:
        sys.exit(f"CUDA error {code}")
    print(uuid.UUID(bytes=bytes(ident)))
"""


class Slice(msgspec.Struct, frozen=True):
    """One MIG slice of a card."""

    uuid: str
    gpu_instance: int
    compute_instance: int


class Card(msgspec.Struct, frozen=True):
    """One GPU as the driver lists it; ``uuid`` is empty where the card did not answer."""

    uuid: str
    model: str
    total: int | None
    slices: tuple[Slice, ...] | None = None
    """Slices of a card in MIG mode; ``None`` when MIG is off."""


class NotVisible(LookupError):
    """No such device for this process; the text says what was seen."""


def visible_ids(
    cards: Sequence[Card], env: Mapping[str, str], ask_cuda: Callable[[], Sequence[str]]
) -> list[str]:
    """UUIDs of the devices that CUDA shows this process, in CUDA's order.

    ``ask_cuda`` is called only where positions matter and the order can't be derived. Raises
    ``NotVisible`` where it fails.
    """
    value = env.get("CUDA_VISIBLE_DEVICES")
    if not _by_position(value) or _ordered_by_bus(cards, env):
        return parse_visible(value, cards)
    known = identities(cards)
    return [with_prefix(identity, known) for identity in ask_cuda()]


def _by_position(value: str | None) -> bool:
    return value is None or any(entry.strip().isdigit() for entry in value.split(","))


def _ordered_by_bus(cards: Sequence[Card], env: Mapping[str, str]) -> bool:
    """Cards of one kind are equally fast, and keep the order of the bus."""
    if env.get("CUDA_DEVICE_ORDER", "").strip() == "PCI_BUS_ID":
        return True
    return len({(card.model, card.total, card.slices is None) for card in cards}) <= 1


def parse_visible(value: str | None, cards: Sequence[Card]) -> list[str]:
    """What ``CUDA_VISIBLE_DEVICES=value`` leaves of ``cards``, which are in CUDA's order.

    An invalid entry hides itself and all after it; one that comes twice hides everything.
    """
    if value is None:
        return [found for found in (_shown(card) for card in cards) if found]
    ids: list[str] = []
    for entry in value.split(","):
        found = _find(entry.strip(), cards)
        if found is None:
            break
        ids.append(found)
    return ids if len(set(ids)) == len(ids) else []


def _shown(card: Card) -> str | None:
    """The identity that CUDA shows of a card: itself, or its first slice in MIG mode."""
    if card.slices is None:
        return card.uuid or None
    return card.slices[0].uuid if card.slices else None


def _find(entry: str, cards: Sequence[Card]) -> str | None:
    if entry.isdigit():
        return _shown(cards[int(entry)]) if int(entry) < len(cards) else None
    identity = find_identity(entry, cards)
    card = next((card for card in cards if card.uuid == identity), None)
    return identity if card is None else _shown(card)


def find_identity(name: str, cards: Sequence[Card]) -> str | None:
    """The UUID of the one card or slice that ``name`` means; ``None`` if it means none, or several.

    ``name`` is a UUID, the beginning of one, or a slice as drivers before 470 wrote it:
    ``MIG-GPU-<card>/<GPU instance>/<compute instance>``.
    """
    if not name.startswith(("GPU-", "MIG-")):
        return None
    matches = [uuid for uuid in identities(cards) if uuid.startswith(name)]
    matches += [
        part.uuid
        for card in cards
        for part in card.slices or ()
        if name == f"MIG-{card.uuid}/{part.gpu_instance}/{part.compute_instance}"
    ]
    return matches[0] if len(matches) == 1 else None


def identities(cards: Sequence[Card]) -> list[str]:
    """UUIDs of all cards and slices."""
    return [
        name for card in cards for name in (card.uuid, *(part.uuid for part in card.slices or ())) if name
    ]


def with_prefix(identity: str, known: Sequence[str]) -> str:
    """The driver's name for a UUID that CUDA or torch gives bare, without ``GPU-`` or ``MIG-``."""
    bare = identity.lower()
    return next((name for name in known if name.lower().endswith(bare)), f"GPU-{bare}")


def ask_child(python: str | None = None) -> list[str]:
    """UUIDs in CUDA's order, from a short-lived child process; no context is made.

    Raises ``NotVisible`` when there is no answer.
    """
    advice = "set CUDA_DEVICE_ORDER=PCI_BUS_ID, or name the GPU by its UUID"
    command = [python or sys.executable, "-I", "-c", _CHILD]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=CHILD_SECONDS, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        raise NotVisible(
            f"CUDA could not be asked for its order ({type(error).__name__}): {advice}"
        ) from error
    if done.returncode:
        raise NotVisible(f"CUDA did not tell its order ({done.stderr.strip()[-200:]}): {advice}")
    return done.stdout.split()
