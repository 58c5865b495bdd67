"""What processes say to each other: the operations on a shared ledger, and their bytes.

Owns the format. Everything is data of known shapes and bounded sizes; nothing in it can be
executed. Names of clients never get here: flows are hashed before (see ``flow_key``).
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec

from gpu_admission.budget.lanes import Lane

RULES = 3
"""Version of the operations and of the ledger's rules. Processes with different ones can't share."""

MOST_BYTES = 1 << 20
MOST_OPERATIONS = 512
MOST_HELD = 10_000
MOST_TOLD = 1 << 15

T = TypeVar("T")
_Natural = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
_Name = Annotated[str, msgspec.Meta(max_length=128)]
_Flow = Annotated[bytes, msgspec.Meta(max_length=32)]


class Ask(msgspec.Struct, array_like=True, frozen=True, tag=1):
    """``number`` wants ``size`` bytes; ``lane`` is a place in the lanes of its own process."""

    number: _Natural
    size: _Natural
    lane: _Natural = 0
    flow: _Flow | None = None


class End(msgspec.Struct, array_like=True, frozen=True, tag=2):
    """``number`` is over: it gives its bytes back, or leaves the queue."""

    number: _Natural


class Change(msgspec.Struct, array_like=True, frozen=True, tag=3):
    """``number`` now holds ``size`` bytes; where ``must_fit``, only if it can grow that far."""

    number: _Natural
    size: _Natural
    must_fit: bool = False


class Beat(msgspec.Struct, array_like=True, frozen=True, tag=4):
    """The process lives. On each device it holds ``resident`` bytes, and its leases take ``taken``.

    ``told`` is what its estimators have learned since the last: see ``gossip``.
    """

    resident: tuple[_Natural, ...] = ()
    taken: tuple[_Natural, ...] = ()
    told: Annotated[bytes, msgspec.Meta(max_length=MOST_TOLD)] = b""


class Held(msgspec.Struct, array_like=True, frozen=True):
    """Bytes that a process uses already, for ``age`` seconds so far."""

    number: _Natural
    size: _Natural
    device: _Natural
    lane: _Natural
    flow: _Flow | None
    age: Annotated[float, msgspec.Meta(ge=0)]


class Terms(msgspec.Struct, array_like=True, frozen=True):
    """The settings that all processes of one budget must agree on.

    ``capacities`` in bytes, one a device (0: not measured yet); ``lease_ttl`` in seconds. ``defaults``
    names those that were not given to this process: they count only until one comes that has them.
    """

    capacities: Annotated[tuple[_Natural, ...], msgspec.Meta(min_length=1, max_length=64)]
    lanes: Annotated[tuple[Lane, ...], msgspec.Meta(min_length=1, max_length=256)] = (Lane("default"),)
    max_waiting: _Natural = 100
    max_waiting_per_flow: _Natural | None = None
    max_running: _Natural | None = None
    max_bypass: _Natural = 32
    max_bypass_wait: float = 30.0
    placement: _Name = "most_free"
    lease_ttl: Annotated[float, msgspec.Meta(gt=0)] = 10.0
    defaults: Annotated[tuple[_Name, ...], msgspec.Meta(max_length=64)] = ()

    def given(self) -> list[str]:
        """The names of those that were given. A capacity that is measured is not."""
        left = {*self.defaults, "defaults"} | (set() if any(self.capacities) else {"capacities"})
        return [name for name in TERMS if name not in left]


TERMS = Terms.__struct_fields__


class Join(msgspec.Struct, array_like=True, frozen=True, tag=5):
    """A process takes part, on ``terms``: of each of them, the newest that was given is in force for all.

    ``since``: when it first said so, by the log's time (0: now). ``former``: the membership
    that it had before and that it claims back. ``devices``: a key for each of those that it names.
    """

    pid: _Natural
    host: _Name
    terms: Terms
    since: float = 0.0
    former: _Name = ""
    holds: Annotated[tuple[Held, ...], msgspec.Meta(max_length=MOST_HELD)] = ()
    devices: Annotated[tuple[_Name, ...], msgspec.Meta(max_length=64)] = ()


class Why(msgspec.Struct, array_like=True, frozen=True):
    """Which guard says it, and for how many seconds at least (``None``: it doesn't know)."""

    guard: Annotated[str, msgspec.Meta(max_length=128)]
    reason: Annotated[str, msgspec.Meta(max_length=512)]
    restart_only: bool = False
    seconds: float | None = None


class Allow(msgspec.Struct, array_like=True, frozen=True, tag=6):
    """What the guards of a process say of a device; the lowest of all processes counts."""

    device: _Natural
    capacity: _Natural | None = None
    ceiling: _Natural | None = None
    max_running: _Natural | None = None
    why: Why | None = None


class Gone(msgspec.Struct, array_like=True, frozen=True, tag=7):
    """``member`` is over. Unless that is ``certain``, its bytes rest before others get them."""

    member: _Name
    certain: bool


class Refuse(msgspec.Struct, array_like=True, frozen=True, tag=8):
    """Send away all that wait in the process that says so."""


class Drain(msgspec.Struct, array_like=True, frozen=True, tag=9):
    """Let nothing in from now on, in any process; or, not ``closed``, let them in again."""

    closed: bool = True


class Adopt(msgspec.Struct, array_like=True, frozen=True, tag=10):
    """Count bytes that were taken while the log was away."""

    holds: Annotated[tuple[Held, ...], msgspec.Meta(max_length=MOST_HELD)]


class Resize(msgspec.Struct, array_like=True, frozen=True, tag=11):
    """New capacities, in bytes, one a device."""

    capacities: Annotated[tuple[_Natural, ...], msgspec.Meta(min_length=1, max_length=64)]


class Open(msgspec.Struct, array_like=True, frozen=True, tag=12):
    """A log begins, or begins anew: nothing said before counts.

    Nothing is granted for ``settle`` seconds, in which processes declare what they hold.
    ``expires``: one that is silent for ``lease_ttl`` is dead.
    """

    settle: Annotated[float, msgspec.Meta(ge=0)]
    expires: bool
    why: Annotated[str, msgspec.Meta(max_length=512)] = ""


Operation: TypeAlias = (
    Ask | End | Change | Beat | Join | Allow | Gone | Refuse | Drain | Adopt | Resize | Open
)


class Message(msgspec.Struct, array_like=True, frozen=True):
    """One entry: what ``member`` says, as its ``serial``-th."""

    rules: int
    member: _Name
    serial: _Natural
    operations: Annotated[tuple[Operation, ...], msgspec.Meta(max_length=MOST_OPERATIONS)]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Message).decode
_decode_anything = msgspec.msgpack.Decoder().decode


_SHORT = struct.Struct("<BBHQQQQ")
_FIRST = 0xC1
"""Of a short entry: what no msgpack begins with."""
_SHORT_OF_THESE = bytes((_FIRST, RULES))
_pack = _SHORT.pack
unpack_short = _SHORT.unpack_from
"""First byte, ``RULES``, lane, serial, the number that ends, the number that asks (0: none) and its size."""
NAME = _SHORT.size
"""Where the member's name begins in a short entry."""


def encode_short(member: bytes, serial: int, ended: int, number: int, size: int, lane: int) -> bytes:
    """The bytes of an entry that says what most say: an end, an ask without a flow, or both."""
    return _pack(_FIRST, RULES, lane, serial, ended, number, size) + member


def is_short(data: bytes) -> bool:
    """Whether this is a short entry of these rules."""
    return data[:2] == _SHORT_OF_THESE and len(data) >= NAME


def _decode_short(data: bytes) -> Message:
    _, rules, lane, serial, ended, number, size = unpack_short(data)
    end = (End(ended),) if ended else ()
    ask = (Ask(number, size, lane),) if number else ()
    return Message(rules, data[NAME:].decode("utf-8", "replace"), serial, (*end, *ask))


def parts(items: Iterable[T], most: int) -> list[tuple[T, ...]]:
    """``items`` in parts of at most so many, as one entry takes them; none for none."""
    whole = tuple(items)
    return [whole[place : place + most] for place in range(0, len(whole), most)]


def encode(member: str, serial: int, *operations: Operation) -> bytes:
    """The bytes of one entry. Raises ``ValueError`` above ``MOST_OPERATIONS`` or ``MOST_BYTES``."""
    data = _encode((RULES, member, serial, operations))
    if len(operations) > MOST_OPERATIONS or len(data) > MOST_BYTES:
        raise ValueError(f"an entry takes at most {MOST_OPERATIONS} operations and {MOST_BYTES} bytes")
    return data


def decode(data: bytes) -> Message | None:
    """What an entry says; ``None`` for one that nobody of this version can have written."""
    if is_short(data):
        return _decode_short(data)
    try:
        return _decode(data)
    except (msgspec.ValidationError, msgspec.DecodeError):
        return None


def rules_of(data: bytes) -> int | None:
    """Which version of the rules wrote an entry; ``None`` where that can't be read."""
    if data[:1] == _SHORT_OF_THESE[:1]:
        return data[1] if len(data) >= NAME else None
    try:
        said: Any = _decode_anything(data)
    except msgspec.DecodeError:
        return None
    return said[0] if isinstance(said, list) and said and isinstance(said[0], int) else None


def flow_key(flow: object) -> bytes | None:
    """A flow's key on the wire: tells flows apart, and says nothing about whose they are."""
    if flow is None:
        return None
    return hashlib.blake2b(repr(flow).encode(), digest_size=12).digest()
