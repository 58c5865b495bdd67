"""Checked settings: sizes in bytes, times in seconds, each with its default and its check.

Nothing here acts on a setting. What each means is said in ``options``.
"""

# ruff: noqa: RUF009 (each call makes a dataclass field)
from __future__ import annotations

import difflib
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeVar, cast

from gpu_admission.bodies.json import MAX_JSON_VALUES
from gpu_admission.budget.lanes import Lane
from gpu_admission.budget.placement import POLICIES, Placement
from gpu_admission.request import Dialect, RequestInfo
from gpu_admission.rules.metering import DEFAULT_METHODS, Metering, method_names
from gpu_admission.rules.patterns import Patterns
from gpu_admission.settings import checks
from gpu_admission.settings.options import EstimatorSetting, OnReject
from gpu_admission.sizes import parse_bytes
from gpu_admission.types import Device, Guard, Observer

T = TypeVar("T")


def _as_it_is(name: str, value: Any) -> Any:
    """For what ``Metering`` checks, where it is made of it."""
    return value


def _estimator(name: str, value: Any) -> Any:
    if value is None:
        raise TypeError("estimator must be a size, a callable, or a dict of path patterns to those, not None")
    return value


def _capacity(name: str, value: Any) -> int | str | None:
    if value is None:
        return None
    if isinstance(value, str) and value.strip().endswith("%"):
        if not 0 < _percents(value.strip()[:-1]) <= 100:
            raise ValueError(f"capacity={value!r}: a percentage is above 0 and at most 100")
        return value.strip()
    size = parse_bytes(value, name="capacity")
    if not size:
        raise ValueError("capacity must be above 0 bytes: nothing could ever start")
    if isinstance(value, str) and size <= 100:
        raise ValueError(f"capacity={value!r} is {size} bytes: write '{size}%' or '{size}GiB'")
    return size


def _percents(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _paths(name: str, value: Any) -> tuple[str, ...]:
    return Patterns(value, name=name).patterns


def _methods(name: str, value: Any) -> tuple[str, ...]:
    return method_names(value)


def _fallback(name: str, value: Any) -> int:
    size = parse_bytes(value, name="fallback")
    if not size:
        raise ValueError("fallback must be above 0 bytes: a body that can't be read is not free")
    return size


def _lanes(name: str, value: Any) -> tuple[Lane, ...]:
    lanes = checks.several("lanes", value)
    if not lanes or not all(isinstance(lane, Lane) for lane in lanes):
        raise TypeError("lanes must hold at least one Lane(...)")
    names = [lane.name for lane in lanes]
    if len(set(names)) != len(names):
        raise ValueError(f"lanes: two lanes have the same name among {names}")
    if sum(lane.guaranteed for lane in lanes) > 1 + 1e-9:
        raise ValueError("lanes: the guaranteed shares add up to more than 1")
    return lanes


def _devices(name: str, value: Any) -> tuple[Device, ...]:
    devices: tuple[Device, ...] = () if value is None else checks.every(Device)(name, value)
    keys = [device.key for device in devices]
    twice = next((key for key in keys if keys.count(key) > 1), None)
    if twice is not None:
        raise ValueError(f"devices: {twice} is there twice, and would be given out twice")
    return devices


def _observers(name: str, value: Any) -> tuple[Observer, ...]:
    observers = checks.several(name, value)
    if not all(callable(observer) for observer in observers):
        raise TypeError("observers must be callables of one Event")
    return observers


def _placement(name: str, value: Any) -> Placement:
    if isinstance(value, str) and value in POLICIES:
        return POLICIES[value]
    if callable(value):
        return cast(Placement, value)
    known = ", ".join(map(repr, POLICIES))
    raise ValueError(f"placement must be a callable or one of {known}, got {value!r}")


def _lease_ttl(name: str, value: Any) -> float:
    """Below a second a busy machine would look dead; what is endless would never give bytes back."""
    if not 1 <= checks.number(name, value) < math.inf:
        raise ValueError(f"{name} must be 1 second or more, and finite, got {value!r}")
    return float(value)


def _status(name: str, value: Any) -> int:
    if isinstance(value, bool) or value not in range(400, 600):
        raise ValueError(f"{name} must be an HTTP error status or None, got {value!r}")
    return int(value)


def _setting(check: checks.Check[T], default: object) -> T:
    """A field whose value is what ``check`` makes of what was given, or of ``default``."""
    return cast(T, field(default=default, metadata={"check": check}))


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Checked settings; see ``Options`` for what each means."""

    estimator: EstimatorSetting = _setting(_estimator, "auto")
    model: Any = _setting(_as_it_is, None)
    state: str | os.PathLike[str] | None = _setting(checks.optional(checks.path), None)
    capacity: int | str | None = _setting(_capacity, None)
    timeout: float = _setting(checks.number, 30.0)
    max_waiting: int = _setting(checks.count(0), 100)
    max_running: int | None = _setting(checks.optional(checks.count(1)), None)
    max_body_bytes: int = _setting(checks.size, 64 * 2**20)
    max_json_values: int = _setting(checks.count(1), MAX_JSON_VALUES)
    max_buffered_bytes: int = _setting(checks.size, 2**30)
    body_timeout: float = _setting(checks.number, 60.0)
    send_timeout: float = _setting(checks.number, 60.0)
    fallback: int | None = _setting(checks.optional(_fallback), None)
    routes: tuple[str, ...] | None = _setting(checks.optional(_paths), None)
    exclude: tuple[str, ...] = _setting(_paths, ())
    control: tuple[str, ...] = _setting(_paths, ())
    websockets: tuple[str, ...] = _setting(_paths, ())
    methods: tuple[str, ...] = _setting(_methods, DEFAULT_METHODS)
    dialect: str | Dialect | Mapping[str, str | Dialect] | None = _setting(_as_it_is, None)
    lanes: tuple[Lane, ...] = _setting(_lanes, (Lane("default"),))
    lane: Callable[[RequestInfo], str | None] | None = _setting(checks.optional(checks.function), None)
    flow: Callable[[RequestInfo], object] | None = _setting(checks.optional(checks.function), None)
    max_waiting_per_flow: int | None = _setting(checks.optional(checks.count(1)), None)
    max_bypass: int = _setting(checks.count(0), 32)
    max_bypass_wait: float = _setting(checks.number, 30.0)
    refuse_early: bool = _setting(checks.flag, False)
    devices: tuple[Device, ...] = _setting(_devices, ())
    guards: tuple[Guard, ...] | None = _setting(checks.optional(checks.every(Guard)), None)
    placement: Placement = _setting(_placement, "most_free")
    overcommit: float = _setting(checks.factor, 1.0)
    reserve: int = _setting(checks.size, 0)
    require_gpu: bool = _setting(checks.flag, False)
    strict: bool = _setting(checks.flag, False)
    classify: Callable[[BaseException], Literal["oom", "fault"] | None] | None = _setting(
        checks.optional(checks.function), None
    )
    observers: tuple[Observer, ...] = _setting(_observers, ())
    margin: float | None = _setting(checks.optional(checks.share), None)
    mode: Literal["enforce", "shadow", "off"] = _setting(checks.word("enforce", "shadow", "off"), "enforce")
    hold: Literal["app", "response"] = _setting(checks.word("app", "response"), "app")
    on_reject: OnReject = _setting(checks.word_or_callable("problem", "openai"), "problem")
    on_fault: Literal["close", "exit"] | Callable[[str], object] = _setting(
        checks.word_or_callable("close", "exit"), "close"
    )
    while_waiting: Literal["sse"] | None = _setting(checks.optional(checks.word("sse")), None)
    oom_event: bool = _setting(checks.flag, False)
    oom_status: int | None = _setting(checks.optional(_status), None)
    clamp_new_tokens: bool = _setting(checks.flag, False)
    server_timing: bool = _setting(checks.flag, False)
    load_header: bool = _setting(checks.flag, False)
    profile: int = _setting(checks.count(0), 0)
    shared: Any = field(default=None, metadata={"check": _as_it_is}, repr=False)
    """It may hold a password."""
    shared_fallback: float = _setting(checks.share, 0.0)
    lease_ttl: float = _setting(_lease_ttl, 10.0)
    name: str = _setting(checks.text, "default")

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Settings:
        """Settings from keywords; an unknown one is a ``TypeError`` that names it."""
        known = [each.name for each in fields(cls)]
        for name in options:
            if name not in known:
                close = difflib.get_close_matches(name, known, n=1)
                hint = f"; did you mean {close[0]!r}?" if close else ""
                raise TypeError(f"Admission has no setting {name!r}{hint}")
        return cls(**options)

    def __post_init__(self) -> None:
        for each in fields(self):
            checked = each.metadata["check"](each.name, getattr(self, each.name))
            object.__setattr__(self, each.name, checked)
        if self.shared is not None and self.placement not in POLICIES.values():
            raise ValueError(
                "placement: processes that share a budget must decide alike: with shared it is one of "
                f"{', '.join(map(repr, POLICIES))}"
            )

    def _made(self) -> object:
        """The setting ``estimator`` with each ``"auto"`` in it made."""
        given = self.estimator
        named = list(given.values()) if isinstance(given, Mapping) else [given]
        if not any(isinstance(each, str) and each == "auto" for each in named):
            if self.model is not None:
                raise ValueError("model is for estimator='auto', and another one is given")
            return given
        from gpu_admission.estimators.auto import auto, check

        self._check_connections()
        if self.model is None and self.mode != "off":
            check(self.capacity, self.devices)
        try:
            made = auto(model=self.model, waits=self.mode == "enforce")
        except (OSError, ValueError) as error:
            raise ValueError(f"model: {error}") from None
        except TypeError as error:
            raise TypeError(f"model: {error}") from None
        if not isinstance(given, Mapping):
            return made
        return {path: made if each == "auto" else each for path, each in given.items()}

    def _check_connections(self) -> None:
        """Raises ``ValueError`` where ``"auto"`` would have to measure what may stay open for ever."""
        for path in self.websockets:
            if not isinstance(self.estimator, Mapping) or self.estimator.get(path) == "auto":
                raise ValueError(
                    "websockets: estimator='auto' measures requests, and no connection that stays open: "
                    f"name the estimator of these paths: estimator={{{path!r}: '1GiB', '/**': 'auto'}}"
                )

    def metering(self) -> Metering:
        return Metering(
            self._made(),
            routes=self.routes,
            exclude=self.exclude,
            control=self.control,
            websockets=self.websockets,
            methods=self.methods,
            dialect=self.dialect,
        )
