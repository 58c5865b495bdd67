"""Path patterns, and the path that they are matched with.

Owns the one answer to "which path is this": the path that the app's own router sees.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_TOKEN = re.compile(r"\*\*|\*|[^*]+")
_MEANING = {"**": ".*", "*": "[^/]*"}


def route_path(path: str, root_path: str) -> str:
    """The part of a scope's ``path`` below its ``root_path``, as Starlette's router reads it.

    Servers and mounts differ in whether ``path`` repeats the ``root_path``; where it does,
    it is taken off. Percent-encoding is already undone by the server. A trailing slash is
    ignored, so that ``/generate/`` cannot slip past a pattern for ``/generate``.
    """
    if root_path and path.startswith(root_path) and path[len(root_path) : len(root_path) + 1] in ("", "/"):
        path = path[len(root_path) :]
    return path.rstrip("/") or "/" if path.endswith("/") or not path else path


class Patterns:
    """Path patterns: ``*`` stands for anything within a segment, ``**`` across segments.

    Raises ``TypeError``/``ValueError`` with the setting's ``name`` for what is no pattern.
    """

    def __init__(self, patterns: Iterable[str], *, name: str) -> None:
        if isinstance(patterns, str):
            raise TypeError(f"{name} must be a list of path patterns, not one text: [{patterns!r}]")
        if not isinstance(patterns, Iterable):
            raise TypeError(f"{name} must be a list of path patterns, not {type(patterns).__name__}")
        self.patterns = tuple(patterns)
        self._compiled = [(pattern, _compile(pattern, name)) for pattern in self.patterns]

    def match(self, path: str) -> str | None:
        """The first pattern that matches the whole of ``path``."""
        for pattern, compiled in self._compiled:
            if compiled.fullmatch(path):
                return pattern
        return None


def _compile(pattern: object, name: str) -> re.Pattern[str]:
    if not isinstance(pattern, str):
        raise TypeError(f"{name} must hold path patterns as text, not {type(pattern).__name__}")
    if not pattern.startswith(("/", "**")):
        raise ValueError(f"{name}: the path pattern {pattern!r} must start with '/', or be '**' for all")
    trimmed = pattern.rstrip("/") or "/"
    parts = (_MEANING.get(token, re.escape(token)) for token in _TOKEN.findall(trimmed))
    # Starlette's routes end in "$", which matches before a last line feed too: so must these.
    return re.compile("".join(parts) + "\n?", re.DOTALL)
