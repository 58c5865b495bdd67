"""Coverage-guided fuzzing of every dialect with atheris, as a program of its own.

    python -m tests.workloads.coverage_guided FOLDER [-runs=N -max_len=BYTES ...]

The last bytes of an input choose the dialect, the path and the content type; the rest is
the body. Anything but ``UnreadableBody``, and any workload that asks for nothing, ends it.
The folder keeps the inputs: an ordinary body of each API to start with, then what is found.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import atheris  # type: ignore[import-not-found,import-untyped,unused-ignore]

with atheris.instrument_imports(include=["gpu_admission.workloads"]):
    from gpu_admission.errors import UnreadableBody
    from tests.workloads.asking import request
    from tests.workloads.cases import CASES, UPLOADS
    from tests.workloads.test_conformance import checked
    from tests.workloads.test_fuzz import DIALECTS, KINDS, PATHS, WORDS

NAMES = sorted(DIALECTS)


def read_one(data: bytes) -> None:
    """One input."""
    choose = atheris.FuzzedDataProvider(data)
    dialect = DIALECTS[choose.PickValueInList(NAMES)]
    path, kind = choose.PickValueInList(PATHS), choose.PickValueInList(list(KINDS))
    body = choose.ConsumeBytes(choose.remaining_bytes())
    try:
        checked(dialect, request(body, path, kind=kind))
        dialect.clamp(body, 5)  # type: ignore[attr-defined]
    except UnreadableBody:
        return


def seeds(folder: Path) -> Path:
    """Writes what fuzzing starts from into ``folder``; returns the file of words that it may use."""
    for number, case in enumerate(CASES.values()):
        (folder / f"seed{number}").write_bytes(json.dumps(case.body).encode() + bytes(8))
    for number, (_, info) in enumerate(UPLOADS.values()):
        (folder / f"upload{number}").write_bytes(info.body + bytes(8))
    words = folder / "words.dict"
    words.write_text("".join(f'"\\"{word}\\":"\n' for word in WORDS))
    return words


def main() -> None:
    """Until a failure, or as long as the options say."""
    words = seeds(Path(sys.argv[1]))
    atheris.Setup([*sys.argv, f"-dict={words}"], read_one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
