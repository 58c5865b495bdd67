"""Any ``torch.nn.Module``, traced by a call that somebody describes.

Owns the reading of that description: the sizes are the parameters of ``call``. Ready-made
descriptions are in ``transformers`` and ``diffusers``.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, Final

import torch
from torch.utils._pytree import tree_leaves

from gpu_admission.estimators.traced.answers import Answers
from gpu_admission.estimators.traced.fit import Record
from gpu_admission.estimators.traced.grid import Axis, Group, PhaseOf, Sizes, trace_groups
from gpu_admission.estimators.traced.peaks import Trace
from gpu_admission.estimators.traced.remembered import Remembered
from gpu_admission.estimators.traced.standins import FusedAttention
from gpu_admission.estimators.traced.tracer import Places, Tracer, cpu_workspace

_AXES: Final[Mapping[str, Axis]] = {
    "sequences": Axis("sequences", 1),
    "rows": Axis("rows", 1),
    "images": Axis("images", 1),
    "prompt_tokens": Axis("prompt_tokens", 2, unit=32),
    "new_tokens": Axis("new_tokens", 1, unit=8),
    "width": Axis("width", 1, unit=64, least=64),
    "height": Axis("height", 1, unit=64, least=64),
}
"""How sizes are varied unless ``axes`` says otherwise."""


def trace(
    make_model: Callable[[], Any],
    call: Callable[..., Any],
    *,
    axes: Mapping[str, Axis],
    name: str,
    inputs: bool,
    device: str,
) -> Trace:
    """Trace ``make_model()`` at ``call(**sizes)``. Raises ``ValueError`` when ``call`` names no sizes."""
    started = time.perf_counter()
    module = Module(make_model, call, inputs=inputs, device=device)
    known = [axes.get(size, _AXES.get(size, Axis(size, 1))) for size in _sizes(call)]
    phase = PhaseOf("forward", {axis.name: (axis.name, 0) for axis in known})
    found, check = trace_groups([Group(known, (phase,), module.run)])
    return Trace(
        model=name,
        phases=found,
        check=check,
        settings={"attention": "sdpa", "device": device, "torch": str(torch.__version__)},
        notes=tuple(sorted(module.notes)),
        seconds=round(time.perf_counter() - started, 1),
    )


def _sizes(call: Callable[..., Any]) -> list[str]:
    names = list(inspect.signature(call).parameters)
    if not names:
        raise ValueError("call must have the sizes of the workload as parameters, such as sequences or width")
    return names


class Module:
    """A module on the meta device, and how it is called at given sizes."""

    def __init__(
        self,
        make_model: Callable[[], Any],
        call: Callable[..., Any],
        *,
        phase: str = "forward",
        inputs: bool = True,
        method: str = "forward",
        device: str = "cuda",
    ) -> None:
        self.notes: set[str] = set()
        with torch.device("meta"), torch.no_grad():
            self.model = make_model().to("meta").eval()
        self._call = call
        self._phase = phase
        self._inputs = inputs
        self._method = method
        self._workspace = cpu_workspace if device == "cpu" else None
        self._remembered = Remembered()

    def run(self, sizes: Sizes) -> Mapping[str, Record]:
        """What was alive while it ran."""
        with torch.device("meta"):
            args, kwargs = _arguments(self._call(**sizes))
        answers = Answers(padded=False, remembered=self._remembered)
        given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        known = [*self.model.parameters(), *self.model.buffers()]
        tracer = Tracer(known, device="meta", answers=answers, workspace=self._workspace)
        (tracer.hold if self._inputs else tracer.ignore)(given)
        tracer.phase = self._phase
        with ExitStack() as stack:
            for scope in (torch.no_grad(), FusedAttention(), Places(self.model, tracer), tracer):
                stack.enter_context(scope)
            self._called(args, kwargs)
        self.notes |= answers.notes
        return tracer.records

    def _called(self, args: Any, kwargs: Any) -> None:
        if self._method == "forward":
            self.model(*args, **kwargs)
        else:
            getattr(self.model, self._method)(*args, **kwargs)


def _arguments(made: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(made, Mapping):
        return (), dict(made)
    return (tuple(made), {}) if isinstance(made, (tuple, list)) else ((made,), {})
