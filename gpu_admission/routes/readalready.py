"""What Starlette and FastAPI have read of a request before its lease: its body, or its form.

The only file that touches private attributes of Starlette's ``Request``. What is made of them is
the door's business.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from starlette.requests import Request

from gpu_admission.bodies.multipart import ALL_HEADS, HEAD, SHORT_HEAD
from gpu_admission.errors import UnreadableBody
from gpu_admission.request import Part, RequestInfo
from gpu_admission.rules.metering import Rule
from gpu_admission.types import Message, Receive

_FORM_READ = (
    "the body was read before its lease: of a form use info.parts, or put GPUAdmission in front of the app"
)


class Read(NamedTuple):
    """What has been read: ``size`` bytes of the body, of which ``kept`` more are held to look at."""

    receive: Receive
    """Replays the body, where it is there."""
    size: int
    kept: int
    info: RequestInfo | None
    """Where the body itself is gone: the request with the parts of its form, if it has one."""


def read_already(request: Request, rule: Rule) -> Read:
    if _was_streamed(request):
        parts = _parts(request)
        info = _info_of_form(request, rule, parts)
        size, kept = sum(part.size for part in parts), sum(len(part.head) for part in parts)
        return Read(request.receive, size, kept, info)
    if not hasattr(request, "_body"):
        return Read(request.receive, 0, 0, None)
    return Read(_replaying(request._body, request.receive), len(request._body), 0, None)


def read_from(request: Request, receive: Receive) -> None:
    """Have ``request`` read from ``receive`` from now on."""
    request._receive = receive


def _was_streamed(request: Request) -> bool:
    """Whether the body is gone: read as a form, or piece by piece by something before us."""
    return request._form is not None or (request._stream_consumed and not hasattr(request, "_body"))


def _replaying(body: bytes, behind: Receive) -> Receive:
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        return messages.pop() if messages else await behind()

    return receive


def _info_of_form(request: Request, rule: Rule, parts: list[Part]) -> RequestInfo:
    def gone() -> bytes:
        raise UnreadableBody(_FORM_READ)

    info = RequestInfo(request.scope, path=rule.path, dialect=rule.dialect, parts=parts)
    info.read_from(gone)
    return info


def _parts(request: Request) -> list[Part]:
    parts: list[Part] = []
    kept = 0
    for name, value in request._form.multi_items() if request._form else ():
        parts.append(_part(name, value, HEAD if kept < ALL_HEADS else SHORT_HEAD))
        kept += len(parts[-1].head)
    return parts


def _part(name: str, value: Any, most: int) -> Part:
    if isinstance(value, str):
        head = value[:most].encode("utf-8", "surrogatepass")
        size = len(value) if value.isascii() else len(value.encode("utf-8", "surrogatepass"))
        return Part(name, None, "text/plain", size, head[:most])
    head = value.file.read(most)
    value.file.seek(0)
    return Part(name, value.filename, value.content_type or "", value.size or 0, head)
