"""``Tracer``: adds up the storages that are alive after each operator that torch runs.

Owns the counting. What an operator returns when there is no data is in ``answers``, what stands in
for fused kernels in ``standins``. Imports torch: load it lazily.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gpu_admission.estimators.traced.answers import Answers

Place: TypeAlias = "tuple[str, str]"
"""The module's path and the operator's name."""
Workspace: TypeAlias = "Callable[[Any, tuple[Any, ...]], int]"
"""Bytes that an operator holds while it runs, besides its arguments and results."""
Record: TypeAlias = "dict[Place, list[int]]"
"""Live bytes after each run of an operator at a place, in order."""

_SAFE_SOFTMAX = torch.ops.aten._safe_softmax.default
"""It looks for rows of -inf, with a boolean for each entry, inside."""


def cpu_workspace(func: Any, args: tuple[Any, ...]) -> int:
    """On a CPU, oneDNN copies the weights and the input of a convolution into its own layout, each time."""
    if func is not torch.ops.aten.convolution.default:
        return 0
    copied: list[torch.Tensor] = [args[0], args[1]]
    return sum(tensor.numel() * tensor.element_size() for tensor in copied)


class Tracer(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Live bytes after each operator, by phase; the storages in ``known`` are not counted.

    It counts only tensors on ``device``. It can't see what kernels allocate internally: ``workspace``
    says what is known of that.
    """

    def __init__(
        self,
        known: Iterable[torch.Tensor],
        *,
        device: str,
        answers: Answers,
        workspace: Workspace | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = 0
        self.phase = ""
        """Where samples go; none are kept while it is empty."""
        self.place = ""
        """The path of the module that runs."""
        self.records: dict[str, Record] = {}
        self._device = device
        self._answers = answers
        self._workspace = workspace
        self._storages: dict[int, Any] = {}
        self.ignore(known)

    def ignore(self, tensors: Iterable[torch.Tensor]) -> None:
        """Don't count the storages of ``tensors``."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            self._storages[storage._cdata] = storage

    def hold(self, tensors: Iterable[torch.Tensor]) -> None:
        """Count the storages of ``tensors``, which were there before, until the end."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if storage._cdata not in self._storages:
                self.live += storage.nbytes()
                self._storages[storage._cdata] = storage

    @property
    def peak(self) -> int:
        """The most bytes that were alive at once, over all phases."""
        return max((max(sizes) for record in self.records.values() for sizes in record.values()), default=0)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = self._answers.run(func, args, dict(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self._count(result)
        elif isinstance(result, (tuple, list)):
            for item in result:
                if isinstance(item, torch.Tensor):
                    self._count(item)
        if self.phase:
            record = self.records.setdefault(self.phase, {})
            inside = args[0].numel() if func is _SAFE_SOFTMAX else 0
            if self._workspace:
                inside += self._workspace(func, args)
            record.setdefault((self.place, func._name), []).append(self.live + inside)
        return result

    def _count(self, tensor: torch.Tensor) -> None:
        if tensor.device.type != self._device:
            return
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._storages:
            size = storage.nbytes()
            self.live += size
            self._storages[key] = weakref.ref(storage, self._gone(key, size))

    def _gone(self, key: int, size: int) -> Callable[[Any], None]:
        def gone(_: Any) -> None:
            self.live -= size
            self._storages.pop(key, None)

        return gone


class Places:
    """Writes the path of the running module into ``tracer.place``; use it as a context manager."""

    def __init__(self, model: torch.nn.Module, tracer: Tracer) -> None:
        self._names = {module: name for name, module in model.named_modules()}
        self._tracer = tracer
        self._stack: list[str] = []
        self._handles: list[Any] = []

    def __enter__(self) -> Places:
        for module in self._names:
            self._handles.append(module.register_forward_pre_hook(self._enter))
            self._handles.append(module.register_forward_hook(self._leave, always_call=True))
        return self

    def __exit__(self, *error: object) -> None:
        for handle in self._handles:
            handle.remove()

    def _enter(self, module: torch.nn.Module, inputs: Any) -> None:
        self._stack.append(self._tracer.place)
        self._tracer.place = self._names[module]

    def _leave(self, module: torch.nn.Module, inputs: Any, output: Any) -> None:
        self._tracer.place = self._stack.pop() if self._stack else ""
