"""The field ``prompt`` in all its forms: texts, token ids, and llama.cpp's objects. Owns the last.

``{"prompt_string": …, "multimodal_data": […]}`` is a text with pictures or sounds in it; a list
of those is several prompts. Any other object is a template that the server keeps (OpenAI's).
"""

from __future__ import annotations

from typing import Any, Final

from gpu_admission.workloads.audio import is_sound_text
from gpu_admission.workloads.content import Tally
from gpu_admission.workloads.members import listed

_TEXT: Final = "prompt_string"
_MEDIA: Final = "multimodal_data"


def is_template(prompt: Any) -> bool:
    """Whether ``prompt`` names a text that only the server has."""
    return type(prompt) is dict and _TEXT not in prompt


def prompt_rows(tally: Tally, prompt: Any) -> list[int]:
    """Tokens of each prompt in ``prompt``; ``tally`` gets their pictures and sounds."""
    if _is_object(prompt):
        return [_object(tally, prompt)]
    if type(prompt) is list and any(map(_is_object, prompt)):
        return [row for item in prompt for row in _item(tally, item)]
    return tally.rows(prompt)


def _is_object(prompt: Any) -> bool:
    return type(prompt) is dict and _TEXT in prompt


def _item(tally: Tally, item: Any) -> list[int]:
    return [_object(tally, item)] if _is_object(item) else tally.rows([item])


def _object(tally: Tally, prompt: dict[str, Any]) -> int:
    rest = {name: value for name, value in prompt.items() if name != _MEDIA}
    return tally.row(rest) + sum(_medium(tally, item) for item in listed(prompt.get(_MEDIA)))


def _medium(tally: Tally, medium: Any) -> int:
    is_sound = type(medium) is str and is_sound_text(tally.body.head(medium, 64))
    return tally.row({"audio" if is_sound else "image": medium})
