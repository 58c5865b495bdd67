"""Imports go one way, and importing the package loads nothing heavy."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import gpu_admission

PACKAGE = Path(gpu_admission.__file__).parent
HEAVY = {"torch", "pynvml", "redis", "prometheus_client", "numpy", "fastapi", "PIL", "tokenizers", "tiktoken"}
OUTER = ("observe", "serving", "planning", "cli", "testing", "routes", "middleware", "http")
# What each part may never import at the top of a module, from the inside out.
BARRED: dict[str, tuple[str, ...]] = {
    "types": ("workloads", "estimators", "budget", "devices", "guards", "admission", "monitor", *OUTER),
    "errors": ("workloads", "estimators", "budget", "devices", "guards", "admission", "monitor", *OUTER),
    "workloads": ("estimators", "budget", "devices", "guards", "admission", "monitor", *OUTER),
    "estimators": ("workloads", "budget", "devices", "guards", "admission", "monitor", *OUTER),
    "budget": ("workloads", "estimators", "devices", "guards", "admission", "monitor", *OUTER),
    "devices": ("workloads", "estimators", "budget", "guards", "admission", "monitor", *OUTER),
    "guards": ("workloads", "estimators", "budget", "admission", "monitor", *OUTER),
    "admission": OUTER,
    "http": ("observe", "serving", "planning", "cli", "testing", "routes", "middleware"),
}
LEDGER_NEVER = {"anyio", "time", "logging", "asyncio", "threading"}


def top_level_imports(path: Path) -> set[str]:
    """Names of the modules that ``path`` imports when it is imported itself."""
    found: set[str] = set()
    pending = list(ast.parse(path.read_text()).body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Try):
            pending += node.body
    return found


def modules_of(part: str) -> list[Path]:
    single = PACKAGE / f"{part}.py"
    return [single] if single.exists() else sorted((PACKAGE / part).rglob("*.py"))


@pytest.mark.parametrize("part", BARRED)
def test_imports_go_one_way(part: str) -> None:
    barred = tuple(f"gpu_admission.{name}" for name in BARRED[part])
    for path in modules_of(part):
        wrong = {
            name
            for name in top_level_imports(path)
            if any(name == b or name.startswith(f"{b}.") for b in barred)
        }
        assert not wrong, f"{path.relative_to(PACKAGE)} imports {sorted(wrong)}"


def test_the_ledger_has_no_clock_no_loop_and_no_log() -> None:
    for name in ("ledger", "lanes", "queue", "ticket", "forecast", "placement"):
        imported = {module.split(".")[0] for module in top_level_imports(PACKAGE / "budget" / f"{name}.py")}
        assert not imported & LEDGER_NEVER, name


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = "import gpu_admission, json, sys; print(json.dumps(sorted(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not set(json.loads(run.stdout)) & HEAVY


def test_every_module_says_what_it_owns() -> None:
    for path in sorted(PACKAGE.rglob("*.py")):
        assert ast.get_docstring(ast.parse(path.read_text())), path


def test_the_root_exports_the_vocabulary() -> None:
    assert set(gpu_admission.__all__) == {
        *("GPUAdmission", "Admission", "Lease", "current_lease", "Lane", "Snapshot", "RequestInfo"),
        *("Workload", "Estimate", "Estimator", "Device", "DeviceReading", "Guard", "AdmissionError"),
        *("Rejected", "TooLarge", "QueueFull", "QueueTimeout", "Unavailable", "UnreadableBody"),
    }
    assert all(hasattr(gpu_admission, name) for name in gpu_admission.__all__)
