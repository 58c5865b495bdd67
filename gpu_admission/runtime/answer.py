"""An answer that may come later, from another thread: awaited by a task, or waited for by a thread.

Owns that whoever waits hears of it however the two meet. What was asked, and what becomes of it
where no answer came, is its owner's business.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

import anyio

from gpu_admission.runtime.loop import call_soon, running_loop


class Answer:
    """Yes or no, for one who waits. ``says`` is ``None`` until it was given, and where nobody can tell."""

    __slots__ = ("_call", "is_given", "says")

    def __init__(self) -> None:
        self.says: bool | None = None
        self.is_given = False
        self._call: Callable[[], object] | None = None

    def give(self, says: bool | None) -> Answer:
        """From any thread. The first that is given stands."""
        if not self.is_given:
            self.says = says
            self.is_given = True
            if self._call is not None:
                self._call()
        return self

    def wait(self, seconds: float) -> bool | None:
        """What it ``says``, after at most ``seconds`` in this thread."""
        if not self.is_given:
            event = threading.Event()
            if self._is_to_call(event.set):
                event.wait(seconds)
        return self.says

    async def come(self, seconds: float) -> bool | None:
        """The same in a task, whose loop runs on."""
        event = anyio.Event()
        if self._is_to_call(partial(call_soon, running_loop(), event.set)):
            with anyio.move_on_after(seconds):
                await event.wait()
        return self.says

    def _is_to_call(self, call: Callable[[], object]) -> bool:
        """Have ``call`` called when it is given; ``False``: it was given before it could be told."""
        self._call = call
        return not self.is_given
