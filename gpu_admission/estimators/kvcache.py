"""``KVCache``: what a request takes in a pool of cache blocks, and in caches that grow alone.

Owns the sum over a request's rows. What layers store is in ``layers``, how many tokens an
engine keeps of it in ``accountings``. Activations and logits are not here: see
``TransformersLM``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from gpu_admission.estimators.model.accountings import (
    ACCOUNTINGS,
    CacheOptions,
    Term,
    cross,
    latent,
    state_unit,
    unpacked,
    windowed,
)
from gpu_admission.estimators.model.config import ConfigSource, ModelConfig
from gpu_admission.estimators.model.dtypes import UNIT, DType, dtype_name, element_size, is_grouped
from gpu_admission.estimators.model.families import keeps_less
from gpu_admission.estimators.terms import assumed, clamp, render
from gpu_admission.request import RequestInfo
from gpu_admission.types import Estimate, Workload

_STEP = {"ollama": 512, "llamacpp_iswa": 512, "vllm": 8192}


class CachePlan(msgspec.Struct, frozen=True, kw_only=True):
    """What ``KVCache`` multiplies, worked out once from a config."""

    terms: tuple[Term, ...]
    low: tuple[Term, ...] | None = None
    """What the thriftiest engine keeps, where that is up to the engine."""
    state: int = 0
    """1/256 bytes a sequence."""
    cross: int = 0
    """1/256 bytes for each position of the encoder."""
    positions: int = 0
    """Fixed encoder positions; 0 = the prompt's length."""
    image_positions: int = 0
    """Positions that one image takes in cross-attention."""
    shared_prompts: bool = False
    """Rows of one prompt share its blocks, and prompts are not padded to the longest."""
    preallocated: bool = False
    """A context that the request makes the server load counts whole."""
    prefix: int = 0
    """Tokens that the model puts before each prompt by itself."""
    notes: tuple[str, ...] = ()


class KVCache:
    """Cache and state bytes of a request, by the model's config and the engine's accounting.

    Make one with ``from_config``.
    """

    def __init__(self, plan: CachePlan, *, basis: Literal["device", "pool"] = "pool") -> None:
        self.plan = plan
        self.basis: Literal["device", "pool"] = basis

    @classmethod
    def from_config(
        cls,
        config: ConfigSource,
        *,
        kv_dtype: DType | tuple[DType, DType] = "f16",
        accounting: str = "auto",
        mla: Literal["latent", "expanded"] = "latent",
        draft: int | ConfigSource = 0,
        block: int = 1,
        slots: int = 1,
        ubatch: int | None = None,
        batch_tokens: int | None = None,
        tp: int = 1,
        split_streams: bool = False,
        swa_full: bool = False,
        skip_full: bool = False,
        ssm_dtype: DType = "f32",
        conv_dtype: DType | None = None,
        conv_full_width: bool = False,
        prompts: Literal["padded", "shared"] = "padded",
        basis: Literal["device", "pool"] = "pool",
    ) -> KVCache:
        """The cache of a Hugging Face ``config`` (a path, a ``dict``, or ``model.config``).

        ``kv_dtype`` is a name (``"f16"``, ``"fp8"``, ``"q8_0"``, ``"fp8_ds_mla"`` ...) or a pair for
        keys and values. ``accounting`` says what the engine keeps:

        - ``auto``: ``full``, with all that the model has beside it: ``state``, ``cross``, ``indexer``;
          latent attention as ``mla`` says (``expanded``: older versions of an engine).
        - ``full``: all tokens in every attention layer. Where an engine may do less (windows, a
          latent form) that is the estimate's ``low``.
        - ``windowed``: windowed layers keep at most their window. ``vllm``: in pages, with the
          ``batch_tokens`` of a step.
        - ``ollama``, ``llamacpp_iswa``: what these set aside, with ``slots``, ``batch_tokens`` or
          ``ubatch``, ``split_streams``, ``swa_full``.
        - ``mla_latent``, ``mla_expanded``: latent attention, stored as it is or for every head.
        - ``state``: recurrent state of each sequence. ``cross``: keys and values of an encoder's
          output. ``indexer``: the index of sparse attention.

        ``"full+state"`` adds them up. ``draft`` is the draft model, which keeps a cache of its own: give
        its config, or how many layers it has (MTP, EAGLE). ``block`` rounds each row up to whole
        pages, ``tp`` divides by tensor-parallel ranks, ``prompts="shared"`` is for engines that never pad
        and store a prompt once for all its choices.

        Raises ``ValueError`` and ``TypeError`` naming the option.
        """
        model = _with_draft(ModelConfig.read(config), draft)
        if mla not in ("latent", "expanded"):
            raise ValueError(f"mla must be 'latent' or 'expanded', not {mla!r}")
        auto = accounting == "auto"
        names = _all_names(model, mla) if auto else _accounting_names(accounting, model)
        sizes = _positive(block=block, slots=slots, tp=tp)
        step = ubatch if ubatch is not None else batch_tokens
        key, value, packed = _cache_types(kv_dtype)
        options = CacheOptions(
            key=element_size(key),
            value=element_size(value),
            packed_latent=packed,
            ssm=element_size(dtype_name(ssm_dtype, option="ssm_dtype")),
            conv=element_size(dtype_name(conv_dtype or key, option="conv_dtype")),
            conv_full_width=conv_full_width or auto,
            batch_tokens=step if step is not None else max((_STEP.get(n, 0) for n in names), default=0),
            split_streams=split_streams,
            swa_full=swa_full,
            skip_full=skip_full,
            **sizes,
        )
        plan = _plan(model, names, options, shared=prompts == "shared")
        if auto:
            plan = msgspec.structs.replace(plan, notes=(*plan.notes, *_more_than_some(model)))
        if is_grouped(key) or is_grouped(value):
            plan = msgspec.structs.replace(plan, terms=(*plan.terms, *unpacked(model.layers, options)))
        return cls(plan, basis=basis)

    def __call__(self, info: RequestInfo, /) -> Estimate:
        return self.estimate(info.workload)

    def estimate(self, workload: Workload) -> Estimate:
        """Bytes of ``workload``: ``sequences`` rows of ``prompt_tokens + new_tokens`` tokens each."""
        plan = self.plan
        tokens = workload.prompt_tokens + workload.new_tokens + plan.prefix
        if plan.preallocated and workload.context > tokens:
            tokens = workload.context
        rows = workload.sequences if workload.sequences > 1 else 1
        parts: dict[str, int] = {}
        total = fixed = self._fixed(workload, rows, parts)
        for term in plan.terms:
            size = term.unit * self._kept(term, tokens, rows, workload)
            parts[term.name] = -(-size // UNIT)
            total += size
        low = None
        if plan.low is not None:
            least = fixed + sum(term.unit * self._kept(term, tokens, rows, workload) for term in plan.low)
            low = clamp(-(-least // UNIT))
        notes = (*plan.notes, *assumed(workload)) if workload.defaulted else plan.notes
        return Estimate(clamp(-(-total // UNIT)), low, self.basis, parts, notes)

    def explain(self, workload: Workload) -> str:
        """The terms of ``workload``, as text."""
        return render("KV cache", self.estimate(workload))

    def __repr__(self) -> str:
        units = ", ".join(f"{term.name}: {term.unit / UNIT:g} B/token" for term in self.plan.terms)
        return f"KVCache({units or 'no cache'}; {self.plan.state // UNIT} B/sequence)"

    def _kept(self, term: Term, tokens: int, rows: int, workload: Workload) -> int:
        """Tokens that all rows keep together."""
        if term.fixed:
            return term.fixed * rows
        grain = term.grain
        kept = _up(-(-tokens // term.streams), grain)
        if term.cap and kept > term.cap:
            kept = _up(term.cap, grain)
        kept *= term.streams * rows
        if not self.plan.shared_prompts:
            return kept
        prompts = max(workload.total_prompt_tokens, workload.prompt_tokens)
        once = _up(prompts, grain) + rows * _up(workload.new_tokens + grain - 1, grain)
        return min(kept, once)

    def _fixed(self, workload: Workload, rows: int, parts: dict[str, int]) -> int:
        """1/256 bytes that do not depend on the tokens of a row: states, and an encoder's output."""
        plan, total = self.plan, 0
        if plan.state:
            total = plan.state * rows
            parts["state"] = -(-total // UNIT)
        if plan.cross:
            positions = max(workload.prompt_tokens, plan.positions)
            if plan.image_positions:
                positions = plan.image_positions * len(workload.images)
            size = plan.cross * positions * rows
            parts["cross-attention"] = -(-size // UNIT)
            total += size
        return total


def _up(value: int, grain: int) -> int:
    return value if grain == 1 else -(-value // grain) * grain


def _positive(**options: int) -> dict[str, int]:
    for name, value in options.items():
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name} must be an int, not {type(value).__name__}")
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    return options


def _cache_types(kv_dtype: DType | tuple[DType, DType]) -> tuple[str, str, bool]:
    if kv_dtype == "fp8_ds_mla":
        return "bf16", "bf16", True
    pair = kv_dtype if isinstance(kv_dtype, tuple) else (kv_dtype, kv_dtype)
    key, value = (dtype_name(one, option="kv_dtype") for one in pair)
    return key, value, False


def _with_draft(model: ModelConfig, draft: int | ConfigSource) -> ModelConfig:
    """``model`` with the layers of its draft added: a draft model, or so many layers like its own."""
    if isinstance(draft, bool) or (isinstance(draft, int) and draft < 0):
        raise ValueError(f"draft must be a number of layers or a config, got {draft!r}")
    if not isinstance(draft, int):
        return msgspec.structs.replace(model, layers=(*model.layers, *ModelConfig.read(draft).layers))
    own = [layer for layer in model.layers if layer.attention]
    if draft and not own:
        raise ValueError(f"draft={draft} needs a model with attention: give the draft model's config")
    return msgspec.structs.replace(model, layers=(*model.layers, *own[-1:] * draft))


def _all_names(model: ModelConfig, mla: str) -> list[str]:
    """All that the model's layers store."""
    attentions = [layer.attention for layer in model.layers if layer.attention]
    latent_ones = any(attention.latent for attention in attentions)
    names = ["mla_latent" if latent_ones and mla == "latent" else "full"]
    if any(attention.indexer for attention in attentions):
        names.append("indexer")
    if any(layer.state for layer in model.layers):
        names.append("state")
    if any(layer.cross for layer in model.layers):
        names.append("cross")
    return names


def _more_than_some(model: ModelConfig) -> tuple[str, ...]:
    """What is charged here although some engines do not keep it."""
    notes = []
    if any(layer.attention and layer.attention.window for layer in model.layers):
        notes.append("windowed layers are charged whole; accounting='windowed+...' where they are cut")
    if any(layer.state and layer.state.matrix for layer in model.layers):
        notes.append("recurrent state is charged at 32 bits; ssm_dtype says otherwise")
    if any(layer.cross for layer in model.layers):
        notes.append("what the decoder keeps of the encoder's output, or of images, is counted")
    return tuple(notes)


def _accounting_names(accounting: str, model: ModelConfig) -> list[str]:
    names = accounting.split("+")
    for name in names:
        if name not in ACCOUNTINGS and name not in ("state", "cross"):
            known = ", ".join(["auto", *ACCOUNTINGS, "state", "cross"])
            raise ValueError(f"accounting={accounting!r} has the unknown part {name!r}; known are {known}")
    if sum(name in ACCOUNTINGS and name != "indexer" for name in names) > 1:
        raise ValueError(f"accounting={accounting!r} counts the tokens of a sequence more than once")
    latent_parts = [name for name in names if name.startswith("mla_")]
    if latent_parts and not any(layer.attention and layer.attention.latent for layer in model.layers):
        raise ValueError(f"accounting={accounting!r} is for latent attention, which the model does not have")
    return names


def _plan(model: ModelConfig, names: Sequence[str], options: CacheOptions, *, shared: bool) -> CachePlan:
    layers = model.layers
    terms = [term for name in names if name in ACCOUNTINGS for term in ACCOUNTINGS[name](layers, options)]
    recurrent = state_unit(layers, options)
    only_state = not terms and recurrent > 0 and "cross" not in names
    crossed = cross(layers, options)[0].unit if "cross" in names and cross(layers, options) else 0
    return CachePlan(
        terms=tuple(terms),
        low=_low(model, names, options, terms),
        state=recurrent if "state" in names or only_state else 0,
        cross=crossed,
        positions=model.encoder.positions if model.encoder else 0,
        image_positions=model.image_positions,
        shared_prompts=shared,
        preallocated="ollama" in names or "llamacpp_iswa" in names,
        prefix=model.prefix,
        notes=_notes(model, names, recurrent if terms else 0),
    )


def _low(
    model: ModelConfig, names: Sequence[str], options: CacheOptions, terms: Sequence[Term]
) -> tuple[Term, ...] | None:
    """What the thriftiest engine would keep, when ``full`` was asked and some may keep less."""
    if "full" not in names:
        return None
    attentions = [layer.attention for layer in model.layers if layer.attention]
    if any(attention.latent for attention in attentions):
        return tuple(latent(model.layers, options))
    if any(attention.window for attention in attentions):
        return tuple(windowed(model.layers, options))
    return None


def _notes(model: ModelConfig, names: Sequence[str], recurrent: int) -> tuple[str, ...]:
    notes = []
    if not model.known:
        notes.append(f"model_type {model.model_type!r} is not known: every layer counts as global")
    if recurrent and "state" not in names:
        notes.append(f"recurrent state is not counted: {recurrent // UNIT} bytes a sequence; add '+state'")
    indexed = any(layer.attention and layer.attention.indexer for layer in model.layers)
    if keeps_less(model.model_type):
        notes.append(f"{model.model_type} keeps a part of this: what it compresses is charged whole")
    if indexed and "mla_latent" in names and "indexer" not in names:
        notes.append("the cache of the sparse-attention index is not counted; add '+indexer'")
    return tuple(notes)
