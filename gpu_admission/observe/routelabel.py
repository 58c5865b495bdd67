"""How a route is called wherever an operator sees it: metrics, status page, traces."""

from __future__ import annotations

UNMATCHED = "unmatched"
"""What no pattern of ``routes=`` or ``estimator=`` names."""


def shown(route: str) -> str:
    """The word for the ``route`` of an event."""
    return UNMATCHED if route == "*" else route
