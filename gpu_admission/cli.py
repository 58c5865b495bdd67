"""The ``gpu-admission`` command: finds the module of a subcommand, and hands it the rest.

Each subcommand is a module with ``main(arguments) -> int`` and its own options; it is
imported when it is asked for, so that none pays for another's libraries. Nothing of what a
subcommand does belongs here.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Final

COMMANDS: Final = {
    "plan": (
        "gpu_admission.planning.plan_command",
        "what a model leaves of a card, and which wait to expect",
    ),
    "check": ("gpu_admission.planning.check_command", "what would be measured and metered here"),
    "explain": ("gpu_admission.planning.explain_command", "what one request would be charged, term by term"),
    "calibrate": ("gpu_admission.planning.calibrate_command", "measure what requests take, and fit it"),
    "replay": ("gpu_admission.planning.replay_command", "compare ways to let recorded requests in"),
    "demo": ("gpu_admission.demo.command", "replay real traffic with and without a budget of bytes"),
    "budget": (
        "gpu_admission.planning.budget_command",
        "who holds what of a shared budget, and how to step in",
    ),
    "hold": ("gpu_admission.serving.hold_command", "run a command while it holds bytes of a shared budget"),
    "trace": (
        "gpu_admission.estimators.traced.command",
        "find what a model's requests take, from its own code",
    ),
}
"""Name: (module, what it does in one line)."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; its exit status. Wrong usage raises ``SystemExit(2)``, as argparse does."""
    try:
        return _run(arguments)
    except BrokenPipeError:  # what reads the output has seen enough, such as head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the end of the process complains
        return 0


def _run(arguments: Sequence[str] | None) -> int:
    try:
        options = _parser().parse_args(arguments)
        module, _ = COMMANDS[options.command]
        status: int = import_module(module).main(options.arguments)
    finally:
        sys.stdout.flush()  # here a reader that is gone is noticed, and no failure
    return status


def _parser() -> argparse.ArgumentParser:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:{width}}  {summary}" for name, (_, summary) in COMMANDS.items()]
    parser = argparse.ArgumentParser(
        prog="gpu-admission",
        description="Let GPU work in only when its bytes fit.",
        epilog="\n".join(["commands:", *lines, "", "gpu-admission COMMAND --help tells its options"]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version, and exit")
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND", help="one of those below")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="of the command")
    return parser


class _Version(argparse.Action):
    """Looks the version up when it is asked for, and not at each start."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import PackageNotFoundError, version

        try:
            found = version("gpu-admission")
        except PackageNotFoundError:
            found = "of a source tree that is not installed"
        print(f"gpu-admission {found}")
        parser.exit()


if __name__ == "__main__":
    sys.exit(main())
