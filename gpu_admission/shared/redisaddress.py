"""Addresses of budgets on a Redis or Valkey server, and the clients made for them.

``redis://host/gpu0``, ``rediss://user:password@host:6380/1?name=gpu0``,
``unix:///run/redis.sock?name=gpu0``, ``redis+sentinel://one,two:26380/mymaster/0?name=gpu0``.
Apart from ``name`` and ``prefix``, everything after the ``?`` goes to redis-py. User and password are
the server's; sentinels that want some get ``sentinel_username=`` and ``sentinel_password=``. A user of
an ACL needs ``~PREFIX:{NAME}:*`` and the commands in ``COMMANDS``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode, urlsplit

if TYPE_CHECKING:
    from redis import Redis

SCHEMES = ("redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel")
COMMANDS = (
    *("ping", "info", "time", "exists", "del", "hget", "hgetall", "hset", "hstrlen", "xadd"),
    *("xrange", "xread", "xtrim", "watch", "unwatch", "multi", "exec", "select"),
)
"""What a budget's processes ask of the server."""
_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
_OURS = ("protocol", "decode_responses", "encoding", "encoding_errors")
"""Options of redis-py that would have it give other answers than are understood here."""
_CONNECT_WITHIN = 2.0
_ANSWER_WITHIN = 3.0


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """Where a budget lies: what ``redis-py`` is given, and the budget's ``name`` there."""

    url: str
    name: str
    prefix: str
    where: str
    """For people: without a password."""
    sentinels: tuple[tuple[str, int], ...] = ()
    service: str = ""

    def key(self, what: str) -> str:
        """All keys of one budget lie in one slot of a cluster."""
        return f"{self.prefix}:{{{self.name}}}:{what}"

    def client(self) -> Redis:
        """A new client with connections of its own, that never sends a command twice by itself."""
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        options: dict[str, Any] = {
            "retry": Retry(NoBackoff(), 0),
            "socket_connect_timeout": _CONNECT_WITHIN,
            "socket_timeout": _ANSWER_WITHIN,
            "protocol": 2,
        }
        if not self.sentinels:
            return redis.Redis.from_url(self.url, **options)
        parse_url: Any = redis.connection.parse_url
        options |= parse_url(self.url)
        options["ssl"] = options.pop("connection_class", None) is redis.SSLConnection
        for name in ("host", "port"):
            options.pop(name, None)
        watching = {name: options.pop(f"sentinel_{name}", None) for name in ("username", "password")}
        sentinel_options = {**options, "db": 0, **watching}
        watch: Any = redis.Sentinel
        sentinel = watch(list(self.sentinels), sentinel_kwargs=sentinel_options, **options)
        master: Redis = sentinel.master_for(self.service)
        return master

    def check(self) -> None:
        """Raises ``ValueError`` for what redis-py can't use. Connects to nothing."""
        try:
            self.client().connection_pool.make_connection()
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"shared={self.where!r}: {error}: behind the ? stand name=, prefix= and options of redis-py"
            ) from None


def load_library() -> None:
    """Import redis-py: where a budget is made, so that no thread does it, while which no process may fork.

    Raises ``ImportError`` that names the extra.
    """
    try:
        import redis
        import redis.backoff
        import redis.retry  # noqa: F401
    except ImportError as error:
        raise ImportError(
            "a shared budget on Redis needs the extra 'redis': pip install gpu-admission[redis]"
        ) from error


def parse(address: str) -> RedisAddress:
    """Raises ``ValueError`` with a sentence that says what is wrong with ``shared``."""
    parts = urlsplit(address)
    query = dict(parse_qsl(parts.query))
    name, prefix = query.pop("name", ""), query.pop("prefix", "gpu_admission")
    path = [part for part in parts.path.split("/") if part]
    if parts.scheme == "unix":
        path, socket = [], parts.path
    else:
        socket = ""
    service = path.pop(0) if parts.scheme.endswith("+sentinel") and path else ""
    database = path.pop(0) if path and path[0].isdigit() else query.get("db", "0")
    if path and not name:
        name = path.pop(0)
    where = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path} ({name})"
    _check(address, parts.scheme, name, prefix, path, service, where, query)
    netloc = parts.netloc
    sentinels: tuple[tuple[str, int], ...] = ()
    if service:
        login, _, hosts = parts.netloc.rpartition("@")
        sentinels = tuple(_host(host) for host in hosts.split(","))
        netloc = f"{login}@sentinel" if login else "sentinel"
    scheme = parts.scheme.partition("+")[0]
    rest = f"?{urlencode(query)}" if query else ""
    url = f"{scheme}://{netloc}{socket or f'/{database}'}{rest}"
    return RedisAddress(url, name, prefix, where, sentinels, service)


def _check(
    address: str,
    scheme: str,
    name: str,
    prefix: str,
    rest: list[str],
    service: str,
    where: str,
    options: Mapping[str, str],
) -> None:
    if scheme not in SCHEMES:
        raise ValueError(
            f"shared={where!r}: the scheme must be one of {', '.join(SCHEMES)}, as in redis://host/0?name=gpu0"
        )
    if scheme.endswith("+sentinel") and not service:
        raise ValueError(f"shared={where!r} names no master: {scheme}://host1,host2/mymaster/0?name=gpu0")
    try:
        urlsplit(address).port  # noqa: B018  # read later, in a thread
    except ValueError as error:
        if not service:
            raise ValueError(f"shared={where!r}: {error}: write redis://host:6379/0?name=gpu0") from error
    if rest or not _NAME.fullmatch(name):
        raise ValueError(
            f"shared={where!r} must name the budget: {scheme}://host/0?name=gpu0 (letters, digits, _ . : -)"
        )
    ours = sorted(set(_OURS) & set(options))
    if ours:
        raise ValueError(f"shared={where!r}: leave out {', '.join(ours)}: the budget chooses that by itself")
    if not _NAME.fullmatch(prefix):
        raise ValueError(f"shared={where!r}: prefix= must be of 1 to 64 letters, digits, _ . : -")


def _host(said: str) -> tuple[str, int]:
    host, _, port = said.rpartition(":")
    return (host, int(port)) if host and port.isdigit() else (said, 26379)
