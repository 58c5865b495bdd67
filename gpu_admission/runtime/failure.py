"""The log line of what a user's own function has failed with, fit for what a client may have put into it.

An exception's text may be a prompt, and its line feeds would forge records: the line names the
class and the place only, and the rest is told at DEBUG, escaped. So must everything be logged that
may fail while a request's own exception is handled: a traceback shows that one too.
"""

from __future__ import annotations

import logging
import traceback

logger = logging.getLogger("gpu_admission")


def log_failure(what: str, error: BaseException, then: str) -> None:
    """Log ``what`` failed with ``error``, and what is done ``then``. Both strings are our own."""
    logger.error("%s with %s: %s (%s)", what, type(error).__name__, then, _place(error))
    if logger.isEnabledFor(logging.DEBUG):
        logger.debug("%s: %s", what, ascii("".join(traceback.format_exception(error))))


def _place(error: BaseException) -> str:
    """The file and line that raised it, where that is known."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "no place known" if trace is None else f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
