"""Looking up a key of a config.json under its many names, on several levels.

Owns what a missing key, a null and a wrong type mean. What the keys mean is elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_MOST = 2**40


class Keys:
    """The levels of a config, innermost first, before the values that its class fills in.

    A key that is null gives ``None`` and not the class's value, as in the class's own loader.
    """

    def __init__(self, levels: Sequence[Mapping[str, Any]], defaults: Mapping[str, Any]) -> None:
        self._levels = levels
        self._defaults = defaults

    def over(self, overrides: Mapping[str, Any]) -> Keys:
        """The same keys with ``overrides`` in front: one layer's own values."""
        return Keys([overrides, *self._levels], self._defaults) if overrides else self

    def value(self, *names: str) -> Any:
        """The first of ``names`` that is not null; ``"a.b"`` looks inside ``a``."""
        nulls = set()
        for level in self._levels:
            for name in names:
                found, value = _find(level, name)
                if value is not None:
                    return value
                if found:
                    nulls.add(name)
        filled = (name for name in names if name in self._defaults and name not in nulls)
        return next((self._defaults[name] for name in filled), None)

    def given(self, *names: str) -> bool:
        """Whether the file itself has a value for one of ``names``."""
        return any(_find(level, name)[1] is not None for level in self._levels for name in names)

    def size(self, *names: str, layer: int = 0) -> int | None:
        """A positive whole number, or ``None`` when it is absent, null, 0, or ``"auto"``.

        Of a list it is the entry for ``layer``. Raises ``ValueError`` for anything else.
        """
        value = self.value(*names)
        if isinstance(value, list):
            value = value[layer] if layer < len(value) else None
        if value is None or value == "auto":
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= _MOST:
            raise ValueError(f"{names[0]} in the model config must be a positive number, not {value!r:.80}")
        return int(value) or None

    def sequence(self, *names: str) -> list[Any] | None:
        """A list that is not empty, or ``None``."""
        value = self.value(*names)
        return value if isinstance(value, list) and value else None

    def blocks(self) -> list[Mapping[str, Any]]:
        """What each block of a pruned model has of its own; empty for other models."""
        blocks = self.sequence("block_configs") or []
        return [block if isinstance(block, Mapping) else {} for block in blocks]


def _find(level: Mapping[str, Any], name: str) -> tuple[bool, Any]:
    value: Any = level
    for part in name.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return False, None
        value = value[part]
    return True, value
