"""The line at start: what is in force, in words, without a secret."""

from __future__ import annotations

import math
from typing import Any

from gpu_admission import Admission, Lane, RequestInfo
from gpu_admission.admission.startline import start_line
from gpu_admission.devices import FixedDevice
from gpu_admission.estimators import Constant


def line(**settings: Any) -> str:
    admission = Admission(**({"capacity": "20GiB", "estimator": "1.2GiB"} | settings))
    return start_line(admission.settings, admission.snapshot().capacity, admission.monitor.names)


def test_it_names_the_budget_and_what_is_always_good_to_know() -> None:
    assert line() == (
        "gpu_admission 'default' starts: capacity=20.00 GiB on device mode=enforce estimator=1.2GiB "
        "timeout=30 max_waiting=100 max_body_bytes=64.00MiB routes=all methods=[POST, PUT, PATCH]"
    )


def test_it_names_what_is_not_at_its_default() -> None:
    text = line(
        name="gpu0",
        lanes=[Lane("short"), Lane("long")],
        lane=pick,
        timeout=math.inf,
        max_running=4,
        fallback="2GiB",
        refuse_early=True,
        overcommit=1.2,
        methods={"POST", "GET"},
    )
    assert text.startswith("gpu_admission 'gpu0' starts:")
    for part in (
        "timeout=unlimited",
        "lanes=[short, long]",
        "lane=pick",
        "max_running=4",
        "fallback=2.00GiB",
        "refuse_early=True",
        "overcommit=1.2",
        "methods=[GET, POST]",
    ):
        assert part in text
    assert "hold=" not in text


def pick(info: RequestInfo) -> str:
    return "short"


def test_estimators_are_named_by_path() -> None:
    text = line(estimator={"/v1/chat/*": Constant("1GiB"), "/v1/embeddings": lambda info: 1, "/x": 5})
    assert "estimator={/v1/chat/*: Constant, /v1/embeddings: " in text
    assert "routes=[" not in text
    assert "/x: 5}" in text


def test_several_devices_are_listed() -> None:
    devices = [FixedDevice("10GiB", name="one"), FixedDevice("10GiB", name="two")]
    text = line(capacity="10GiB", devices=devices)
    assert "capacity=20.00 GiB on 2 devices (one, two)" in text
