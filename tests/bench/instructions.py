"""Instructions of the processor for one request: the same on a busy machine as on an idle one.

Needs valgrind. ``python -m tests.bench.instructions NAME COUNT`` is what it counts: a process that
makes ``COUNT`` requests to one contender. What start-up costs goes with the difference of two.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys

from tests.bench.asgi import calls
from tests.bench.contenders import CHAT_READ, CONSTANT, CONTENDERS, NOTHING, ON_BASE, SLOWAPI
from tests.bench.sidebyside import table

NAMES = (NOTHING, CONSTANT, CHAT_READ, SLOWAPI, ON_BASE)
FEW, MANY = 50, 150


def instructions(name: str) -> float:
    """Of one request to the contender ``name``."""
    return (_counted(name, MANY) - _counted(name, FEW)) / (MANY - FEW)


def _counted(name: str, count: int) -> int:
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]
    command += [sys.executable, "-m", "tests.bench.instructions", name, str(count)]
    env = {**os.environ, "PYTHONHASHSEED": "0"}
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=300)
    found = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode or found is None:
        raise RuntimeError(f"nothing was counted: {done.stderr}")
    return int(found[1])


def run() -> str:
    if shutil.which("valgrind") is None:
        return "\nInstructions of one request: not counted, valgrind is missing"
    counted = {name: instructions(name) for name in NAMES}
    base = counted[NOTHING]
    chat = counted[CHAT_READ] - base
    rows = [
        [name, f"{(value - base) / 1000:,.0f}", f"{(value - base) / chat:.2f}"]
        for name, value in counted.items()
    ]
    title = "Added to one 2 kB chat request, in instructions"
    return table(title, ["middleware", "1000 instructions", "ours = 1"], rows)


if __name__ == "__main__":
    wrapped, more = CONTENDERS[sys.argv[1]]()
    asyncio.run(calls(wrapped, int(sys.argv[2]), **more))
