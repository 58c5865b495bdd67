"""Named numbers of a workload, and products of them: what ``Linear`` and ``Table`` read.

Owns the names: the sizes of ``Workload``, a few that follow from them, and whatever a
dialect put in ``Workload.features``. No coefficient belongs here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, TypeAlias

from gpu_admission.sizes import MAX_BYTES
from gpu_admission.types import Workload

Number: TypeAlias = "int | float"
Feature: TypeAlias = Callable[[Workload], Number]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
_FIELDS = (
    "prompt_tokens",
    "new_tokens",
    "sequences",
    "beams",
    "width",
    "height",
    "frames",
    "audio_seconds",
    "tensor_bytes",
    "context",
)
_DERIVED: Mapping[str, Feature] = {
    "total_prompt_tokens": lambda w: w.total_prompt_tokens or w.prompt_tokens,
    "tokens": lambda w: w.prompt_tokens + w.new_tokens,
    "pixels": lambda w: w.width * w.height,
    "images": lambda w: len(w.images),
}


def feature(name: str) -> Feature:
    """A reader of the feature ``name``: a size of ``Workload``, one of ``Workload.features``, or
    one of ``tokens`` (prompt and new), ``pixels`` (of the image made) and ``images`` (their count).

    Raises ``ValueError`` for what is no name. The reader raises ``LookupError`` when a
    workload has no such feature.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not the name of a feature")
    if name in _FIELDS:
        reader: Feature = attrgetter(name)
        return reader
    return _named(name, _DERIVED.get(name))


def product(term: str) -> tuple[Feature, ...]:
    """Readers of the factors of ``term``: ``"prompt_tokens"`` or ``"prompt_tokens*sequences"``."""
    return tuple(feature(part.strip()) for part in term.split("*"))


def workload_of(values: Mapping[str, Any]) -> Workload:
    """A workload with the sizes ``values``: fields where it has them, else named features."""
    fields = {name: value for name, value in values.items() if name in (*_FIELDS, "total_prompt_tokens")}
    return Workload(**fields, features={name: v for name, v in values.items() if name not in fields})


def _named(name: str, derived: Feature | None) -> Feature:
    def read(workload: Workload) -> Number:
        value = workload.features.get(name)
        if value is None:
            if derived is None:
                raise LookupError(f"the workload has no feature {name!r}")
            return derived(workload)
        if value < 0:
            return 0
        return value if value <= MAX_BYTES else MAX_BYTES

    return read
