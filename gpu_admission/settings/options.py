"""The keywords of ``Admission`` and ``GPUAdmission``, as users write them and editors show them.

The one place that says what a setting means. Each docstring ends with its default; the README's
table is made from them. Checked values are ``Settings``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Literal, TypeAlias, TypedDict

from starlette.responses import Response

from gpu_admission.budget.lanes import Lane
from gpu_admission.budget.placement import Placement
from gpu_admission.errors import Rejected
from gpu_admission.request import Dialect, Estimator, RequestInfo
from gpu_admission.shared.protocol import Log
from gpu_admission.types import Device, Guard, Observer

Size: TypeAlias = int | str
"""Bytes, or a string such as ``"6GiB"``."""
EstimatorSetting: TypeAlias = Size | Estimator | Mapping[str, Size | Estimator]
OnReject: TypeAlias = Literal["problem", "openai"] | Callable[[RequestInfo, Rejected], Response]


class Options(TypedDict, total=False):
    """Settings as keywords. Wrong ones raise ``TypeError`` or ``ValueError`` with a sentence."""

    capacity: Size | None
    """Bytes that may be held at once, per device: ``"20GiB"``, ``"85%"`` of the device, or ``None`` to
    measure what is free once the app has started. A device that does not tell its memory is closed
    (503) until it does. Default: measured."""
    estimator: EstimatorSetting
    """What a request takes: a size, an estimator, any callable of ``RequestInfo`` that returns bytes,
    a dict of path patterns to those, or ``"auto"``: the first requests of a route run alone and are
    measured, and it learns from there. Default: auto."""
    model: str | os.PathLike[str] | None
    """A transformers ``config.json``, for ``estimator="auto"``: its formula takes the place of measuring.
    Default: none."""
    state: str | os.PathLike[str] | None
    """A file that keeps what estimators learn over restarts; written each minute and at shutdown.
    Default: none."""
    timeout: float
    """Longest wait in the queue, in seconds; 0 never waits. Default: 30."""
    max_waiting: int
    """Most requests that may wait, in each lane; the next one is refused at once (429). Default: 100."""
    max_running: int | None
    """Most requests that may hold a lease at once; 1 is serial. Default: no limit."""
    max_body_bytes: Size
    """A larger body is refused (413), counted as it arrives and again as it is unpacked.
    Default: 64 MiB."""
    max_json_values: int
    """A JSON body of more values is refused (413), or charged ``fallback``. Names count too, and each
    64 bytes of short strings; a long list of numbers, such as token ids, counts once. Default: 100000."""
    max_buffered_bytes: Size
    """Host memory that the bodies of waiting requests may hold together, in bytes; those of one client
    address at most three quarters of it. Default: 1 GiB."""
    body_timeout: float
    """Seconds that an upload may go without a byte (408). It may take as long in all, and a second more
    for each 4 KiB of it. ``math.inf`` is no limit. Default: 60."""
    send_timeout: float
    """Seconds that one part of a response may wait for a client that takes nothing; then its ``send``
    raises ``TimeoutError`` and the bytes come back. A stream may last as long as it likes.
    ``math.inf`` is no limit. Default: 60."""
    fallback: Size | None
    """Bytes charged where a body can't be read or an estimator fails. Without it the first is refused
    (400) and the second is charged the whole capacity. Default: none."""
    routes: Iterable[str] | None
    """Patterns of the paths that are metered: ``*`` within a segment, ``**`` across. Default: all."""
    exclude: Iterable[str]
    """Patterns of paths that are never metered. Default: none."""
    control: Iterable[str]
    """Patterns of calls that steer the server (stop, unload, count) and pass at once, beside those of
    ``gpu_admission.workloads.CONTROL_PATHS``, which pass unless ``routes`` or ``estimator`` name them
    word for word. The start line counts them; at level DEBUG the log lists all. Default: none."""
    websockets: Iterable[str]
    """Patterns of paths whose WebSockets are metered, from accept to close, by an estimator that needs no
    body; a refused handshake gets the same answer, or close code 1013 where the server can send none.
    For ``GPUAdmission``. Default: none."""
    methods: Iterable[str]
    """Methods that are metered, in any case. Left as it is, DELETE and unknown ones are too: an app that
    does not look at the method would do their work. Default: POST, PUT, PATCH."""
    dialect: str | Dialect | Mapping[str, str | Dialect] | None
    """How bodies are read: a name such as ``"openai"``, a dialect, or a dict of path patterns to those.
    Set it where paths do not tell which API is served. Default: chosen by path."""
    lanes: Iterable[Lane]
    """Shares of the budget for kinds of requests, such as short and long prompts. Default: one lane."""
    lane: Callable[[RequestInfo], str | None] | None
    """Names the lane of a request; ``by_tokens`` and ``by_path`` are ready made. Where what
    the client sent makes it fail, the last lane is taken. Default: the first."""
    flow: Callable[[RequestInfo], object] | None
    """Names the tenant of a request: inside a lane tenants share fairly in byte-seconds. Default: one
    for all."""
    max_waiting_per_flow: int | None
    """Most requests of one flow that may wait. Default: half of ``max_waiting`` where ``flow`` is set."""
    max_bypass: int
    """Times that small requests may start in the gap that a waiting head leaves; 0 is strict first in,
    first out. Default: 32."""
    max_bypass_wait: float
    """Seconds at the head of the queue after which no request may pass it. Default: 30."""
    refuse_early: bool
    """Refuse at arrival when the forecast wait is longer than the request may wait. Default: False."""
    devices: Iterable[Device] | None
    """Devices with one budget each, and one queue. Default: for a measured capacity the first device
    that is found; for one given in bytes none is read."""
    guards: Iterable[Guard] | None
    """What may lower the ceiling of a device; each device has its own copies, ``()`` is none. Default:
    out-of-memory and faults, and memory where a device is read."""
    placement: Literal["most_free", "best_fit", "round_robin"] | Placement
    """Which of several devices takes a request. Default: most_free."""
    overcommit: float
    """Factor on the capacity, of 1 or more, for peaks that rarely meet. Default: 1."""
    reserve: Size
    """Bytes of a measured device that are never given out. Default: 0."""
    require_gpu: bool
    """Admit nothing (503) where a capacity is to be measured and no GPU is found; without it, host memory
    is metered then. With ``strict=True`` the start fails. Default: False."""
    strict: bool
    """Refuse to start where a capacity can't be measured, or a setting names a size that can never
    fit. Default: False."""
    classify: Callable[[BaseException], Literal["oom", "fault"] | None] | None
    """Which exceptions mean out of memory, or a device fault. Default: the known types."""
    observers: Iterable[Observer]
    """Callables that get each event, such as ``Metrics()``. Default: none."""
    margin: float | None
    """Share of the capacity that is left free for what estimates miss, from 0 to below 1. Default: 0.1
    of a measured or ``%`` capacity, 0 of one given in bytes."""
    mode: Literal["enforce", "shadow", "off"]
    """``"shadow"`` decides and records but never refuses or delays; ``"off"`` passes everything through.
    Default: enforce."""
    hold: Literal["app", "response"]
    """When a lease ends: as the app returns, or with ``"response"`` after the last body chunk.
    Default: app."""
    on_reject: OnReject
    """How a refusal is answered: ``"problem"`` (RFC 9457), ``"openai"``, or a callable that makes the
    response. Default: problem."""
    on_fault: Literal["close", "exit"] | Callable[[str], object]
    """What a device fault brings beside the closed door: ``"exit"`` ends the process so that it is
    restarted; a callable is given the reason. Default: close."""
    while_waiting: Literal["sse"] | None
    """``"sse"`` keeps a client that asked for an event stream alive: after three seconds in the queue the
    stream begins, with comments that tell place and forecast, and a refusal is then its error event. For
    ``GPUAdmission``. Default: nothing is sent before the decision."""
    oom_event: bool
    """Send the dialect's error event when a stream that has begun runs out of memory. For
    ``GPUAdmission``; a FastAPI dependency can't see the stream. Default: False."""
    oom_status: int | None
    """Answer with this status when the app runs out of memory before it has answered, in place of the
    exception or the framework's 500. For ``GPUAdmission``. Default: the exception goes on."""
    clamp_new_tokens: bool
    """Let a hot device lower the token limit of requests (``ThermalGuard``). For ``GPUAdmission``, and
    bodies that are not compressed. Default: False."""
    server_timing: bool
    """Say the time in the queue in a ``Server-Timing`` header. Default: False."""
    load_header: bool
    """Tell load balancers in each answer how full the budget is and how many wait: the ORCA report in the
    header ``endpoint-load-metrics``. Not of a FastAPI endpoint with
    ``dependency`` that returns a response of its own. Default: False."""
    profile: int
    """Trace this many of the next admitted requests with ``torch.profiler``. Default: 0."""
    shared: str | os.PathLike[str] | Log | None
    """One budget for all processes that name the same place: a folder such as ``"/dev/shm/gpu0"`` for
    those of one host, ``"redis://host/0?name=gpu0"`` for those of several, or a log of your own.
    Default: each process has its own."""
    shared_fallback: float
    """Share of each device's capacity, from 0 to below 1, that this process may grant by itself while the
    shared budget can't be reached. Default: 0."""
    lease_ttl: float
    """Seconds without a sign of life after which a process that shares a budget over Redis is taken for
    dead. Half as long after that its bytes go to others. On a folder a death is seen within 0.5 s while
    somebody waits. Default: 10."""
    name: str
    """Tells budgets apart in metrics and logs. Default: default."""
