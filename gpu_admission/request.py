"""A request as estimators see it, and the two protocols that read one: dialects and estimators.

Views of the body are made on first use, and may be forgotten again. How bytes become values is
``bodies``'; what an API's words mean is ``workloads``'.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeAlias

import msgspec
from starlette.datastructures import Headers, QueryParams

from gpu_admission.types import Estimate, Scope, Workload


class Part(msgspec.Struct, frozen=True):
    """One part of a multipart body: its headers' facts, its size, and its first bytes."""

    name: str
    filename: str | None
    content_type: str
    size: int
    head: bytes
    """At most the first 64 KiB of its content."""


class Dialect(Protocol):
    """Reads what a body asks, in one API's words. Never executes, fetches or opens anything.

    It may also have ``clamp(body, new_tokens) -> bytes``, which lowers the token limit and
    leaves every other byte, and ``sse_error(message, code) -> bytes``, its error event.
    """

    def read(self, info: RequestInfo) -> Workload:
        """The workload of ``info``. Raises ``UnreadableBody``, and nothing else."""
        ...


_UNREAD: Any = object()


@functools.lru_cache(maxsize=256)
def _dialect_for(path: str) -> Dialect:
    from gpu_admission.workloads import dialect_for

    return dialect_for(path)


class RequestInfo:
    """What an estimator gets: a request, its body, and views of the body made on first use.

    ``body`` has its ``Content-Encoding`` removed; the app gets the bytes that came.
    """

    _body: bytes | None = b""
    _source: Callable[[], bytes] | None = None
    _form: Sequence[Part] | None = None
    _json: Any = _UNREAD
    _parts: Sequence[Part] | None = None
    _workload: Workload | None = None

    def __init__(
        self,
        scope: Scope,
        body: bytes = b"",
        *,
        path: str | None = None,
        dialect: Dialect | None = None,
        parts: Sequence[Part] | None = None,
    ) -> None:
        self.scope = scope
        self.path: str = scope["path"] if path is None else path
        self._dialect = dialect
        if body:
            self._body = body
        if parts is not None:
            self._form = parts

    @property
    def method(self) -> str:
        method: str = self.scope["method"]
        return method

    @property
    def headers(self) -> Headers:
        return Headers(raw=list(self.scope.get("headers", ())))

    @property
    def query(self) -> QueryParams:
        return QueryParams(self.scope.get("query_string", b""))

    @property
    def body(self) -> bytes:
        if self._body is None:
            self._body = b"" if self._source is None else self._source()
        return self._body

    def read_from(self, source: Callable[[], bytes]) -> None:
        """Make the body ``source()``, now and again after ``forget``."""
        self._source = source
        self._body = self._workload = self._parts = None
        self._json = _UNREAD

    def forget(self) -> None:
        """Drop the copies that were made for reading, so that a waiting body is held once."""
        if self._source is None:
            return
        self._body = None
        self._json = _UNREAD
        self._parts = None

    @property
    def json(self) -> Any:
        """The parsed body. Raises ``UnreadableBody`` where Python's ``json`` would raise."""
        if self._json is _UNREAD:
            from gpu_admission.bodies.json import parse_json

            self._json = parse_json(self.body)
        return self._json

    @property
    def was_form(self) -> bool:
        """Whether the framework has read the body as a form: then there are ``parts`` and no ``body``."""
        return self._form is not None

    @property
    def parts(self) -> Sequence[Part]:
        """The parts of a multipart body. Raises ``UnreadableBody`` for other bodies."""
        if self._form is not None:
            return self._form
        if self._parts is None:
            from gpu_admission.bodies.multipart import read_parts

            self._parts = read_parts(self.body, self.headers.get("content-type", ""))
        return self._parts

    @property
    def workload(self) -> Workload:
        """What the body asks for. Raises ``UnreadableBody``."""
        if self._workload is None:
            self._workload = self.dialect.read(self)
        return self._workload

    @property
    def dialect(self) -> Dialect:
        """What reads the body: as the admission was told, or else chosen by ``path``."""
        if self._dialect is None:
            self._dialect = _dialect_for(self.path)
        return self._dialect


EstimateResult: TypeAlias = "int | Estimate"


class Estimator(Protocol):
    """Bytes that a request will take. Pure; may be async. Any callable will do.

    Set ``needs_body = False`` on it when it reads no body: then none is read for it.
    """

    def __call__(self, info: RequestInfo, /) -> EstimateResult | Awaitable[EstimateResult]: ...
