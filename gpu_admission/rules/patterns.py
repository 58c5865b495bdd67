"""Path patterns, and the path that they are matched with.

Owns the one answer to "which path is this": the path that the app's own router sees.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator

_WILDCARD = re.compile(r"\*+")
_STEP = re.compile(r"\*+|.", re.DOTALL)


def route_path(path: str, root_path: str) -> str:
    """The part of a scope's ``path`` below its ``root_path``, as Starlette's router reads it.

    Servers and mounts differ in whether ``path`` repeats the ``root_path``; where it does,
    it is taken off. Percent-encoding is already undone by the server. A trailing slash is
    ignored, so that ``/generate/`` cannot slip past a pattern for ``/generate``.
    """
    if root_path and path.startswith(root_path) and path[len(root_path) : len(root_path) + 1] in ("", "/"):
        path = path[len(root_path) :]
    return path.rstrip("/") or "/" if path.endswith("/") or not path else path


def plain_path(path: str) -> str:
    """``path`` without empty, ``.`` and ``..`` segments, as proxies and some routers make it."""
    return posixpath.normpath("/" + path.lstrip("/"))


def root_path_of(app: object) -> str:
    """The ``root_path`` that ``app`` puts into its scopes by itself, as FastAPI does; empty if none."""
    for _ in range(100):
        root_path = getattr(app, "root_path", "")
        if isinstance(root_path, str) and root_path:
            return root_path
        app = getattr(app, "app", None)
        if app is None:
            break
    return ""


def overlap(first: str, second: str) -> bool:
    """Whether there is a path that both patterns match."""
    one, other = _steps(first), _steps(second)
    reached: set[tuple[int, int]] = set()
    ahead = [(0, 0)]
    while ahead:
        place = ahead.pop()
        if place not in reached:
            reached.add(place)
            ahead += _onwards(one, other, *place)
    return (len(one) - 1, len(other) - 1) in reached


def _steps(pattern: str) -> list[str]:
    """Letters and wildcards of ``pattern``, and an empty one at its end."""
    return [step[:2] for step in _STEP.findall(pattern.rstrip("/") or "/")] + [""]


def _onwards(one: list[str], other: list[str], i: int, j: int) -> Iterator[tuple[int, int]]:
    """Where two patterns may stand next: a wildcard ends, or takes what the other has."""
    left, right = one[i], other[j]
    if left[:1] == "*":
        yield i + 1, j
        if right and (left == "**" or right != "/"):
            yield i, j + 1
    if right[:1] == "*":
        yield i, j + 1
        if left and (right == "**" or left != "/"):
            yield i + 1, j
    elif left and left == right:
        yield i + 1, j + 1


class Patterns:
    """Path patterns: ``*`` stands for anything within a segment, ``**`` across segments.

    Raises ``TypeError``/``ValueError`` with the setting's ``name`` for what is no pattern.
    """

    def __init__(self, patterns: Iterable[str], *, name: str) -> None:
        if isinstance(patterns, str):
            raise TypeError(f"{name} must be a list of path patterns, not one string: [{patterns!r}]")
        if not isinstance(patterns, Iterable):
            raise TypeError(f"{name} must be a list of path patterns, not {type(patterns).__name__}")
        self.patterns = tuple(patterns)
        self._globs = [(pattern, _glob(pattern, name)) for pattern in self.patterns]

    def match(self, path: str) -> str | None:
        """The first pattern that matches the whole of ``path``, in time linear in its length."""
        # Starlette's routes end in "$", which matches before a last line feed too: so must these.
        path = path.removesuffix("\n")
        for pattern, glob in self._globs:
            if glob.matches(path):
                return pattern
        return None


class Glob:
    """One pattern: what stands before, between and behind its wildcards.

    Not a regular expression: those backtrack, and three ``**`` would take minutes on a long path.
    """

    __slots__ = ("_across", "_between", "_end", "_literals", "_prefix", "_suffix", "_wildcards")

    def __init__(self, pattern: str) -> None:
        wildcards = _WILDCARD.findall(pattern)
        self._prefix, *between = _WILDCARD.split(pattern)
        self._suffix = between.pop() if between else None
        """``None``: there is no wildcard."""
        self._between = between
        self._literals: dict[str, int] = {}
        """For each character, a bit for each place in the pattern where it may come next."""
        self._wildcards = self._across = 0
        """A bit for each wildcard, and for those that match a slash too."""
        place = 0
        for wildcard, literal in zip(wildcards, [*between, ""], strict=False):
            self._wildcards |= 1 << place
            self._across |= (len(wildcard) > 1) << place
            place += 1
            for character in literal:
                self._literals[character] = self._literals.get(character, 0) | 1 << place
                place += 1
        self._end = 1 << place

    def matches(self, path: str) -> bool:
        if self._suffix is None:
            return path == self._prefix
        start, end = len(self._prefix), len(path) - len(self._suffix)
        if start > end or not path.startswith(self._prefix) or not path.endswith(self._suffix):
            return False
        if self._end == 2:  # a single wildcard
            return self._across == 1 or "/" not in path[start:end]
        middle = path[start:end]
        # Fast, and all there is to it where every wildcard matches slashes too.
        return self._has_in_order(middle) and (self._across == self._wildcards or self._walk(middle))

    def _has_in_order(self, middle: str) -> bool:
        at = 0
        for literal in self._between:
            found = middle.find(literal, at)
            if found < 0:
                return False
            at = found + len(literal)
        return True

    def _walk(self, middle: str) -> bool:
        """All ways to match at once, a bit for each place in the pattern that has been reached."""
        literals, wildcards, across = self._literals, self._wildcards, self._across
        reached = 0b11  # the pattern's first place is a wildcard, which may match nothing
        for character in middle:
            stays = across if character == "/" else wildcards
            reached = (reached & stays) | (reached & literals.get(character, 0)) << 1
            reached |= (reached & wildcards) << 1
            if not reached:
                return False
        return bool(reached & self._end)


def _glob(pattern: object, name: str) -> Glob:
    if not isinstance(pattern, str):
        raise TypeError(f"{name} must hold path patterns as strings, not {type(pattern).__name__}")
    if not pattern.startswith(("/", "**")):
        raise ValueError(f"{name}: the path pattern {pattern!r} must start with '/', or be '**' for all")
    return Glob(pattern.rstrip("/") or "/")
