"""Requests for the tests of dialects: a body, a path, and the headers that matter."""

from __future__ import annotations

import json
from typing import Any

from gpu_admission.request import RequestInfo

JSON = "application/json"


def request(
    body: Any, path: str = "/v1/chat/completions", *, kind: str = JSON, **headers: str
) -> RequestInfo:
    """A request; ``body`` is sent as it is when it is bytes, and as JSON otherwise."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    named = {"content-type": kind} | {name.replace("_", "-"): value for name, value in headers.items()}
    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in named.items()],
    }
    return RequestInfo(scope, raw)


def upload(*parts: tuple[str, str | None, str, bytes], path: str = "/upload") -> RequestInfo:
    """A multipart request of (name, file name or None, content type, content)."""
    pieces = []
    for name, filename, kind, content in parts:
        file = "" if filename is None else f'; filename="{filename}"'
        head = (
            f'--mark\r\nContent-Disposition: form-data; name="{name}"{file}\r\nContent-Type: {kind}\r\n\r\n'
        )
        pieces += [head.encode(), content, b"\r\n"]
    return request(b"".join(pieces) + b"--mark--\r\n", path, kind="multipart/form-data; boundary=mark")
