"""A request as estimators see it, and the protocols that read one: dialects and estimators.

Views of the body are made on first use, and may be forgotten again. How bytes become values is
``bodies``'; what an API's words mean is ``workloads``'. Which dialect reads a request is chosen
by ``RequestInfo.choose_dialect``, which the package's root sets: nothing here imports a dialect.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, ClassVar, Protocol, TypeAlias

from starlette.datastructures import Headers, QueryParams

from gpu_admission.bodies.json import MAX_JSON_VALUES, parse_json
from gpu_admission.bodies.multipart import Part, read_parts
from gpu_admission.errors import UnreadableBody
from gpu_admission.types import Estimate, Scope, Workload

__all__ = ["Dialect", "EstimateResult", "Estimator", "FullDialect", "Part", "RequestInfo"]


class Dialect(Protocol):
    """Reads what a body asks for, in the terms of one API. Never executes, fetches or opens anything.

    A dialect of your own needs only ``read``; ``FullDialect`` lists what else it may have.
    """

    def read(self, info: RequestInfo, /) -> Workload:
        """The workload of ``info``. Raises ``UnreadableBody``, and nothing else."""
        ...


class FullDialect(Dialect, Protocol):
    """A dialect with every optional part. All of ours are; any other is filled in with defaults."""

    @property
    def offload_bytes(self) -> int:
        """Bodies larger than this many bytes are read off the event loop."""
        ...

    def clamp(self, body: bytes, new_tokens: int, /) -> bytes:
        """``body`` with its token limits lowered to ``new_tokens``; every other byte stays as it is.

        Raises ``UnreadableBody``.
        """
        ...

    def sse_error(self, message: str, code: str, /) -> bytes:
        """The event, or line, that ends a stream which can't go on."""
        ...


class RequestInfo:
    """What an estimator gets: a request, its body, and views of the body made on first use.

    ``body`` has its ``Content-Encoding`` removed; the app gets the bytes that came.
    """

    choose_dialect: ClassVar[Callable[[str, Dialect | None], FullDialect]]
    """The dialect for a request to a path; a dialect that was given is filled in with defaults."""

    max_json_values: int = MAX_JSON_VALUES
    """A JSON body with more values than this is not read: ``TooComplex``."""
    _body: bytes | None = b""
    _source: Callable[[], bytes] | None = None
    _form: Sequence[Part] | None = None
    _json: tuple[Any] | None = None
    _parts: Sequence[Part] | None = None
    _workload: Workload | None = None
    _size = 0

    def __init__(
        self,
        scope: Scope,
        body: bytes = b"",
        *,
        path: str | None = None,
        dialect: Dialect | None = None,
        parts: Sequence[Part] | None = None,
        max_json_values: int | None = None,
    ) -> None:
        self.scope = scope
        self.path: str = scope["path"] if path is None else path
        self._dialect = dialect
        if body:
            self._body = body
        if parts is not None:
            self._form = parts
        if max_json_values is not None:
            self.max_json_values = max_json_values

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

    def read_from(self, source: Callable[[], bytes], body: bytes | None = None) -> None:
        """Make the body ``source()``, now and again after ``forget``; ``body`` is that, if known."""
        self._source = source
        self._body = body
        self._workload = self._parts = self._json = None

    def forget(self) -> None:
        """Drop the copies that were made for reading, so that a waiting body is held once."""
        if self._source is None:
            return
        if self._body:
            self._size = len(self._body)
        self._body = self._parts = self._json = None

    @property
    def size(self) -> int:
        """Bytes of the body read so far, even if they have been forgotten since."""
        return len(self._body) if self._body else self._size

    @property
    def json(self) -> Any:
        """The parsed body. Raises ``UnreadableBody`` where Python's ``json`` would raise."""
        if self._json is None:
            self._json = (parse_json(self.body, self.max_json_values),)
        return self._json[0]

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
            self._parts = read_parts(self.body, self._content_type())
        return self._parts

    @property
    def known_workload(self) -> Workload | None:
        """``workload``, where it has been read already."""
        return self._workload

    @property
    def workload(self) -> Workload:
        """What the body asks for. Raises ``UnreadableBody``."""
        if self._workload is None:
            self._workload = (self._dialect or self.dialect).read(self)
        return self._workload

    @property
    def dialect(self) -> FullDialect:
        """The dialect that reads the body: the admission's setting, or else chosen by ``path``."""
        return RequestInfo.choose_dialect(self.path, self._dialect)

    @property
    def dialect_name(self) -> str:
        """Class name of the dialect that reads the body, for logs."""
        return type(self._dialect or self.dialect).__name__

    def _content_type(self) -> str:
        """The content type. Of several headers frameworks take the first, the last, or all of them."""
        kinds = self.headers.getlist("content-type")
        if len(kinds) > 1:
            raise UnreadableBody("an upload must have one Content-Type")
        return kinds[0] if kinds else ""


EstimateResult: TypeAlias = "int | Estimate"


class Estimator(Protocol):
    """How many bytes a request will take. Pure; may be async. Any callable will do.

    Set ``needs_body = False`` on it when it reads no body: then none is read for it.
    """

    def __call__(self, info: RequestInfo, /) -> EstimateResult | Awaitable[EstimateResult]: ...
