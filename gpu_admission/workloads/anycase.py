"""Names of fields in any case, as servers written in Go read them (Ollama, LocalAI).

Such a server may stand behind the paths of any common API. Owns what a body says to it: another
server ignores the names that are added here, so the larger of two values counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from gpu_admission.bodies.json import JSONObject, largest

_DEPTH: Final = 8
"""Below this no field stands that makes a request larger."""


def folded(body: JSONObject) -> JSONObject:
    """``body``, with its names in small letters if any are in others."""
    if _has_others(body.fields, _DEPTH):
        body.fields = _folded(body.fields, _DEPTH)
    return body


def are_small(names: Iterable[str]) -> bool:
    """Whether all are in small letters. Go takes some that are not of ASCII for those that are."""
    joined = "".join(names)
    return joined.isascii() and joined == joined.lower()


def _has_others(value: Any, depth: int) -> bool:
    if not depth:
        return False
    if type(value) is dict:
        return not are_small(value) or any(_has_others(each, depth - 1) for each in value.values())
    return type(value) is list and any(_has_others(each, depth - 1) for each in value)


def _folded(value: Any, depth: int) -> Any:
    if not depth:
        return value
    if type(value) is dict:
        return _joined((name.casefold(), _folded(each, depth - 1)) for name, each in value.items())
    if type(value) is list:
        return [_folded(each, depth - 1) for each in value]
    return value


def _joined(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """An object with lists and objects of the same name joined, and else the larger value."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        earlier = found.get(name)
        if type(earlier) is list and type(value) is list:
            found[name] = earlier + value
        elif type(earlier) is dict and type(value) is dict:
            found[name] = _joined([*earlier.items(), *value.items()])
        elif name in found:
            found.update(largest([(name, earlier), (name, value)]))
        else:
            found[name] = value
    return found
