"""Values of command lines: read, or refused with a sentence to which argparse adds the option's name.

Owns the readers that several commands share. Which options there are is up to each command.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from gpu_admission.sizes import parse_bytes

T = TypeVar("T")


def size(text: str) -> int:
    """Bytes above 0: ``"6GiB"``."""
    found = read_by(parse_bytes)(text)
    if not found:
        raise argparse.ArgumentTypeError("must be above 0 bytes")
    return found


def count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 10**9:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 to 10^9, not {text!r}")
    return int(text)


def positive(text: str) -> float:
    found = number(text)
    if not 0 < found < math.inf:
        raise argparse.ArgumentTypeError(f"must be above 0, not {text!r}")
    return found


def not_negative(text: str) -> float:
    """0 or more: of a time limit, 0 means that nothing waits."""
    found = number(text)
    if not 0 <= found < math.inf:
        raise argparse.ArgumentTypeError(f"must be 0 or more, not {text!r}")
    return found


def share(text: str) -> float:
    found = number(text)
    if not 0 <= found < 1:
        raise argparse.ArgumentTypeError(f"must be from 0 to below 1, not {text!r}")
    return found


def read_by(parse: Callable[[str], T]) -> Callable[[str], T]:
    """``parse`` for argparse, which shows the sentence of a ``ValueError`` only if it is its own."""

    def read(text: str) -> T:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read


def number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number, not {text!r}") from None


def new_file(text: str) -> Path:
    """A file that can be written. Checked before the run, so that its results are never lost."""
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is a folder")
    target = path if path.exists() else path.parent
    if not target.exists():
        raise argparse.ArgumentTypeError(f"there is no folder {path.parent}")
    if not os.access(target, os.W_OK):
        raise argparse.ArgumentTypeError(f"{target} can't be written")
    return path
