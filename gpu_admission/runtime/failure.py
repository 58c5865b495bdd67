"""The log line of what a user's own function has failed with, fit for what a client may have put into it.

An exception's text may be a prompt, and its line feeds would forge records: the line names the
class only, and the rest is told at DEBUG, escaped.
"""

from __future__ import annotations

import logging
import traceback

logger = logging.getLogger("gpu_admission")


def log_failure(what: str, error: BaseException, then: str) -> None:
    """Log ``what`` failed with ``error``, and what is done ``then``. Both strings are our own."""
    logger.error("%s with %s: %s", what, type(error).__name__, then)
    if logger.isEnabledFor(logging.DEBUG):
        logger.debug("%s: %s", what, ascii("".join(traceback.format_exception(error))))
