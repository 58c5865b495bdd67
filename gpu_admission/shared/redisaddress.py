"""Addresses of budgets on a Redis or Valkey server, and the clients made for them.

``redis://host/gpu0``, ``rediss://user:password@host:6380/1?name=gpu0``,
``unix:///run/redis.sock?name=gpu0``, ``redis+sentinel://one,two:26380/mymaster/0?name=gpu0``.
Apart from ``name`` and ``prefix``, everything after the ``?`` goes to redis-py. User and password are
the server's; sentinels that want some get ``sentinel_username=`` and ``sentinel_password=``. A user of
an ACL needs ``~PREFIX:{NAME}:*`` and the commands in ``COMMANDS``.

A password that is not percent-encoded may be anywhere in an address: what is wrong with one is said
without its text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

if TYPE_CHECKING:
    from redis import Redis

SCHEMES = ("redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel")
COMMANDS = (
    *("ping", "info", "time", "exists", "del", "hget", "hgetall", "hset", "hstrlen", "xadd"),
    *("xrange", "xread", "xtrim", "watch", "unwatch", "multi", "exec", "select"),
)
"""What a budget's processes ask of the server."""
_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z+]{0,15}")
_PASSWORDS = ("password", "sentinel_password", "ssl_password")
_HOST = re.compile(r"([\w.-]+)(:\d*)?")
ENCODE = "percent-encode the password (/ is %2F, @ is %40, # is %23, ? is %3F)"
_OURS = ("protocol", "decode_responses", "encoding", "encoding_errors")
"""Options of redis-py that would have it give other answers than are understood here."""
_CONNECT_WITHIN = 2.0
_ANSWER_WITHIN = 3.0


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """Where a budget lies: what ``redis-py`` is given, and the budget's ``name`` there."""

    url: str = field(repr=False)
    name: str
    prefix: str
    where: str
    """For people: without a password."""
    sentinels: tuple[tuple[str, int], ...] = ()
    service: str = ""

    def key(self, what: str) -> str:
        """All keys of one budget lie in one slot of a cluster."""
        return f"{self.prefix}:{{{self.name}}}:{what}"

    def hide(self, text: str) -> str:
        """``text`` of the library or the server, without passwords."""
        parts = urlsplit(self.url)
        said = (parts.password, *(value for name, value in parse_qsl(parts.query) if name in _PASSWORDS))
        for password in filter(None, said):
            text = text.replace(password, "***").replace(unquote(password), "***")
        return text

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
        said = self._why_unusable()
        if said is not None:
            raise ValueError(
                f"shared={self.where!r}: {said}: behind the ? stand name=, prefix= and options of redis-py"
            )

    def _why_unusable(self) -> str | None:
        try:
            self.client().connection_pool.make_connection()
        except (TypeError, ValueError) as error:
            parts = urlsplit(self.url)
            # A port without a host may be the beginning of a password, and an option another part of it.
            if parts.netloc.startswith(":") or any(name in _PASSWORDS for name, _ in parse_qsl(parts.query)):
                return f"one of the options is wrong, or a part of a password that was torn: {ENCODE}"
            return self.hide(str(error))
        return None


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


def shown(address: str) -> str:
    """``address`` for people who are told what is wrong with it: whatever may be a credential is hidden."""
    scheme, _, rest = address.partition("://")
    if not _SCHEME.fullmatch(scheme):
        return "***"
    host = _HOST.fullmatch(_authority(rest).rpartition("@")[2])
    return f"{scheme}://{host[1] if host and not _is_torn(address) else '***'}"


def _authority(rest: str) -> str:
    """User, password, host and port, as an address that is well formed has them."""
    return re.split(r"[/?#]", rest, maxsplit=1)[0]


def _is_torn(address: str) -> bool:
    """Whether it holds ``@`` or ``#`` where only a password that is not percent-encoded has them."""
    rest = address.partition("://")[2]
    return "#" in rest or "@" in rest[len(_authority(rest)) :]


def parse(address: str) -> RedisAddress:
    """Raises ``ValueError`` with a sentence that says what is wrong with ``shared``."""
    _check(address)
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
    _check_names(address, name, prefix, path, service, query)
    where = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path} ({name})"
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


def _check(address: str) -> None:
    """That it can be taken apart."""
    scheme = address.partition("://")[0].lower()
    if scheme not in SCHEMES:
        raise ValueError(
            f"shared={shown(address)!r}: the scheme must be one of {', '.join(SCHEMES)}, "
            "as in redis://host/0?name=gpu0"
        )
    if _is_torn(address) or not _has_right_port(address, several=scheme.endswith("+sentinel")):
        raise ValueError(
            f"shared={shown(address)!r} can't be read (a port is a number, and @ and # are "
            f"nowhere behind it): {ENCODE}, and write {scheme}://user:password@host:6379/0?name=gpu0"
        )


def _has_right_port(address: str, *, several: bool) -> bool:
    """The library's own errors quote what they can't read, so none of them is passed on."""
    try:
        parts = urlsplit(address)
        return several or parts.port is None or parts.port > 0
    except ValueError:
        return False


def _check_names(
    address: str, name: str, prefix: str, rest: list[str], service: str, options: Mapping[str, str]
) -> None:
    where, scheme = shown(address), address.partition("://")[0].lower()
    if scheme.endswith("+sentinel") and not service:
        raise ValueError(f"shared={where!r} names no master: {scheme}://host1,host2/mymaster/0?name=gpu0")
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
