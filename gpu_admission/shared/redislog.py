"""A stream on a Redis or Valkey server as the log: one budget for processes on many hosts.

Two connections. One appends, from whatever thread has something to say, and never waits for an
answer; one reads, in a thread of its own. So it is the same under asyncio, trio and none, and a
loop that is blocked neither delays beats nor makes its process look dead. Owns the stream and
its snapshot; what entries mean is the replica's business.

How a loss is seen, so that it is never taken for an empty budget: no append makes the stream
(``NOMKSTREAM``); every session begins by finding the entry that was read last, on the very server
that it was read from; and an id that an append gets must lie behind it. Else ``Open`` is
appended: by it all who read begin anew at the same place.
"""

from __future__ import annotations

import contextlib
import logging
import random
import threading
import time
from collections import deque
from collections.abc import Collection, Sequence
from typing import Any

from gpu_admission.shared.operations import Open, encode
from gpu_admission.shared.protocol import Entry, Listener
from gpu_admission.shared.redisaddress import RedisAddress
from gpu_admission.shared.redisadvice import advice
from gpu_admission.shared.redisplace import is_place, just_before, order, seconds_of

logger = logging.getLogger("gpu_admission")

_OFTEN = 1000
"""Entries after which a snapshot is made: a newcomer reads about as many, or twice, in less than 100 ms."""
_KEPT = 50_000
"""Entries that are kept: how far a reader may fall behind before it has to begin anew."""
_AT_ONCE = 1000
_BLOCK = 1.0
_STALLED = _BLOCK + 0.5
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0
_START_WITHIN = 5.0
_UNSEEN = 32
_ENTRY_BYTES = 64
_chance = random.Random()
"""Its own: a thread must not draw from the sequence that the program may have seeded."""
_ENTRY, _OPENING, _PROBE = b"d", b"o", b"p"


class _Lost(Exception):
    """The stream that is there isn't the one that was read."""


class RedisLog:
    """``settle``: seconds for which a log that has begun anew grants nothing.

    Bytes of a process that was killed come back within 1.5 ``lease_ttl``.
    """

    is_immediate = False
    knows_deaths = False
    lifeline = None

    def __init__(self, address: RedisAddress, *, settle: float = 10.0, often: int = _OFTEN) -> None:
        self.where = address.where
        self._address = address
        self._settle = settle
        self._often = often
        self._stream = address.key("log")
        self._snapshot = address.key("snapshot")
        self._snapshot_at: bytes | None = None
        self._place: bytes | None = None
        self._read_at = 0.0
        self._run = address.key("run")
        self._server = b""
        self._seen = 0.0
        self._same_since = (0, 0.0)
        """The log's time at the last entry in milliseconds, and since when entries have had it."""
        self._read_since = 0
        self._writer: Writer | None = None
        self._stopped = threading.Event()
        self._tried = threading.Event()
        self._first_report = threading.Lock()
        """What is reported first stands: that it came back, or that it took too long."""
        self._refused: Exception | None = None
        self._has_checked = False
        self._thread = threading.Thread()

    # from any thread

    def missing(self) -> Sequence[str]:
        """Keys of a budget in use that are not there; none where the server does not say. Makes nothing."""
        from redis.exceptions import RedisError

        try:
            with self._address.client() as client:
                return [key for key in (self._run, self._stream) if not client.exists(key)]
        except (RedisError, OSError):
            return ()

    def start(self, process: str, listener: Listener) -> None:
        self._listener, self._place = listener, None
        for each in (self._stopped, self._tried):
            each.clear()
        self._thread = threading.Thread(target=self._sessions, name="gpu_admission.redis", daemon=True)
        self._thread.start()
        if not self._tried.wait(_START_WITHIN):
            self._report_slow(listener)
        if self._refused is not None:
            raise ValueError(
                f"the shared budget {self.where} did not let this process in "
                f"({self._address.hide(str(self._refused))}): {advice(self._refused, self._address)}"
            )

    def _report_slow(self, listener: Listener) -> None:
        with self._first_report:
            if not self._tried.is_set():
                listener.went_away(
                    f"the shared budget {self.where} did not answer within {_START_WITHIN:g} s: see that "
                    "shared= names a Redis server that is up"
                )

    def append(self, data: bytes) -> None:
        writer = self._writer
        if writer is not None:
            writer.add(data, self._place)

    def catch_up(self) -> bool:
        """The reader does that; here we only look at what became of what was appended."""
        writer = self._writer
        if writer is not None:
            writer.look()
        return False

    def wake(self, processes: Collection[str]) -> None:
        """Nothing to do: the server tells each process's reader."""

    def wait(self, seconds: float) -> None:
        self._stopped.wait(seconds)

    def is_alive(self, process: str) -> bool | None:
        return None

    def now(self) -> float:
        """The log's time: that of the last entry, and what has passed since it was read."""
        return seconds_of(self._place or b"0-0") + time.monotonic() - self._read_at

    def stop(self) -> None:
        """What was said last has been sent; the server has it even if this process ends now."""
        self._stopped.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(_START_WITHIN)

    # sessions, in the thread

    def _sessions(self) -> None:
        from redis.exceptions import AuthenticationError, AuthorizationError, NoPermissionError, RedisError

        pause = _FIRST_PAUSE
        while not self._stopped.is_set():
            try:
                self._session()
            except _Lost:
                continue
            except (RedisError, OSError) as error:
                denied = isinstance(error, (AuthenticationError, AuthorizationError, NoPermissionError))
                if denied and not self._tried.is_set():
                    self._refused = error
                    break
                pause = _FIRST_PAUSE if self._seen else min(_LONGEST_PAUSE, pause * 2)
                self._went_away(error)
            except Exception as error:  # what was read makes no sense; without this thread nothing is read
                logger.exception("reading the shared budget %s failed, and is begun again", self.where)
                self._place = None
                pause = _LONGEST_PAUSE
                self._went_away(error)
            self._stopped.wait(pause * _chance.uniform(0.5, 1.0))
        self._tried.set()

    def _went_away(self, error: Exception) -> None:
        said = self._address.hide(str(error)) or type(error).__name__
        what_to_do = advice(error, self._address)
        self._listener.went_away(f"the shared budget {self.where} can't be reached ({said}): {what_to_do}")
        self._tried.set()

    def _session(self) -> None:
        """Everything from connecting to the connection's end."""
        self._seen = 0.0
        with self._address.client() as reader, self._address.client() as client:
            self._check_server(reader)
            self._begin(reader)
            self._read_up_to(reader, self._probe(reader))
            writer = self._writer = Writer(client, self._stream)
            try:
                self._seen = time.monotonic()
                with self._first_report:
                    self._listener.came_back()
                    self._tried.set()
                self._read(reader, writer)
            finally:
                self._writer = None
                writer.close()

    def _check_server(self, client: Any) -> None:
        """Checked once: a server that may evict the log when memory runs short is no place for a budget."""
        if self._has_checked:
            return
        from redis.exceptions import ResponseError

        client.ping()
        with contextlib.suppress(ResponseError):  # some services don't allow the question
            policy = client.config_get("maxmemory-policy").get("maxmemory-policy", "noeviction")
            if policy != "noeviction":
                logger.warning(
                    "the shared budget %s lies on a server with maxmemory-policy=%s: it may throw the budget "
                    "away; set maxmemory-policy=noeviction",
                    self.where,
                    policy,
                )
        self._has_checked = True

    # which log this is

    def _begin(self, client: Any) -> None:
        """Go on behind what was read last; or begin with the snapshot, the opening, or a new log.

        A server that has started anew, or was promoted, may lack the end of what others have read:
        it begins a new log, even if this process misses nothing.
        """
        said = client.info()
        server = f"{said.get('run_id')}:{said.get('master_replid')}".encode()
        before, self._server = self._server, server
        run = client.hgetall(self._run)
        if run.get(b"server") != server:
            return self._open(client, "the server is another one, or lacks the log", server)
        if before == server and self._place is not None and self._has(client, self._place):
            return None
        snapshot = client.hgetall(self._snapshot)
        with contextlib.suppress(ValueError):  # one that can't be read is none
            if self._has(client, snapshot.get(b"place")):
                return self._restart(snapshot[b"place"], snapshot.get(b"state", b""))
        if self._has(client, run.get(b"opened")):
            return self._restart(just_before(run[b"opened"]), None)
        return self._open(client, "the log lacks what was read before", server)

    def _has(self, client: Any, place: bytes | None) -> bool:
        return is_place(place) and bool(client.xrange(self._stream, place, place))

    def _restart(self, place: bytes, snapshot: bytes | None) -> None:
        self._place = place
        self._read_since = 0
        self._snapshot_at = None if snapshot is None else place
        self._listener.restarted(snapshot)

    def _open(self, client: Any, why: str, server: bytes) -> None:
        data = encode("", 0, Open(self._settle, expires=True, why=why))
        place = client.execute_command("XADD", self._stream, "*", _OPENING, data)
        client.delete(self._snapshot)
        client.hset(self._run, mapping={"server": server, "opened": place})
        said = "the shared budget %s begins anew (%s): it grants nothing for %g s"
        logger.warning(said, self.where, why, self._settle)
        self._restart(just_before(place), None)

    def _probe(self, client: Any) -> bytes:
        """An empty entry: the server takes writes, and what is read up to it is all there is."""
        place: bytes | None = client.execute_command(*_add(self._stream, _PROBE, b""))
        if place is None:
            raise _Lost
        return place

    # reading

    def _read_up_to(self, client: Any, last: bytes) -> None:
        while order(self._place or b"0-0") < order(last):
            if not self._take(client.xread({self._stream: self._place}, count=_AT_ONCE)):
                raise _Lost

    def _read(self, client: Any, writer: Writer) -> None:
        block = int(_BLOCK * 1000)
        while not self._stopped.is_set():
            has_news = self._take(client.xread({self._stream: self._place}, count=_AT_ONCE, block=block))
            now = time.monotonic()
            if now - self._seen > _STALLED and not self._has(client, self._place or b""):
                raise _Lost  # this process stood still for so long that the log was cut behind it
            self._seen = now
            if writer.failure is not None:
                raise writer.failure
            if has_news and self._stands_still(client, now):
                client.delete(self._stream, self._snapshot)
                raise _Lost
            if self._read_since >= self._often:
                self._save(client)

    def _stands_still(self, client: Any, now: float) -> bool:
        """Whether the log's time stands still, since the server's clock was set back: nobody would die."""
        at = order(self._place or b"0-0")[0]
        if at != self._same_since[0]:
            self._same_since = at, now
        if now - self._same_since[1] < _STALLED:
            return False
        self._same_since = at, now
        seconds, microseconds = client.time()
        behind = at / 1000 - seconds - microseconds / 1e6
        if behind <= self._settle / 2 or not self._has(client, self._place or b""):
            return False
        logger.warning(
            "the clock of the server of the shared budget %s was set back by %.0f s: the budget begins anew; "
            "let the server's clock be set in small steps (NTP)",
            self.where,
            behind,
        )
        return True

    def _take(self, said: Sequence[Any]) -> bool:
        if not said:
            return False
        entries = []
        for place, fields in said[0][1]:
            self._place = place
            data = fields.get(_ENTRY) or fields.get(_OPENING)
            if data is not None:
                entries.append(Entry(seconds_of(place), data))
        self._read_at = time.monotonic()
        self._read_since += len(entries)
        if entries:
            self._listener.received(entries)
        return True

    # a snapshot, so that a newcomer needn't read everything

    def _save(self, client: Any) -> None:
        """Write down what was read so far, unless another process has since this one last looked."""
        from redis.exceptions import WatchError

        place, last = self._place, client.hget(self._snapshot, "place")
        assert place is not None
        size = client.hstrlen(self._snapshot, "state")
        self._read_since = -(size // _ENTRY_BYTES)  # a large one is made more seldom
        if last != self._snapshot_at or (is_place(last) and order(last) >= order(place)):
            self._snapshot_at = last
            return
        state = self._listener.snapshot()
        with contextlib.suppress(WatchError), client.pipeline() as pipeline:
            pipeline.watch(self._snapshot)
            if pipeline.hget(self._snapshot, "place") != last:
                return
            pipeline.multi()
            pipeline.hset(self._snapshot, mapping={"place": place, "state": state})
            pipeline.xtrim(self._stream, maxlen=_KEPT, approximate=True)
            pipeline.execute()
            self._snapshot_at = place


class Writer:
    """The connection that appends. The reader looks at the results later."""

    def __init__(self, client: Any, stream: str) -> None:
        self.failure: Exception | None = None
        self._stream = stream
        self._lock = threading.Lock()
        self._pool = client.connection_pool
        self._connection = self._pool.get_connection()
        self._after: deque[bytes] = deque()
        """For each append on its way: what had been read before."""

    def add(self, data: bytes, place: bytes | None) -> None:
        """Append; it costs as much as a write to a socket."""
        with self._lock:
            if self.failure is not None:
                return
            try:
                self._connection.send_command(*_add(self._stream, _ENTRY, data))
                self._after.append(place or b"0-0")
                if len(self._after) > _UNSEEN:
                    self._look()
            except Exception as error:
                self.failure = error

    def look(self) -> None:
        """See what became of it."""
        with self._lock:
            try:
                self._look()
            except Exception as error:
                self.failure = error

    def _look(self) -> None:
        while self._after and self._connection.can_read(0):
            place = self._connection.read_response()
            if place is None or order(place) <= order(self._after.popleft()):
                raise _Lost

    def close(self) -> None:
        with self._lock:
            self.failure = self.failure or _Lost()
            self._connection.disconnect()
            self._pool.release(self._connection)


def _add(stream: str, field: bytes, data: bytes) -> tuple[Any, ...]:
    return "XADD", stream, "NOMKSTREAM", "*", field, data
