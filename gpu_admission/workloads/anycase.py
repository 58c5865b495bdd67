"""Names of fields in any case, as servers written in Go read them (Ollama, LocalAI).

Such a server may stand behind the paths of any common API. Owns what a body says to it. Another server
reads the body as it is, so that is a second reading, and not one in its place.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from gpu_admission.bodies.json import JSONObject, LongList, larger

_DEPTH: Final = 8
"""Below this no field stands that makes a request larger."""
_INSIDE: Final = (dict, list, LongList)


def spellings(body: JSONObject) -> list[JSONObject]:
    """``body`` as it is, and, if any of its names are not in small letters, with all of them in these."""
    if not _has_others(body.fields, _DEPTH):
        return [body]
    return [body, msgspec.structs.replace(body, fields=_folded(body.fields, _DEPTH))]


def _are_small(names: Iterable[str]) -> bool:
    """Whether all are in small letters. Go takes some that are not of ASCII for those that are."""
    joined = "".join(names)
    return joined.isascii() and joined == joined.lower()


def _has_others(value: Any, depth: int) -> bool:
    if not depth:
        return False
    if type(value) is dict:
        return not _are_small(value) or any(_has_others(each, depth - 1) for each in value.values())
    return type(value) is list and any(_has_others(each, depth - 1) for each in value)


def _folded(value: Any, depth: int) -> Any:
    """A copy of ``value``, without what stands below ``depth``."""
    if type(value) is dict:
        pairs = value.items() if depth else ()
        return _joined((name.casefold(), _folded(each, depth - 1)) for name, each in pairs)
    if type(value) is list:
        return [_folded(each, depth - 1) for each in value] if depth else []
    return value


def _joined(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """An object with lists and objects of the same name joined, and else the larger value."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        _put(found, name, value)
    return found


def _put(found: dict[str, Any], name: str, value: Any) -> None:
    earlier = found.setdefault(name, value)
    if earlier is value:
        return
    if type(earlier) is list and type(value) is list:
        earlier += value  # in place: one name may be spelled in thousands of ways
    elif type(earlier) is dict and type(value) is dict:
        for inner, each in value.items():
            _put(earlier, inner, each)
    elif type(value) in _INSIDE:
        found[name] = value
    elif type(earlier) not in _INSIDE:
        found[name] = larger(earlier, value)
