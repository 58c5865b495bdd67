"""The tree of refusals. Each one knows its status; nothing here renders or decides.

AdmissionError
  ClientLeft              the client has gone: there is nobody to answer
  Rejected           a request was not let in
    TooLarge         413  it can never fit, or its body is too large
    QueueFull        429  nobody else may wait
    QueueTimeout     429  it waited as long as it may
    Unavailable      503  a guard has closed the device, or we are draining
    UnreadableBody   400  the body can't be read
"""

from __future__ import annotations

from typing import ClassVar


class AdmissionError(Exception):
    """Any error of this package."""


class ClientLeft(AdmissionError):
    """The client went away before the app was called. Never raised into an app."""


class Rejected(AdmissionError):
    """A request was not let in. ``detail`` names the setting that said no.

    ``retry_after`` is in whole seconds (``None``: do not retry), ``needed`` and ``capacity``
    in bytes (``None``: not known when it was refused).
    """

    status: ClassVar[int] = 429
    retryable = True
    """Whether the same request may be let in later, here."""
    reason: str

    def __init__(
        self,
        reason: str,
        detail: str,
        *,
        retry_after: int | None = None,
        needed: int | None = None,
        capacity: int | None = None,
        waiting: int = 0,
    ) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail
        self.retry_after = retry_after
        self.needed = needed
        self.capacity = capacity
        self.waiting = waiting

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.reason!r}, {self.detail!r}, retry_after={self.retry_after})"


class TooLarge(Rejected):
    """It can never fit: ``too_large``, or ``body_too_large``. Answered with 413."""

    status = 413
    retryable = False


class QueueFull(Rejected):
    """Too many wait already: ``queue_full``. Answered with 429."""


class QueueTimeout(Rejected):
    """It waited as long as it may: ``queue_timeout``, or ``deadline``. Answered with 429."""


class Unavailable(Rejected):
    """Nothing is let in just now: ``gpu_unavailable``, or ``draining``. Answered with 503.

    ``restart_only``: it stays so until the process is restarted.
    """

    status = 503

    def __init__(self, reason: str, detail: str, *, restart_only: bool = False) -> None:
        super().__init__(reason, detail)
        self.retryable = not restart_only


class UnreadableBody(Rejected):
    """The body can't be read: ``unreadable_body``. Answered with 400."""

    status = 400
    retryable = False

    def __init__(self, detail: str) -> None:
        super().__init__("unreadable_body", detail)
