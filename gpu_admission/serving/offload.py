"""Blocking model calls in a thread, without letting go of their bytes too early."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from gpu_admission.admission.context import current_lease
from gpu_admission.admission.threads import run_in_thread

P = ParamSpec("P")
T = TypeVar("T")


async def offload(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """``function(...)`` in a worker thread; the current lease is held until it has returned.

    Use it in place of ``asyncio.to_thread`` around a model call: when the request is cancelled,
    the thread works on, and so its bytes stay held.
    """
    return await run_in_thread(current_lease(), functools.partial(function, *args, **kwargs))
