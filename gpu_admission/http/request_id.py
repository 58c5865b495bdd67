"""The id of the running request: the client's ``X-Request-ID`` where it is fit to be logged, else a new one.

Owns the context variable that holds it, so that every log line of a request, the app's own
too, can name it. Nothing here logs.
"""

from __future__ import annotations

import re
import secrets
from contextvars import ContextVar

from gpu_admission.types import Scope

_current: ContextVar[str] = ContextVar("gpu_admission.request_id", default="")
_FIT = re.compile(rb"[\x21-\x7e]{1,128}")


def current_request_id() -> str:
    """The id of the running request; empty where an observer asked for none, or outside of a request."""
    return _current.get()


def name_request(scope: Scope) -> None:
    """Give the request of ``scope`` its id, for as long as its context lives."""
    _current.set(_sent(scope) or secrets.token_hex(16))


def _sent(scope: Scope) -> str:
    """What the client sent, unless it could forge or flood a log line."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _FIT.fullmatch(value):
            sent: str = value.decode("ascii")
            return sent
    return ""
