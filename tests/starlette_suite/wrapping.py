"""A pytest plugin for Starlette's own tests: every app under test runs behind ``GPUAdmission``.

``WRAP`` says how (empty: not at all), ``OUTCOMES`` names the file for each test's outcome.
"""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient, _is_asgi3, _WrapASGI2

from gpu_admission import GPUAdmission
from gpu_admission.estimators import Constant

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "TRACE", "CUSTOM")
WAYS: dict[str, dict[str, Any]] = {
    "constant": {"estimator": Constant(1), "methods": METHODS},
    "reading": {
        "estimator": lambda info: 1 + len(info.body),
        "routes": ["**"],
        "methods": METHODS,
        "max_body_bytes": "1GiB",
    },
}
_outcomes: dict[str, str] = {}


def pytest_configure(config: pytest.Config) -> None:
    way = os.environ["WRAP"]
    if not way:
        return
    bare = TestClient.__init__

    def init(self: TestClient, app: Any, *args: Any, **kwargs: Any) -> None:
        app = app if _is_asgi3(app) else _WrapASGI2(app)
        bare(self, GPUAdmission(app, capacity="10GiB", **WAYS[way]), *args, **kwargs)

    TestClient.__init__ = init  # type: ignore[method-assign]
    wrap_direct_calls(way)


def wrap_direct_calls(way: str) -> None:
    """Some tests call an app without a client: then it is wrapped for that one call."""
    bare = Starlette.__call__

    async def call(self: Starlette, scope: Any, receive: Any, send: Any) -> None:
        await GPUAdmission(functools.partial(bare, self), capacity="10GiB", **WAYS[way])(scope, receive, send)

    Starlette.__call__ = call  # type: ignore[method-assign]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or report.outcome != "passed":
        _outcomes[report.nodeid] = report.outcome


def pytest_sessionfinish(session: pytest.Session) -> None:
    Path(os.environ["OUTCOMES"]).write_text(json.dumps(_outcomes))
