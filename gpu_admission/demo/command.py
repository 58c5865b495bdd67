"""``gpu-admission demo``: its options, its progress, and where the report goes.

What is run is in ``rounds``, what is said of it in ``report`` and ``page``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_admission.sizes import parse_bytes

if TYPE_CHECKING:
    from gpu_admission.demo.load import Answer
    from gpu_admission.demo.report import Report

NEEDS = ("torch", "httpx", "uvicorn")
_DESCRIPTION = """
Replay real traffic against a real torch model behind a hard memory wall, three times: unprotected,
behind asyncio.Semaphore(N) with N from the largest request, and behind GPUAdmission. Uses the CUDA
device if there is one; else RLIMIT_DATA of the server process plays the part of VRAM (Linux).
"""


def main(arguments: Sequence[str]) -> int:
    """Run the command; its exit status."""
    options = _parser().parse_args(arguments)
    if missing := [name for name in NEEDS if find_spec(name) is None]:
        return _failed(f"needs {', '.join(missing)}: pip install 'gpu-admission[demo]'")
    from gpu_admission.demo.rounds import Plan, run
    from gpu_admission.demo.server import ServerError

    plan = Plan(
        requests=options.requests,
        clients=options.clients,
        room=options.wall,
        engine=options.engine,
        seconds=options.seconds,
    )
    try:
        report = run(plan, _say, _watch)
    except (ServerError, ValueError, RuntimeError) as error:
        return _failed(str(error))
    except KeyboardInterrupt:
        return 130
    _show(report, options.html)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gpu-admission demo", description=_DESCRIPTION)
    add = parser.add_argument
    add("--clients", type=_count, default=48, help="that send at once (default %(default)s)")
    add("--requests", type=_count, default=160, help="of the trace to replay (default %(default)s)")
    add("--engine", choices=("batch", "threads"), default="batch", help="batch all, or a thread for each")
    add("--wall", type=_size, default="36MiB", help="room beside the weights (default %(default)s)")
    add("--seconds", type=_count, default=165, help="for everything together (default %(default)s)")
    add("--html", type=Path, metavar="FILE", help="write the report there too")
    return parser


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 10**6:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 to 1000000, not {text!r}")
    return int(text)


def _size(text: str) -> int:
    try:
        return parse_bytes(text, name="--wall")
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _failed(why: str) -> int:
    _say(f"gpu-admission demo: {why}")
    return 1


def _watch(label: str, requests: int) -> Callable[[Answer], None]:
    """A line that is rewritten on a terminal; elsewhere one line for each tenth."""
    answered = lost = 0
    terminal = sys.stderr.isatty()
    step = 1 if terminal else max(1, requests // 10)

    def progress(answer: Answer) -> None:
        nonlocal answered, lost
        answered += 1
        lost += answer.outcome == "out_of_memory"
        if answered % step == 0 or answered == requests:
            line = f"{label}: {answered}/{requests} answered, {lost} out of memory"
            end = "\n" if answered == requests or not terminal else ""
            print(f"\r{line}" if terminal else line, end=end, file=sys.stderr, flush=True)

    return progress


def _show(report: Report, html: Path | None) -> None:
    from gpu_admission.demo.page import page
    from gpu_admission.demo.report import text

    print(text(report))
    if html is not None:
        html.write_text(page(report), encoding="utf-8")
        _say(f"written: {html}")
