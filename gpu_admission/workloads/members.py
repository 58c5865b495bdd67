"""Members of a body's object that many APIs have in the same form: a model, settings, one or several.

Owns what a wrong type means there. Numbers are in ``bodies.numbers``; which members an API has is up to
its dialect.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpu_admission.errors import UnreadableBody


def model_in(fields: Mapping[str, Any]) -> str | None:
    """The model that is asked for, if it is named by a text."""
    model = fields.get("model")
    return model if type(model) is str else None


def settings_in(fields: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The object at ``name``, or an empty one. Raises ``UnreadableBody`` where anything else stands."""
    settings = fields.get(name)
    if settings is None:
        return {}
    if type(settings) is not dict:
        raise UnreadableBody(f"{name} must be an object")
    return settings


def listed(value: Any) -> list[Any]:
    """The items of a list, or the only item; ``None`` is no item."""
    return value if type(value) is list else [] if value is None else [value]
