"""``Traced``: an estimator made from a model's own code, without its weights and without a GPU.

Owns the estimate, which is arithmetic on what a trace has found, and the ways to make one. Making
one needs torch and seconds; using one, or loading a saved one, needs neither.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from math import ceil
from typing import Any, Final, Literal

from gpu_admission.estimators.features import Feature, feature
from gpu_admission.estimators.terms import assumed, clamp, render
from gpu_admission.estimators.traced.compiled import Number
from gpu_admission.estimators.traced.peaks import Phase, Trace, product_names, reader
from gpu_admission.estimators.traced.saved import read_trace, write_trace
from gpu_admission.estimators.vision import Vision
from gpu_admission.request import RequestInfo
from gpu_admission.sizes import MAX_BYTES, format_bytes, parse_bytes
from gpu_admission.types import Estimate, Workload

MARGIN: Final = 0.05
"""For the allocator: of the published peaks of Qwen2.5 at 0.5B, 1.5B and 7B, none is above the trace
by more than this from one prompt length to the next."""
_UNSEEN: Final = "images are not counted: only the text of the model was traced"


class Traced:
    """The highest live bytes of any phase of a model, by the sizes of the workload.

    Make one with ``transformers``, ``diffusers`` or ``of``, ``save`` it, and ``load`` it where it
    serves. It counts every tensor that the model's code makes or is given, but not its weights. What the
    allocator loses to rounding and fragmentation, and what kernels use internally, can't be seen: for
    that there are ``margin``, a share put on top, and ``constant``, bytes that were measured. What
    libraries take once, such as cuBLAS's workspace, belongs to no request: measure the capacity after one.
    """

    def __init__(self, trace: Trace, *, margin: float = MARGIN, constant: int | str = 0) -> None:
        if not 0 <= margin <= 16:
            raise ValueError(f"margin must be between 0 and 16, got {margin!r}")
        self.trace = trace
        self.margin = margin
        self.constant = parse_bytes(constant, name="constant")
        self._factor = 1 + margin
        self._plain = not margin and not self.constant
        self._tower = trace.tower.vision() if trace.tower else None
        self._image_notes = (_UNSEEN,) if trace.text_only else trace.tower.notes if trace.tower else ()
        readers = _readers(trace)
        self._phases = [
            (i, p.new_tokens, p.prompt_logprobs, [readers.get(n) or feature(n) for n in p.axes], reader(p))
            for i, p in enumerate(trace.phases)
        ]
        self._terms = [_terms(phase) for phase in trace.phases]
        self._notes: list[tuple[str, ...]] = [(f"peak at {phase.name}",) for phase in trace.phases]

    @classmethod
    def transformers(
        cls,
        source: Any,
        *,
        dtype: str | None = None,
        attention: Literal["flash", "sdpa", "eager"] = "sdpa",
        experts: Literal["grouped_mm", "batched_mm", "eager"] = "grouped_mm",
        kernels: Literal["torch", "fused"] = "torch",
        sampling: Literal["greedy", "top_k", "top_p"] = "top_p",
        beams: int = 1,
        padded: bool = True,
        inputs: bool = True,
        vision: Vision | Literal["config"] | None = "config",
        margin: float = MARGIN,
    ) -> Traced:
        """A model of transformers, run by its own ``generate``: ``source`` is a config (a path, a
        ``dict``, an object) or a model.

        - ``dtype``: what it computes in; by default what its config says, else bfloat16.
        - ``attention``, ``experts``: the implementations that the server chose. ``grouped_mm`` is
          what the library takes by default; it decodes with ``batched_mm``. ``sdpa`` is as CUDA has
          it: torch on a CPU keeps the scores of latent attention, whose keys are wider than its values.
        - ``kernels``: ``fused`` where the server has causal-conv1d, mamba-ssm or
          flash-linear-attention installed, for state-space layers and linear attention.
        - ``sampling``: the costliest that requests may ask for; each kind keeps more copies of the logits.
        - ``beams``: the beam width that the server uses.
        - ``padded``: batches may hold prompts of different lengths, and then need masks.
        - ``inputs``: the tensors that the model is given count too.
        - ``vision``: for a language model that looks at images, only the text is traced; this is what its
          images add, by default read from its config. ``None``: the server takes no images.

        Raises ``ValueError`` for a config that it can't read, ``ImportError`` without transformers.
        """
        if not (vision is None or vision == "config" or isinstance(vision, Vision)):
            raise TypeError(f"vision must be a Vision, 'config' or None, got {vision!r}")
        choices = _maker("build").Choices(
            dtype=dtype,
            attention=_one_of("attention", attention, ("flash", "sdpa", "eager")),
            experts=_one_of("experts", experts, ("grouped_mm", "batched_mm", "eager")),
            kernels=_one_of("kernels", kernels, ("torch", "fused")),
            sampling=_one_of("sampling", sampling, ("greedy", "top_k", "top_p")),
            beams=beams,
            padded=padded,
            inputs=inputs,
        )
        return cls(_maker("transformers").trace(source, choices, vision), margin=margin)

    @classmethod
    def diffusers(
        cls,
        source: Any,
        *,
        dtype: str | None = None,
        guidance: bool = True,
        tiling: bool = False,
        slicing: bool = False,
        inputs: bool = True,
        device: Literal["cuda", "cpu"] = "cuda",
        margin: float = MARGIN,
    ) -> Traced:
        """A denoiser and a VAE of diffusers: ``source`` is a pipeline, its folder, ``{"unet": config,
        "vae": config}``, or one such config.

        - ``guidance``: each picture is denoised with and without its prompt, as two rows.
        - ``tiling``, ``slicing``: as enabled on the VAE.
        - ``inputs``, ``device``: see ``of``.

        Raises ``ValueError`` for a class of denoiser that has no ready-made inputs.
        """
        trace = _maker("diffusers").trace(
            source,
            guidance=guidance,
            dtype=dtype,
            tiling=tiling,
            slicing=slicing,
            inputs=inputs,
            device=_one_of("device", device, ("cuda", "cpu")),
        )
        return cls(trace, margin=margin)

    @classmethod
    def of(
        cls,
        make_model: Callable[[], Any],
        call: Callable[..., Any],
        *,
        axes: Mapping[str, Any] | None = None,
        name: str = "model",
        inputs: bool = True,
        device: Literal["cuda", "cpu"] = "cuda",
        margin: float = MARGIN,
    ) -> Traced:
        """Any ``torch.nn.Module``: ``make_model()`` makes it, ``call(**sizes)`` its inputs.

        The parameters of ``call`` are the sizes that count, by their names in a workload:
        ``lambda sequences, width, height: torch.zeros(sequences, 3, height, width)``. It returns a
        tensor, a ``tuple`` of arguments, or a ``dict`` of keyword arguments.

        - ``axes``: details of a size, ``{"width": Axis("width", degree=1, unit=32)}``, where ``Axis`` is
          in ``gpu_admission.estimators.traced.grid``.
        - ``inputs``: the tensors that ``call`` makes count too, as they do where they lie on the device.
        - ``device``: on a ``"cpu"`` a convolution also holds a copy of its weights and its input; what
          cuDNN holds can't be known without the card.
        """
        trace = _maker("modules").trace(
            make_model,
            call,
            axes=axes or {},
            name=name,
            inputs=inputs,
            device=_one_of("device", device, ("cuda", "cpu")),
        )
        return cls(trace, margin=margin)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, margin: float = MARGIN, constant: int | str = 0) -> Traced:
        """What ``save`` has written. Needs no torch. Raises ``ValueError`` for another file."""
        return cls(read_trace(path), margin=margin, constant=constant)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the trace to ``path``, as JSON."""
        write_trace(self.trace, path)

    def __call__(self, info: RequestInfo, /) -> Estimate:
        return self.estimate(info.workload)

    def estimate(self, workload: Workload) -> Estimate:
        """Bytes that ``workload`` adds at its peak; ``parts`` are the terms of the highest phase."""
        try:
            size, phase, place, powers = self._highest(workload)
            parts = {name: ceil(c * powers[i]) for name, i, c in self._terms[phase][place]}
            if workload.images:
                size += self._images(workload, parts)
        except (OverflowError, ValueError):  # a size that no float holds, or NaN
            return Estimate(MAX_BYTES, None, "device", {"out of range": MAX_BYTES}, assumed(workload))
        notes = self._notes[phase]
        if workload.defaulted:
            notes += assumed(workload)
        if workload.images:
            notes += self._image_notes
        if self._plain:
            return Estimate(clamp(size), None, "device", parts, notes)
        charged = clamp((min(size, MAX_BYTES) + self.constant) * self._factor)
        parts["constant and margin"] = charged - ceil(size)
        return Estimate(charged, None, "device", parts, notes)

    def _highest(self, workload: Workload) -> tuple[Number, int, int, Sequence[Number]]:
        """Bytes, the phase, the place of its peak, and the products that its coefficients are for."""
        best: Number = -1
        found: Any = None
        for phase, new_tokens, logprobs, features, highest in self._phases:
            if new_tokens > workload.new_tokens or logprobs > workload.prompt_logprobs:
                continue
            size, place, powers = highest([read(workload) for read in features])
            if size > best:
                best, found = size, (size, phase, place, powers)
        if found is None:
            raise LookupError("the trace has no phase that is always there")
        return found  # type: ignore[no-any-return]

    def _images(self, workload: Workload, parts: dict[str, int]) -> int:
        """What its images take; ``generate`` repeats them for each row."""
        if self._tower is None:
            return 0
        parts["images"] = size = self._tower.estimate(workload).bytes * _sequences(workload)
        return size

    def explain(self, workload: Workload) -> str:
        """The terms of the peak and the bytes of every phase, as text."""
        lines = [render(f"Traced {self.trace.model}", self.estimate(workload)), "  phases:"]
        for i, _, _, features, highest in self._phases:
            size, place, _ = highest([read(workload) for read in features])
            phase = self.trace.phases[i]
            lines.append(f"    {phase.name}: {format_bytes(clamp(size))} after {phase.peaks[place].at}")
        return "\n".join([*lines, *(f"  note: {note}" for note in self.trace.notes)])

    def __repr__(self) -> str:
        phases = ", ".join(phase.name for phase in self.trace.phases)
        return f"Traced({self.trace.model}: {phases}; within {abs(self.trace.check.worst):.2%})"


def _terms(phase: Phase) -> list[list[tuple[str, int, Number]]]:
    """For each peak, its terms that are not zero, by name and place."""
    names = product_names(phase.axes, phase.degrees)
    return [[(names[i], i, c) for i, c in enumerate(peak.coefficients) if c] for peak in phase.peaks]


def _rows(workload: Workload) -> int:
    """Items that run at once: images where there are any, else sequences."""
    return max(workload.sequences, len(workload.images), 1)


def _sequences(workload: Workload) -> int:
    return workload.sequences if workload.sequences > 1 else 1


def _readers(trace: Trace) -> Mapping[str, Feature]:
    """Features that are read differently here."""
    beams = int(trace.settings.get("beams", "1"))
    return {
        "rows": _rows,
        "sequences": _sequences if beams == 1 else lambda workload: _beamed(workload, beams),
        "tokens": lambda workload: workload.prompt_tokens + workload.new_tokens,
    }


def _beamed(workload: Workload, beams: int) -> int:
    """Rows where the server searches with ``beams``, whether the request asked for them or not."""
    return -(-_sequences(workload) * beams // min(max(workload.beams, 1), beams))


def _one_of(name: str, value: str, allowed: Sequence[str]) -> str:
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, not {value!r}")
    return value


def _maker(module: str) -> Any:
    """A module that needs torch, imported when something is traced."""
    try:
        return import_module(f"gpu_admission.estimators.traced.{module}")
    except ImportError as error:
        raise ImportError(
            f"tracing needs {error.name}: install 'gpu-admission[trace]', or load a trace that was saved"
        ) from error
