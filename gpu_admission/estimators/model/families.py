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

# Gate and up projection are one matrix, whose halves live beside their product.
_FUSED_GATE = _names(
    """phi3 phi4_multimodal phi4mm phimoe glm glm4 glm4v_text chatglm glm_image_text glm_ocr_text
    modernbert modernbert-decoder"""
)

# The activation that a class fills in, where it is computed in steps.
_ACTIVATIONS = {
    "gelu_new": _names("gpt2 gptj gpt_neo codegen gpt-sw3 openai-gpt phi bloom albert"),
    "relu2": _names("nemotron nemotron_h arcee persimmon"),
    "gelu_of_its_own": _names("esm"),
    "quick_gelu": _names("clip_text_model clip_vision_model"),
}

# Without torch's fused attention in transformers 5.24: "sdpa" runs eager there.
_NO_SDPA = _names(
    """big_bird bigbird_pegasus bloom canine convbert deberta deberta-v2 flaubert fnet funnel gemma2 gpt_neo
    gpt_oss ibert layoutlmv2 lilt longformer luke markuplm megatron-bert mpnet mpt mra mvp nystromformer
    openai-gpt perceiver reformer rembert roformer squeezebert tapas xlm xlnet yoso"""
)

# Every expert computes every token, and most results are multiplied by zero.
_ALL_EXPERTS = _names("llama4_text")

# State-space models that make every state of a step at once, and those that do so in small chunks.
_MAMBA_1 = _names("mamba falcon_mamba jamba zamba")
_DELTA_NETS = _names("qwen3_next qwen3_5_text qwen3_5_moe_text kimi_linear olmo_hybrid")

# Whose experts are weighted at 32 bits, and so are what they put out.
_WIDE_ROUTING = _names(
    """glm4_moe solar_open mimo_v2_flash hy_v3 minimax_m2 exaone_moe afmoe axk1 beam sarvam_moe kolibri1 flint
    glm4_moe_lite inkling_text inkling2_text inkling2_loop_text deepseek_v4"""
)

# How many times what the shapes of a layer say its own code holds, where that is more: traced at the sizes
# of its class, over 1024 tokens.
_HEAVIER = {
    13.0: _names("kimi_linear"),
    11.6: _names("bloom"),
    7.1: _names("bailing_hybrid"),
    4.2: _names("falcon_h1"),
    1.75: _names("inkling2_loop_text"),
    1.65: _names("apertus apertus1p5_text ctrl"),
    1.55: _names("inkling2_text gemma4_text gemma4_unified_text"),
    1.5: _names("bitnet deepseek_v4"),
    1.38: _names("ernie4_5"),
    1.26: _names("hrm_text"),
    1.18: _names("stablelm gpt_bigcode recurrent_gemma"),
    1.1: _names("gemma3n_text lfm3"),
}

# Whose caches are compressed by learned weights, or whose states have fewer parts than their shapes say.
_KEEPS_LESS = _names("deepseek_v4 xlstm")

# Whose rotation is computed at 32 bits, or beside the one matrix that queries, keys and values are in.
_WIDE_ROTATION = _names("cohere cohere2 cohere2_moe modernbert modernbert-decoder")

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


def lacks_sdpa(model_type: str) -> bool:
    """Whether transformers runs it eager where ``sdpa`` is asked."""
    return model_type in _NO_SDPA


def fuses_gate(model_type: str) -> bool:
    """Whether gate and up projection are one matrix."""
    return model_type in _FUSED_GATE


def default_activation(model_type: str) -> str:
    """The activation that its class fills in, where that matters; else an empty name."""
    return next((name for name, types in _ACTIVATIONS.items() if model_type in types), "")


def runs_all_experts(model_type: str) -> bool:
    """Whether every expert computes every token."""
    return model_type in _ALL_EXPERTS


def expert_tensors(model_type: str) -> int:
    """Tensors of an expert's width alive at its peak: four, or nine where gate and up are clamped first."""
    return 9 if model_type == "gpt_oss" else 4


def weighs_wide(model_type: str) -> bool:
    """Whether what its experts put out is weighted at 32 bits."""
    return model_type in _WIDE_ROUTING


def heavier(model_type: str) -> float:
    """How many times what the shapes of a layer say it really holds."""
    return next((times for times, names in _HEAVIER.items() if model_type in names), 1.0)


def keeps_less(model_type: str) -> bool:
    """Whether its cache is more than half as large again by its shape as it really is."""
    return model_type in _KEEPS_LESS


def rotates_wide(model_type: str) -> bool:
    """Whether rotary embedding runs at 32 bits."""
    return model_type in _WIDE_ROTATION


def streams(model_type: str) -> int:
    """Hidden vectors beside the four that a layer holds: Gemma 3n runs four streams and predicts each."""
    return 25 if model_type == "gemma3n_text" else 0


def scan_bytes(model_type: str) -> float:
    """For each token and element of a layer's state, while it is run without a fused kernel.

    From traces of Jamba (13.5), Mamba-2 (0.89) and Qwen3-Next (0.48), with chunks of their own size.
    """
    return 14.0 if model_type in _MAMBA_1 else 0.5 if model_type in _DELTA_NETS else 0.9


def stores_repeated_heads(model_type: str) -> bool:
    """Whether transformers repeats its key/value heads to all query heads before it stores them."""
    return model_type in ("falcon", "RefinedWeb")


def ties_embeddings(keys: Keys, model_type: str) -> bool:
    """Whether the output matrix is the input table: as the config says, or as its class does."""
    value = keys.value("tie_word_embeddings")
    return value if isinstance(value, bool) else model_type in _TIED
