"""A small control group of our own, so that running out of memory hurts nobody else."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpu_admission.devices.host import HostMemory

LIMIT = 768 * 2**20


@contextmanager
def small_group() -> Iterator[Path]:
    """A group that may use ``LIMIT`` bytes, or the kernel kills in it. Skips where none can be made."""
    parents = [(files, folder) for files, folder, _ in HostMemory()._cgroups()]
    for files, parent in parents:
        folder = parent / f"gpu_admission_test_{os.getpid()}"
        try:
            folder.mkdir()
        except OSError:
            continue
        try:
            (folder / files.limit).write_text(str(LIMIT))
            yield folder
            return
        except OSError:
            continue
        finally:
            folder.rmdir()
    pytest.skip("no right to make a memory control group here")
