"""A trace beside the real thing: the model with made-up weights, run at a few sizes and measured.

Owns the sizes, and the table that is printed. How a call is measured is in ``measured``, how a model is
run in ``transformers``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any, Final, NamedTuple

import torch

from gpu_admission.estimators.traced.build import Built, Choices, build
from gpu_admission.estimators.traced.configs import longest
from gpu_admission.estimators.traced.grid import Sizes
from gpu_admission.estimators.traced.measured import peak_of
from gpu_admission.estimators.traced.traced import Traced
from gpu_admission.estimators.traced.transformers import WRITTEN, Run
from gpu_admission.sizes import format_bytes
from gpu_admission.types import Workload

_LENGTHS: Final = {"cuda": (256, 1024, 4096), "cpu": (32, 128, 512)}
_ROWS: Final = (1, 2)


class Row(NamedTuple):
    """One size that was run for real. Bytes."""

    sizes: Sizes
    traced: int
    """The estimate without its margin."""
    measured: int
    charged: int


def check(source: Any, choices: Choices, traced: Traced) -> tuple[str, list[Row]]:
    """Run the model of ``source`` on the first card, or else the CPU; returns which, and the rows.

    Raises ``ValueError`` if its weights do not fit there, ``ImportError`` without its kernels.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    _check_room(build(source, choices), device)
    run = Run(build(source, choices, device), choices)
    bare = Traced(traced.trace, margin=0)
    return device, [_row(run, sizes, bare, traced, device) for sizes in _points(run.built, device)]


def _row(run: Run, sizes: Sizes, bare: Traced, traced: Traced, device: str) -> Row:
    workload = _workload(run.built, sizes)
    measured = peak_of(partial(run.really, sizes), device)
    return Row(sizes, bare.estimate(workload).bytes, measured, traced.estimate(workload).bytes)


def _points(built: Built, device: str) -> Iterator[Sizes]:
    most = longest(built.config) or max(_LENGTHS[device])
    lengths = [n for n in _LENGTHS[device] if n + WRITTEN < most] or [most // 2]
    for rows, length in product(_ROWS, lengths):
        if built.input != "input_ids":
            yield {"sequences": rows, **({"new_tokens": min(length, 64)} if built.kind == "speech" else {})}
        else:
            wrote = {"new_tokens": 8} if built.kind == "encoder-decoder" else {}
            yield {"sequences": rows, "prompt_tokens": length, **wrote}


def _workload(built: Built, sizes: Sizes) -> Workload:
    """The request that a run at ``sizes`` is."""
    wrote = sizes.get("new_tokens", 0 if built.kind == "encoder" else 1)
    new = 0 if built.kind == "encoder" else wrote + WRITTEN
    return Workload(prompt_tokens=sizes.get("prompt_tokens", 0), new_tokens=new, sequences=sizes["sequences"])


def _check_room(built: Built, device: str) -> None:
    weights = sum(p.numel() * p.element_size() for p in built.model.parameters())
    free = torch.cuda.mem_get_info()[0] if device == "cuda" else _free_memory()
    if weights > free:
        raise ValueError(
            f"the weights take {format_bytes(weights)}, and {format_bytes(free)} are free on {device}: "
            "--check needs them all (fewer num_hidden_layers in a copy of the config will do)"
        )


def _free_memory() -> int:
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def table(device: str, rows: list[Row]) -> str:
    """The rows as text, and the largest error of the trace."""
    names = list(rows[0].sizes)
    head = [*names, "traced", f"measured on {device}", "traced / measured", "charged"]
    lines = [
        [
            *(str(row.sizes[name]) for name in names),
            *(format_bytes(row.traced), format_bytes(row.measured), f"{row.traced / row.measured:.3f}"),
            format_bytes(row.charged),
        ]
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(head, *lines, strict=True)]
    text = ["  ".join(cell.rjust(w) for cell, w in zip(line, widths, strict=True)) for line in [head, *lines]]
    low = sum(row.measured > row.charged for row in rows)
    return "\n".join([*text, f"{low} of {len(rows)} take more than they are charged"])
