"""``Answers``: what operators return on the meta device, where sizes are real but there is no data.

Owns the guesses, and the fallback for operators that have no meta form. Each guess is the one
that takes the most memory, or the one that ``padded`` asks for. Counts nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch.utils._pytree import tree_map_only

from gpu_admission.estimators.traced.remembered import Remembered

aten = torch.ops.aten

_LARGEST_REAL: Final = 2**28
"""The most bytes of input with which an operator without a meta form is run for real."""


class NoMetaForm(RuntimeError):
    """An operator that neither runs on the meta device nor, at these sizes, on the CPU."""


class Answers:
    """Runs operators, and answers for the meta device where it can't.

    ``padded`` says whether attention masks have padding in them, which ``mask.all()`` asks;
    ``routing`` that tables of booleans are the choices of experts, one for each place of a token.
    """

    def __init__(self, *, padded: bool, routing: bool = False, remembered: Remembered | None = None) -> None:
        self.notes: set[str] = set()
        """What was assumed, in sentences."""
        self._padded = padded
        self._routing = routing
        self._remembered = remembered or Remembered()
        self._all: set[int] = set()
        self._kept: list[torch.Tensor] = []
        self._special: dict[Any, Callable[..., Any]] = {
            aten._local_scalar_dense.default: self._scalar,
            aten.all.default: self._whole,
            aten.nonzero.default: self._nonzero,
            aten.masked_select.default: self._selected,
            aten.index.Tensor: self._indexed,
            aten._to_copy.default: self._moved,
            aten.equal.default: self._equal,
            aten._grouped_mm.default: self._grouped,
        }

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What ``func`` returns. Raises ``NoMetaForm`` naming the operator."""
        special = self._special.get(func)
        if special is not None:
            return special(func, args, kwargs)
        return self._plain(func, args, kwargs)

    def _plain(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            return self._remembered.run(func, args, kwargs)
        except NotImplementedError:
            return self._really(func, args, kwargs)
        except RuntimeError as error:
            if not _mixed((args, kwargs)):
                raise
            try:
                return func(*_to((args), "meta"), **_to(kwargs, "meta"))
            except RuntimeError:
                raise error from None

    def _really(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run it on the CPU on made-up data, and keep the sizes of what comes out."""
        if (size := _size((args, kwargs))) > _LARGEST_REAL:
            raise NoMetaForm(
                f"{func} has no meta form, and {size:,} bytes are too many to run it for real: "
                "trace smaller sizes"
            )
        self.notes.add(f"{func} has no meta form: it was run on the CPU, on made-up data of the same sizes")
        real = tree_map_only(torch.Tensor, _made_up, (args, kwargs))
        if "device" in real[1]:
            real[1]["device"] = torch.device("cpu")
        return _to(func(*real[0], **real[1]), "meta")

    def _scalar(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        value = args[0]
        if not value.is_meta:
            return func(*args, **kwargs)
        if value.dtype == torch.bool:
            return not self._padded if value.untyped_storage()._cdata in self._all else False
        self.notes.add("a number that the model reads from its data was taken to be 1")
        return 1.0 if value.dtype.is_floating_point else 1

    def _whole(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = func(*args, **kwargs)
        if result.is_meta:
            self._all.add(result.untyped_storage()._cdata)
            self._kept.append(result)  # so that no other storage gets its address
        return result

    def _nonzero(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        mask = args[0]
        if not mask.is_meta:
            return func(*args, **kwargs)
        return mask.new_empty((_found(mask, self._routing), mask.dim()), dtype=torch.long)

    def _selected(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not args[0].is_meta:
            return func(*args, **kwargs)
        shape = torch.broadcast_shapes(args[0].shape, args[1].shape)  # type: ignore[no-untyped-call]
        return args[0].new_empty((shape.numel(),))

    def _indexed(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A mask that picks is taken to pick everything."""
        if args[0].is_meta:
            args = (args[0], [part for index in args[1] for part in _indices(index)], *args[2:])
        return self._plain(func, args, kwargs)

    def _moved(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Data that is not there can't be copied to the CPU: it stays where it is."""
        if args[0].is_meta and kwargs.get("device") is not None:
            kwargs["device"] = torch.device("meta")
        return func(*args, **kwargs)

    def _equal(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return False if any(a.is_meta for a in args) else func(*args, **kwargs)

    def _grouped(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Its meta form takes bfloat16 only, and the kernels take more: rows by experts' columns."""
        rows, experts = args[:2]
        if not rows.is_meta or rows.dtype == torch.bfloat16 or (rows.dim(), experts.dim()) != (2, 3):
            return self._plain(func, args, kwargs)
        aligned = 16 // rows.element_size()
        columns = experts.shape[-1]
        strides = (-(-columns // aligned) * aligned, 1)
        return torch.empty_strided((rows.shape[0], columns), strides, dtype=rows.dtype, device="meta")


def _found(mask: torch.Tensor, routing: bool) -> int:
    """The most elements that can be true: all, or one per column in a table of experts' choices."""
    return mask.shape[-1] if routing and mask.dim() == 2 else mask.numel()


def _indices(index: torch.Tensor | None) -> list[torch.Tensor | None]:
    if index is None or index.dtype not in (torch.bool, torch.uint8):
        return [index]
    return [index.new_empty((index.numel(),), dtype=torch.long) for _ in range(index.dim())]


def _to(tree: Any, device: str) -> Any:
    return tree_map_only(torch.Tensor, lambda t: t.to(device), tree)


def _made_up(tensor: torch.Tensor) -> torch.Tensor:
    """Numbers that all differ, so that a search for equal ones finds none; whole numbers may be indices."""
    if not tensor.is_meta:
        return tensor
    make = torch.rand_like if tensor.dtype.is_floating_point else torch.zeros_like
    return make(tensor, device="cpu")


def _mixed(tree: Any) -> bool:
    kinds = {t.device.type for t in torch.utils._pytree.tree_leaves(tree) if isinstance(t, torch.Tensor)}
    return len(kinds) > 1 and "meta" in kinds


def _size(tree: Any) -> int:
    leaves = torch.utils._pytree.tree_leaves(tree)
    return sum(t.numel() * t.element_size() for t in leaves if isinstance(t, torch.Tensor))
