"""Named numbers of a workload, and products of them: what ``Linear`` and ``Table`` read.

Owns the names: the sizes of ``Workload``, a few that follow from them, and what a dialect
put in ``Workload.features``; and which of them describe each sequence and which a whole
request. No coefficient belongs here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import Any, TypeAlias

from gpu_admission.sizes import MAX_BYTES
from gpu_admission.types import SIZES, Workload

Number: TypeAlias = "int | float"
Feature: TypeAlias = Callable[[Workload], Number]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
_DERIVED: Mapping[str, Feature] = {
    "total_prompt_tokens": lambda w: w.total_prompt_tokens or w.prompt_tokens,
    "tokens": lambda w: w.prompt_tokens + w.new_tokens,
    "pixels": lambda w: w.width * w.height,
    "images": lambda w: len(w.images),
}
_READ = ("steps", "n_iter", "scripts", "tensors", "largest_tensor_bytes")
"""What the dialects of this package put in ``Workload.features``."""
KNOWN: tuple[str, ...] = (*SIZES, *_DERIVED, *_READ)
"""Every feature that is called by its bare name; ``Linear``'s docstring says what each is."""
_OWN = "features."
_OF_ALL = frozenset(
    (
        "sequences",
        "beams",
        "total_prompt_tokens",
        "context",
        "tensor_bytes",
        "tensors",
        "largest_tensor_bytes",
    )
)
"""Features of all sequences together: more sequences do not multiply them."""


def feature(name: str) -> Feature:
    """A reader of the feature ``name``: a size of ``Workload``; one of ``tokens`` (prompt and new),
    ``pixels`` (of the image made) and ``images`` (their count); what a dialect of this package reads
    beside them (``steps``); or, written ``"features.shots"``, a number that ``Fields`` reads.

    Raises ``ValueError`` for any other, with the known ones. The reader raises ``LookupError`` when
    a workload has no such feature.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not the name of a feature")
    if name in SIZES:
        reader: Feature = attrgetter(name)
        return reader
    own = name.removeprefix(_OWN)
    if own == name and name not in KNOWN:
        raise ValueError(
            f"{name!r} is not a feature: known are {', '.join(KNOWN)}; "
            f"a number that your dialect reads is written {_OWN + name!r}"
        )
    return _named(own, _DERIVED.get(name))


def written(name: str) -> str:
    """The feature that a dialect calls ``name``: with its prefix where it needs one."""
    return name if name in KNOWN or name.startswith(_OWN) else _OWN + name


def product(term: str) -> tuple[Feature, ...]:
    """Readers of the factors of ``term``: ``"prompt_tokens"`` or ``"prompt_tokens*sequences"``."""
    return tuple(feature(name) for name in factors(term))


def factors(term: str) -> tuple[str, ...]:
    """The names in ``term``."""
    return tuple(part.strip() for part in term.split("*"))


def rows_of(workload: Workload) -> int:
    """Sequences of ``workload``, at least one."""
    return workload.sequences if workload.sequences > 1 else 1


def per_sequence(terms: Iterable[str]) -> frozenset[str]:
    """The ``terms`` that every sequence costs anew: none if one of them names ``sequences``, since the
    terms then say themselves what sequences cost; otherwise all that describe a single sequence."""
    named = {term: factors(term) for term in terms}
    if any("sequences" in names for names in named.values()):
        return frozenset()
    return frozenset(term for term, names in named.items() if _OF_ALL.isdisjoint(names))


def workload_of(values: Mapping[str, Any]) -> Workload:
    """A workload with the sizes ``values``: fields where it has them, else named features.

    Raises ``ValueError`` for a name that is no feature.
    """
    fields = {name: value for name, value in values.items() if name in (*SIZES, "total_prompt_tokens")}
    others = {name: value for name, value in values.items() if name not in fields}
    for name in others:
        feature(name)
    return Workload(**fields, features={name.removeprefix(_OWN): v for name, v in others.items()})


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
