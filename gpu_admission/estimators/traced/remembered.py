"""``Remembered``: what operators returned for the same sizes before, so each is worked out once.

A model repeats its layers, and torch needs up to a millisecond to find the sizes of one result:
remembering them keeps a trace down to seconds. Owns the memory, and which operators may use it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch.utils._pytree import tree_leaves

_Shape: TypeAlias = "tuple[torch.Size, tuple[int, ...], torch.dtype]"
_Shapes: TypeAlias = "tuple[_Shape | None, ...]"


class Remembered:
    """Sizes of results by operator and sizes of arguments, on the meta device only."""

    def __init__(self) -> None:
        self._results: dict[Any, tuple[bool, _Shapes]] = {}
        self._fresh: dict[Any, bool] = {}

    def run(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """What ``func`` returns: run, or made again from memory."""
        key = self._key(func, args, kwargs)
        if key is None:
            return func(*args, **kwargs)
        known = self._results.get(key)
        if known is None:
            result = func(*args, **kwargs)
            if _shares(result, args):
                self._fresh[func] = False
            else:
                self._learn(key, result)
            return result
        single, shapes = known
        made = [
            s if s is None else torch.empty_strided(s[0], s[1], dtype=s[2], device="meta") for s in shapes
        ]
        return made[0] if single else tuple(made)

    def _key(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        fresh = self._fresh.get(func)
        if fresh is None:
            fresh = self._fresh[func] = _makes_new(func)
        if not fresh:
            return None
        try:
            key = (func, _described(args), _described(tuple(kwargs.items())) if kwargs else ())
            hash(key)
        except (_NotMeta, TypeError):
            return None
        return key

    def _learn(self, key: Any, result: Any) -> None:
        single = isinstance(result, torch.Tensor)
        items = (result,) if single else result
        if not isinstance(items, (tuple, list)) or not all(i is None or _meta(i) for i in items):
            return
        shapes = tuple(None if i is None else (i.shape, i.stride(), i.dtype) for i in items)
        self._results[key] = (single, shapes)


class _NotMeta(Exception):
    """A tensor with data: its values may matter."""


def _makes_new(func: Any) -> bool:
    """Whether its schema says that results are never its arguments, nor views of them."""
    schema = func._schema
    return not any(a.alias_info for a in (*schema.arguments, *schema.returns))


def _shares(result: Any, args: Any) -> bool:
    """Whether it is a view after all, which some schemas do not say: ``_unsafe_view``."""
    given = {id_of(a) for a in tree_leaves(args) if isinstance(a, torch.Tensor)}
    return any(id_of(r) in given for r in tree_leaves(result) if isinstance(r, torch.Tensor))


def id_of(tensor: torch.Tensor) -> int:
    """Of its storage, while that lives."""
    key: int = tensor.untyped_storage()._cdata
    return key


def _meta(item: Any) -> bool:
    return isinstance(item, torch.Tensor) and item.is_meta


def _described(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        if not value.is_meta:
            raise _NotMeta
        return value.shape, value.stride(), value.dtype
    if isinstance(value, (tuple, list)):
        return tuple([_described(item) for item in value])
    return type(value), value
