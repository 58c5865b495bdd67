"""Patterns in the settings that fit no route of the app: most often a typo.

Owns the sentences that say so, with the nearest route. What the app has is in ``appdoors``.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpu_admission.admission import Admission
from gpu_admission.planning.appdoors import Looked
from gpu_admission.rules.patterns import overlap, route_path

_NEAR = 0.5
"""How alike two texts must be, from 0 to 1."""


def strays(admission: Admission, looked: Looked) -> Iterator[str]:
    """A sentence for each pattern of ``admission`` that no route matches, as far as routes are known."""
    if looked.inside:
        return  # the app asks by itself, whatever its routes are
    unknown = [pattern for prefix in looked.unknown for pattern in _below(prefix, admission, looked)]
    for name, patterns, paths in _named(admission, looked):
        for pattern in patterns:
            if not any(overlap(pattern, path) for path in (*paths, *unknown)):
                yield f"{name}: no route of the app matches {pattern!r}{_nearest(pattern, paths)}"


def _named(admission: Admission, looked: Looked) -> Iterator[tuple[str, Sequence[str], Sequence[str]]]:
    """Each setting that holds patterns, with them and the paths that they may name."""
    ours = [each for each in looked.seen if each.admission is admission]
    sockets = [each.path for each in ours if each.is_socket]
    plain = [each.path for each in ours if not each.is_socket]
    # A route with parameters may be metered for some of their values only.
    metered = [each.path for each in ours if each.is_metered or "*" in each.path]
    allowed = {
        "estimator": metered,
        "dialect": metered,
        "routes": metered,
        "exclude": plain,
        "control": plain,
        "websockets": sockets,
    }
    for name, paths in allowed.items():
        yield name, _patterns(getattr(admission.settings, name)), paths


def _patterns(setting: Any) -> Sequence[str]:
    return list(setting) if isinstance(setting, (Mapping, list, tuple)) else ()


def _below(prefix: str, admission: Admission, looked: Looked) -> Iterator[str]:
    """What may be below ``prefix``, where an app is that does not tell its routes."""
    for owner, mounted in looked.middleware:
        if owner is admission:
            path = route_path(prefix, mounted).rstrip("/")
            yield from (path or "/", f"{path}/**")


def _nearest(pattern: str, paths: Sequence[str]) -> str:
    near = difflib.get_close_matches(pattern, paths, n=1, cutoff=_NEAR)
    return f"; the nearest is {near[0]!r}" if near else ""
