"""Keys and values of one sequence: allocated whole at its start, or a page at a time as it grows."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from gpu_admission.demo.shape import Shape


class Cache(Protocol):
    """What the model needs of one. ``length`` tokens are filled; tensors are (2, heads, tokens, width)."""

    length: int

    def reach(self, tokens: int) -> None:
        """Have room for so many. Raises the device's own out-of-memory error."""
        ...

    def extended(self, layer: int, start: int, new: Tensor) -> Tensor:
        """Keep the keys and values ``new`` from ``start`` on; all of this layer up to their end."""
        ...


class WholeCache:
    """All of it at once, as a static cache: what may be asked is taken."""

    __slots__ = ("__weakref__", "length", "tensor")

    def __init__(self, shape: Shape, tokens: int, device: str) -> None:
        self.tensor = _empty(shape, tokens, device)
        self.length = 0

    def reach(self, tokens: int) -> None:
        """There is room already."""

    def extended(self, layer: int, start: int, new: Tensor) -> Tensor:
        end = start + new.shape[2]
        self.tensor[layer, :, :, start:end] = new
        return self.tensor[layer, :, :, :end]


class PagedCache:
    """Pages of so many tokens, as engines with a pool have them: what is really used is taken."""

    __slots__ = ("_device", "_page", "_shape", "length", "pages")

    def __init__(self, shape: Shape, page: int, device: str) -> None:
        self._shape = shape
        self._page = page
        self._device = device
        self.pages: list[Tensor] = []
        self.length = 0

    def reach(self, tokens: int) -> None:
        while len(self.pages) * self._page < tokens:
            self.pages.append(_empty(self._shape, self._page, self._device))

    def extended(self, layer: int, start: int, new: Tensor) -> Tensor:
        end = start + new.shape[2]
        at = start
        while at < end:
            page, offset = divmod(at, self._page)
            upto = min(end, at + self._page - offset)
            self.pages[page][layer, :, :, offset : offset + upto - at] = new[:, :, at - start : upto - start]
            at = upto
        pages = self.pages[: -(-end // self._page)]
        return torch.cat([page[layer] for page in pages], dim=2)[:, :, :end]


def _empty(shape: Shape, tokens: int, device: str) -> Tensor:
    width = shape.hidden // shape.heads
    return torch.empty(shape.layers, 2, shape.heads, tokens, width, device=device)
