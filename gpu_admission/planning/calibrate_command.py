"""``gpu-admission calibrate``: its options, what it prints, and the file that it writes.

What is measured and fitted is in ``calibrate``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import anyio

from gpu_admission.planning.exits import exit_status, failed
from gpu_admission.planning.meters import NAMES, meter_for
from gpu_admission.planning.named import named
from gpu_admission.planning.options import count, new_file, positive
from gpu_admission.planning.terminal import Table, Terminal
from gpu_admission.sizes import format_bytes

if TYPE_CHECKING:
    from gpu_admission.estimators import Traced
    from gpu_admission.planning.calibrate import Costs, Measured, Target

_NAME = "calibrate"
_DESCRIPTION = """
Measure what requests really take: drive a server (http://...) or a function (module:function) over
a grid, fit a Linear estimator that is never below what was seen, and write it to a file that
Linear.load reads. Nothing else should run on the device meanwhile. A function is called with the grid's
names as keywords: --grid images=1,2,4 calls f(images=1), and so on. The exit status is 1, and no file is
written, where what was measured does not follow the grid; 2 where it can't be measured.
"""
_WHAT_TO_DO = (
    "no file is written. Measure larger points (--grid), of some MiB at least; where host memory is "
    "measured, start what is measured with MALLOC_MMAP_THRESHOLD_=1048576 in its environment, so that freed "
    "memory is not used again unseen; work that takes the same at every point needs no fit: give that size"
)
_GRID = ("prompt_tokens=16,256,1024", "new_tokens=8,64,256")


def main(arguments: Sequence[str]) -> int:
    """The exit status: 0, 1 where what was measured can't be trusted, 2 where nothing can be measured."""
    options = _parser().parse_args(arguments)
    if "://" in options.target and find_spec("httpx") is None:
        return failed(_NAME, "a server needs httpx: pip install httpx")
    return exit_status(_NAME, lambda: _run(options, Terminal(), Terminal(sys.stderr)), RuntimeError)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gpu-admission calibrate", description=_DESCRIPTION)
    add = parser.add_argument
    add("target", metavar="URL|module:function", help="what is driven: an address, or a function f(**point)")
    add("--out", type=new_file, default="costs.json", metavar="FILE", help="written (default %(default)s)")
    add("--grid", action="append", type=_axis, metavar="NAME=V,...", help=f"(default {' '.join(_GRID)})")
    add("--terms", type=_terms, metavar="A,B,A*B", help="features of the fit (default: those of the grid)")
    add("--body", metavar="JSON|@FILE", help='with "$prompt" and "$new_tokens" where the grid\'s values go')
    add("--dialect", metavar="module:object", help="that reads the body (default: by the path)")
    add("--meter", default="auto", metavar="NAME", help=f"{', '.join(NAMES)}, or module:factory")
    add("--pid", type=count, metavar="PID", help="of the server, for --meter host")
    add("--repeat", type=count, default=3, metavar="N", help="of each point; the most counts (default 3)")
    add("--together", type=count, metavar="N", help="also N at once: what one more adds, and what is shared")
    add(
        "--traced",
        metavar="FILE",
        help="that gpu-admission trace has written: shown beside what was measured",
    )
    add("--timeout", type=positive, default=300.0, metavar="S", help="of each request (default %(default)g)")
    return parser


def _run(options: argparse.Namespace, out: Terminal, err: Terminal) -> int:
    from gpu_admission.estimators import Traced
    from gpu_admission.estimators.features import written
    from gpu_admission.planning.calibrate import doubt, grid

    traced = None if options.traced is None else Traced.load(options.traced)
    axes = dict(options.grid or map(_axis, _GRID))
    target = _target(options, list(axes))
    cells = grid(axes)
    meter = meter_for(options.meter, pid=options.pid, here="://" not in options.target)
    out.line(f"measured: {meter.says}")
    terms = options.terms or [written(name) for name in axes]
    costs, measured = anyio.run(_measured, options, target, meter, cells, terms, err)
    _show(costs, measured, out)
    why = doubt(costs, measured)
    if why is not None:
        return failed(_NAME, f"{why}: {_WHAT_TO_DO}", 1)
    about = f"gpu-admission calibrate {options.target}: {len(cells)} points, {options.repeat} times each"
    costs.linear.save(options.out, about=f"{about}; {meter.says}")
    if traced is not None:
        _compare(traced, measured, out)
    out.line(f"written: {options.out}")
    out.line(f'estimator=Linear.load("{options.out}")', style="bold")
    return 0


def _target(options: argparse.Namespace, names: Sequence[str]) -> Target:
    from gpu_admission.planning.targets import FunctionTarget, HttpTarget

    if "://" not in options.target:
        return FunctionTarget(named(options.target, what="the target"), names)
    dialect = None if options.dialect is None else named(options.dialect, what="--dialect")
    return HttpTarget(options.target, body=_body(options.body), dialect=dialect, timeout=options.timeout)


def _body(text: str | None) -> Mapping[str, Any] | None:
    if text is None:
        return None
    source = Path(text[1:]).read_text(encoding="utf-8") if text.startswith("@") else text
    try:
        body = json.loads(source)
    except ValueError as error:
        raise ValueError(f"--body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise ValueError("--body must be a JSON object")
    return body


async def _measured(
    options: argparse.Namespace, target: Target, meter: Any, cells: Any, terms: Sequence[str], err: Terminal
) -> tuple[Costs, Sequence[Measured]]:
    from gpu_admission.planning.calibrate import measure, of_alone, of_batch

    many = options.together
    with err.progress("measuring", len(cells) * (1 if many is None else 2)) as step:
        alone = await measure(target, meter, cells, repeat=options.repeat, said=step)
        if many is None:
            return of_alone(alone, terms), alone
        both = await measure(target, meter, cells, count=many, repeat=options.repeat, said=step)
    return of_batch(alone, both, terms), [*alone, *both]


def _show(costs: Costs, measured: Sequence[Measured], out: Terminal) -> None:
    names = list(costs.linear.coefficients)
    rows = [_row(each, costs) for each in measured]
    out.table(Table(("at once", *measured[0].features, "measured", "charged", "over"), rows))
    out.heading("Fitted")
    out.line(" + ".join([f"{costs.linear.constant:,} B", *(f"{_slope(costs, n)} B x {n}" for n in names)]))
    error = costs.linear.error
    if error is not None:
        out.line(
            f"never below a row; at most {format_bytes(max(0, error.worst))} above one, "
            f"{format_bytes(error.rms)} on the mean (root of squares)"
        )
        for note in error.notes:
            out.line(f"note: {note}")
    blurred = [each for each in measured if each.peak < 2 * each.spread]
    if blurred:
        most = format_bytes(max(each.spread for each in blurred))
        out.line(
            f"note: {len(blurred)} of {len(measured)} points took less than twice what their own runs "
            f"differ by (up to {most}): they may read low; leave them out, or take larger values in --grid"
        )
    if costs.shared:
        out.line(
            f"shared by all that run at once, to be left out of the capacity: {format_bytes(costs.shared)}"
        )


def _compare(traced: Traced, measured: Sequence[Measured], out: Terminal) -> None:
    """For each point that was run alone, what the trace says (with its margin), beside what was measured."""
    from gpu_admission.estimators.features import workload_of

    rows, shares = [], []
    for each in measured:
        if each.count == 1 and each.peak:
            size = traced.estimate(workload_of(each.features)).bytes
            shares.append(size / each.peak)
            values = [f"{value:g}" for value in each.features.values()]
            rows.append((*values, format_bytes(each.peak), format_bytes(size), f"{shares[-1] - 1:+.1%}"))
    if not rows:
        return
    out.heading("Beside the trace")
    out.table(Table((*measured[0].features, "measured", "traced", "over"), rows))
    under = sum(share < 1 for share in shares)
    out.line(
        f"traced over measured: {min(shares):.3f} to {max(shares):.3f}, median {median(shares):.3f}; "
        + (f"below {under} of {len(shares)} points" if under else "never below a point")
    )


def _slope(costs: Costs, name: str) -> str:
    return f"{costs.linear.coefficients[name]:,.1f}".removesuffix(".0")


def _row(measured: Measured, costs: Costs) -> Sequence[str]:
    charged = measured.count * costs.of(measured.features) + costs.shared
    over = charged / measured.peak - 1 if measured.peak else 0.0
    values = [f"{value:g}" for value in measured.features.values()]
    return (str(measured.count), *values, format_bytes(measured.peak), format_bytes(charged), f"{over:.1%}")


def _axis(text: str) -> tuple[str, Sequence[int]]:
    name, equals, values = text.partition("=")
    parts = values.split(",")
    if not equals or not name.isidentifier() or not all(part.isascii() and part.isdigit() for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r}: write NAME=V,V,... with whole numbers")
    return name, [int(part) for part in parts]


def _terms(text: str) -> Sequence[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
