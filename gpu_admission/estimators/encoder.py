"""``Encoder``: embedders, rerankers and classifiers, which run each row once.

Owns the padded batch: every row costs as much as the longest. Models that generate are in
``transformer``.
"""

from __future__ import annotations

from gpu_admission.estimators.model.activations import AttentionPath, attention_of, decoder_cost, encoder_cost
from gpu_admission.estimators.model.config import ConfigSource, ModelConfig
from gpu_admission.estimators.model.dtypes import DType, whole_bytes
from gpu_admission.estimators.terms import assumed, clamp, render
from gpu_admission.request import RequestInfo
from gpu_admission.types import Estimate, Workload


class Encoder:
    """Bytes that one batch of rows (texts, or pairs of query and document) adds in one forward pass.

    Make one with ``from_config``.
    """

    def __init__(
        self,
        *,
        token: int,
        pair: int,
        cache: int = 0,
        max_batch: int | None = None,
        max_length: int | None = None,
        notes: tuple[str, ...] = (),
    ) -> None:
        for name, value in (("max_batch", max_batch), ("max_length", max_length)):
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value!r}")
        self.token = token
        """For each token of the padded batch: one layer's activations and the output."""
        self.pair = pair
        """For each pair of positions of a row: scores and masks."""
        self.cache = cache
        """For each token of the padded batch, where keys and values of all layers are kept."""
        self.max_batch = max_batch
        self.max_length = max_length
        self.notes = notes

    @classmethod
    def from_config(
        cls,
        config: ConfigSource,
        *,
        dtype: DType | None = None,
        attention: AttentionPath = "sdpa",
        keeps_cache: bool = False,
        max_batch: int | None = None,
        max_length: int | None = None,
    ) -> Encoder:
        """The model of a Hugging Face ``config`` (a path, a ``dict``, or ``model.config``).

        ``keeps_cache`` is for decoders used as embedders or rerankers whose forward leaves
        ``use_cache`` on: all rows' keys and values then live together. ``max_batch`` is the most rows
        that the server runs at once, ``max_length`` what it truncates a row to, in tokens.
        """
        model = ModelConfig.read(config)
        name = model.computes_in(dtype)
        attention, notes = attention_of(model, attention)
        cost = encoder_cost(model, name, attention) or decoder_cost(model, name, attention)
        masks = 2 if any(layer.attention and layer.attention.window for layer in model.layers) else 1
        stored = [a for layer in model.layers if (a := layer.attention)]
        elements = sum(a.heads * (a.key_dim + a.value_dim) for a in stored)
        return cls(
            token=cost.activations + cost.hidden,
            pair=cost.score + masks * cost.mask + cost.expanded_mask,
            cache=elements * whole_bytes(name, option="dtype") if keeps_cache else 0,
            max_batch=max_batch,
            max_length=max_length,
            notes=notes if model.known else (*notes, f"model_type {model.model_type!r} is not known"),
        )

    def __call__(self, info: RequestInfo, /) -> Estimate:
        return self.estimate(info.workload)

    def estimate(self, workload: Workload) -> Estimate:
        """Bytes of ``workload``: ``sequences`` rows, padded to ``prompt_tokens``."""
        rows = max(1, workload.sequences)
        length = workload.prompt_tokens
        if self.max_batch is not None:
            rows = min(rows, self.max_batch)
        if self.max_length is not None:
            length = min(length, self.max_length)
        parts = {"activations": rows * length * self.token}
        if self.pair:
            parts["scores and masks"] = rows * length * length * self.pair
        if self.cache:
            parts["cache"] = rows * length * self.cache
        notes = (*self.notes, *assumed(workload)) if workload.defaulted else self.notes
        return Estimate(clamp(sum(parts.values())), None, "device", parts, notes)

    def explain(self, workload: Workload) -> str:
        """The terms of ``workload``, as text."""
        return render("Encoder", self.estimate(workload))

    def __repr__(self) -> str:
        return f"Encoder({self.token} B/token, {self.pair} B/pair, max_batch={self.max_batch})"
