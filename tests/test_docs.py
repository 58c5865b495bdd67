"""The API reference is made of the public modules, and shows each of their names."""

from __future__ import annotations

import html
import importlib
import re
from pathlib import Path

import pdoc

MAKEFILE = (Path(__file__).parents[1] / "Makefile").read_text(encoding="utf-8")


def documented() -> list[str]:
    """The modules that ``make docs`` names."""
    found = re.search(r"^DOCUMENTED = gpu_admission \$\(addprefix gpu_admission\.,([^)]*)\)", MAKEFILE, re.M)
    assert found is not None
    return ["gpu_admission", *(f"gpu_admission.{name}" for name in found[1].replace("\\", "").split())]


def test_the_reference_shows_every_public_name(tmp_path: Path) -> None:
    pdoc.render.configure(docformat="markdown")
    pdoc.pdoc(*documented(), output_directory=tmp_path)
    for name in documented():
        page = html.unescape((tmp_path / f"{name.replace('.', '/')}.html").read_text(encoding="utf-8"))
        for public in getattr(importlib.import_module(name), "__all__", ()):
            assert f'id="{public}"' in page, f"{name}.{public}"


def test_the_public_modules_are_documented() -> None:
    missing = [name for name in documented() if not importlib.import_module(name).__doc__]
    assert missing == []
