"""``gpu-admission trace``: traces a config, prints what it found, and writes it to a file.

Owns the options and the printed form; what is traced is in the other files of this folder.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from gpu_admission.estimators.traced.peaks import Phase, Trace, product_names
from gpu_admission.estimators.traced.traced import Traced
from gpu_admission.sizes import format_bytes
from gpu_admission.types import Workload

_DESCRIPTION = """
Find what requests to a model take on the device, from the model's own code: no weights, no GPU,
no download. Reads the config.json of a transformers or diffusers model, or a pipeline's folder;
writes a file for Traced.load, which needs no torch.
"""


def main(arguments: Sequence[str]) -> int:
    """Run the command; its exit status."""
    options = _parser().parse_args(arguments)
    try:
        source = _source(options.config)
        traced = _trace(source, options)
        checked = _checked(source, options, traced) if options.check else ""
    except (ImportError, OSError, ValueError) as error:
        print(f"gpu-admission trace: {error}", file=sys.stderr)
        return 1
    print(report(traced, prompt=options.prompt, new=options.new, rows=options.rows))
    output = options.output or Path(options.config.stem + ".trace.json")
    traced.save(output)
    if checked:
        print(f"\n{checked}")
    print(f"\nwritten to {output}: Traced.load({str(output)!r})")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gpu-admission trace", description=_DESCRIPTION)
    add = parser.add_argument
    add("config", type=Path, help="config.json, or a pipeline's folder")
    add(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="(default: the config's name with .trace.json, here)",
    )
    add("--dtype", help="what it computes in (default: what its config says)")
    add("--attention", choices=("flash", "sdpa", "eager"), default="sdpa", help="(default %(default)s)")
    add(
        "--experts",
        choices=("grouped_mm", "batched_mm", "eager"),
        default="grouped_mm",
        help="(default %(default)s)",
    )
    add(
        "--kernels",
        choices=("torch", "fused"),
        default="torch",
        help="of state-space layers (default %(default)s)",
    )
    add("--sampling", choices=("greedy", "top_k", "top_p"), default="top_p", help="(default %(default)s)")
    add("--beams", type=int, default=1, metavar="N", help="beam width (default 1)")
    add("--no-images", action="store_true", help="the server takes no images, though the model could")
    add(
        "--check",
        action="store_true",
        help="run the model with made-up weights, on a CUDA device or else the CPU, and print both",
    )
    example = parser.add_argument_group("the request that is printed").add_argument
    example("--prompt", type=int, default=1024, metavar="TOKENS", help="(default %(default)s)")
    example("--new", type=int, default=256, metavar="TOKENS", help="(default %(default)s)")
    example("--rows", type=int, default=1, metavar="N", help="sequences, or images (default %(default)s)")
    return parser


def _source(path: Path) -> Path:
    """The pipeline's folder, or the config."""
    if path.is_dir() and (path / "config.json").is_file():
        return path / "config.json"
    return path


def _is_of_diffusers(source: Path) -> bool:
    return source.is_dir() or "_class_name" in json.loads(source.read_text())


def _trace(source: Path, options: argparse.Namespace) -> Traced:
    if _is_of_diffusers(source):
        return Traced.diffusers(source, dtype=options.dtype)
    vision: Literal["config"] | None = None if options.no_images else "config"
    return Traced.transformers(source, beams=options.beams, vision=vision, **_choices(options))


def _choices(options: argparse.Namespace) -> dict[str, Any]:
    return {name: getattr(options, name) for name in ("dtype", "attention", "experts", "kernels", "sampling")}


def _checked(source: Path, options: argparse.Namespace, traced: Traced) -> str:
    if _is_of_diffusers(source):
        raise ValueError("--check runs models of transformers; of diffusers it knows none")
    from gpu_admission.estimators.traced.build import Choices
    from gpu_admission.estimators.traced.check import check, table

    return table(*check(source, Choices(beams=options.beams, **_choices(options)), traced))


def report(traced: Traced, *, prompt: int, new: int, rows: int) -> str:
    """The terms of each phase, how well they fit, and one request, as text."""
    workload = Workload(prompt_tokens=prompt, new_tokens=new, sequences=rows, width=1024, height=1024)
    lines = [line for phase in traced.trace.phases for line in _phase(phase)]
    return "\n".join([_title(traced.trace), *lines, "", traced.explain(workload), *_unseen(traced)])


def _title(trace: Trace) -> str:
    settings = ", ".join(f"{name} {value}" for name, value in trace.settings.items())
    check = trace.check
    error = f"off by at most {abs(check.worst):.2%} at {check.points} sizes that were not fitted"
    return f"{trace.model}\n  {settings}\n  {trace.seconds:g} s; {error}"


def _phase(phase: Phase) -> list[str]:
    names = product_names(phase.axes, phase.degrees)
    lines = [f"{phase.name}: the highest of"]
    for piece in phase.pieces:
        limits = [f"{a} <= {u}" for a, u in zip(phase.axes, piece.upto, strict=True) if u is not None]
        lines.append(f"  {' and '.join(limits) or 'otherwise'}")
        for peak in piece.peaks:
            terms = [f"{c:,.6g} B x {n}" if n != "constant" else format_bytes(int(c))
                     for n, c in zip(names, peak.coefficients, strict=True) if c]  # fmt: skip
            lines.append(f"    {' + '.join(terms)}  ({peak.at})")
    return lines


def _unseen(traced: Traced) -> list[str]:
    return [f"  not seen: workspaces of kernels, fragmentation; {traced.margin:.0%} is on top for them"]
