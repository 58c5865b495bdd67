"""The nouns and protocols, in the order of the flow: request, workload, estimate, device, guard.

Values only: nothing here waits, decides or touches a device.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import msgspec

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
ASGIApp: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """What a request asks for, read from its body by a dialect. All sizes are finite and >= 0.

    A dialect fills what it knows; an estimator reads what it needs.
    """

    task: str = "generate"
    """``generate``, ``embed``, ``rerank``, ``image``, ``video``, ``transcribe``, ``speech`` or ``infer``."""
    prompt_tokens: int = 0
    """Tokens of the longest prompt (row), special tokens included; for a chat's template there is an
    allowance."""
    total_prompt_tokens: int = 0
    """Sum over the distinct prompts; 0 = one prompt (then it is ``prompt_tokens``)."""
    new_tokens: int = 0
    """The most new tokens that each sequence may have; the dialect's ``default_new_tokens`` where the body
    names no limit (then ``defaulted`` says so)."""
    sequences: int = 1
    """Rows that run at once: prompts x choices (n, best_of, beams, batch size, documents)."""
    beams: int = 1
    """Beam width inside ``sequences`` (already multiplied into it)."""
    prompt_logprobs: bool = False
    """Logits of every prompt position are kept (``echo`` with ``logprobs`` and its kin)."""
    images: tuple[tuple[int, int], ...] = ()
    """(width, height) in pixels of each input image; (0, 0) = size unknown (a remote URL)."""
    width: int = 0
    """Width and ``height`` of the largest image that is made, in pixels (after hires upscaling)."""
    height: int = 0
    frames: int = 0
    """Frames of the video that is made; 0 = a picture, or not said."""
    audio_seconds: float = 0.0
    tensor_bytes: int = 0
    """Bytes of the input tensors of an inference call, shared memory regions included."""
    context: int = 0
    """Context length that the request makes the server load (Ollama ``num_ctx``); 0 = not asked."""
    model: str | None = None
    stream: bool = False
    defaulted: tuple[str, ...] = ()
    """Fields that were absent and took the dialect's default, e.g. ``("max_tokens",)``."""
    features: Mapping[str, float] = msgspec.field(default_factory=dict)
    """Further named numbers (``Fields(...)``), for ``Linear`` and ``Table``."""


class Usage(msgspec.Struct, frozen=True):
    """The usage that an answer reports for its request; ``None`` where it reports none."""

    prompt_tokens: int | None = None
    """Tokens of all prompts together, including those from a cache."""
    new_tokens: int | None = None
    """New tokens of all sequences together."""


SIZES = (
    *("prompt_tokens", "new_tokens", "sequences", "beams", "width", "height", "frames"),
    *("audio_seconds", "tensor_bytes", "context"),
)
"""Names of the ``Workload`` fields that are sizes in their own right."""


class Estimate(msgspec.Struct, frozen=True):
    """What a request will take: ``bytes`` to charge, and how that came about."""

    bytes: int
    low: int | None = None
    """The least it may take, where that is up to the runtime; ``None`` = same as ``bytes``."""
    basis: Literal["device", "pool"] = "device"
    """``device`` memory, or blocks inside a ``pool`` that the engine has already allocated."""
    parts: Mapping[str, int] = msgspec.field(default_factory=dict)
    """Bytes of each named term."""
    notes: tuple[str, ...] = ()
    """What was assumed, e.g. ``max_tokens was absent: 1024 assumed``."""


class DeviceReading(msgspec.Struct, frozen=True, kw_only=True):
    """One look at a device. ``None`` is unknown, which is never zero. Memory in bytes."""

    total: int | None = None
    usable: int | None = None
    """Bytes to plan with, where that is less than ``total`` (half of a WDDM card)."""
    allowance: int | None = None
    """Most that this process may use, where it has a limit of its own (CUDA MPS)."""
    used: int | None = None
    """Used by everyone on the device."""
    free: int | None = None
    ours: int | None = None
    """Used by this process (and its workers), context included, where the driver reports it."""
    reserved: int | None = None
    """Held by this process's allocator: allocated + reusable cache."""
    allocated: int | None = None
    temperature: float | None = None
    """Degrees Celsius."""
    utilization: float | None = None
    """0..1."""
    faults: tuple[str, ...] = ()
    """Sticky faults that the driver reports (ECC, Xid)."""
    taken_at: float = 0.0
    """``time.monotonic()`` of the reading."""
    error: str | None = None
    """Why fields are missing, in one line; ``None`` when nothing failed."""
    capacity: int | None = None
    """Bytes that leases on this device may hold; filled in by the admission, for guards."""
    held: int | None = None
    """Bytes that leases held while it was read; filled in by the admission, for guards."""

    @property
    def foreign(self) -> int | None:
        """Used by other processes."""
        return None if self.used is None or self.ours is None else max(0, self.used - self.ours)


@runtime_checkable
class Device(Protocol):
    """A place with memory. ``read`` may block: it is called in a thread, with a time limit."""

    @property
    def name(self) -> str: ...

    @property
    def key(self) -> str:
        """Identity that outlives order: a UUID, MIG id, or a fixed name."""
        ...

    def read(self) -> DeviceReading:
        """A new reading; fields that fail are ``None``. Never raises."""
        ...


class Outcome(msgspec.Struct, frozen=True):
    """How a lease ended. Guards learn from these."""

    kind: Literal["ok", "error", "oom", "fault", "client"]
    """``client``: the client left, or the request was cancelled; it says nothing about the device."""
    bytes: int
    error: str = ""
    """Name of the exception's class."""
    at: float = 0.0


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """A guard's answer when a number of bytes alone does not say it all."""

    bytes: int | None = None
    """Bytes that may be held; 0 closes the device, ``None`` leaves the capacity as it is."""
    reason: str = ""
    """Why, in one sentence."""
    restart_only: bool = False
    """Closed for good: refusals carry no ``Retry-After``, and readiness fails."""
    retry_at: float | None = None
    """When the guard's answer next changes by itself, on the same clock as ``now``."""
    trials: int | None = None
    """How many leases may run on the device at once while it is tried out; ``None``: no limit."""
    clamp: float | None = None
    """Factor applied to new tokens where ``clamp_new_tokens`` is set."""
    action: Callable[[], object] | None = None
    """A slow function to be called once, in a thread of its own."""


@runtime_checkable
class Guard(Protocol):
    """Lowers the ceiling of one device's budget. It must not block: see ``ceiling``.

    Called after each reading, at once after an outcome that was out-of-memory or a device fault,
    and after every outcome while it sets ``trials``. Each device has its own copy of the guard.
    A guard that needs readings of the device is a ``DeviceGuard``.
    """

    name: str
    reason: str
    """Why the last ceiling was set, in one sentence; empty when there is none."""

    def ceiling(
        self, readings: Sequence[DeviceReading], outcomes: Sequence[Outcome], now: float
    ) -> int | Limit | None:
        """Bytes that may be held (0 closes), a ``Limit`` that says more, or ``None`` for no opinion.

        ``readings`` are this device's latest, oldest first; ``outcomes`` are those since the last
        call (at most the last 1024). Nothing can start while it runs, so slow work belongs in
        ``action``. A guard that raises is ignored until it works again.
        """
        ...


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that happened to a request. Every observer gets it; it carries no body and no key."""

    kind: Literal["started", "admitted", "refused", "disconnected", "resized", "released", "shadow"]
    """``started``: work begins in this process. ``resized``: ``bytes`` is what the lease holds now."""
    at: float
    """``time.monotonic()``."""
    route: str
    """The route pattern that matched, or ``*``; never the raw path."""
    lane: str
    reason: str = ""
    """Why it was refused; in ``shadow`` mode, why it would have been."""
    status: int = 0
    bytes: int = 0
    waited: float = 0.0
    held: float = 0.0
    device: str = ""
    peak: int | None = None
    """Measured bytes, where the app reported them (``lease.record_peak``)."""
    actual: int | None = None
    """For ``released``: bytes that it took, where that is known: ``peak``, or what was learned of it
    (``Lease.actual``). To be read beside ``estimate``."""
    outcome: str = ""
    """For ``released``: ``Outcome.kind``."""
    lease: int = 0
    """A number that all events of one lease share."""
    defaulted: tuple[str, ...] = ()
    estimate: Estimate | None = None

    @property
    def charged(self) -> int:
        """Bytes of ``estimate``; without one, ``bytes``."""
        return self.bytes if self.estimate is None else self.estimate.bytes


Observer: TypeAlias = Callable[[Event], None]
"""Called with each event. It may also be a ``WatchingObserver``, a ``NamingObserver`` or a
``FlushingObserver``."""


@runtime_checkable
class WatchingObserver(Protocol):
    """An observer that also reads its admission, for example for gauges that are computed on request."""

    def __call__(self, event: Event, /) -> None: ...

    def watch(self, admission: Any, /) -> None:
        """Called once with the ``Admission``, before the first event."""
        ...


@runtime_checkable
class NamingObserver(Protocol):
    """An observer that needs request ids: each request gets one, for ``observe.current_request_id``."""

    @property
    def needs_request_id(self) -> bool: ...

    def __call__(self, event: Event, /) -> None: ...


@runtime_checkable
class FlushingObserver(Protocol):
    """An observer that works off events later, such as in a thread of its own."""

    def __call__(self, event: Event, /) -> None: ...

    def flush(self) -> None:
        """Work off what was told so far: the process may end now, by a signal that lets nothing else run.

        Called in a thread when the server shuts down and in ``Admission.aclose``; more events may follow.
        """
        ...


class Waiting(msgspec.Struct, frozen=True):
    """One request in the queue; bytes and seconds."""

    lane: str
    bytes: int
    waited: float
    forecast: float | None
    """Seconds until its bytes should be free; ``None`` = not known."""


class Place(msgspec.Struct, frozen=True):
    """Where one request is in the queue."""

    number: int
    """From 1, by priority of its lane, then by arrival."""
    of: int
    """How many wait in all."""
    forecast: float | None
    """Seconds until its bytes should be free; ``None`` = not known."""


class LaneSnapshot(msgspec.Struct, frozen=True):
    name: str
    in_use: int
    waiting: int
    waiting_bytes: int
    guaranteed: int
    limit: int


class DeviceSnapshot(msgspec.Struct, frozen=True):
    name: str
    capacity: int
    in_use: int
    ceiling: int | None
    closed_by: str | None
    """Name of the guard that set the ceiling; ``capacity`` while the capacity can't be measured."""
    reason: str
    reading: DeviceReading | None
    reading_age: float | None
    """Seconds."""
    restart_only: bool = False
    """Closed for good: only restarting the process reopens it."""


class MemberSnapshot(msgspec.Struct, frozen=True):
    """One process of a shared budget; bytes, counts and seconds."""

    name: str
    """The name by which ``gpu-admission budget evict`` knows it."""
    pid: int
    host: str
    age: float
    """Seconds since it joined."""
    silent: float
    """Seconds since it was last heard from."""
    bytes: int
    running: int
    waiting: int
    resident: tuple[int, ...]
    """Bytes that it holds on each device besides its leases, where that is measured."""
    is_self: bool
    is_dead: bool
    """It was declared dead; its bytes are held back for a while before others get them."""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Everything at one instant; bytes, counts and seconds."""

    capacity: int
    """Summed over devices."""
    in_use: int
    available: int
    """What could be granted now on the emptiest device set: ceiling less in use, never negative."""
    running: int
    waiting: int
    waiting_bytes: int
    buffered_bytes: int
    peak: int
    """Most bytes ever held at once."""
    ceiling: int
    """What guards allow now, summed over devices; at most ``capacity``."""
    closed_by: str | None
    draining: bool
    """Whether this process takes its leave: traffic should go elsewhere. ``closed_by`` says whether
    anything may start."""
    mode: str
    forecast: float | None
    """Seconds that a request of the median size would wait if it came now; ``None`` = not known."""
    lanes: tuple[LaneSnapshot, ...]
    devices: tuple[DeviceSnapshot, ...]
    counts: Mapping[str, int]
    """``admitted`` and ``disconnected`` since start, and each refusal by its reason."""
    last_success: float | None = None
    """Seconds since a lease last ended well; ``None`` = none has yet."""
    shared: str | None = None
    """Name of the budget that several processes share. All figures but ``counts``,
    ``buffered_bytes`` and ``last_success`` then cover all of these processes."""
    members: tuple[MemberSnapshot, ...] = ()
    """The processes that share the budget; empty where it is this process's own."""
    away: str | None = None
    """Why the shared budget can't be reached just now."""
    cut_off: bool = False
    """It could not be reached since this process began: nothing starts here before it is."""
    settles: float | None = None
    """Seconds until a shared budget that has begun anew lets anything start; ``None`` when it does."""

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON types."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain
