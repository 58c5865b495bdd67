"""How a command ends: its exit status, whatever its work raises.

Owns which errors are a sentence to whoever typed the command. All others are faults, with their traceback.
"""

from __future__ import annotations

import sys
from collections.abc import Callable


def exit_status(command: str, work: Callable[[], int], *expected: type[Exception]) -> int:
    """What ``work`` returns; 2 after an ``OSError``, a ``ValueError`` or one ``expected``, which is printed.

    A ``BrokenPipeError`` is raised: whoever reads has seen enough, which is no failure. 130 after Ctrl-C.
    """
    known: tuple[type[Exception], ...] = (OSError, ValueError, *expected)
    try:
        return work()
    except BrokenPipeError:
        raise
    except known as error:
        return failed(command, str(error))
    except KeyboardInterrupt:
        return 130


def failed(command: str, why: str, status: int = 2) -> int:
    """``status``, after ``why`` was printed."""
    print(f"gpu-admission {command}: {why}", file=sys.stderr)
    return status
