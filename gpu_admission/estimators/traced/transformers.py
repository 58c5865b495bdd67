"""Models of the transformers library, traced as it runs them: its own ``generate``, on the meta device.

Owns the inputs of a run, and which part of it is which phase. The library's own code decides on
masks, caches, experts, logits processors and beams; how a model is made is in ``build``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import torch
import transformers
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from gpu_admission.estimators.traced.answers import Answers
from gpu_admission.estimators.traced.build import Built, Choices, build, quietly
from gpu_admission.estimators.traced.configs import longest, windows
from gpu_admission.estimators.traced.grid import Axis, PhaseOf, Sizes, trace_phases
from gpu_admission.estimators.traced.peaks import Trace
from gpu_admission.estimators.traced.standins import FusedAttention, flash_attention
from gpu_admission.estimators.traced.tracer import Places, Record, Tracer

_FORWARDS: Final = 3
"""Of a run: reading the prompt, the first step, and one that is like all later ones."""
_WRITTEN: Final = _FORWARDS - 1
"""Tokens in a decoder's cache that its last forward has added to its prompt, that one's included."""
_SAMPLING: Final[Mapping[str, Mapping[str, Any]]] = {
    "greedy": {"do_sample": False},
    "top_k": {"do_sample": True, "top_k": 50},
    "top_p": {"do_sample": True, "top_k": 50, "top_p": 0.9},
}
_LOGPROBS: Final = "prompt logprobs"


def trace(source: Any, choices: Choices) -> Trace:
    """Trace a configuration, its path, or a model of transformers. Raises ``ValueError``."""
    started = time.perf_counter()
    built = build(source, choices)
    run = _Run(built, choices)
    axes, phases = _grid(built, choices, run)
    found, check = trace_phases(axes, phases, run)
    return Trace(
        model=f"{built.config.model_type} ({built.kind})",
        phases=tuple(found),
        check=check,
        settings={
            "dtype": str(built.dtype).removeprefix("torch."),
            "attention": built.attention,
            "experts": choices.experts,
            "sampling": choices.sampling,
            "transformers": transformers.__version__,
            "torch": torch.__version__,
        },
        notes=tuple(sorted(built.notes | run.notes)),
        seconds=round(time.perf_counter() - started, 1),
    )


def _grid(built: Built, choices: Choices, run: _Run) -> tuple[Sequence[Axis], Sequence[PhaseOf]]:
    """The axes of this kind of model, and the workload's names for the sizes of each phase."""
    beams = choices.beams
    rows = Axis("sequences", 1, unit=beams, least=beams, breaks=(beams,) if choices.padded else ())
    written = Axis("new_tokens", 1, unit=8)
    each = {"sequences": ("sequences", 0)}
    if built.kind == "speech":
        wrote = PhaseOf("decode", each | {"new_tokens": ("new_tokens", _WRITTEN)})
        return (rows, written), (PhaseOf("encode", each), wrote)
    if built.input != "input_ids":
        return (Axis("sequences", 1),), (PhaseOf("encode", {"sequences": ("rows", 0)}),)
    length = Axis("prompt_tokens", 2, unit=_unit(built, run), breaks=tuple(w - 1 for w in windows(built.config)))
    read = each | {"prompt_tokens": ("prompt_tokens", 0)}
    if built.kind == "encoder":
        return (rows, length), (PhaseOf("encode", read),)
    if built.kind == "encoder-decoder":
        wrote = PhaseOf("decode", read | {"new_tokens": ("new_tokens", _WRITTEN)})
        return (rows, length, written), (PhaseOf("encode", read), wrote)
    grown = each | {"prompt_tokens": ("tokens", _FORWARDS)}
    return (rows, length), (PhaseOf("prefill", read), PhaseOf("decode", grown), PhaseOf(_LOGPROBS, read))


def _unit(built: Built, run: _Run) -> int:
    """Tokens between the points: few where the model loops over them, and all within its positions."""
    limit = longest(built.config)
    unit = 256 if limit is None or limit >= 1280 else max(8, limit // 40 * 8)
    few, more = (_operators(run({"sequences": run.least, "prompt_tokens": n, "new_tokens": 8})) for n in (12, 24))
    return 16 if more > 1.5 * few else unit


def _operators(records: Mapping[str, Record]) -> int:
    return sum(len(sizes) for record in records.values() for sizes in record.values())


class _Run:
    """Runs the model once at given sizes, and returns what was alive in each phase."""

    def __init__(self, built: Built, choices: Choices) -> None:
        self.notes: set[str] = set()
        self.least = choices.beams
        self._built = built
        self._choices = choices
        self._known = [*built.model.parameters(), *built.model.buffers()]

    def __call__(self, sizes: Sizes) -> Mapping[str, Record]:
        answers = Answers(padded=self._choices.padded and sizes["sequences"] > self.least)
        inputs = self._inputs(sizes)
        tracer = Tracer([*self._known, *inputs.values()], device="meta", answers=answers)
        with ExitStack() as stack:
            for scope in (quietly(), torch.no_grad(), _flash(), FusedAttention(), Places(self._built.model, tracer)):
                stack.enter_context(scope)
            with tracer:
                self._run(inputs, tracer)
        self.notes |= answers.notes
        return tracer.records

    def _run(self, inputs: dict[str, torch.Tensor], tracer: Tracer) -> None:
        kind, model = self._built.kind, self._built.model
        if kind == "encoder":
            tracer.phase = "encode"
            model(**inputs)
            return
        self._generate(inputs, tracer, "encode" if kind in ("speech", "encoder-decoder") else "prefill")
        if kind in ("causal", "vision-language"):
            tracer.phase, tracer.live = _LOGPROBS, 0
            model(**inputs, use_cache=True).logits.float().log_softmax(-1)

    def _generate(self, inputs: dict[str, torch.Tensor], tracer: Tracer, first: str) -> None:
        config = transformers.GenerationConfig(
            max_new_tokens=_FORWARDS,
            num_beams=self._choices.beams,
            pad_token_id=0,
            eos_token_id=None,
            use_cache=True,
            **_SAMPLING[self._choices.sampling],
        )
        model = self._built.model
        generate = transformers.GenerationMixin.generate if self._built.kind == "speech" else type(model).generate
        with _phases(model, tracer, first):
            generate(model, **inputs, generation_config=config)

    def _inputs(self, sizes: Sizes) -> dict[str, torch.Tensor]:
        rows = sizes["sequences"] // self.least
        config, kind = self._built.config, self._built.kind
        if self._built.input == "input_ids":
            ids = torch.zeros((rows, sizes["prompt_tokens"]), dtype=torch.long, device="meta")
            inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        else:
            inputs = {self._built.input: _features(config, self._built.input, rows, self._built.dtype)}
        if kind in ("speech", "encoder-decoder"):
            prompt = (rows, sizes["new_tokens"])
            inputs["decoder_input_ids"] = torch.zeros(prompt, dtype=torch.long, device="meta")
        return inputs


def _features(config: Any, name: str, rows: int, dtype: torch.dtype) -> torch.Tensor:
    """An input that is no text: a window of sound, or a picture of the size that the model was made for."""
    if name == "pixel_values":
        side = config.image_size
        height, width = (side, side) if isinstance(side, int) else side
        return torch.zeros((rows, getattr(config, "num_channels", 3), height, width), dtype=dtype, device="meta")
    if name == "input_features" and hasattr(config, "max_source_positions"):
        shape = (rows, config.num_mel_bins, 2 * config.max_source_positions)
        return torch.zeros(shape, dtype=dtype, device="meta")
    raise ValueError(f"{config.model_type} takes {name}, for which there is no ready-made input: use Traced.of")


@contextmanager
def _phases(model: Any, tracer: Tracer, first: str) -> Iterator[None]:
    """From its third forward on a run is decoding; after that one it ends, whatever it has written."""
    forwards = 0

    def counted(*_: Any) -> None:
        nonlocal forwards
        forwards += 1
        if forwards == _FORWARDS:
            tracer.phase = "decode"

    tracer.phase = first
    handle = model.register_forward_pre_hook(counted)
    model._has_unfinished_sequences = lambda *_, **__: forwards < _FORWARDS
    try:
        yield
    finally:
        handle.remove()
        del model._has_unfinished_sequences
        tracer.phase = ""


@contextmanager
def _flash() -> Iterator[None]:
    """Let ``flash_attention_2`` be what stands in for it."""
    ALL_ATTENTION_FUNCTIONS["flash_attention_2"] = flash_attention
    try:
        yield
    finally:
        del ALL_ATTENTION_FUNCTIONS["flash_attention_2"]
