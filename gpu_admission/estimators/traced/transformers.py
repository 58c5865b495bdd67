"""Models of the transformers library, traced as it runs them: its own ``generate``, on the meta device.

Owns the inputs of a run, and which part of it is which phase. The library's own code decides on
masks, caches, experts, logits processors and beams; how a model is made is in ``build``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Final, Literal, Protocol, cast

import torch
import transformers
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from gpu_admission.estimators.traced.answers import Answers
from gpu_admission.estimators.traced.build import AttentionKind, Built, Choices, build, quietly
from gpu_admission.estimators.traced.configs import longest, windows
from gpu_admission.estimators.traced.grid import Axis, Group, PhaseOf, Sizes, trace_groups
from gpu_admission.estimators.traced.inputs import inputs_of
from gpu_admission.estimators.traced.kernels import StateSpaceKernels
from gpu_admission.estimators.traced.peaks import Tower, Trace
from gpu_admission.estimators.traced.remembered import Remembered
from gpu_admission.estimators.traced.standins import FlashAttention, FusedAttention
from gpu_admission.estimators.traced.tracer import Places, Record, Tracer
from gpu_admission.estimators.vision import Vision

_PHASES: Final[Mapping[str, Sequence[str]]] = {
    "causal": ("prefill", "first step", "decode"),
    "vision-language": ("prefill", "first step", "decode"),
    "encoder-decoder": ("encode", "encode", "decode"),
    "speech": ("encode", "encode", "decode"),
}
"""Phases of a run's forwards: reading the prompt, the first step, and one like all later ones."""
_FORWARDS: Final = 3
WRITTEN: Final = _FORWARDS - 1
"""Tokens in a decoder's cache that its last forward has added to its prompt, that one's included."""
_SAMPLING: Final[Mapping[str, Mapping[str, Any]]] = {
    "greedy": {"do_sample": False},
    "top_k": {"do_sample": True, "top_k": 50},
    "top_p": {"do_sample": True, "top_k": 50, "top_p": 0.9},
}
_LOGPROBS: Final = "prompt logprobs"


def trace(source: Any, choices: Choices, vision: Vision | Literal["config"] | None) -> Trace:
    """Trace a configuration, its path, or a model of transformers. Raises ``ValueError``."""
    started = time.perf_counter()
    run = run_of(source, choices)
    built = run.built
    tower = _tower(built, vision)
    found, check = trace_groups(list(_groups(run)))
    return Trace(
        model=f"{built.config.model_type} ({built.kind})",
        phases=found,
        check=check,
        settings={
            "dtype": str(built.dtype).removeprefix("torch."),
            "attention": built.attention,
            "experts": choices.experts,
            "kernels": choices.kernels,
            "sampling": choices.sampling,
            "beams": str(choices.beams),
            "transformers": transformers.__version__,
            "torch": str(torch.__version__),
        },
        notes=tuple(sorted(built.notes | run.notes)),
        tower=tower,
        text_only=built.kind == "vision-language" and tower is None,
        seconds=round(time.perf_counter() - started, 1),
    )


def _tower(built: Built, vision: Vision | Literal["config"] | None) -> Tower | None:
    """What images take before the prompt is read; only the text is traced."""
    if isinstance(vision, Vision):
        return Tower.of(vision)
    if vision is None or built.kind != "vision-language":
        return None
    dtype, attention = str(built.dtype).removeprefix("torch."), cast("AttentionKind", built.attention)
    try:
        found = Vision.from_config(built.config.to_dict(), dtype=dtype, attention=attention)
    except ValueError as error:
        raise ValueError(
            f"what images take can't be read from the config of {built.config.model_type} ({error}): "
            "give vision=Vision(...), or vision=None (--no-images) where the server takes none"
        ) from None
    built.notes.add("only the text was traced: images are estimated by the formula of Vision")
    return Tower.of(found)


def run_of(source: Any, choices: Choices) -> Run:
    """A run with the attention and the kernels that were asked for, where the model has them."""
    run = _attending(source, choices)
    if choices.kernels == "fused" and not run.uses_kernels():
        run.notes.add("no layer of the model takes fused state-space kernels")
    return run


def _attending(source: Any, choices: Choices) -> Run:
    run = Run(build(source, choices), choices)
    if choices.attention != "flash" or run.uses_flash():
        return run
    run = Run(build(source, replace(choices, attention="eager")), choices)
    run.notes.add("no layer of the model takes flash attention: it was traced with eager attention")
    return run


def _groups(run: Run) -> Iterator[Group]:
    """The axes of this kind of model, and the workload's names for the sizes of each phase."""
    built, choices = run.built, run.choices
    rows = _rows(choices.beams, choices)
    each = {"sequences": ("sequences", 0)}
    written = Axis("new_tokens", 1, unit=8)
    if built.kind == "speech":
        wrote = PhaseOf("decode", each | {"new_tokens": ("new_tokens", WRITTEN)})
        return iter([Group((rows, written), (PhaseOf("encode", each), wrote), run.generate)])
    if built.input != "input_ids":
        seen = PhaseOf("encode", {"sequences": ("rows", 0)})
        return iter([Group((Axis("sequences", 1),), (seen,), run.forward)])
    breaks = tuple(w - 1 for w in windows(built.config, chunks=built.attention != "flash"))
    length = Axis("prompt_tokens", 2, *_points(run), breaks=breaks)
    read = each | {"prompt_tokens": ("prompt_tokens", 0)}
    if built.kind == "encoder":
        return iter([Group((_rows(1, choices), length), (PhaseOf("encode", read),), run.forward)])
    if built.kind == "encoder-decoder":
        wrote = PhaseOf("decode", read | {"new_tokens": ("new_tokens", WRITTEN)})
        return iter([Group((rows, length, written), (PhaseOf("encode", read), wrote), run.generate)])
    return _causal_groups(rows, length, run)


def _rows(each: int, choices: Choices) -> Axis:
    """Rows, ``each`` of them for one prompt; from the second prompt on there is padding."""
    return Axis("sequences", 1, each, whole=True, least=each, breaks=(each,) if choices.padded else ())


def _causal_groups(rows: Axis, length: Axis, run: Run) -> Iterator[Group]:
    each = {"sequences": ("sequences", 0)}
    read = each | {"prompt_tokens": ("prompt_tokens", 0)}
    grown = each | {"prompt_tokens": ("tokens", _FORWARDS)}
    steps = (PhaseOf("first step", read, new_tokens=2), PhaseOf("decode", grown, new_tokens=2))
    yield Group((rows, length), (PhaseOf("prefill", read), *steps), run.generate)
    degree = 2 if run.built.attention == "eager" else 1
    axes = (Axis("sequences", 1), replace(length, degree=degree, spread=False, breaks=()))
    yield Group(axes, (PhaseOf(_LOGPROBS, read, prompt_logprobs=True),), run.forward)


def _points(run: Run) -> tuple[int, bool]:
    """Tokens between the points, and whether there must be more of them: few tokens where the model
    loops over each, more points where it loops over chunks. All are within its positions."""
    limit = longest(run.built.config)
    few, more = (sum(map(len, _runs(run.small(tokens)))) for tokens in (8, 32))
    if more - few >= 32 - 8:
        return 24, False
    unit = 256 if limit is None or limit >= 1280 else max(8, limit // 40 * 8)
    loops = [*map(len, _runs(run.small(unit)))] != [*map(len, _runs(run.small(2 * unit)))]
    return (
        (unit if limit is None or limit >= 20 * unit else max(8, limit // 160 * 8), True)
        if loops
        else (unit, False)
    )


def _runs(records: Mapping[str, Record]) -> list[list[int]]:
    return [sizes for record in records.values() for sizes in record.values()]


class _Phased(Protocol):
    """The part of a tracer that a run uses."""

    phase: str


class Run:
    """Runs the model once at given sizes, and returns what was alive in each phase."""

    def __init__(self, built: Built, choices: Choices) -> None:
        self.notes: set[str] = set()
        self.built = built
        self.choices = choices
        self._flash = FlashAttention()
        self._kernels = StateSpaceKernels(built.model)
        self._generated: dict[Any, Mapping[str, Record]] = {}
        self._remembered = Remembered()
        self._known = [*built.model.parameters(), *built.model.buffers()]

    def uses_flash(self) -> bool:
        """Whether any layer takes the stand-in for flash attention, and the model runs with it."""
        try:
            self.small(12)
        except (AttributeError, TypeError):  # its own code asks for more: a mask, or another class of layers
            return False
        return self._flash.calls > 0

    def uses_kernels(self) -> bool:
        """Whether any layer takes the stand-ins for fused state-space kernels."""
        self.small(12)
        return self._kernels.calls > 0

    def small(self, tokens: int) -> Mapping[str, Record]:
        """A run with few tokens."""
        call = self.forward if self.built.kind == "encoder" else self.generate
        rows = 1 if self.built.kind == "encoder" else self.choices.beams
        sizes = {"sequences": rows, "prompt_tokens": tokens}
        return call(sizes | ({"new_tokens": 8} if self.built.kind == "encoder-decoder" else {}))

    def generate(self, sizes: Sizes) -> Mapping[str, Record]:
        """The phases of ``generate``."""
        key = tuple(sorted(sizes.items()))
        if key not in self._generated:
            prompts = sizes["sequences"] // self.choices.beams
            self._generated[key] = self._traced(sizes | {"sequences": prompts}, self._generate)
        return self._generated[key]

    def forward(self, sizes: Sizes) -> Mapping[str, Record]:
        """One forward; of a language model with the log-probabilities of all its positions."""
        return self._traced(sizes, self._forward)

    def _traced(
        self, sizes: Sizes, call: Callable[[dict[str, torch.Tensor], _Phased], None]
    ) -> Mapping[str, Record]:
        padded = self.choices.padded and sizes["sequences"] > 1
        answers = Answers(padded=padded, routing=True, remembered=self._remembered)
        inputs = inputs_of(self.built, sizes)
        tracer = Tracer(self._known, device="meta", answers=answers)
        (tracer.hold if self.choices.inputs else tracer.ignore)(inputs.values())
        with ExitStack() as stack:
            for scope in (
                quietly(),
                torch.no_grad(),
                _flash(self._flash),
                FusedAttention(),
                Places(self.built.model, tracer),
                self._kernels if self.choices.kernels == "fused" else nullcontext(),
            ):
                stack.enter_context(scope)
            with tracer:
                call(inputs, tracer)
        self.notes |= answers.notes
        return tracer.records

    def really(self, sizes: Sizes) -> None:
        """Run it for real, where its model is on a real device: what ``forward`` and ``generate`` trace."""
        padded = self.choices.padded and sizes["sequences"] > 1
        inputs = inputs_of(self.built, sizes, device=self.built.model.device, padded=padded)
        call = self._forward if self.built.kind == "encoder" else self._generate
        call = self._forward if self.built.input == "pixel_values" else call
        with quietly(), torch.no_grad():
            call(inputs, SimpleNamespace(phase=""))

    def _forward(self, inputs: dict[str, torch.Tensor], tracer: _Phased) -> None:
        if self.built.kind == "encoder":
            tracer.phase = "encode"
            self.built.model(**inputs)
            return
        tracer.phase = _LOGPROBS
        self.built.model(**inputs, use_cache=True).logits.float().log_softmax(-1)

    def _generate(self, inputs: dict[str, torch.Tensor], tracer: _Phased) -> None:
        config = transformers.GenerationConfig(
            max_new_tokens=_FORWARDS,
            num_beams=self.choices.beams,
            pad_token_id=0,
            decoder_start_token_id=0,
            eos_token_id=None,
            use_cache=True,
            # They read written tokens, which do not exist here, and hold next to nothing.
            no_repeat_ngram_size=0,
            encoder_no_repeat_ngram_size=0,
            **_SAMPLING[self.choices.sampling],
        )
        model = self.built.model
        generate = (
            transformers.GenerationMixin.generate if self.built.kind == "speech" else type(model).generate
        )
        with _phases(model, tracer, _PHASES[self.built.kind]):
            generate(model, **inputs, generation_config=config)


@contextmanager
def _phases(model: Any, tracer: _Phased, names: Sequence[str]) -> Iterator[None]:
    """Each forward begins the phase of its name; after the last a run ends, whatever it has written."""
    forwards = 0

    def begins(*_: Any) -> None:
        nonlocal forwards
        tracer.phase = names[min(forwards, len(names) - 1)]
        forwards += 1

    tracer.phase = names[0]
    handle = model.register_forward_pre_hook(begins)
    model._has_unfinished_sequences = lambda *_, **__: forwards < len(names)
    try:
        yield
    finally:
        handle.remove()
        del model._has_unfinished_sequences
        tracer.phase = ""


@contextmanager
def _flash(standin: FlashAttention) -> Iterator[None]:
    """Make ``flash_attention_2`` mean the stand-in for it."""
    ALL_ATTENTION_FUNCTIONS["flash_attention_2"] = standin
    try:
        yield
    finally:
        del ALL_ATTENTION_FUNCTIONS["flash_attention_2"]
