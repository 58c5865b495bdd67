"""``gpu-admission demo``: its options, its progress, and where the report goes.

What is run is in ``rounds``, what is said of it in ``report`` and ``page``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_admission.demo.plan import ROUNDS, USUAL, Plan, Round
from gpu_admission.planning.options import count, new_file, size
from gpu_admission.planning.terminal import Stages, Terminal

if TYPE_CHECKING:
    from gpu_admission.demo.load import Answer
    from gpu_admission.demo.report import Report

NEEDS = ("torch", "httpx", "uvicorn")
_DESCRIPTION = """
Replay real traffic against a real torch model behind a hard memory wall, in rounds: unprotected,
behind asyncio.Semaphore(N) with N from the largest request (semaphore), and behind GPUAdmission
(bytes). On request: told nothing (auto); several web workers, with a share of the bytes each and with one
budget (workers); clients that all ask for 4,096 tokens, without and with learning (learned).
Uses the CUDA device if there is one; else RLIMIT_DATA of the server process plays the part of VRAM (Linux).
"""


def main(arguments: Sequence[str]) -> int:
    """Run the command; its exit status."""
    options = _parser().parse_args(arguments)
    if missing := [name for name in NEEDS if find_spec(name) is None]:
        return _failed(f"needs {', '.join(missing)}: pip install 'gpu-admission[demo]'")
    try:
        with Stages(Terminal(sys.stderr)) as stages:
            # Said before torch and the web client are loaded: those take seconds of their own.
            plan = _plan(options)
            stages.say(f"up to {plan.limit:.0f} s; --seconds sets another limit")
            report = _run(plan, stages)
    except (OSError, ValueError, RuntimeError) as error:
        return _failed(str(error))
    except KeyboardInterrupt:
        return 130
    _show(report, options.html)
    return 0


def _plan(options: argparse.Namespace) -> Plan:
    rounds: list[Round] = list(options.rounds)
    if options.workers and "workers" not in rounds:
        rounds.append("workers")
    return Plan(
        rounds=tuple(rounds),
        requests=options.requests,
        clients=options.clients,
        workers=options.workers or Plan().workers,
        room=options.wall,
        engine=options.engine,
        seconds=options.seconds,
    )


def _run(plan: Plan, stages: Stages) -> Report:
    from gpu_admission.demo.process import ServerError
    from gpu_admission.demo.rounds import run

    try:
        return run(plan, stages.say, partial(_watch, stages))
    except ServerError as error:
        raise RuntimeError(str(error)) from error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gpu-admission demo", description=_DESCRIPTION)
    add = parser.add_argument
    add("--rounds", type=_rounds, default=USUAL, help=f"of {', '.join(ROUNDS)} (default {','.join(USUAL)})")
    add("--workers", type=_workers, help="web workers; adds the round of that name (default there: 4)")
    add("--clients", type=count, default=48, help="that send at once (default %(default)s)")
    add("--requests", type=count, default=160, help="of the trace to replay (default %(default)s)")
    add("--engine", choices=("batch", "threads"), default="batch", help="batch all, or a thread for each")
    add("--wall", type=size, default="36MiB", help="room beside the weights (default %(default)s)")
    add(
        "--seconds", type=count, default=0, help="for everything together (default 166; more for more rounds)"
    )
    add("--html", type=new_file, metavar="FILE", help="write the report there too")
    return parser


def _rounds(text: str) -> tuple[Round, ...]:
    """``semaphore,bytes``: each once."""
    names = [name.strip() for name in text.split(",")]
    known: dict[str, Round] = {name: name for name in ROUNDS}
    if wrong := [name for name in names if name not in known]:
        raise argparse.ArgumentTypeError(f"there is no round {wrong[0]!r}, only {', '.join(ROUNDS)}")
    return tuple(known[name] for name in dict.fromkeys(names))


def _workers(text: str) -> int:
    found = count(text)
    if not 2 <= found <= 64:
        raise argparse.ArgumentTypeError(f"must be from 2 to 64, not {text}")
    return found


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _failed(why: str) -> int:
    _say(f"gpu-admission demo: {why}")
    return 1


def _watch(stages: Stages, label: str, requests: int) -> Callable[[Answer], None]:
    """Counts the answers of a round, and those that ran out of memory."""
    step = stages.watch(label, requests)
    lost = 0

    def progress(answer: Answer) -> None:
        nonlocal lost
        lost += answer.outcome == "out_of_memory"
        step(f"answered, {lost} out of memory")

    return progress


def _show(report: Report, html: Path | None) -> None:
    from gpu_admission.demo.page import page
    from gpu_admission.demo.report import show

    show(report, Terminal())
    if html is not None:
        html.write_text(page(report), encoding="utf-8")
        _say(f"written: {html}")
