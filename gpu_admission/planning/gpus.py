"""The cards that a plan can be made for: memory, bandwidth and matrix rates, each with its source.

Owns the table (``data/gpus.csv``) and how a name is looked up in it. What these numbers mean for
a model is in ``roofline``.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files

import msgspec

from gpu_admission.sizes import GIB

_UNSAID = frozenset(
    [
        *(
            "nvidia",
            "geforce",
            "tesla",
            "amd",
            "instinct",
            "radeon",
            "intel",
            "apple",
            "generation",
            "edition",
        ),
        *("server", "workstation", "laptop", "gpu", "mig", "hbm2", "hbm2e", "hbm3", "hbm3e"),
    ]
)


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One card, or a slice of one. Rates are the vendor's peaks, dense, as ``source`` says."""

    name: str
    memory: int
    """Bytes of memory by its name."""
    usable: float = 1.0
    """Share of ``memory`` that a process may take: below 1 where it is the system's too."""
    bandwidth: float
    """Bytes a second."""
    flops: float
    """16-bit matrix operations a second."""
    flops8: float = 0.0
    """8-bit floating point ones; 0 = it has none, and computes in 16 bits."""
    source: str = ""

    @property
    def room(self) -> int:
        """Bytes that a process may take."""
        return int(self.memory * self.usable)


def gpus() -> Sequence[Gpu]:
    """All that are known, in the order of the table."""
    sources = {row["family"]: row for row in _rows("gpu_sources.csv")}
    return [_gpu(row, sources[row["family"]]) for row in _rows("gpus.csv")]


def find_gpu(name: str) -> Gpu:
    """The card that ``name`` means: as people write it, or as its driver does.

    ``"4090"``, ``"rtx4090"`` and ``"NVIDIA GeForce RTX 4090"`` are one. Raises ``ValueError`` naming
    the cards that it may mean.
    """
    known = gpus()
    if same := [gpu for gpu in known if _joined(gpu.name) == _joined(name)]:
        return same[0]
    asked = _words(name)
    inside = [gpu for gpu in known if _words(gpu.name) <= asked]
    most = max((len(_words(gpu.name)) for gpu in inside), default=0)
    near = [gpu for gpu in inside if len(_words(gpu.name)) == most]
    near = near or [gpu for gpu in known if asked and asked <= _words(gpu.name)]
    near = near or [
        gpu
        for gpu in known
        if any(not w.isdigit() and not w.endswith("gb") for w in asked & _words(gpu.name))
    ]
    if len(near) == 1 and (inside or asked <= _words(near[0].name)):
        return near[0]
    said = "may be several cards" if near else "is no card that is known"
    raise ValueError(f"--gpu {name!r} {said}; write one of: {', '.join(g.name for g in near or known)}")


def _words(name: str) -> frozenset[str]:
    """The part of a name that tells cards apart: no maker, kind of memory or version of the socket."""
    plain = re.sub(r"\bsxm\d", "sxm", name.lower())
    if "mig" not in plain:  # the driver's name for this card leaves out the socket
        plain = plain.replace("h100 80gb hbm3", "h100 sxm")
    return frozenset(re.findall(r"[a-z0-9.]+", plain)) - _UNSAID


def _joined(name: str) -> str:
    return re.sub(r"[^a-z0-9.]", "", name.lower())


def _gpu(row: Mapping[str, str], family: Mapping[str, str]) -> Gpu:
    return Gpu(
        name=row["name"],
        memory=int(float(row["memory_gib"]) * GIB),
        usable=float(family["usable"]),
        bandwidth=float(row["bandwidth_gbs"]) * 1e9,
        flops=float(row["fp16_tflops"]) * 1e12,
        flops8=float(row["fp8_tflops"] or 0) * 1e12,
        source=family["source"],
    )


def _rows(file: str) -> Sequence[Mapping[str, str]]:
    with files(__package__).joinpath("data", file).open(encoding="utf-8") as lines:
        return list(csv.DictReader(lines))
