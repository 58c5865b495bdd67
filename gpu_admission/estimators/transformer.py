"""``TransformersLM``: what one ``generate`` call of a language model adds at its peak.

Owns the phases (encoder, prefill, first logits, decoding) and which of them is the peak; their
terms follow section 6 of published measurements: fused attention at batch 1 is fitted, the
rest is derived. For engines with a pool of cache blocks use ``KVCache``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from gpu_admission.estimators.model.activations import (
    AttentionPath,
    attention_of,
    decoder_cost,
    encoder_cost,
)
from gpu_admission.estimators.model.config import ConfigSource, ModelConfig
from gpu_admission.estimators.model.dtypes import DType, whole_bytes
from gpu_admission.estimators.model.families import stores_repeated_heads
from gpu_admission.estimators.model.layers import Attention, State
from gpu_admission.estimators.terms import assumed, clamp, render
from gpu_admission.estimators.vision import Vision
from gpu_admission.request import RequestInfo
from gpu_admission.sizes import format_bytes, parse_bytes
from gpu_admission.types import Estimate, Workload

_SAMPLED = {"greedy": 10, "top_k": 19, "top_p": 40}
"""Bytes of an entry of the vocabulary in one step; transformers 5.24."""
_LARGEST_VOCABULARY = 262_208
"""Vocabulary of a model whose config does not say: that of Gemma 3."""
_FIXED = 2**20
"""Factors are whole 1/2**20ths, so that all arithmetic is on ints."""


class LMPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a model needs for each token, row and position, worked out once. Bytes."""

    activations: int
    """For each token of a step; of the encoder where there is one. These five as in ``LayerCost``."""
    hidden: int
    score: int
    mask: int
    expanded_mask: int
    cache: int
    """For each token, in all layers."""
    windows: tuple[tuple[int, int], ...]
    """(window, bytes for each token) of the windowed layers, all of which are in ``cache`` too."""
    tensor: int
    """For each token, of the largest single tensor of the cache: the copy that a growing cache makes."""
    state: int
    """For each row."""
    logits: int
    """For each position that is projected to the vocabulary."""
    sampled: int
    """For each row of a decoding step: the logits, and what the sampler makes of them."""
    kept_scores: int
    """For each new token: logits that are handed back."""
    repeated: int
    """For each token in a decoding step: keys and values of one layer, for every query head."""
    experts: int
    """For each row of a decoding step: the weights of its experts, copied for one product."""
    cross: int
    """For each position of the encoder's output, or of an image that the decoder attends to."""
    image_positions: int
    """Positions of an image in cross-attention; 0 = there is none."""
    decoder_step: int
    """For each row of a decoding step."""
    encodes: bool
    """Whether the prompt goes through an encoder."""
    positions: int
    """Fixed number of encoder positions; 0 = the prompt's length."""
    all_positions: bool
    padded: bool
    chunk: int
    """Most prompt tokens of one step; 0 = the whole prompt."""
    copies: int
    """Copies of the cache that are alive while decoding: 2 in versions with tuples of tensors."""
    static: int
    """Tokens that a static cache sets aside; 0 = it grows."""


Phase = tuple[int, str, tuple[str, ...], tuple[int, ...]]
"""Bytes and name of a phase, and the names and bytes of its terms."""


class TransformersLM:
    """Bytes that one ``generate`` call adds, by the model's config: the most of prefill, first
    logits and the end of decoding. Make one with ``from_config``.
    """

    def __init__(
        self,
        plan: LMPlan,
        *,
        least: LMPlan | None = None,
        tower: Vision | None = None,
        reserved_factor: float = 1.0,
        constant: int = 0,
        margin: float = 0.0,
        notes: tuple[str, ...] = (),
    ) -> None:
        if not 1 <= reserved_factor <= 16:
            raise ValueError(f"reserved_factor must be between 1 and 16, got {reserved_factor!r}")
        if not 0 <= margin <= 16:
            raise ValueError(f"margin must be between 0 and 16, got {margin!r}")
        self.plan = plan
        self.least = least
        self.tower = tower
        self.reserved_factor = reserved_factor
        self.constant = constant
        self.margin = margin
        self.notes = notes
        self._reserved = round(reserved_factor * _FIXED)
        self._margin = round((1 + margin) * _FIXED)
        self._plain = reserved_factor == 1 and not constant and not margin

    @classmethod
    def from_config(
        cls,
        config: ConfigSource,
        *,
        dtype: DType | None = None,
        attention: AttentionPath = "sdpa",
        keeps_all_logits: bool = False,
        reserved_factor: float = 1.0,
        padded: bool = True,
        prefill_chunk: int = 0,
        cache: Literal["dynamic", "static", "tuple"] = "dynamic",
        max_cache_len: int = 0,
        mla: Literal["latent", "expanded"] = "latent",
        tower: Vision | None = None,
        sampling: Literal["greedy", "top_k", "top_p"] = "top_p",
        output_scores: bool = False,
        experts: Literal["batched_mm", "grouped_mm", "eager"] = "batched_mm",
    ) -> TransformersLM:
        """The model of a Hugging Face ``config`` (a path, a ``dict``, or ``model.config``).

        - ``dtype``: what it computes in; by default what the config says. Quantised weights do
          not change it.
        - ``attention``: the implementation that really runs. ``eager`` stores all scores.
        - ``keeps_all_logits``: transformers before 4.45, and forwards that project every position.
        - ``reserved_factor``: reserved over allocated memory; 1.1 to 1.4 without expandable segments.
        - ``padded``: batches may hold prompts of different lengths, and then need a mask.
        - ``prefill_chunk``, ``cache``, ``max_cache_len``: as given to ``generate``; ``tuple`` is for
          code from before mid-2024, which holds the old and the new cache at once.
        - ``mla``: how latent attention is kept; ``expanded`` to every head in older versions.
        - ``sampling``: the costliest that requests may ask for. For each entry of the vocabulary a step
          holds 10 bytes when it takes the likeliest token, 19 for ``top_k``, 40 for ``top_p``.
          ``output_scores``: every step's scores are kept.
        - ``experts``: how a decoding step runs a mixture of experts; ``batched_mm`` copies the weights
          of each row's experts.
        - ``tower``: the image tower that runs before the prompt is read: ``Vision.from_config(config)``.

        Raises ``ValueError`` naming the option.
        """
        model = ModelConfig.read(config)
        if cache not in ("dynamic", "static", "tuple"):
            raise ValueError(f"cache must be 'dynamic', 'static' or 'tuple', not {cache!r}")
        if (cache == "static") != (max_cache_len > 0):
            raise ValueError("max_cache_len is needed for cache='static', and only there")
        if sampling not in _SAMPLED:
            raise ValueError(f"sampling must be one of {', '.join(_SAMPLED)}, not {sampling!r}")
        if mla not in ("latent", "expanded"):
            raise ValueError(f"mla must be 'latent' or 'expanded', not {mla!r}")
        if experts not in ("batched_mm", "grouped_mm", "eager"):
            raise ValueError(f"experts must be 'batched_mm', 'grouped_mm' or 'eager', not {experts!r}")
        name = model.computes_in(dtype)
        attention, notes = attention_of(model, attention)
        plan = _plan(
            model,
            name,
            attention,
            all_positions=keeps_all_logits,
            padded=padded,
            chunk=prefill_chunk,
            copies=2 if cache == "tuple" else 1,
            static=max_cache_len,
            sampled=(model.vocab_size or _LARGEST_VOCABULARY) * _SAMPLED[sampling],
            kept_scores=(model.vocab_size or _LARGEST_VOCABULARY) * 4 * output_scores,
            experts=model.experts * whole_bytes(name, option="dtype") * (experts == "batched_mm"),
        )
        latent = _latent_plan(model, plan, whole_bytes(name, option="dtype"))
        return cls(
            latent if latent is not None and mla == "latent" else plan,
            least=None if mla == "latent" else latent,
            tower=tower,
            reserved_factor=reserved_factor,
            notes=(*notes, *_doubts(model)),
        )

    def __call__(self, info: RequestInfo, /) -> Estimate:
        return self.estimate(info.workload)

    def estimate(self, workload: Workload) -> Estimate:
        """Bytes that ``workload`` adds at its peak; ``parts`` are the terms of that phase."""
        formula, phase, names, sizes = self._peak(self.plan, workload)
        size = self._charged(formula)
        parts = dict(zip(names, sizes, strict=True))
        if size != formula:
            parts["constant, reserve and margin"] = size - formula
        low = None if self.least is None else self._charged(self._peak(self.least, workload)[0])
        notes = (phase, *self.notes, *assumed(workload)) if workload.defaulted else (phase, *self.notes)
        return Estimate(size, low, "device", parts, notes)

    def explain(self, workload: Workload) -> str:
        """The terms of the peak and the size of every phase, as text."""
        found = (*_phases(self.plan, workload), *_tower_phase(self.tower, workload))
        phases = [f"  {name}: {format_bytes(size)}" for size, name, _, _ in found]
        return "\n".join([render("generate", self.estimate(workload)), "  phases:", *phases])

    def calibrated(
        self, workload: Workload, peak: int | str, *, baseline: int | str = 0, margin: float | None = None
    ) -> TransformersLM:
        """This estimator, moved by a constant so that it gives ``peak - baseline`` for ``workload``.

        ``peak`` is measured (``torch.cuda.max_memory_allocated``) while ``workload`` ran alone, and
        ``baseline`` before it. ``margin`` is a share put on top of all estimates, 0.05 for 5 %.
        """
        added = parse_bytes(peak, name="peak") - parse_bytes(baseline, name="baseline")
        if added <= 0:
            raise ValueError(f"peak must be above baseline, got {added} bytes more")
        formula = self._peak(self.plan, workload)[0]
        return TransformersLM(
            self.plan,
            least=self.least,
            tower=self.tower,
            reserved_factor=self.reserved_factor,
            constant=added - -(-formula * self._reserved // _FIXED),
            margin=self.margin if margin is None else margin,
            notes=self.notes,
        )

    def __repr__(self) -> str:
        plan = self.plan
        return (
            f"TransformersLM(cache={plan.cache} B/token, activations={plan.activations} B/token, "
            f"constant={self.constant}, margin={self.margin:g})"
        )

    def _peak(self, plan: LMPlan, workload: Workload) -> Phase:
        phases = _phases(plan, workload)
        return max((*phases, *_tower_phase(self.tower, workload)) if workload.images else phases)

    def _charged(self, size: int) -> int:
        if self._plain:
            return clamp(size)
        reserved = -(-size * self._reserved // _FIXED) + self.constant
        return clamp(-(-reserved * self._margin // _FIXED))


_PREFILL = ("cache", "activations", "scores and masks")
_FIRST_LOGITS = ("cache", "logits", "hidden states")
_DECODING = ("cache", "activations", "logits", "kept scores", "cache growth", "experts")
_ENCODING = ("encoder activations", "scores and masks")
_CROSS_DECODING = ("cross-attention cache", "encoder output", *_DECODING)


def _phases(plan: LMPlan, workload: Workload) -> tuple[Phase, ...]:
    rows = workload.sequences if workload.sequences > 1 else 1
    if plan.encodes:
        return _encoder_phases(plan, rows, plan.positions or workload.prompt_tokens, workload.new_tokens)
    prompt, chunk = workload.prompt_tokens, plan.chunk
    step = prompt if not chunk or prompt < chunk else chunk
    seen = rows * plan.image_positions * len(workload.images) * plan.cross
    held = rows * ((plan.static or prompt) * plan.cache + plan.state) + seen
    activations = rows * step * plan.activations
    scores = rows * step * prompt * _scores(plan, rows, prompt) if plan.mask else 0
    logits = rows * (step if plan.all_positions or workload.prompt_logprobs else 1) * plan.logits
    hidden = rows * step * plan.hidden
    decoding = _decoding(plan, rows, plan.static or prompt + workload.new_tokens, workload.new_tokens, seen)
    return (
        (held + activations + scores, "peak at prefill", _PREFILL, (held, activations, scores)),
        (held + logits + hidden, "peak at the first logits", _FIRST_LOGITS, (held, logits, hidden)),
        (sum(decoding), "peak at the end of decoding", _DECODING, decoding),
    )


def _scores(plan: LMPlan, rows: int, prompt: int) -> int:
    """Bytes for each pair of positions: stored scores, and the masks that this batch needs."""
    masks = 1 if plan.score or plan.chunk or (plan.padded and rows > 1) else 0
    if plan.windows and prompt >= plan.windows[0][0]:
        masks += 1
    return plan.score + (masks * plan.mask + plan.expanded_mask if masks else 0)


def _decoding(plan: LMPlan, rows: int, tokens: int, new_tokens: int, seen: int = 0) -> tuple[int, ...]:
    """At the last token: the whole cache, its windowed layers at their window, and one step."""
    cache = tokens * plan.cache
    for window, size in plan.windows:
        if tokens > window:
            cache -= (tokens - window) * size
    growth = 0 if plan.static else rows * tokens * plan.tensor
    held = rows * (plan.copies * cache + plan.state) + seen
    scores = rows * new_tokens * plan.kept_scores
    growth += rows * tokens * plan.repeated
    return held, rows * plan.decoder_step, rows * plan.sampled, scores, growth, rows * plan.experts


def _encoder_phases(plan: LMPlan, rows: int, positions: int, new_tokens: int) -> tuple[Phase, ...]:
    activations = rows * positions * plan.activations
    masked = plan.score or (plan.mask and rows > 1)
    scores = rows * positions**2 * (plan.score + plan.mask + plan.expanded_mask) if masked else 0
    output = (rows * positions * plan.cross, rows * positions * plan.hidden)
    decoding = output + _decoding(plan, rows, plan.static or new_tokens, new_tokens)
    return (
        (activations + scores, "peak in the encoder", _ENCODING, (activations, scores)),
        (sum(decoding), "peak at the end of decoding", _CROSS_DECODING, decoding),
    )


def _tower_phase(tower: Vision | None, workload: Workload) -> tuple[Phase, ...]:
    if tower is None or not workload.images:
        return ()
    looking = tower.estimate(workload)
    return ((looking.bytes, "peak in the vision tower", tuple(looking.parts), tuple(looking.parts.values())),)


def _plan(model: ModelConfig, dtype: str, attention: AttentionPath, **options: Any) -> LMPlan:
    size = whole_bytes(dtype, option="dtype")
    heads = model.heads if stores_repeated_heads(model.model_type) and model.kv_heads > 1 else 0
    stored = [a for layer in model.layers if (a := layer.attention)]
    cost = decoder_cost(model, dtype, attention)
    encoding = encoder_cost(model, dtype, attention)
    if encoding is None:  # a token's place, and its rows of the rotary tables that all layers use
        place = 2 * model.head_dim * size + 8
        cost = msgspec.structs.replace(cost, activations=cost.activations + place)
    windows: dict[int, int] = {}
    for a in stored:
        if a.window:
            windows[a.window] = windows.get(a.window, 0) + _vectors(a, heads) * size
    return LMPlan(
        **msgspec.structs.asdict(cost if encoding is None else encoding),
        cache=sum(_vectors(a, heads) for a in stored) * size,
        windows=tuple(sorted(windows.items())),
        tensor=max(((heads or a.heads) * max(a.key_dim, a.value_dim) for a in stored), default=0) * size,
        state=sum(_state(layer.state, size) for layer in model.layers if layer.state),
        logits=(model.vocab_size or _LARGEST_VOCABULARY) * (size + 4),
        cross=sum(_vectors(layer.cross, 0) for layer in model.layers if layer.cross) * size,
        decoder_step=cost.activations,
        repeated=_repeated(model, stored) * size if attention == "eager" else 0,
        image_positions=model.image_positions,
        encodes=encoding is not None,
        positions=model.encoder.positions if model.encoder else 0,
        **options,
    )


def _latent_plan(model: ModelConfig, plan: LMPlan, size: int) -> LMPlan | None:
    """With latent attention stored as it is, which newer versions do, and expanded in the layer that runs;
    ``None`` for other models."""
    stored = [a for layer in model.layers if (a := layer.attention)]
    if not any(a.latent for a in stored):
        return None
    cache = sum(a.latent + a.indexer if a.latent else _vectors(a, 0) for a in stored) * size
    tensor = max(a.latent for a in stored) * size
    expanded = max(a.heads * (a.key_dim + a.value_dim) for a in stored) * size
    return msgspec.structs.replace(plan, cache=cache, windows=(), tensor=tensor, repeated=expanded)


def _repeated(model: ModelConfig, stored: Sequence[Attention]) -> int:
    """Elements for each token of keys and values repeated to every query head, in the widest layer."""
    return max((model.heads * (a.key_dim + a.value_dim) for a in stored if a.heads < model.heads), default=0)


def _doubts(model: ModelConfig) -> tuple[str, ...]:
    if not model.known:
        return (f"model_type {model.model_type!r} is not known",)
    notes = []
    if any(layer.state and layer.state.matrix for layer in model.layers):
        notes.append("recurrent layers are charged as without fused kernels")
    if any(layer.attention and layer.attention.window for layer in model.layers):
        notes.append("windowed layers hold the whole prompt until the step after it")
    return tuple(notes)


def _vectors(attention: Attention, heads: int) -> int:
    return (heads or attention.heads) * (attention.key_dim + attention.value_dim) + attention.indexer


def _state(state: State, size: int) -> int:
    """The state proper at 32 bits, and the convolution's columns, all of them, in the compute type."""
    return state.matrix * 4 + state.channels * state.kernel * size
