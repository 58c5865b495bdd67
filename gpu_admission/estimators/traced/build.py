"""Makes a model of transformers on the meta device, with the attention and experts that were chosen.

Owns the choices, and what happens if a model does not support the chosen attention. How it is run
is in ``transformers``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

import torch
import transformers

from gpu_admission.estimators.traced.configs import Kind, kind_of, read_config, torch_dtype

AttentionKind: TypeAlias = Literal["flash", "sdpa", "eager"]
ExpertsKind: TypeAlias = Literal["grouped_mm", "batched_mm", "eager"]
KernelsKind: TypeAlias = Literal["torch", "fused"]
Sampling: TypeAlias = Literal["greedy", "top_k", "top_p"]

_AUTO: Final = {
    "causal": transformers.AutoModelForCausalLM,
    "encoder-decoder": transformers.AutoModelForSeq2SeqLM,
    "speech": transformers.AutoModelForSpeechSeq2Seq,
    "vision-language": transformers.AutoModelForImageTextToText,
    "encoder": transformers.AutoModel,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """How the server runs the model, where more than one way is common."""

    dtype: str | None = None
    attention: AttentionKind = "sdpa"
    experts: ExpertsKind = "grouped_mm"
    kernels: KernelsKind = "torch"
    sampling: Sampling = "top_p"
    beams: int = 1
    padded: bool = True
    """Batches hold prompts of different lengths, and then need masks."""
    inputs: bool = True
    """The tensors that the model is given count too."""


@dataclass(frozen=True, slots=True)
class Built:
    """A model without weights, and what is known of it."""

    model: Any
    config: Any
    kind: Kind
    dtype: torch.dtype
    attention: str
    """The attention that it runs with, which is not always the one that was asked for."""
    notes: set[str] = field(default_factory=set)

    @property
    def input(self) -> str:
        """The name of its main input."""
        name: str = getattr(self.model, "main_input_name", "input_ids")
        return name


def build(source: Any, choices: Choices, device: str = "meta") -> Built:
    """The model of a configuration, its path, or another model, on ``device``. Raises ``ValueError``.

    On a real device its weights are made up, and its kernels must be installed.
    """
    given = isinstance(source, torch.nn.Module)
    config = source.config if given else read_config(source)
    kind, dtype = kind_of(config), torch_dtype(config, choices.dtype)
    make = type(source)._from_config if given else _AUTO[kind].from_config
    notes: set[str] = set()
    with quietly(), torch.device(device), torch.no_grad():
        model, attention = _made(
            lambda kind: make(config, dtype=dtype, attn_implementation=kind), choices, notes, device
        )
        if choices.experts != "grouped_mm":
            model.set_experts_implementation(choices.experts)
    return Built(model.eval(), config, kind, dtype, attention, notes)


def _made(make: Callable[[str], Any], choices: Choices, notes: set[str], device: str) -> tuple[Any, str]:
    """A model, and the attention that it accepted."""
    if choices.attention == "flash":
        return (_with_flash(make("eager")) if device == "meta" else make("flash_attention_2")), "flash"
    try:
        return make(choices.attention), choices.attention
    except ValueError as refused:
        if "scaled_dot_product_attention" not in str(refused):
            raise
    notes.add("the model has no sdpa attention: it was traced with eager attention")
    return make("eager"), "eager"


def _with_flash(model: Any) -> Any:
    """Skip the library's check that flash-attn is installed: there is a stand-in for it."""
    for module in model.modules():
        if isinstance(config := getattr(module, "config", None), transformers.PretrainedConfig):
            config._attn_implementation_internal = "flash_attention_2"
    return model


@contextmanager
def quietly() -> Iterator[None]:
    """Silence the library's advice on inputs, which are made up here."""
    verbosity = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        transformers.logging.set_verbosity(verbosity)
