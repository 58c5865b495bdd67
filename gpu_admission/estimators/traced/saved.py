"""Traces as JSON files: what a serving process reads, with neither torch nor the model.

Owns the format and its version.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import msgspec

from gpu_admission.estimators.traced.peaks import Trace

_FORMAT: Final = "gpu-admission trace 1"


class _File(msgspec.Struct, frozen=True):
    format: str
    trace: Trace


def write_trace(trace: Trace, path: str | os.PathLike[str]) -> None:
    """Write ``trace`` to ``path``."""
    text = msgspec.json.format(msgspec.json.encode(_File(_FORMAT, trace)), indent=1)
    Path(path).write_bytes(text + b"\n")


def read_trace(path: str | os.PathLike[str]) -> Trace:
    """The trace in ``path``. Raises ``ValueError`` when it is none, and ``OSError``."""
    try:
        file = msgspec.json.decode(Path(path).read_bytes(), type=_File)
    except msgspec.DecodeError as error:
        raise ValueError(f"{os.fspath(path)} is no trace: {error}") from None
    if file.format != _FORMAT:
        raise ValueError(f"{os.fspath(path)} is a {file.format!r}, this version reads {_FORMAT!r}")
    _check(file.trace, path)
    return file.trace


def _check(trace: Trace, path: str | os.PathLike[str]) -> None:
    """Raise for sizes that don't belong together, which would give wrong estimates later."""
    for phase in trace.phases:
        products = 1
        for degree in phase.degrees:
            products *= degree + 1
        fits = len(phase.axes) == len(phase.degrees) == len(phase.steps) and phase.pieces
        whole = all(p.peaks and len(p.upto) == len(phase.axes) for p in phase.pieces)
        if (
            not fits
            or not whole
            or any(len(k.coefficients) != products for p in phase.pieces for k in p.peaks)
        ):
            raise ValueError(f"{os.fspath(path)}: the phase {phase.name!r} is damaged")
