"""A JSON body as Python's ``json`` reads it, faster. Owns the two readers and their order."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from gpu_admission.errors import UnreadableBody


def parse_json(body: bytes) -> Any:
    """The parsed ``body``: msgspec first, then ``json`` for what only that accepts.

    Raises ``UnreadableBody`` where Python's ``json`` would raise.
    """
    try:
        return msgspec.json.decode(body)
    except (ValueError, RecursionError):
        pass
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise UnreadableBody(f"the body is not JSON: {type(error).__name__}") from None
