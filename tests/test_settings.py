"""Each setting is checked at construction, with a sentence that names it."""

from __future__ import annotations

import ast
import inspect
import itertools
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from gpu_admission import Admission, GPUAdmission, Lane
from gpu_admission.devices import FixedDevice
from gpu_admission.guards import MemoryGuard
from gpu_admission.settings import Options, Settings
from gpu_admission.settings import options as options_module
from gpu_admission.sizes import MAX_BYTES, format_bytes, parse_bytes

WRONG: dict[str, list[Any]] = {
    "capacity": [0, -1, "20 apples", 1.5, True, "85", "0%", "101%", "x%", []],
    "estimator": [None, 0, -1, "big", {}, {"/x": None}, 1.5, True, object, {"x": 1}],
    "timeout": [-1, "30", None, True, float("nan")],
    "max_bypass_wait": [-1, "1", None],
    "overcommit": [0.5, "2", float("inf")],
    "margin": [1, -0.1, "0.1"],
    "max_waiting": [-1, 1.5, "1", None, True],
    "max_running": [0, -1, 1.5, "1"],
    "max_bypass": [-1, None],
    "max_waiting_per_flow": [0, "1"],
    "max_body_bytes": [None, -1, "x"],
    "max_buffered_bytes": [None, 1.5],
    "reserve": [None, -1],
    "fallback": [0, -1, "x"],
    "routes": ["/x", 5, ["x"], [5]],
    "control": ["/x", None, [b"/x"], ["x"]],
    "websockets": ["/x", None, [b"/x"], ["x"]],
    "while_waiting": ["yes", 1, True],
    "exclude": ["/x", None, [b"/x"]],
    "methods": ["POST", None, [5], [""]],
    "lanes": [
        *([], None, "x", [5], [Lane("a"), Lane("a")]),
        [Lane("a", guaranteed=0.6), Lane("b", guaranteed=0.6)],
    ],
    "lane": [5],
    "flow": [5],
    "classify": [5],
    "devices": [5, [5], [FixedDevice], "x"],
    "guards": [5, [5], [MemoryGuard]],
    "observers": [None, 5, [5]],
    "placement": ["worst", 5],
    "mode": ["on", None],
    "hold": ["for ever"],
    "on_reject": ["html", None],
    "on_fault": ["explode"],
    "oom_status": [200, "503"],
    "refuse_early": [1],
    "strict": [1],
    "oom_event": [1],
    "clamp_new_tokens": [1],
    "server_timing": [1],
    "load_header": [1],
    "name": ["", 5],
    "model": [5, "/nowhere/config.json"],
    "state": [5, "", "/nowhere/at/all.json", "/"],
}
EACH = [
    pytest.param(name, value, id=f"{name}={repr(value)[:25]}")
    for name, values in WRONG.items()
    for value in values
]


@pytest.mark.parametrize(("name", "value"), EACH)
def test_a_wrong_value_is_refused_by_name(name: str, value: object) -> None:
    options = {"capacity": 100, "estimator": 1, name: value}
    with pytest.raises((TypeError, ValueError), match=name):
        Admission(**options)  # type: ignore[arg-type]


def test_an_unknown_setting_is_an_error_that_names_it_and_what_was_meant() -> None:
    with pytest.raises(TypeError, match=r"no setting 'max_wating'; did you mean 'max_waiting'"):
        Admission(estimator=1, max_wating=5)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"no setting 'zzz'$"):
        Admission(estimator=1, zzz=5)  # type: ignore[call-arg]


def test_an_estimator_that_is_none_is_none() -> None:
    with pytest.raises(TypeError, match="estimator must be a size"):
        Admission(capacity=100, estimator=None)  # type: ignore[arg-type]


def test_the_defaults_are_those_of_the_design() -> None:
    settings = Settings.of({"estimator": 1})
    assert settings.capacity is None
    assert settings.timeout == 30.0
    assert settings.max_waiting == 100
    assert settings.max_running is None
    assert settings.max_body_bytes == 64 * 2**20
    assert settings.max_buffered_bytes == 2**30
    assert settings.fallback is None
    assert settings.methods == ("POST", "PUT", "PATCH")
    assert (settings.mode, settings.hold, settings.max_bypass) == ("enforce", "app", 32)


def test_options_and_settings_name_the_same() -> None:
    assert set(Options.__annotations__) == set(Settings.__slots__)


def test_overcommit_and_margin_change_what_a_capacity_in_bytes_gives_out() -> None:
    assert Admission(capacity=1000, estimator=1).snapshot().capacity == 1000
    assert Admission(capacity=1000, estimator=1, margin=0.1).snapshot().capacity == 900
    assert Admission(capacity=1000, estimator=1, overcommit=1.5).snapshot().capacity == 1500


def test_the_middleware_takes_an_admission_or_settings() -> None:
    admission = Admission(capacity=100, estimator=1)
    assert GPUAdmission(app, admission=admission).admission is admission
    assert GPUAdmission(app, capacity=100, estimator=1).admission.snapshot().capacity == 100
    with pytest.raises(TypeError, match="not both: capacity"):
        GPUAdmission(app, admission=admission, capacity=100)
    with pytest.raises(TypeError, match="must be an Admission, not int"):
        GPUAdmission(app, admission=5)  # type: ignore[arg-type]


async def app(scope: object, receive: object, send: object) -> None:
    """Never called."""


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("6GiB", 6 * 2**30),
        ("6 gib", 6 * 2**30),
        ("1.5KiB", 1536),
        ("2MB", 2_000_000),
        ("0.1KiB", 103),
        (" 7 ", 7),
        ("3b", 3),
        (5, 5),
    ],
)
def test_sizes_are_read_as_people_write_them(text: int | str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    "text", ["", "GiB", "6 GiBs", "1e3", "-5", "٣GiB", "1" * 50, "inf", -1, MAX_BYTES + 1]
)
def test_what_is_no_size_is_refused_by_name(text: int | str) -> None:
    with pytest.raises(ValueError, match="what"):
        parse_bytes(text, name="what")


def test_sizes_are_printed_in_the_largest_unit_that_fits() -> None:
    assert format_bytes(0) == "0 B"
    assert format_bytes(1023) == "1023 B"
    assert format_bytes(1536) == "1.50 KiB"
    assert format_bytes(20 * 2**30) == "20.00 GiB"
    assert format_bytes(2**62) == "4096.00 PiB"


def documented() -> dict[str, str]:
    """The docstring of each keyword of ``Options``."""
    tree = ast.parse(inspect.getsource(options_module))
    (declared,) = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    texts: dict[str, str] = {}
    for node, after in itertools.pairwise(declared.body):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            assert isinstance(after, ast.Expr), node.target.id
            texts[node.target.id] = " ".join(ast.literal_eval(after.value).split())
    return texts


def in_words(value: object) -> str:
    """A default as the docstrings write it."""
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    if isinstance(value, int) and not isinstance(value, bool) and value >= 2**20:
        return format_bytes(value).replace(".00", "")
    return f"{value:g}" if isinstance(value, float) else str(value)


def test_each_keyword_says_what_it_means_and_its_default() -> None:
    documents, defaults = documented(), {field.name: field.default for field in fields(Settings)}
    assert list(documents) == list(Options.__annotations__)
    assert set(documents) == set(defaults)
    for name, text in documents.items():
        told = text.partition("Default: ")[2].rstrip(".")
        assert told, name
        if defaults[name] not in (None, ()) and name != "lanes":
            assert told == in_words(defaults[name]), name


def test_the_readme_lists_every_setting_with_its_default_and_meaning() -> None:
    readme = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    for name, text in documented().items():
        meaning, _, default = text.partition(" Default: ")
        row = f"| `{name}` | {default.rstrip('.')} | {meaning} |"
        assert row.replace("``", "`") in readme, f"the README's table of settings needs the row\n{row}"


def test_devices_none_is_the_default() -> None:
    assert Settings.of({"estimator": 1, "devices": None}).devices == ()


def test_a_dialect_is_known_by_its_name_and_another_name_is_refused() -> None:
    assert Admission(capacity=100, estimator=1, dialect="openai")
    assert Admission(capacity=100, estimator=1, dialect={"/v1/**": "vllm", "**": "ollama"})
    with pytest.raises(ValueError, match=r"dialect must be one of .*'openai'.*got 'opnai'"):
        Admission(capacity=100, estimator=1, dialect="opnai")
    with pytest.raises(TypeError, match="a dialect needs a method read"):
        Admission(capacity=100, estimator=1, dialect=5)  # type: ignore[arg-type]
