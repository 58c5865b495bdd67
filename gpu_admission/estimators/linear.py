"""``Linear``: a constant plus coefficients of named features and of products of them.

Owns the form and its fit to measured rows. Which features there are is in ``features``,
how a fit is solved is in ``leastsquares``, how far it is to be trusted in ``goodness``.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

import msgspec

from gpu_admission.estimators.features import (
    Feature,
    Number,
    factors,
    feature,
    per_sequence,
    product,
    rows_of,
    workload_of,
)
from gpu_admission.estimators.goodness import Fit, FitError, faults, saturated
from gpu_admission.estimators.leastsquares import fit_nonnegative
from gpu_admission.estimators.rows import MeasuredRow, measured
from gpu_admission.estimators.terms import assumed, clamp, render
from gpu_admission.request import RequestInfo
from gpu_admission.sizes import MAX_BYTES, parse_bytes
from gpu_admission.types import Estimate, Workload


class _Saved(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What ``save`` writes. ``about`` is for people."""

    terms: dict[str, int | float]
    constant: int = 0
    basis: Literal["device", "pool"] = "device"
    error: FitError | None = None
    strict: bool = False
    about: str = ""


_SHOWN = 1e300
"""Larger numbers are not written out in full: a body may hold any number."""


class Linear:
    """``constant + sum(coefficient x feature)``, with features such as ``"prompt_tokens"`` and
    products such as ``"prompt_tokens*sequences"``; the names are below.

    Each sequence (``n``, ``best_of``, a batch) costs the terms anew. Where a term names
    ``sequences``, the terms are taken as they stand: ``{"tokens": 5, "sequences": 0}`` costs the
    same for one as for many.

    Coefficients are bytes for each unit: an ``int``, a ``float``, or text such as
    ``"0.11MiB"``; none is negative, so that more never costs less. A product of ints is exact.
    ``error`` comes from ``fit``; a request beyond its rows gets a note, and with ``strict`` it is
    refused (2**62 bytes: it fits nowhere).

    The features, read from the body by the dialect of the path::

        prompt_tokens         of the longest prompt, template included: a chat is charged 8 for each
                              message and 40 once for it
        new_tokens            the most that each sequence may generate
        sequences             rows that run at once: prompts x choices (n, best_of, beams, batch)
        beams                 beam width, which is multiplied into sequences already
        width                 of the largest picture or video that is made, in pixels
        height                its height
        frames                of the video that is made
        audio_seconds         of the audio that is sent, in seconds
        tensor_bytes          of the input tensors of an inference call (KServe), in bytes
        context               tokens of context that the server has to load (Ollama's num_ctx)
        total_prompt_tokens   of all distinct prompts together
        tokens                prompt_tokens + new_tokens
        pixels                width x height
        images                how many input pictures
        steps                 of denoising (Stable Diffusion web UI)
        n_iter                batches that are made one after the other (the same)
        scripts               how many alwayson_scripts (the same)
        tensors               how many input tensors (KServe)
        largest_tensor_bytes  of the largest of them, in bytes
        features.NAME         a number of your own: ``Fields(features={"NAME": "its.path"})``

    A request that names no limit is charged its dialect's ``default_new_tokens`` (1,024; SGLang: 128;
    OpenAI's plain completions: ``completion_new_tokens``, 16), and a note of the estimate says so. Set
    it with the setting ``dialect``: ``dialect=OpenAI(default_new_tokens=512)``, from
    ``gpu_admission.workloads``.
    """

    def __init__(
        self,
        terms: Mapping[str, float | str],
        *,
        constant: int | str = 0,
        basis: Literal["device", "pool"] = "device",
        error: FitError | None = None,
        strict: bool = False,
    ) -> None:
        if not isinstance(terms, Mapping):
            raise TypeError(
                f"terms of Linear must be a dict of features to bytes, like {{'prompt_tokens': '0.5MiB'}}, "
                f"got {terms!r}"
            )
        self.constant = _signed_bytes(constant)
        self.coefficients: Mapping[str, Number] = {name: _coefficient(name, c) for name, c in terms.items()}
        self.basis: Literal["device", "pool"] = basis
        self.error = error
        """How well it fits, when made by ``fit``."""
        self.strict = strict
        self._anew = per_sequence(terms)
        self._terms = [
            (name, coefficient, *_split(product(name))) for name, coefficient in self.coefficients.items()
        ]
        self._floor = error.smallest if error else 0
        self._notes = error.notes if error else ()
        self._reach = [(name, feature(name), most) for name, most in error.reach.items()] if error else []

    def __call__(self, info: RequestInfo, /) -> Estimate:
        return self.estimate(info.workload)

    def estimate(self, workload: Workload) -> Estimate:
        """Bytes of ``workload``. Raises ``LookupError`` when it lacks a feature."""
        notes = (*self._notes, *assumed(workload)) if workload.defaulted else self._notes
        if self._reach and (beyond := self._beyond(workload)):
            notes = (*notes, f"beyond the rows that were measured: {', '.join(beyond)}")
            if self.strict:
                return Estimate(MAX_BYTES, None, self.basis, {"beyond the rows": MAX_BYTES}, notes)
        try:
            total, parts = self._sum(workload)
        except (OverflowError, ValueError):  # a size that no float holds, or NaN
            return Estimate(MAX_BYTES, None, self.basis, {"out of range": MAX_BYTES}, notes)
        if total < self._floor:
            parts["up to the smallest row"] = math.ceil(self._floor - total)
            total = self._floor
        return Estimate(clamp(total), None, self.basis, parts, notes)

    def _sum(self, workload: Workload) -> tuple[Number, dict[str, int]]:
        values: dict[str, Any] = {"constant": self.constant} if self.constant else {}
        for name, coefficient, first, others in self._terms:
            values[name] = value = coefficient * first(workload)
            if others:
                for factor in others:
                    value *= factor(workload)
                values[name] = value
        if workload.sequences > 1:
            for name in self._anew:
                values[name] *= workload.sequences
        total: Number = sum(values.values())
        if type(total) is int:
            return total, values
        return total, {name: math.ceil(value) for name, value in values.items()}

    def _beyond(self, workload: Workload) -> list[str]:
        """The features of which ``workload`` has more than any row had, or which are no number."""
        return [
            f"{name} {min(value, _SHOWN):g} > {most:g}"
            for name, read, most in self._reach
            if not (value := read(workload)) <= most
        ]

    def explain(self, workload: Workload) -> str:
        """The terms of ``workload``, as text."""
        return render("Linear", self.estimate(workload))

    def __repr__(self) -> str:
        return f"Linear({dict(self.coefficients)!r}, constant={self.constant})"

    @classmethod
    def fit(
        cls,
        rows: Iterable[MeasuredRow],
        terms: Sequence[str],
        *,
        never_below: bool = False,
        basis: Literal["device", "pool"] = "device",
        strict: bool = False,
    ) -> Linear:
        """The ``Linear`` of these ``terms`` that is nearest, in least squares, to measured rows.

        A row is ``({feature: value}, bytes)``. With ``never_below`` the constant is then raised
        until no row is above the fit. Nothing is charged less than the smallest row. ``.error`` of the
        result says how well it fits and what speaks against it; with ``strict`` that is a
        ``ValueError``, as it always is when the rows can't tell the terms apart.
        """
        fit = _rows(measured(rows, of="Linear.fit"), terms)
        coefficients = _coefficients(fit)
        doubts = faults(fit)
        if strict and doubts:
            raise ValueError(f"Linear.fit with strict=True: {'; '.join(doubts)}")
        slopes = {term: _plain(c) for term, c in zip(terms, coefficients[1:], strict=True)}
        constant, notes = math.ceil(coefficients[0]), (*doubts, *saturated(fit))
        while True:
            fitted = cls(slopes, constant=constant, basis=basis)
            error = _error(fitted, fit, notes)
            if not (never_below and error.most_under):
                return cls(slopes, constant=constant, basis=basis, error=error, strict=strict)
            constant += error.most_under

    def save(self, path: str | os.PathLike[str], *, about: str = "") -> None:
        """Write the coefficients to ``path`` as JSON, for ``load``; ``about`` says where they come from."""
        saved = _Saved(
            terms=dict(self.coefficients),
            constant=self.constant,
            basis=self.basis,
            error=self.error,
            strict=self.strict,
            about=about,
        )
        text = msgspec.json.format(msgspec.json.encode(saved)) + b"\n"
        half = Path(f"{os.fspath(path)}.new")  # a reader finds the old file or the new one, never half
        half.write_bytes(text)
        half.replace(path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Linear:
        """What ``save`` or ``gpu-admission calibrate`` wrote. Raises ``OSError`` and ``ValueError``."""
        try:
            saved = msgspec.json.decode(Path(path).read_bytes(), type=_Saved)
            return cls(
                saved.terms,
                constant=saved.constant,
                basis=saved.basis,
                error=saved.error,
                strict=saved.strict,
            )
        except (msgspec.MsgspecError, ValueError, TypeError) as error:
            raise ValueError(f"{os.fspath(path)} is not a saved Linear estimator: {error}") from None


def _columns(terms: Iterable[str]) -> list[tuple[Feature, ...]]:
    """The factors of each term, with that of sequences where each of them costs it anew."""
    names = list(terms)
    anew = per_sequence(names)
    return [(*product(name), rows_of) if name in anew else product(name) for name in names]


def _split(factors: Sequence[Feature]) -> tuple[Feature, Sequence[Feature]]:
    return factors[0], factors[1:]


def _rows(pairs: Sequence[tuple[Mapping[str, Any], int]], terms: Sequence[str]) -> Fit:
    if isinstance(terms, str) or not all(isinstance(term, str) for term in terms):
        raise ValueError(
            f"terms of Linear.fit must be a list of names, such as ['prompt_tokens'], got {terms!r}"
        )
    if not pairs:
        raise ValueError("Linear.fit needs at least one measured row")
    columns = _columns(terms)
    workloads = [workload_of(values) for values, _ in pairs]
    matrix = [[Fraction(1), *(_value(column, w) for column in columns)] for w in workloads]
    return Fit(terms, matrix, [Fraction(size) for _, size in pairs], [values for values, _ in pairs])


def _coefficients(fit: Fit) -> Sequence[Fraction]:
    try:
        return fit_nonnegative(fit.matrix, fit.sizes)
    except ValueError:
        raise ValueError(
            f"{len(fit.matrix)} rows can't tell the terms {list(fit.terms)} apart: "
            "measure rows in which each of them changes on its own"
        ) from None


def _error(fitted: Linear, fit: Fit, notes: tuple[str, ...]) -> FitError:
    workloads = [workload_of(values) for values in fit.values]
    errors = [fitted.estimate(w).bytes - int(size) for w, size in zip(workloads, fit.sizes, strict=True)]
    worst = max(range(len(errors)), key=lambda i: abs(errors[i]))
    names = dict.fromkeys([*(name for term in fit.terms for name in factors(term)), "sequences"])
    return FitError(
        worst=errors[worst],
        rms=math.isqrt(sum(e * e for e in errors) // len(errors)),
        most_under=max(0, -min(errors)),
        worst_row=dict(fit.values[worst]),
        smallest=int(min(fit.sizes)),
        reach={name: max(map(feature(name), workloads)) for name in names},
        notes=notes,
    )


def _value(factors: Sequence[Any], workload: Workload) -> Fraction:
    value = Fraction(1)
    for factor in factors:
        value *= Fraction(factor(workload))
    return value


def _plain(coefficient: Fraction) -> Number:
    """As an ``int`` where it is one, else as a ``float``: what ``repr`` can show and ``Linear`` take."""
    return int(coefficient) if coefficient.denominator == 1 else float(coefficient)


def _signed_bytes(constant: int | str) -> int:
    """A fit may put the constant below zero; the estimate is still positive."""
    if isinstance(constant, int) and not isinstance(constant, bool) and constant < 0:
        return -parse_bytes(-constant, name="constant")
    return parse_bytes(constant, name="constant")


def _coefficient(name: str, value: float | str) -> Number:
    if isinstance(value, float):
        if not 0 <= value <= 2**62:
            raise ValueError(f"the coefficient of {name!r} must be finite and not negative, got {value!r}")
        return value
    return parse_bytes(value, name=f"the coefficient of {name!r}")
