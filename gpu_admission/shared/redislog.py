"""A stream on a Redis or Valkey server as the log: one budget for processes on many hosts.

Its client lives in a thread with an event loop of its own, whatever loop the program runs, if
any: so a loop that is blocked neither delays beats nor makes its process look dead. Two
connections: one appends, one reads. Owns the stream and its snapshot; what entries mean is the
replica's business.

How a loss is seen, so that it is never taken for an empty budget: no append makes the stream
(``NOMKSTREAM``); every session begins by finding the entry that was read last; and an id that an
append gets must lie behind it. Where the stream is another one, ``Open`` is appended: by it all
who read begin anew at the same place.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Any

from gpu_admission.shared.operations import Open, encode
from gpu_admission.shared.protocol import Entry, Listener
from gpu_admission.shared.redisaddress import RedisAddress

logger = logging.getLogger("gpu_admission")

_LONG = 50_000
_AT_ONCE = 1000
_BLOCK = 1.0
_STALLED = _BLOCK + 0.5
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0
_START_WITHIN = 5.0
_ENTRY, _OPENING, _PROBE = b"d", b"o", b"p"


class _Lost(Exception):
    """The stream that is there isn't the one that was read."""


class RedisLog:
    """``settle``: seconds for which a log that has begun anew grants nothing."""

    knows_deaths = False

    def __init__(self, address: RedisAddress, *, settle: float = 10.0, long: int = _LONG) -> None:
        self.where = address.where
        self._address = address
        self._settle = settle
        self._long = long
        self._stream = address.key("log")
        self._snapshot = address.key("snapshot")
        self._place: bytes | None = None
        self._opened = b""
        self._seen = 0.0
        self._read_since = 0
        self._dump: Callable[[], bytes] | None = None
        self._queue: deque[bytes] = deque()
        self._woken = threading.Event()
        self._tried = threading.Event()
        self._refused: Exception | None = None
        self._has_checked = False
        self._is_scheduled = False

    # from any thread

    def start(self, process: str, listener: Listener) -> None:
        self._listener = listener
        self._address.client()  # says which extra is missing, here and not in the thread
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="gpu_admission.redis", daemon=True)
        self._thread.start()
        if not self._tried.wait(_START_WITHIN):
            listener.went_away(f"the shared budget {self.where} did not answer within {_START_WITHIN:g} s")
        if self._refused is not None:
            raise ValueError(f"the shared budget {self.where}: {self._refused}") from self._refused

    def append(self, data: bytes) -> None:
        self._queue.append(data)
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon_threadsafe(self._work.set)

    def catch_up(self) -> bool:
        return False

    def wake(self, processes: Collection[str]) -> None:
        """Each process's reader is told by the server."""

    def wait(self, seconds: float) -> None:
        self._woken.wait(seconds)

    def is_alive(self, process: str) -> bool | None:
        return None

    def compact(self, snapshot: Callable[[], bytes]) -> None:
        """Done by the reader, between two reads: there it is known what has been received."""
        if self._read_since >= self._long:
            self._dump = snapshot

    def stop(self) -> None:
        self._woken.set()
        with contextlib.suppress(RuntimeError):  # its loop has ended already
            self._loop.call_soon_threadsafe(self._main.cancel)
        self._thread.join(_START_WITHIN)

    # in the thread

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._work = asyncio.Event()
        self._main = self._loop.create_task(self._sessions())
        try:
            with contextlib.suppress(asyncio.CancelledError):
                self._loop.run_until_complete(self._main)
        finally:
            self._loop.close()
            self._tried.set()

    async def _sessions(self) -> None:
        from redis.exceptions import AuthenticationError, AuthorizationError, RedisError

        pause = _FIRST_PAUSE
        while True:
            try:
                await self._session()
            except _Lost:
                pause = _FIRST_PAUSE
                continue
            except (AuthenticationError, AuthorizationError) as error:
                if not self._tried.is_set():
                    self._refused = error
                    return
                self._went_away(error)
            except (RedisError, OSError, TimeoutError) as error:
                if self._seen:
                    pause = _FIRST_PAUSE
                self._went_away(error)
            self._seen = 0.0
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(_LONGEST_PAUSE, pause * 2)

    def _went_away(self, error: Exception) -> None:
        said = str(error) or type(error).__name__
        self._listener.went_away(f"the shared budget {self.where} can't be reached ({said})")
        self._tried.set()

    async def _session(self) -> None:
        """Everything from connecting to the connection's end."""
        async with self._address.client() as reader, self._address.client() as writer:
            await self._check_server(reader)
            await self._begin(reader)
            await self._read_up_to(reader, await self._probe(writer))
            self._queue.clear()
            self._seen = time.monotonic()
            self._listener.came_back()
            self._tried.set()
            await self._read_and_append(reader, writer)

    async def _read_and_append(self, reader: Any, writer: Any) -> None:
        tasks = {asyncio.create_task(self._read(reader)), asyncio.create_task(self._append(writer))}
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            with contextlib.suppress(Exception):
                await asyncio.wait_for(self._append_all(writer), 1.0)
            raise
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in done:
            task.result()

    async def _check_server(self, client: Any) -> None:
        """Once: a server that may throw the log away for want of memory is no place for a budget."""
        if self._has_checked:
            return
        from redis.exceptions import ResponseError

        await client.ping()
        with contextlib.suppress(ResponseError):  # some services don't let one ask
            said = await client.config_get("maxmemory-policy")
            policy = said.get("maxmemory-policy", "noeviction")
            if policy != "noeviction":
                logger.warning(
                    "the shared budget %s lies on a server with maxmemory-policy=%s: it may throw the budget "
                    "away; set maxmemory-policy=noeviction",
                    self.where,
                    policy,
                )
        self._has_checked = True

    # which log this is

    async def _begin(self, client: Any) -> None:
        """Go on behind what was read last; or begin with the snapshot, the first entry, or a new log."""
        if self._place is not None and await self._has(client, self._place):
            return
        snapshot = await client.hgetall(self._snapshot)
        place = snapshot.get(b"place")
        if (
            place
            and await self._has(client, place)
            and (self._place is None or _key(place) > _key(self._place))
        ):
            self._restart(place, snapshot[b"state"], snapshot[b"opened"])
            return
        first = await client.xrange(self._stream, count=1)
        if first and _OPENING in first[0][1] and first[0][0] != self._opened:
            self._restart(b"0-0", None, b"")
            return
        why = "the log is new" if self._place is None else "the log lacks what was read before"
        await self._open(client, why)

    async def _has(self, client: Any, place: bytes) -> bool:
        return bool(await client.xrange(self._stream, place, place))

    def _restart(self, place: bytes, snapshot: bytes | None, opened: bytes) -> None:
        self._place, self._opened = place, opened
        self._read_since = 0
        self._listener.restarted(snapshot)

    async def _open(self, client: Any, why: str) -> None:
        data = encode("", 0, Open(self._settle, expires=True, why=why))
        place = await client.execute_command("XADD", self._stream, "*", _OPENING, data)
        logger.warning(
            "the shared budget %s begins anew (%s): it grants nothing for %g s", self.where, why, self._settle
        )
        self._restart(place, None, place)
        self._listener.received([Entry(_seconds(place), data)])

    async def _probe(self, client: Any) -> bytes:
        """An empty entry: the server takes writes, and what is read up to it is all there is."""
        place: bytes | None = await client.execute_command(*self._add(_PROBE, b""))
        if place is None:
            raise _Lost
        return place

    def _add(self, field: bytes, data: bytes) -> tuple[Any, ...]:
        return "XADD", self._stream, "NOMKSTREAM", "*", field, data

    # reading

    async def _read_up_to(self, client: Any, last: bytes) -> None:
        while self._place is not None and _key(self._place) < _key(last):
            if not self._take(await client.xread({self._stream: self._place}, count=_AT_ONCE)):
                raise _Lost

    async def _read(self, client: Any) -> None:
        block = int(_BLOCK * 1000)
        while True:
            assert self._place is not None
            self._take(await client.xread({self._stream: self._place}, count=_AT_ONCE, block=block))
            now = time.monotonic()
            if now - self._seen > _STALLED and not await self._has(client, self._place):
                raise _Lost  # this process stood still for so long that the log was cut behind it
            self._seen = now
            if self._dump is not None:
                await self._compact(client)

    def _take(self, said: Sequence[Any]) -> bool:
        if not said:
            return False
        entries = []
        for place, fields in said[0][1]:
            self._place = place
            data = fields.get(_ENTRY)
            if data is None:
                data = fields.get(_OPENING)
                if data is None:
                    continue
                self._opened = place
            entries.append(Entry(_seconds(place), data))
        self._read_since += len(entries)
        if entries:
            self._listener.received(entries)
        return True

    # appending

    async def _append(self, client: Any) -> None:
        while True:
            await self._work.wait()
            self._work.clear()
            self._is_scheduled = False
            await self._append_all(client)

    async def _append_all(self, client: Any) -> None:
        """All that is there goes out together, and costs one way there and back."""
        while self._queue:
            before = self._place
            pipeline = client.pipeline(transaction=False)
            while self._queue:
                pipeline.execute_command(*self._add(_ENTRY, self._queue.popleft()))
            places = await pipeline.execute()
            if None in places or (before is not None and _key(places[0]) <= _key(before)):
                raise _Lost

    # a snapshot in the place of what lies before it

    async def _compact(self, client: Any) -> None:
        from redis.exceptions import WatchError

        dump, self._dump = self._dump, None
        self._read_since = 0
        if dump is None or await client.xlen(self._stream) < self._long:
            return  # another process has done it
        place = self._place
        assert place is not None
        state = dump()
        with contextlib.suppress(WatchError):
            async with client.pipeline() as pipeline:
                await pipeline.watch(self._snapshot)
                before = await pipeline.hget(self._snapshot, "place")
                if before is not None and _key(before) >= _key(place):
                    return
                pipeline.multi()
                fields = {"place": place, "state": state, "opened": self._opened}
                pipeline.hset(self._snapshot, mapping=fields)
                if before is not None:
                    # Not what lies behind the last snapshot: a slow reader may still be there.
                    pipeline.execute_command("XTRIM", self._stream, "MINID", before)
                await pipeline.execute()


def _key(place: bytes) -> tuple[int, int]:
    """Places in their order."""
    milliseconds, _, number = place.partition(b"-")
    return int(milliseconds), int(number)


def _seconds(place: bytes) -> float:
    return int(place.partition(b"-")[0]) / 1000
