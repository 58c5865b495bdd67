"""``python -m tests.bench [name ...]``: run the benchmarks and print their tables."""

from __future__ import annotations

import importlib
import sys

NAMES = (
    "overhead",
    "around",
    "instructions",
    "peers",
    "server",
    "guards",
    "waiting",
    "overload",
    "ledger",
    "shared",
    "workers",
    "largebody",
    "batching",
)


def main(names: list[str]) -> None:
    for name in names or NAMES:
        if name not in NAMES:
            sys.exit(f"no benchmark {name!r}: there are {', '.join(NAMES)}")
        print(importlib.import_module(f"tests.bench.{name}").run(), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
