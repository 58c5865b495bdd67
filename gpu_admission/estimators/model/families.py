"""What model families do that their config.json does not say.

Owns one fact a line: the order of local and global layers, which families slide in
every layer, whose MLP has no gate, and the names of models that ship their own code.
Values that a class fills in for missing keys are data: ``class_defaults.json``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from gpu_admission.estimators.model.keys import Keys


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# One letter a layer, repeated over the depth: s sliding, c chunked, S recurrent state,
# H attention and state, G global.
_CYCLES = {
    "sG": _names("gemma2 gpt_oss vaultgemma t5_gemma_module"),
    "sssssG": _names("gemma3_text t5gemma2_decoder t5gemma2_text gemma4_text gemma4_unified_text"),
    "ssssG": _names("gemma3n_text"),
    "sssG": _names("cohere2 cohere2_moe exaone4 exaone_moe olmo3 afmoe"),
    "Gsss": _names("cwm granite_swa granitemoe_swa"),
    "Gss": _names("modernbert modernbert-decoder"),
    "Gsssss": _names("mimo_v2_flash"),
    "cccG": _names("llama4_text"),
    "SSSG": _names("qwen3_next qwen3_5_text qwen3_5_moe_text olmo_hybrid kimi_linear"),
    "S": _names("mamba mamba2 falcon_mamba rwkv"),
    "H": _names("falcon_h1"),
}

# A window in their config holds for every layer.
_ALL_SLIDING = _names(
    """mistral mixtral ministral ministral3 phi3 phimoe phi4_multimodal starcoder2 moshi
    kyutai_speech_to_text voxtral_realtime_text minimax"""
)

_PLAIN_MLP = _names(
    """gpt2 gpt_neo gptj gpt_neox gpt_neox_japanese gpt_bigcode gpt-sw3 openai-gpt ctrl codegen opt bloom mpt
    falcon RefinedWeb RefinedWebModel phi starcoder2 persimmon nemotron nemotron_h arcee biogpt xglm bart
    mbart marian pegasus pegasus_x blenderbot blenderbot-small m2m_100 nllb-moe speech_to_text whisper plbart
    trocr led musicgen_decoder bert roberta xlm-roberta xlm-roberta-xl roberta-prelayernorm electra camembert
    distilbert albert mpnet deberta deberta-v2 megatron-bert data2vec-text layoutlm longformer big_bird ernie
    esm squeezebert vit clip_text_model clip_vision_model siglip_text_model siglip_vision_model"""
)

# Whose output matrix is the input table, unless their config says otherwise.
_TIED = _names(
    """gpt2 gpt_neo gpt_bigcode bloom opt mpt falcon starcoder2 gemma gemma2 gemma3_text gemma3n_text
    gemma4_text cohere cohere2 codegen openelm"""
)

# Types that ship their own code and keep to the common keys, or to those that ``config`` handles.
_REMOTE_CODE = _names(
    """RefinedWeb RefinedWebModel aquila arctic baichuan bailing_moe bailing_moe_v2 bunny-llama chatglm deci
    deepseek deepseek_vl_v2 grok-1 h2ovl_chat hunyuan internlm internlm2 internvl_chat jais kimi_k2 kimi_vl
    llava_llama mimo minicpm minicpmo minicpmv minimax_m1 minimax_text_01 molmo moonvl nemotron-nas nemotron_h
    nvlm_d openelm orion phi3_v phi4mm qwen solar stablelm_epoch step3 telechat xverse yi youtu"""
)


class ClassDefaults(msgspec.Struct, frozen=True):
    """What model classes fill in for missing keys, and the text model inside each composite one."""

    defaults: Mapping[str, Mapping[str, Any]]
    nested: Mapping[str, str]


def class_defaults() -> ClassDefaults:
    """The data file, read anew: it is asked for once for each model that a process configures."""
    from importlib.resources import files

    text = files(__package__).joinpath("class_defaults.json").read_text(encoding="utf-8")
    data = json.loads(text)
    return ClassDefaults(data["defaults"], data["nested"])


def is_known(model_type: str, classes: ClassDefaults) -> bool:
    """Whether the rules for ``model_type`` are known here; else its layers count as global."""
    return model_type in classes.defaults or model_type in classes.nested or model_type in _REMOTE_CODE


def layer_cycle(model_type: str) -> str | None:
    """The repeated order of layers of a family, e.g. ``"sssG"``; ``None`` when it has none."""
    return next((cycle for cycle, names in _CYCLES.items() if model_type in names), None)


def slides_everywhere(model_type: str) -> bool:
    """Whether a sliding window in its config holds for every layer."""
    return model_type in _ALL_SLIDING


def has_plain_mlp(model_type: str) -> bool:
    """Whether its MLP has no gate: two intermediate tensors a token instead of three."""
    return model_type in _PLAIN_MLP


def stores_repeated_heads(model_type: str) -> bool:
    """Whether transformers repeats its key/value heads to all query heads before it stores them."""
    return model_type in ("falcon", "RefinedWeb")


def ties_embeddings(keys: Keys, model_type: str) -> bool:
    """Whether the output matrix is the input table: as the config says, or as its class does."""
    value = keys.value("tie_word_embeddings")
    return value if isinstance(value, bool) else model_type in _TIED
