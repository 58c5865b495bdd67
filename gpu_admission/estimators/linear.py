"""``Linear``: a constant plus coefficients of named features and of products of them.

Owns the form and its fit to measured rows. Which features there are is in ``features``,
how a fit is solved is in ``leastsquares``.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

import msgspec

from gpu_admission.estimators.features import Feature, Number, product, workload_of
from gpu_admission.estimators.leastsquares import fit_nonnegative
from gpu_admission.estimators.terms import assumed, clamp, render
from gpu_admission.request import RequestInfo
from gpu_admission.sizes import MAX_BYTES, parse_bytes
from gpu_admission.types import Estimate, Workload

MeasuredRow = tuple[Mapping[str, Any], "int | str"]


class FitError(msgspec.Struct, frozen=True):
    """How far a fit is from the rows it was made from, in bytes; over-estimates are positive."""

    worst: int
    """The error that is largest in size."""
    rms: int
    """Root of the mean squared error."""
    most_under: int
    """The largest under-estimate, as a positive number; 0 when no row is above the fit."""
    worst_row: Mapping[str, Any]
    """The features of the row with the largest error."""


class _Saved(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What ``save`` writes. ``about`` is for people."""

    terms: dict[str, int | float]
    constant: int = 0
    basis: Literal["device", "pool"] = "device"
    error: FitError | None = None
    about: str = ""


class Linear:
    """``constant + sum(coefficient x feature)``, with features such as ``"prompt_tokens"`` and
    products such as ``"prompt_tokens*sequences"``; see ``features.feature`` for the names.

    Coefficients are bytes for each unit: an ``int``, a ``float``, or text such as
    ``"0.11MiB"``; none is negative, so that more never costs less. A product of ints is exact.
    """

    def __init__(
        self,
        terms: Mapping[str, float | str],
        *,
        constant: int | str = 0,
        basis: Literal["device", "pool"] = "device",
        error: FitError | None = None,
    ) -> None:
        self.constant = _signed_bytes(constant)
        self.coefficients: Mapping[str, Number] = {name: _coefficient(name, c) for name, c in terms.items()}
        self.basis: Literal["device", "pool"] = basis
        self.error = error
        """How well it fits, when made by ``fit``."""
        self._terms = [(name, c, *_split(product(name))) for name, c in self.coefficients.items()]

    def __call__(self, info: RequestInfo, /) -> Estimate:
        return self.estimate(info.workload)

    def estimate(self, workload: Workload) -> Estimate:
        """Bytes of ``workload``. Raises ``LookupError`` when it lacks a feature."""
        notes = assumed(workload) if workload.defaulted else ()
        try:
            total, parts = self._sum(workload)
        except (OverflowError, ValueError):  # a size that no float holds, or NaN
            return Estimate(MAX_BYTES, None, self.basis, {"out of range": MAX_BYTES}, notes)
        return Estimate(clamp(total), None, self.basis, parts, notes)

    def _sum(self, workload: Workload) -> tuple[Number, dict[str, int]]:
        total: Number = self.constant
        parts = {"constant": self.constant} if self.constant else {}
        for name, coefficient, first, others in self._terms:
            value = coefficient * first(workload)
            for factor in others:
                value *= factor(workload)
            parts[name] = math.ceil(value)
            total += value
        return total, parts

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
    ) -> Linear:
        """The ``Linear`` of these ``terms`` that is nearest, in least squares, to measured rows.

        A row is ``({feature: value}, bytes)``. With ``never_below`` the constant is then raised
        until no row is above the fit. ``.error`` of the result says how well it does. Raises
        ``ValueError`` when the rows can't tell the terms apart.
        """
        measured = [(values, parse_bytes(size, name="a row's size")) for values, size in rows]
        columns = [product(term) for term in terms]
        workloads = [workload_of(values) for values, _ in measured]
        matrix = [[Fraction(1), *(_value(column, w) for column in columns)] for w in workloads]
        coefficients = _fit(matrix, [Fraction(size) for _, size in measured], terms)
        slopes = {term: _plain(c) for term, c in zip(terms, coefficients[1:], strict=True)}
        constant = math.ceil(coefficients[0])
        fitted = cls(slopes, constant=constant, basis=basis)
        fitted.error = _error(fitted, measured)
        while never_below and fitted.error.most_under:
            constant += fitted.error.most_under
            fitted = cls(slopes, constant=constant, basis=basis)
            fitted.error = _error(fitted, measured)
        return fitted

    def save(self, path: str | os.PathLike[str], *, about: str = "") -> None:
        """Write the coefficients to ``path`` as JSON, for ``load``; ``about`` says where they come from."""
        saved = _Saved(
            terms=dict(self.coefficients),
            constant=self.constant,
            basis=self.basis,
            error=self.error,
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
            return cls(saved.terms, constant=saved.constant, basis=saved.basis, error=saved.error)
        except (msgspec.MsgspecError, ValueError, TypeError) as error:
            raise ValueError(f"{os.fspath(path)} is not a saved Linear estimator: {error}") from None


def _split(factors: Sequence[Feature]) -> tuple[Feature, Sequence[Feature]]:
    return factors[0], factors[1:]


def _fit(
    matrix: Sequence[Sequence[Fraction]], sizes: Sequence[Fraction], terms: Sequence[str]
) -> list[Fraction]:
    if not matrix:
        raise ValueError("Linear.fit needs at least one measured row")
    try:
        return fit_nonnegative(matrix, sizes)
    except ValueError:
        raise ValueError(
            f"{len(matrix)} rows can't tell the terms {list(terms)} apart: "
            "measure rows in which each of them changes on its own"
        ) from None


def _error(fitted: Linear, measured: Sequence[tuple[Mapping[str, Any], int]]) -> FitError:
    errors = [fitted.estimate(workload_of(values)).bytes - size for values, size in measured]
    worst = max(range(len(errors)), key=lambda i: abs(errors[i]))
    return FitError(
        worst=errors[worst],
        rms=math.isqrt(sum(e * e for e in errors) // len(errors)),
        most_under=max(0, -min(errors)),
        worst_row=dict(measured[worst][0]),
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
