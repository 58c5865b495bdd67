"""The log line for a failure of a user's own function, safe whatever a client may have put into it.

An exception's text may be a prompt, and its line feeds would forge records: the line names only the
class and the place; the rest goes to DEBUG, escaped. Everything that may fail while a request's own
exception is handled must be logged this way: a traceback shows that exception too.
"""

from __future__ import annotations

import logging
import traceback

logger = logging.getLogger("gpu_admission")


def log_failure(what: str, error: BaseException, then: str) -> None:
    """Log that ``what`` failed with ``error``, and what is done ``then``. Both strings are our own."""
    logger.error("%s with %s: %s (%s)", what, type(error).__name__, then, _place(error))
    if logger.isEnabledFor(logging.DEBUG):
        logger.debug("%s: %s", what, ascii("".join(traceback.format_exception(error))))


def forget_trace(error: BaseException | None) -> None:
    """Drop the frames that ``error`` came through, which may be kept alive by it, and it by them.

    In such frames stands what a client sent, as often as it was copied to be read: it would stay until
    the next collection, counted by nobody.
    """
    seen: set[int] = set()
    left = [error]
    while left:
        each = left.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            each.__traceback__ = None
            left += (each.__context__, each.__cause__)


def _place(error: BaseException) -> str:
    """The file and line that raised it, where that is known."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "no place known" if trace is None else f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
