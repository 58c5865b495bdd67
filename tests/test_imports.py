"""The layout holds: imports go one way, nothing reaches into another's privates, and files stay short.

What a function body imports, and what is imported for type checkers only, counts like any other
import: a circle that is hidden there is still one.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeGuard

import pytest

import gpu_admission

PACKAGE = Path(gpu_admission.__file__).parent
NAME = "gpu_admission"
HEAVY = {"torch", "pynvml", "redis", "prometheus_client", "numpy", "fastapi", "PIL", "tokenizers", "tiktoken"}
LEDGER_NEVER = {"anyio", "time", "logging", "asyncio", "threading"}

LAYERS: tuple[set[str], ...] = (
    {"types", "errors", "sizes", "runtime"},
    {"request", "bodies"},
    {"workloads", "estimators", "budget", "devices"},
    {"rules", "guards", "shared", "settings"},
    {"admission"},
    {"http"},
    {"middleware", "routes", ""},
    {"observe", "serving", "planning", "demo", "testing", "cli", "__main__"},
)
"""From the bottom up: a part imports from its own layer and from those below it. "" is the package itself."""
ROOT = {"middleware", "cli", "__main__", "types", "request", "errors", "sizes", "settings", "testing"}

UPWARDS = {(f"{NAME}.admission.controller", f"{NAME}.routes")}
"""``Admission.admit`` is made of doors, which are made of ``Admission``: imported when it is called."""
LIBRARIES: dict[str, tuple[str, ...]] = {
    "admission.profiler": ("self._torch._C",),
    "estimators.traced.*": ("",),  # torch's dispatcher and transformers' switches have no other names
    "routes.placement": ("sys._getframe",),
    "routes.readalready": ("request._",),
    "runtime.loop": ("asyncio._get_running_loop",),
}
"""Privates of libraries that there is no other way to: each in one file, or one folder."""
LONGEST_FILE = 400
LONGEST_FACE = 250


# reading modules


def sources(root: Path = PACKAGE) -> dict[str, ast.Module]:
    """Every module of the package below ``root``, by its dotted name."""
    found = {}
    for path in sorted(root.rglob("*.py")):
        name = ".".join((NAME, *path.relative_to(root).with_suffix("").parts))
        found[name.removesuffix(".__init__")] = ast.parse(path.read_text())
    return found


def imported(tree: ast.AST) -> Iterator[str]:
    """Dotted names that a module imports anywhere; those given to ``import_module`` too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            yield from (str(text.value) for text in node.args if _is_text(text))


def graph(modules: Mapping[str, ast.Module]) -> dict[str, set[str]]:
    """Which modules of the package each one imports."""

    def module_of(name: str) -> str | None:
        while name and name not in modules:
            name = name.rpartition(".")[0]
        return name or None

    edges = {}
    for name, tree in modules.items():
        targets = {module_of(target) for target in imported(tree) if target.split(".")[0] == NAME}
        edges[name] = {target for target in targets if target is not None} - {name}
    return edges


def circles(edges: Mapping[str, set[str]]) -> list[set[str]]:
    """Sets of modules that import one another, by way of however many others."""
    reached = {name: _reachable(edges, name) for name in edges}
    found: list[set[str]] = []
    for name in edges:
        if name in reached[name] and not any(name in circle for circle in found):
            found.append({other for other in reached[name] if name in reached[other]})
    return found


def _reachable(edges: Mapping[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    pending = list(edges[start])
    while pending:
        name = pending.pop()
        if name not in seen:
            seen.add(name)
            pending += edges[name]
    return seen


def part_of(module: str) -> str:
    """The folder, or the module of the root; "" for the package itself."""
    return module.split(".")[1] if "." in module else ""


def layer(module: str) -> int:
    part = part_of(module)
    return next((level for level, parts in enumerate(LAYERS) if part in parts), len(LAYERS))


def private_reaches(name: str, tree: ast.Module) -> Iterator[str]:
    """Uses of ``x._name`` where ``x`` is not the object itself and this file does not define ``_name``."""
    own = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    own |= {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("self", "cls")
    }
    own |= {str(text.value) for text in ast.walk(tree) if _is_text(text)}  # slots
    own |= {ast.unparse(node.target) for node in ast.walk(tree) if _is_field(node)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or not node.attr.startswith("_") or node.attr.endswith("__"):
            continue
        if ast.unparse(node.value) in ("self", "cls") or node.attr in own:
            continue
        reach, module = ast.unparse(node), name.removeprefix(f"{NAME}.")
        known = LIBRARIES.get(module) or LIBRARIES.get(f"{module.rpartition('.')[0]}.*", ())
        if not reach.startswith(known):
            yield f"{name}: {reach}"


def _is_text(node: ast.AST) -> TypeGuard[ast.Constant]:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _is_field(node: ast.AST) -> TypeGuard[ast.AnnAssign]:
    return isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)


# the rules

EDGES = graph(sources())


def test_no_module_imports_itself_by_way_of_others() -> None:
    edges = {name: targets - {t for n, t in UPWARDS if n == name} for name, targets in EDGES.items()}
    assert circles(edges) == []


@pytest.mark.parametrize(
    "hidden",
    [
        "from gpu_admission.b import thing",
        "if TYPE_CHECKING:\n    from gpu_admission.b import thing",
        "def later():\n    from gpu_admission import b",
        "def later():\n    import gpu_admission.b",
        "def later():\n    importlib.import_module('gpu_admission.b')",
    ],
    ids=["plain", "for type checkers", "in a function", "by its whole name", "by a string"],
)
def test_a_circle_that_is_hidden_is_found(hidden: str) -> None:
    planted = {
        "gpu_admission": ast.parse(""),
        "gpu_admission.a": ast.parse(hidden),
        "gpu_admission.b": ast.parse("from gpu_admission.c import x"),
        "gpu_admission.c": ast.parse("def f():\n    from gpu_admission.a import y"),
        "gpu_admission.d": ast.parse("from gpu_admission.a import y"),
    }
    assert circles(graph(planted)) == [{f"gpu_admission.{name}" for name in "abc"}]


def test_imports_go_one_way() -> None:
    wrong = {
        (name, target) for name, targets in EDGES.items() for target in targets if layer(target) > layer(name)
    }
    assert wrong == UPWARDS


def test_every_part_has_its_layer() -> None:
    assert {part_of(name) for name in EDGES} <= set().union(*LAYERS)


def test_the_root_holds_the_vocabulary_only() -> None:
    assert {path.stem for path in PACKAGE.glob("*.py")} - {"__init__"} <= ROOT


def test_nothing_reaches_into_the_privates_of_another_module() -> None:
    reaches = {reach for name, tree in sources().items() for reach in private_reaches(name, tree)}
    assert not reaches, sorted(reaches)


def test_a_reach_into_privates_is_found() -> None:
    planted = "def f(other):\n    return other._hidden\ndef g(self, a):\n    return a._own, self._own"
    assert list(private_reaches("m", ast.parse(planted))) == ["m: other._hidden"]


def test_files_are_short() -> None:
    long = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if len(path.read_text().splitlines()) > LONGEST_FILE
    }
    assert not long


def test_the_admission_is_a_face() -> None:
    tree = sources()[f"{NAME}.admission.controller"]
    (face,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Admission")
    assert face.end_lineno is not None
    assert face.end_lineno - face.lineno < LONGEST_FACE


def test_the_ledger_has_no_clock_no_loop_and_no_log() -> None:
    for name, tree in sources().items():
        if part_of(name) == "budget":
            assert not {target.split(".")[0] for target in imported(tree)} & LEDGER_NEVER, name


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = "import gpu_admission, json, sys; print(json.dumps(sorted(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not set(json.loads(run.stdout)) & HEAVY


def test_every_module_says_what_it_owns() -> None:
    for name, tree in sources().items():
        assert ast.get_docstring(tree), name


def test_the_root_exports_the_vocabulary() -> None:
    assert set(gpu_admission.__all__) == {
        *("GPUAdmission", "Admission", "Lease", "current_lease", "Lane", "Snapshot", "RequestInfo"),
        *("Workload", "Estimate", "Estimator", "Device", "DeviceReading", "Guard", "AdmissionError"),
        *("Rejected", "TooLarge", "QueueFull", "QueueTimeout", "Unavailable", "UnreadableBody"),
    }
    assert all(hasattr(gpu_admission, name) for name in gpu_admission.__all__)
