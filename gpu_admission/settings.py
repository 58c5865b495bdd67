"""The settings of an ``Admission``: their names, types, defaults and checks.

A wrong value is refused at construction with a sentence that names the setting. Nothing
here acts on a setting.
"""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict

from gpu_admission.budget.lanes import Lane
from gpu_admission.budget.placement import POLICIES, Placement
from gpu_admission.errors import Rejected
from gpu_admission.request import Dialect, Estimator, RequestInfo
from gpu_admission.rules.metering import Metering
from gpu_admission.sizes import parse_bytes
from gpu_admission.types import Device, Guard, Observer

if TYPE_CHECKING:
    from starlette.responses import Response

Size: TypeAlias = int | str
OnReject: TypeAlias = "Literal['problem', 'openai'] | Callable[[RequestInfo, Rejected], Response]"
EstimatorSetting: TypeAlias = "Size | Estimator | Callable[[RequestInfo], Any] | Mapping[str, Any]"


class Options(TypedDict, total=False):
    """The keywords of ``Admission`` and ``GPUAdmission``; ``Settings`` holds their defaults."""

    capacity: Size | None
    estimator: EstimatorSetting
    timeout: float
    max_waiting: int
    max_running: int | None
    max_body_bytes: Size
    max_buffered_bytes: Size
    fallback: Size | None
    routes: Iterable[str] | None
    exclude: Iterable[str]
    methods: Iterable[str]
    dialect: Dialect | Mapping[str, Dialect] | None
    lanes: Sequence[Lane]
    lane: Callable[[RequestInfo], str] | None
    flow: Callable[[RequestInfo], Any] | None
    max_waiting_per_flow: int | None
    max_bypass: int
    max_bypass_wait: float
    refuse_early: bool
    devices: Sequence[Device]
    guards: Sequence[Guard] | None
    placement: str | Placement
    overcommit: float
    reserve: Size
    strict: bool
    classify: Callable[[BaseException], Literal["oom", "fault"] | None] | None
    observers: Sequence[Observer]
    margin: float | None
    mode: Literal["enforce", "shadow", "off"]
    hold: Literal["app", "response"]
    on_reject: OnReject
    on_fault: Literal["close", "exit"] | Callable[[str], object]
    oom_event: bool
    oom_status: int | None
    clamp_new_tokens: bool
    server_timing: bool
    profile: int
    name: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Checked settings, with sizes in bytes and times in seconds."""

    estimator: Any = None
    capacity: int | str | None = None
    """Bytes that may be held at once, per device. A percentage or ``None`` is measured, once a process:
    when the app's own startup is over, or at the first request where there is none. A device
    that does not tell its memory is closed (503) until it does."""
    timeout: float = 30.0
    """Longest wait in the queue; 0 never waits."""
    max_waiting: int = 100
    """Most requests that may wait in a lane; the next one is refused at once."""
    max_running: int | None = None
    """Most requests that may hold a lease at once."""
    max_body_bytes: Any = 64 * 2**20
    """A larger body is refused with 413, counted as it arrives, and again as it is unpacked."""
    max_buffered_bytes: Any = 2**30
    """Host memory that waiting bodies may hold together."""
    fallback: Any = None
    """Charged when a body can't be read or an estimator fails."""
    routes: Any = None
    exclude: Any = ()
    methods: Any = ("POST", "PUT", "PATCH")
    dialect: Any = None
    """How bodies are read; ``None`` chooses by path. One, or a dict of path patterns."""
    lanes: Any = (Lane("default"),)
    lane: Any = None
    flow: Any = None
    max_waiting_per_flow: int | None = None
    """Most requests of one flow that may wait; ``None``: half of ``max_waiting`` where ``flow`` is set."""
    max_bypass: int = 32
    """Times that small requests may pass a head that does not fit; 0 is strict first in, first out."""
    max_bypass_wait: float = 30.0
    """Seconds at the head after which nobody passes it."""
    refuse_early: bool = False
    """Refuse at arrival when the forecast wait is longer than the request may wait."""
    devices: Any = ()
    """One budget each, and one queue. None given: a capacity that is measured is that of the first
    device that ``discover()`` finds; one given in bytes is watched by nobody."""
    guards: Any = None
    """``None``: memory, out-of-memory and faults where devices are given or measured. Each device
    has its own copy of each."""
    placement: Any = "most_free"
    overcommit: float = 1.0
    """Factor on the capacity, for peaks that rarely meet."""
    reserve: Any = 0
    """Bytes of a measured device that are never given out."""
    strict: bool = False
    """Refuse to start when a capacity can't be measured, or a setting names a size that can never fit."""
    classify: Any = None
    """Which exceptions mean ``"oom"`` or a device ``"fault"``; ``None``: the known forms."""
    observers: Any = ()
    margin: float | None = None
    """Share of the capacity left free; ``None``: 0.1 of a measured one, 0 of one given in bytes."""
    mode: str = "enforce"
    hold: str = "app"
    on_reject: Any = "problem"
    on_fault: Any = "close"
    """What a device fault brings beside the closed door, of the default guards: see ``FaultGuard``."""
    oom_event: bool = False
    """Send the dialect's error event when a stream that has begun runs out of memory. Not for
    FastAPI routes that are metered by themselves: put ``GPUAdmission`` in front."""
    oom_status: int | None = None
    """Answer with this status, in place of the exception, when the app runs out of memory before it
    has answered; also in place of the error page (500) that a framework sends first. For
    ``GPUAdmission``."""
    clamp_new_tokens: bool = False
    """Let a hot device lower the token limit of requests: see ``ThermalGuard``. For ``GPUAdmission``,
    and bodies that are not compressed."""
    server_timing: bool = False
    """Tell the time in the queue in a ``Server-Timing`` header."""
    profile: int = 0
    """Trace this many of the next admitted requests with ``torch.profiler``."""
    name: str = "default"
    """Tells budgets apart in metrics and logs."""

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Settings:
        """Settings from keywords; an unknown one is a ``TypeError`` that names it."""
        known = [field.name for field in fields(cls)]
        for name in options:
            if name not in known:
                close = difflib.get_close_matches(name, known, n=1)
                hint = f"; did you mean {close[0]!r}?" if close else ""
                raise TypeError(f"Admission has no setting {name!r}{hint}")
        return cls(**options)

    def __post_init__(self) -> None:
        if self.estimator is None:
            raise TypeError("estimator is required: a size, a callable, or a dict of path patterns to those")
        self._set("capacity", _capacity(self.capacity))
        for name in ("max_body_bytes", "max_buffered_bytes", "reserve"):
            self._set(name, parse_bytes(getattr(self, name), name=name))
        if self.fallback is not None:
            self._set("fallback", parse_bytes(self.fallback, name="fallback"))
        if self.fallback == 0:
            raise ValueError("fallback must be above 0 bytes: a body that can't be read is not free")
        for name in ("timeout", "max_bypass_wait", "overcommit", "margin"):
            check_number(name, getattr(self, name), optional=name == "margin")
        for name, least in (
            ("max_waiting", 0),
            ("max_bypass", 0),
            ("profile", 0),
            ("max_running", 1),
            ("max_waiting_per_flow", 1),
        ):
            _check_count(name, getattr(self, name), least, optional=least == 1)
        self._check_ranges()
        self._check_words()
        self._check_callables()
        self._set("lanes", _lanes(self.lanes))
        self._set("placement", _placement(self.placement))

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _check_ranges(self) -> None:
        if self.margin is not None and not 0 <= self.margin < 1:
            raise ValueError(f"margin is a share of the capacity, from 0 to below 1, got {self.margin!r}")
        if self.overcommit < 1:
            raise ValueError(f"overcommit must be 1.0 or more, got {self.overcommit!r}")
        if self.oom_status is not None and self.oom_status not in range(400, 600):
            raise ValueError(f"oom_status must be an HTTP error status or None, got {self.oom_status!r}")

    def _check_words(self) -> None:
        words = {
            "mode": ("enforce", "shadow", "off"),
            "hold": ("app", "response"),
        }
        for name, allowed in words.items():
            if getattr(self, name) not in allowed:
                raise ValueError(
                    f"{name} must be one of {', '.join(map(repr, allowed))}, got {getattr(self, name)!r}"
                )
        if not callable(self.on_fault) and self.on_fault not in ("close", "exit"):
            raise ValueError(f"on_fault must be 'close', 'exit' or a callable, got {self.on_fault!r}")
        if not callable(self.on_reject) and self.on_reject not in ("problem", "openai"):
            raise ValueError(f"on_reject must be 'problem', 'openai' or a callable, got {self.on_reject!r}")
        if not isinstance(self.name, str) or not self.name:
            raise TypeError("name must be a text that is not empty")
        for name in ("refuse_early", "strict", "oom_event", "clamp_new_tokens", "server_timing"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name} must be True or False, got {getattr(self, name)!r}")

    def _check_callables(self) -> None:
        for name in ("lane", "flow", "classify"):
            if inspect.iscoroutinefunction(getattr(self, name)):
                raise TypeError(f"{name} must be a plain function, not a coroutine function")
            if getattr(self, name) is not None and not callable(getattr(self, name)):
                raise TypeError(
                    f"{name} must be a callable of RequestInfo, not {type(getattr(self, name)).__name__}"
                )
        for name, kind in (("devices", Device), ("guards", Guard)):
            if getattr(self, name) is None:
                continue
            values = _several(name, getattr(self, name))
            for value in values:
                if isinstance(value, type) or not isinstance(value, kind):
                    raise TypeError(f"{name} must hold {kind.__name__} objects, not {value!r}")
            self._set(name, values)
        self._set("observers", _several("observers", self.observers))
        if not all(callable(observer) for observer in self.observers):
            raise TypeError("observers must be callables of one Event")

    def metering(self) -> Metering:
        return Metering(
            self.estimator,
            routes=self.routes,
            exclude=self.exclude,
            methods=self.methods,
            dialect=self.dialect,
        )


def _capacity(value: object) -> int | str | None:
    if value is None:
        return None
    if isinstance(value, str) and value.strip().endswith("%"):
        share = _share(value.strip()[:-1])
        if not 0 < share <= 100:
            raise ValueError(f"capacity={value!r}: a percentage is above 0 and at most 100")
        return value.strip()
    size = parse_bytes(value, name="capacity")  # type: ignore[arg-type]
    if not size:
        raise ValueError("capacity must be above 0 bytes: nothing could ever start")
    return size


def _share(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def check_number(name: str, value: object, *, optional: bool) -> None:
    """Raises ``TypeError`` or ``ValueError`` for what is no number of 0 or more."""
    if value is None and optional:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number, not {type(value).__name__}")
    if not value >= 0 or (value == math.inf and name == "overcommit"):
        raise ValueError(f"{name} must be 0 or more, got {value!r}")


def _check_count(name: str, value: object, least: int, *, optional: bool) -> None:
    if value is None and optional:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int{' or None' if optional else ''}, not {type(value).__name__}")
    if value < least:
        raise ValueError(f"{name} must be {least} or more, got {value}")


def _several(name: str, value: object) -> tuple[Any, ...]:
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise TypeError(f"{name} must be a list, not {type(value).__name__}")
    return tuple(value)


def _lanes(value: Any) -> tuple[Lane, ...]:
    lanes = _several("lanes", value)
    if not lanes or not all(isinstance(lane, Lane) for lane in lanes):
        raise TypeError("lanes must hold at least one Lane(...)")
    names = [lane.name for lane in lanes]
    if len(set(names)) != len(names):
        raise ValueError(f"lanes: two lanes have the same name among {names}")
    if sum(lane.guaranteed for lane in lanes) > 1 + 1e-9:
        raise ValueError("lanes: the guaranteed shares add up to more than 1")
    return lanes


def _placement(value: object) -> Placement:
    if isinstance(value, str) and value in POLICIES:
        return POLICIES[value]
    if callable(value):
        return value
    raise ValueError(
        f"placement must be a callable or one of {', '.join(map(repr, POLICIES))}, got {value!r}"
    )
