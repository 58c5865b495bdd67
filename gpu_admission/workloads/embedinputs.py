"""What an embedding request lists: texts, token ids, pictures, sounds. Owns its fields.

OpenAI's ``input``, Cohere's ``texts``, ``images`` and ``inputs``, Jina's and Infinity's items
and ``modality``, llama.cpp's ``content``. Each entry is a row of its own.
"""

from __future__ import annotations

from typing import Any, Final

from gpu_admission.bodies.json import JSONObject
from gpu_admission.workloads.content import Tally
from gpu_admission.workloads.tokens import Counter, rows

_LISTS: Final = ("input", "texts", "inputs", "content")
_MODALITIES: Final = {"image": "image", "audio": "audio", "video": "video"}
_ADDRESSES: Final = ("data:", "http:", "https:")


def embed_rows(body: JSONObject, counter: Counter, tally: Tally) -> list[int]:
    """Tokens of each entry of ``body``; ``tally`` gets its pictures and sounds."""
    fields = body.fields
    modality = fields.get("modality")
    key = _MODALITIES.get(modality) if type(modality) is str else None
    found: list[int] = []
    for name in _LISTS:
        if name in fields:
            found += _entries(body, counter, tally, fields[name], key)
    for name in ("images", "image"):
        if fields.get(name) is not None:
            found += [tally.row({"image": item}) for item in _listed(fields[name])]
    return found


def _entries(body: JSONObject, counter: Counter, tally: Tally, value: Any, key: str | None) -> list[int]:
    items = _listed(value)
    if not any(type(item) is dict or (key and _is_address(body, item)) for item in items):
        return rows(body, counter, value)
    found: list[int] = []
    for item in items:
        if type(item) is dict:
            found.append(max(1, tally.row(item)))
        elif key and _is_address(body, item):
            found.append(tally.row({key: item}))
        else:
            found += rows(body, counter, [item])
    return found


def _listed(value: Any) -> list[Any]:
    return value if type(value) is list else [value]


def _is_address(body: JSONObject, item: Any) -> bool:
    """Whether a text points to a picture or sound, in any form that servers with modalities accept."""
    return type(item) is str and body.head(item, 8).lower().startswith(_ADDRESSES)
