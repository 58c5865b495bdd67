"""``module:name`` on a command line: the object that it means."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any


def named(text: str, *, what: str) -> Any:
    """The object, found as ``python -m`` finds modules. Raises ``ValueError`` naming ``what``."""
    module, colon, name = text.partition(":")
    if not colon or not module or not name:
        raise ValueError(f"{what} {text!r}: write module:name")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found: Any = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{what} {text!r} can't be had: {error}") from None
    return found
