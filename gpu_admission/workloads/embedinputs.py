"""What an embedding request lists: texts, token ids, pictures, sounds. Owns its fields.

OpenAI's ``input``, Cohere's ``texts``, ``images`` and ``inputs``, Jina's and Infinity's items
and ``modality``, llama.cpp's ``content``. Each entry is a row of its own.
"""

from __future__ import annotations

from typing import Any, Final

from gpu_admission.workloads.content import Tally
from gpu_admission.workloads.members import listed

_LISTS: Final = ("input", "texts", "inputs", "content")
_MODALITIES: Final = ("image", "audio", "video")
_ADDRESSES: Final = ("data:", "http:", "https:")


def embed_rows(tally: Tally) -> list[int]:
    """Tokens of each entry of the tally's body; ``tally`` gets its pictures and sounds."""
    fields = tally.body.fields
    key = next((name for name in _MODALITIES if name == fields.get("modality")), None)
    found: list[int] = []
    for name in _LISTS:
        if name in fields:
            found += _entries(tally, fields[name], key)
    for name in ("images", "image"):
        found += [tally.row({"image": item}) for item in listed(fields.get(name))]
    return found


def _entries(tally: Tally, value: Any, key: str | None) -> list[int]:
    """Tokens of each entry in ``value``; ``key``: what kind of medium an address among them leads to."""
    items = value if type(value) is list else [value]
    if not any(type(item) is dict or (key and _is_address(tally, item)) for item in items):
        return tally.rows(value)
    found: list[int] = []
    for item in items:
        if type(item) is dict:
            found.append(max(1, tally.row(item)))
        elif key and _is_address(tally, item):
            found.append(tally.row({key: item}))
        else:
            found += tally.rows([item])
    return found


def _is_address(tally: Tally, item: Any) -> bool:
    """Whether a text points to a picture or sound, in any form that servers with modalities accept."""
    return type(item) is str and tally.body.head(item, 8).lower().startswith(_ADDRESSES)
