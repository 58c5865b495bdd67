"""The real thing that is calibrated: a function of ours, or a server that answers over HTTP.

Owns how a point of a grid becomes a call or a body. What it took is measured elsewhere.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
import httpx

from gpu_admission.estimators.features import written
from gpu_admission.planning.calibrate import Cell
from gpu_admission.request import Dialect, RequestInfo
from gpu_admission.types import Workload

_BODIES: Mapping[str, Mapping[str, Any]] = {
    "/v1/chat/completions": {
        "model": "default",
        "messages": [{"role": "user", "content": "$prompt"}],
        "max_tokens": "$new_tokens",
    },
    "/v1/completions": {"model": "default", "prompt": "$prompt", "max_tokens": "$new_tokens"},
    "/v1/embeddings": {"model": "default", "input": "$prompt"},
    "/api/generate": {
        "model": "default",
        "prompt": "$prompt",
        "stream": False,
        "options": {"num_predict": "$new_tokens"},
    },
    "/generate": {"inputs": "$prompt", "parameters": {"max_new_tokens": "$new_tokens"}},
}
_WORD = "the "
"""One token in most vocabularies."""
_READ = ("prompt_tokens", "total_prompt_tokens", "new_tokens", "sequences", "audio_seconds", "tensor_bytes")


class FunctionTarget:
    """``function(**cell)``, in a thread if it is a plain function; several at once if asked.

    Raises ``ValueError`` if it can't be called with the keywords ``names``.
    """

    def __init__(self, function: Callable[..., Any], names: Sequence[str] = ()) -> None:
        self._function = function
        if names:
            _check_call(function, names)

    def features(self, cell: Cell) -> Mapping[str, Any]:
        return {written(name): value for name, value in cell.items()}

    async def run(self, cell: Cell, count: int) -> None:
        """Call it ``count`` times at once. What it raises is raised as ``RuntimeError``."""
        try:
            async with anyio.create_task_group() as group:
                for _ in range(count):
                    group.start_soon(self._call, cell)
        except ExceptionGroup as errors:
            first = errors.exceptions[0]
            raise RuntimeError(f"{_said(cell)} failed: {type(first).__name__}: {first}") from first

    async def _call(self, cell: Cell) -> None:
        if inspect.iscoroutinefunction(self._function):
            await self._function(**cell)
        else:
            await anyio.to_thread.run_sync(partial(self._function, **cell))


def _check_call(function: Callable[..., Any], names: Sequence[str]) -> None:
    if not callable(function):
        raise ValueError(f"the target is {function!r}: name a function")
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):  # one of C, that does not tell
        return
    try:
        signature.bind(**dict.fromkeys(names, 0))
    except TypeError as error:
        called = ", ".join(f"{name}=..." for name in names)
        name = getattr(function, "__qualname__", type(function).__name__)
        raise ValueError(
            f"{name}{signature} can't be called as {name}({called}): {error}. The names of --grid are its "
            "keywords"
        ) from None


class HttpTarget:
    """``POST url`` with ``body``, in which ``"$name"`` stands for a value of the grid and ``$prompt`` for a
    text of ``prompt_tokens`` words. ``dialect`` reads it as an admission would; by default by the path.

    Raises ``ValueError`` for a path that no body is known for.
    """

    def __init__(
        self,
        url: str,
        *,
        body: Mapping[str, Any] | None = None,
        dialect: Dialect | None = None,
        timeout: float = 300.0,
    ) -> None:
        self._url = url
        self._path = urlsplit(url).path or "/"
        self._dialect = dialect
        self._timeout = timeout
        known = body if body is not None else _BODIES.get(self._path)
        if known is None:
            raise ValueError(f"--body is needed for {self._path}: known are {', '.join(_BODIES)}")
        self._body = known

    def body(self, cell: Cell) -> bytes:
        """The request of ``cell``."""
        return json.dumps(_filled(self._body, cell)).encode()

    def features(self, cell: Cell) -> Mapping[str, Any]:
        scope = {
            "type": "http",
            "method": "POST",
            "path": self._path,
            "headers": [(b"content-type", b"application/json")],
        }
        read: Workload = RequestInfo(scope, self.body(cell), dialect=self._dialect).workload
        found = {name: value for name in _READ if (value := getattr(read, name))}
        return {**{written(name): value for name, value in read.features.items()}, **found}

    async def run(self, cell: Cell, count: int) -> None:
        limits = httpx.Limits(max_connections=count)
        answers: list[httpx.Response] = []
        failures: list[httpx.TransportError] = []
        async with (
            httpx.AsyncClient(timeout=self._timeout, limits=limits) as client,
            anyio.create_task_group() as group,
        ):
            for _ in range(count):
                group.start_soon(self._send, client, cell, answers, failures)
        if wrong := [answer for answer in answers if answer.status_code >= 300]:
            raise RuntimeError(f"{_said(cell)} was answered {wrong[0].status_code}: {wrong[0].text[:200]}")
        if failures:
            raise RuntimeError(f"{_said(cell)} was not answered: {self._why(failures[0])}")

    def _why(self, failure: httpx.TransportError) -> str:
        if isinstance(failure, httpx.ConnectError):
            return f"no connection to {self._url}: {_deepest(failure)}"
        if isinstance(failure, httpx.TimeoutException):
            return f"{self._url} took longer than {self._timeout:g} seconds (--timeout)"
        return f"{self._url} hung up ({failure or type(failure).__name__})"

    async def _send(
        self,
        client: httpx.AsyncClient,
        cell: Cell,
        answers: list[httpx.Response],
        failures: list[httpx.TransportError],
    ) -> None:
        headers = {"content-type": "application/json"}
        try:
            answers.append(await client.post(self._url, content=self.body(cell), headers=headers))
        except httpx.TransportError as failure:
            failures.append(failure)


def _deepest(failure: BaseException) -> str:
    """Why there is no connection; the client's own error only says that all attempts failed."""
    while (deeper := failure.__cause__ or failure.__context__) is not None:
        failure = deeper
    return "it was refused. Is the server started?" if _refused(failure) else str(failure)


def _refused(failure: BaseException) -> bool:
    if isinstance(failure, BaseExceptionGroup):  # one for each address of the host
        return any(map(_refused, failure.exceptions))
    return isinstance(failure, ConnectionRefusedError)


def _filled(template: Any, cell: Cell) -> Any:
    if isinstance(template, Mapping):
        return {key: _filled(value, cell) for key, value in template.items()}
    if isinstance(template, list):
        return [_filled(value, cell) for value in template]
    if not isinstance(template, str) or "$" not in template:
        return template
    if template.startswith("$") and template[1:] in cell:
        return cell[template[1:]]
    return template.replace("$prompt", (_WORD * cell.get("prompt_tokens", 1)).strip())


def _said(cell: Cell) -> str:
    return " ".join(f"{name}={value}" for name, value in cell.items())
