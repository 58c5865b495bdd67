"""``gpu-admission replay``: its options, and what it prints.

What is played is in ``cases``, how in ``replay``, and how it is shown in ``table``.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import TypeAlias

import msgspec

from gpu_admission.planning.cases import Case, Row
from gpu_admission.planning.disciplines import Setup, disciplines
from gpu_admission.planning.exits import exit_status
from gpu_admission.planning.options import count, not_negative, positive, share, size
from gpu_admission.planning.service import Card, Decoder, decoders
from gpu_admission.planning.table import blocks_for, plot, table
from gpu_admission.planning.terminal import Terminal
from gpu_admission.planning.trace import Trace, read
from gpu_admission.sizes import format_bytes

_DESCRIPTION = """
Replay recorded requests through the real ledger on a virtual clock, and compare ways to let
them in. A trace is a CSV with the columns arrival_s,input_tokens,output_tokens, or a decision
log (.jsonl). Bytes and seconds of a CSV are those of a decoder on a card: see --card.
"""

_WHAT_IF = (
    "one more row: the default with another capacity, timeout, max_waiting, max_running, max_bypass, "
    "max_bypass_wait or margin, or with traffic=X times the arrivals"
)
_WORTH_PROCESSES = 500_000
"""Requests to play: this many take some ten seconds."""


_Add: TypeAlias = Callable[..., object]


def main(arguments: Sequence[str]) -> int:
    """Run the command; its exit status."""
    parser = argparse.ArgumentParser(prog="gpu-admission replay", description=_DESCRIPTION)
    add_arguments(parser)
    return run(parser.parse_args(arguments))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    add = parser.add_argument
    add("trace", type=Path, help="trace.csv, or decisions.jsonl")
    add("--what-if", action="append", default=[], metavar="NAME=VALUE[,...]", help=_WHAT_IF)
    add("--only", metavar="NAME[,...]", help=f"rows to play, of {', '.join(disciplines())} (default: all)")
    add(
        "--capacity",
        type=size,
        metavar="SIZE",
        help="bytes that requests may hold (a decision log needs it)",
    )
    add(
        "--load",
        type=positive,
        metavar="X",
        help="stretch the arrivals until they ask X times what the card gives",
    )
    add("--repeat", type=count, default=1, metavar="N", help="play the trace N times over")
    _card_options(parser.add_argument_group("the card of a CSV").add_argument)
    _settings(parser.add_argument_group("settings of the admission").add_argument)
    _chance(parser.add_argument_group("chance").add_argument)


def _card_options(add: _Add) -> None:
    add(
        "--card",
        choices=tuple(decoders()),
        default="24GiB",
        help="Llama-3.1-8B on such a card (default %(default)s)",
    )
    add("--weights", type=size, metavar="SIZE", help="bytes of other weights")
    add("--kv-bytes-per-token", type=count, metavar="N", help="of another model's cache (default 131072)")


def _settings(add: _Add) -> None:
    add("--timeout", type=not_negative, default=30.0, metavar="S", help="seconds (default %(default)g)")
    add("--max-waiting", type=count, default=100, metavar="N", help="(default %(default)s)")
    add("--margin", type=share, default=0.0, metavar="X", help="share of the capacity left free (default 0)")


def _chance(add: _Add) -> None:
    add(
        "--error",
        type=share,
        default=0.0,
        metavar="X",
        help="relative error of the estimates, normal (default 0)",
    )
    add(
        "--tenants",
        type=count,
        default=8,
        metavar="N",
        help="of flows; one sends half (default %(default)s)",
    )
    add("--seed", type=int, default=0, metavar="N")


def run(options: argparse.Namespace) -> int:
    """Play what ``options`` ask for and print it; the exit status."""
    return exit_status("replay", lambda: _report(options, Terminal(), Terminal(sys.stderr)))


def _report(options: argparse.Namespace, out: Terminal, err: Terminal) -> int:
    decoder = _decoder(options)
    trace = read(options.trace, decoder).repeated(options.repeat)
    card = _card(options, decoder)
    fitting = trace.at_most(card.capacity)
    if not fitting:
        raise ValueError(f"no request of {options.trace} fits {format_bytes(card.capacity)}")
    cases = list(_cases(options, card, fitting.load(card)))
    for line in _heading(options, fitting.stretched(cases[0].pace), card, len(trace) - len(fitting)):
        out.line(line)
    with err.stage(f"playing {len(fitting) * len(cases):,} requests"):
        rows = _play(cases, fitting)
    out.table(table(rows))
    out.line()
    longest = max(case.setup.timeout for case in cases)
    for line in plot(rows, longest, blocks=blocks_for(sys.stdout.encoding)):
        out.line(line)
    for line in _footnotes(options, rows):
        out.line(line)
    return 0


def _decoder(options: argparse.Namespace) -> Decoder:
    decoder = decoders()[options.card]
    names = ("weights", "kv_bytes_per_token")
    given = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    return msgspec.structs.replace(decoder, **given)


def _card(options: argparse.Namespace, decoder: Decoder) -> Card:
    if options.trace.suffix == ".jsonl":
        if options.capacity is None:
            raise ValueError("a decision log does not say how many bytes there were: give --capacity")
        return Card(options.capacity)
    card = decoder.card
    if card.capacity <= 0 and options.capacity is None:
        raise ValueError(
            f"weights of {format_bytes(decoder.weights)} leave no room on a card of {options.card}"
        )
    return card if options.capacity is None else Card(options.capacity, card.drag)


def _cases(options: argparse.Namespace, card: Card, load: float) -> Iterator[Case]:
    known = disciplines()
    names = list(known) if options.only is None else [name.strip() for name in options.only.split(",")]
    for name in names:
        if name not in known:
            raise ValueError(f"--only: there is no row {name!r}; rows are {', '.join(known)}")
    setup = Setup(
        capacity=card.capacity,
        timeout=options.timeout,
        max_waiting=options.max_waiting,
        margin=options.margin,
    )
    default = Case(
        name="default",
        discipline=known["default"],
        setup=setup,
        drag=card.drag,
        pace=1.0 if options.load is None else load / options.load,
        error=options.error,
        tenants=options.tenants,
        seed=options.seed,
    )
    yield from (replace(default, name=name, discipline=known[name]) for name in names)
    yield from map(default.what_if, options.what_if)


def _play(cases: Sequence[Case], trace: Trace) -> Sequence[Row]:
    """The rows, computed on all cores if it is worth starting processes."""
    if len(trace) * len(cases) < _WORTH_PROCESSES:
        return [case.play(trace) for case in cases]
    with ProcessPoolExecutor(min(len(cases), os.cpu_count() or 1), get_context("spawn")) as pool:
        return list(pool.map(Case.play, cases, itertools.repeat(trace)))


def _heading(options: argparse.Namespace, trace: Trace, card: Card, too_large: int) -> Iterator[str]:
    mean = sum(trace.sizes) // len(trace)
    yield (
        f"{options.trace.name}: {len(trace):,} requests in {trace.arrivals[-1]:,.0f} s, "
        f"{format_bytes(mean)} on the mean, {format_bytes(max(trace.sizes))} the largest"
    )
    if trace.torn:
        yield "the last line is torn (its writer was stopped), and left out"
    if too_large:
        yield f"{too_large:,} more are larger than all the bytes there are, and left out"
    yield (
        f"{format_bytes(card.capacity)} for requests, load {trace.load(card):.2f}, "
        f"timeout {options.timeout:g} s, at most {options.max_waiting:,} wait"
    )
    yield ""


def _footnotes(options: argparse.Namespace, rows: Sequence[Row]) -> Iterator[str]:
    tenants = [row for row in rows if row.name in ("flows", "default") and not math.isnan(row.tenants[1])]
    if any(row.name == "flows" for row in tenants):
        yield ""
        yield f"one of {options.tenants} tenants sends half of all requests:"
        for row in tenants:
            yield f"  {row.name}: it completes {row.tenants[0]:.1f} %, the others {row.tenants[1]:.1f} %"
    known = disciplines()
    yield ""
    for row in rows:
        if row.name in known:
            yield f"{row.name}: {known[row.name].says}"
