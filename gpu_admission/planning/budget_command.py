"""``gpu-admission budget`` as an operator sees it: ``show`` as a table, the rest as plain sentences.

Owns how the processes of a shared budget are printed. How the budget is read, drained and evicted from
is in ``shared.command``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from gpu_admission.planning.terminal import Table, Terminal
from gpu_admission.shared import command
from gpu_admission.shared.views import state_of
from gpu_admission.sizes import format_bytes
from gpu_admission.types import MemberSnapshot

_HEADINGS = ("process", "pid", "host", "holds", "requests", "waiting", "for", "silent", "state")


def main(arguments: Sequence[str]) -> int:
    """0 when done; 1 when the budget can't be reached, or has no such member."""
    return command.main(arguments, show=show)


def show(
    summary: str,
    members: Sequence[MemberSnapshot],
    gone: Collection[str] = (),
    terminal: Terminal | None = None,
) -> None:
    """One line on the budget, and one for each of its processes; those that are ``gone`` have ended."""
    terminal = Terminal() if terminal is None else terminal
    terminal.line(summary, style="bold")
    if members:
        terminal.table(Table(_HEADINGS, [_row(member, member.name in gone) for member in members]))


def _row(member: MemberSnapshot, is_gone: bool) -> Sequence[str]:
    return (
        member.name,
        str(member.pid),
        member.host,
        format_bytes(member.bytes),
        str(member.running),
        str(member.waiting),
        f"{member.age:.0f} s",
        f"{member.silent:.0f} s",
        state_of(member, is_gone),
    )
