"""What worker processes do in tests: found by its module in a new process."""

from __future__ import annotations

import os
import time
from pathlib import Path

loaded: list[str] = []


def load() -> None:
    loaded.append("loaded")


def load_nothing() -> None:
    raise OSError("no such profile")


def where(number: int = 0, *, pause: float = 0.0) -> tuple[int, int, list[str]]:
    time.sleep(pause)
    return os.getpid(), number, loaded


def die(code: int) -> None:
    os._exit(code)


def sleep_and_touch(path: str) -> None:
    Path(path).write_text("begun")
    time.sleep(60)
    Path(path).write_text("done")


class Odd(Exception):
    """Does not survive being pickled."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"odd {one} {two}")


def large(size: int) -> bytes:
    return bytes(size)


def misbehave(kind: str) -> object:
    if kind == "value":
        raise ValueError("bad")
    if kind == "odd":
        raise Odd(1, 2)
    if kind == "unpicklable":
        return lambda: None
    return kind


def do(name: str, *args: object) -> object:
    """Any of the above."""
    function = {"where": where, "die": die, "misbehave": misbehave, "large": large}[name]
    return function(*args)  # type: ignore[operator]
