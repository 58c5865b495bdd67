"""The polynomials of a phase as one Python function, which runs for each request.

Owns the function's source, built from numbers and from names that are made here: no text from a
file gets into it. What the polynomials mean is in ``peaks``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

Number: TypeAlias = "int | float"
Highest: TypeAlias = "tuple[Number, int, Sequence[Number]]"
"""Bytes, the place of the peak in ``Phase.peaks``, and the products that its coefficients are for."""
Reader: TypeAlias = "Callable[[Sequence[Number]], Highest]"
Pieces: TypeAlias = "Sequence[tuple[Sequence[int | None], Sequence[Sequence[Number]]]]"
"""For each range of sizes, its largest values and the coefficients of its peaks."""


def compiled(pieces: Pieces, degrees: Sequence[int], steps: Sequence[int]) -> Reader:
    """A function of the values of the axes: the highest of the peaks there.

    Raises ``ValueError`` for a coefficient that is no finite number.
    """
    names: dict[str, Any] = {}
    exec("\n".join(_lines(pieces, degrees, steps)), {"__builtins__": {}}, names)
    made: Reader = names["highest"]
    return made


def _lines(pieces: Pieces, degrees: Sequence[int], steps: Sequence[int]) -> Iterator[str]:
    axes = [f"x{axis}" for axis in range(len(degrees))]
    yield "def highest(values):"
    yield f"    {', '.join(axes)}, = values"
    yield from (f"    {x} = -(-{x} // {s}) * {s}" for x, s in zip(axes, steps, strict=True) if s > 1)
    powers = list(_powers(axes, degrees))
    yield from (f"    p{place} = {text}" for place, text in enumerate(powers) if "*" in text)
    names = [f"p{place}" if "*" in text else text for place, text in enumerate(powers)]
    place = 0
    for number, (limits, peaks) in enumerate(pieces):
        is_last = number == len(pieces) - 1
        yield f"    {'el' if number else ''}{_condition(axes, limits, is_last=is_last)}:"
        yield from _highest_of(peaks, names, place)
        place += len(peaks)
    yield f"    return best, place, ({', '.join(names)},)"


def _powers(axes: Sequence[str], degrees: Sequence[int]) -> Iterator[str]:
    """The products of powers, the first axis' power changing fastest, each made of one before it."""
    found = ["1"]
    yield "1"
    for axis, degree in zip(axes, degrees, strict=True):
        lower, size = list(range(len(found))), len(found)
        for _ in range(degree):
            made = [axis if place == 0 else f"{_name(found, place)} * {axis}" for place in lower]
            lower = [len(found) + i for i in range(size)]
            found += made
            yield from made


def _name(found: Sequence[str], place: int) -> str:
    return f"p{place}" if "*" in found[place] else found[place]


def _condition(axes: Sequence[str], limits: Sequence[int | None], *, is_last: bool) -> str:
    bounds = [f"{x} <= {int(most)}" for x, most in zip(axes, limits, strict=True) if most is not None]
    return "if 1" if is_last or not bounds else f"if {' and '.join(bounds)}"


def _highest_of(peaks: Sequence[Sequence[Number]], names: Sequence[str], first: int) -> Iterator[str]:
    for place, coefficients in enumerate(peaks, first):
        terms = [_term(c, name) for c, name in zip(coefficients, names, strict=True) if c]
        if place == first:
            yield f"        best, place = {' + '.join(terms) or 0}, {place}"
        else:
            yield f"        size = {' + '.join(terms) or 0}"
            yield f"        if size > best: best, place = size, {place}"


def _term(coefficient: Number, name: str) -> str:
    if not math.isfinite(coefficient):
        raise ValueError(f"a coefficient must be a finite number, got {coefficient!r}")
    number = repr(coefficient if isinstance(coefficient, int) else float(coefficient))
    return number if name == "1" else f"{number} * {name}"
