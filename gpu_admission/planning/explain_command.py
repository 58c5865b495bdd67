"""``gpu-admission explain``: what one request would be charged, term by term, and the line that charges it.

Owns the choice of estimators for a file. The terms are theirs; how they are printed is in
``terminal``.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from gpu_admission.estimators import Encoder, KVCache, Linear, Traced, TransformersLM, Vision, Whisper
from gpu_admission.planning.exits import failed
from gpu_admission.planning.options import count, not_negative, size
from gpu_admission.planning.terminal import Table, Terminal
from gpu_admission.sizes import format_bytes
from gpu_admission.types import Estimate, Workload

_DESCRIPTION = """
What one request would be charged, term by term: by the formulas for a model's config.json, or by a
file that calibrate or trace has written. Nothing is loaded or run.
"""
_BASIS = {"device": "device memory", "pool": "the engine's pool"}


class Formula(Protocol):
    def estimate(self, workload: Workload) -> Estimate: ...


class Way(msgspec.Struct, frozen=True):
    """One way to serve the model, the estimator that charges it, and the line to paste."""

    title: str
    estimator: Formula
    line: str


def main(arguments: Sequence[str]) -> int:
    """Run the command; its exit status."""
    options = _parser().parse_args(arguments)
    try:
        with warnings.catch_warnings(record=True) as doubts:
            warnings.simplefilter("always")
            workload = _workload(options)
            estimates = [(way, way.estimator.estimate(workload)) for way in _ways(options)]
    except (OSError, ValueError) as error:
        return failed("explain", str(error))
    for sentence in dict.fromkeys(str(doubt.message) for doubt in doubts):
        print(f"gpu-admission explain: {sentence}", file=sys.stderr)
    terminal = Terminal()
    for way, estimate in estimates:
        _show(terminal, way, estimate, options.capacity)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gpu-admission explain", description=_DESCRIPTION)
    add = parser.add_argument
    add("file", help="config.json of a model, or what calibrate or trace wrote")
    add("--prompt", type=count, default=1000, metavar="N", help="tokens of the prompt (default %(default)s)")
    add("--new", type=count, default=200, metavar="N", help="most new tokens (default %(default)s)")
    add(
        "--sequences", type=count, default=1, metavar="N", help="rows at once, such as n or beams (default 1)"
    )
    add("--image", type=_picture, action="append", default=[], metavar="WxH", help="an image in the prompt")
    add("--seconds", type=not_negative, default=30.0, metavar="S", help="of audio (default %(default)g)")
    add("--as", dest="kind", choices=tuple(_KINDS), help="how the model is served (default: by its config)")
    add("--dtype", metavar="NAME", help="that it computes in (default: as the config says)")
    add("--kv-dtype", default="f16", metavar="NAME", help="of an engine's cache (default %(default)s)")
    add("--capacity", type=size, metavar="SIZE", help="also say how many such requests fit in it")
    return parser


def _picture(text: str) -> tuple[int, int]:
    width, _, height = text.partition("x")
    return count(width), count(height)


def _workload(options: argparse.Namespace) -> Workload:
    return Workload(
        prompt_tokens=options.prompt,
        new_tokens=options.new,
        sequences=options.sequences,
        images=tuple(options.image),
        audio_seconds=options.seconds,
    )


def _ways(options: argparse.Namespace) -> Sequence[Way]:
    """The ways to serve what is in the file. Raises ``OSError`` and ``ValueError``."""
    found = _json(options.file)
    if str(found.get("format", "")).startswith("gpu-admission trace"):
        way = Way("as it was traced", Traced.load(options.file), f"Traced.load({options.file!r})")
        return [way]
    if "terms" in found and "model_type" not in found:
        way = Way("as it was measured", Linear.load(options.file), f"Linear.load({options.file!r})")
        return [way]
    kinds = [options.kind] if options.kind else _kinds(found)
    return [way for kind in kinds for way in _KINDS[kind](options)]


def _json(path: str) -> dict[str, Any]:
    file = Path(path) / "config.json" if os.path.isdir(path) else Path(path)
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise ValueError(f"{file} is no config.json, nor what calibrate or trace wrote: {error}") from None


def _kinds(config: dict[str, Any]) -> Sequence[str]:
    """How a model of this ``config`` is served, by the classes that it names."""
    if config.get("model_type") == "whisper":
        return ["whisper"]
    names = [str(name) for name in config.get("architectures") or ()]
    writes = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")
    if names and not any(name.endswith(writes) for name in names):
        return ["encoder"]
    return ["generate", "pool"]


def _generate(options: argparse.Namespace) -> Iterator[Way]:
    tower = Vision.from_config(options.file, dtype=options.dtype or "bf16") if options.image else None
    given = [repr(options.file), *([f"dtype={options.dtype!r}"] if options.dtype else [])]
    if tower is not None:
        given.append(f"tower=Vision.from_config({options.file!r})")
    estimator = TransformersLM.from_config(options.file, dtype=options.dtype, tower=tower)
    yield Way("plain generate()", estimator, f"TransformersLM.from_config({', '.join(given)})")


def _pool(options: argparse.Namespace) -> Iterator[Way]:
    estimator = KVCache.from_config(options.file, kv_dtype=options.kv_dtype)
    line = f"KVCache.from_config({options.file!r}, kv_dtype={options.kv_dtype!r})"
    yield Way("an engine with a pool of cache (vLLM, SGLang, llama.cpp)", estimator, line)


def _encoder(options: argparse.Namespace) -> Iterator[Way]:
    estimator = Encoder.from_config(options.file, dtype=options.dtype)
    yield Way("an encoder", estimator, f"Encoder.from_config({options.file!r})")


def _whisper(options: argparse.Namespace) -> Iterator[Way]:
    estimator = Whisper.from_config(options.file, dtype=options.dtype)
    yield Way("Whisper", estimator, f"Whisper.from_config({options.file!r})")


_KINDS: dict[str, Callable[[argparse.Namespace], Iterator[Way]]] = {
    "generate": _generate,
    "pool": _pool,
    "encoder": _encoder,
    "whisper": _whisper,
}


def _show(terminal: Terminal, way: Way, estimate: Estimate, capacity: int | None) -> None:
    rows = [*((name, part) for name, part in estimate.parts.items() if part), ("charged", estimate.bytes)]
    if estimate.low is not None and estimate.low != estimate.bytes:
        rows.append(("at least", estimate.low))
    terminal.heading(f"{way.title}: {format_bytes(estimate.bytes)} of {_BASIS[estimate.basis]}")
    cells = [(name, format_bytes(part), f"{part:,}", f"{part / estimate.bytes:.1%}") for name, part in rows]
    terminal.table(Table(("term", "size", "bytes", "share"), cells))
    for note in estimate.notes:
        terminal.line(f"note: {note}")
    if capacity is not None:
        fit = capacity // estimate.bytes
        terminal.line(f"{fit:,} such requests fit in {format_bytes(capacity)}")
    terminal.line(f"estimator={way.line}", style="green")
