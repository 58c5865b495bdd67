"""The tree of refusals. Each one knows its status; nothing here renders or decides.

AdmissionError
  ClientLeft              the client has gone: there is nobody to answer
  Rejected           a request was not let in
    TooLarge         413  it can never fit, or its body is too large
    BodyTimeout      408  its body came too slowly
    QueueFull        429  nobody else may wait
    QueueTimeout     429  it waited as long as it may
    Unavailable      503  a guard has closed the device, or we are draining
    UnreadableBody   400  the body can't be read
"""

from __future__ import annotations

from starlette.exceptions import HTTPException

REASONS = (
    *("too_large", "body_too_large", "body_too_complex", "queue_full", "queue_timeout", "deadline"),
    *("gpu_unavailable", "draining", "budget_unreachable", "unreadable_body", "body_timeout"),
)
"""Each ``Rejected.reason`` that there is."""


class AdmissionError(Exception):
    """Any error of this package."""


class ClientLeft(AdmissionError):
    """The client went away before the app was called. Never raised into an app."""


class Rejected(AdmissionError, HTTPException):
    """A request was not let in. ``detail`` names the setting that said no.

    ``retry_after`` is in whole seconds (``None``: do not retry), ``needed`` and ``capacity``
    in bytes (``None``: not known when it was refused). It is also an ``HTTPException``, so an
    endpoint need not catch it: Starlette and FastAPI answer with its status.
    """

    status: int = 429
    retryable = True
    """Whether the same request may be let in later, here."""

    def __init__(
        self, reason: str, detail: str, *, needed: int | None = None, capacity: int | None = None
    ) -> None:
        HTTPException.__init__(self, self.status, detail)
        self.reason = reason
        self.title: str | None = None
        """A heading for clients; ``None``: that of its reason."""
        self.needed = needed
        self.capacity = capacity
        self.retry_after: int | None = None
        self.waiting = 0
        self.waited = 0.0
        """Seconds that it had waited: for its estimate, and in the queue."""

    def complete(self, *, needed: int | None, capacity: int, waiting: int, retry_after: int) -> None:
        """Fill in what was not known at the point where it was raised."""
        self.needed = needed if self.needed is None else self.needed
        self.capacity = capacity if self.capacity is None else self.capacity
        self.waiting = waiting
        if self.retryable and self.retry_after is None:
            self.retry_after = retry_after
        self.headers = {"Cache-Control": "no-store", "X-GPU-Admission-Reason": self.reason}
        if self.retry_after is not None:
            self.headers["Retry-After"] = str(self.retry_after)
        elif self.status != 400:
            self.headers["x-should-retry"] = "false"

    def __str__(self) -> str:
        return self.detail

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.reason!r}, {self.detail!r}, retry_after={self.retry_after})"


class TooLarge(Rejected):
    """It can never fit: ``too_large``, or ``body_too_large``. Answered with 413."""

    status = 413
    retryable = False


class BodyTimeout(Rejected):
    """Its body came too slowly: ``body_timeout``. Answered with 408."""

    status = 408

    def __init__(self, detail: str) -> None:
        super().__init__("body_timeout", detail)


class QueueFull(Rejected):
    """Too many wait already: ``queue_full``. Answered with 429."""


class QueueTimeout(Rejected):
    """It waited as long as it may: ``queue_timeout``, or ``deadline``. Answered with 429."""


class Unavailable(Rejected):
    """Nothing is let in just now: ``gpu_unavailable``, or ``draining``. Answered with 503.

    ``restart_only``: it stays that way until the process is restarted.
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


class TooComplex(UnreadableBody):
    """A JSON body has too many values to be read: ``body_too_complex``. Answered with 413."""

    status = 413

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.reason = "body_too_complex"
