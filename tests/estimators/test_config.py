"""Reading a config.json: every way in which files differ from what a formula expects."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_admission.estimators import Encoder, KVCache, ModelConfig, TransformersLM, UnknownModelType
from gpu_admission.types import Workload
from tests.estimators.published import LLAMA, T5, WHISPER


def kinds(config: dict[str, Any]) -> dict[str, int]:
    """How many layers of each kind, windows by their length."""
    found: Counter[str] = Counter()
    for layer in ModelConfig.read(config).layers:
        attention, state = layer.attention, layer.state
        name = "none" if attention is None else f"window {attention.window}" if attention.window else "global"
        found["state" if attention is None and state else "both" if state else name] += 1
    return dict(found)


def heads(config: dict[str, Any]) -> int:
    return ModelConfig.read(config).kv_heads


def test_a_file_a_folder_and_a_dict_are_read_alike(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    model = ModelConfig.read(LLAMA)
    assert ModelConfig.read(tmp_path) == ModelConfig.read(str(tmp_path / "config.json")) == model
    assert ModelConfig.read(model) is model


def test_a_file_that_holds_no_object_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(ValueError, match="no JSON object"):
        ModelConfig.read(tmp_path)


def test_infinity_in_a_file_is_read_as_python_writes_it(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, "time_step_limit": [0.0, float("inf")]}))
    assert len(ModelConfig.read(tmp_path).layers) == 32


def test_head_dim_is_not_always_hidden_over_heads() -> None:
    assert ModelConfig.read({**LLAMA, "head_dim": 80}).head_dim == 80
    assert ModelConfig.read({**LLAMA, "head_dim": None}).head_dim == 128
    assert (
        ModelConfig.read({"model_type": "qwen3", "hidden_size": 1024, "num_attention_heads": 16}).head_dim
        == 128
    )
    assert ModelConfig.read(T5).head_dim == 64


def test_a_null_is_not_the_class_default() -> None:
    mistral = {"model_type": "mistral", "num_hidden_layers": 4}
    assert kinds(mistral) == {"window 4096": 4}
    assert kinds({**mistral, "sliding_window": None}) == {"global": 4}
    assert heads({**mistral, "num_key_value_heads": None}) == 32


def test_missing_keys_are_what_the_class_fills_in() -> None:
    first_release = {"model_type": "gemma3", "text_config": {"num_hidden_layers": 34, "hidden_size": 2560}}
    model = ModelConfig.read(first_release)
    assert (model.heads, model.kv_heads, model.head_dim) == (8, 4, 256)


def test_a_text_model_that_is_not_named_is_that_of_its_class() -> None:
    model = ModelConfig.read({"model_type": "llava", "text_config": {"vocab_size": 32064}})
    assert (model.model_type, len(model.layers), model.hidden_size) == ("llama", 32, 4096)
    assert ModelConfig.read({"model_type": "qwen2_5_omni"}).model_type == "qwen2_5_omni_text"


@pytest.mark.parametrize(
    "nested",
    [
        {"text_config": LLAMA},
        {"llm_config": LLAMA},
        {"language_config": LLAMA},
        {"thinker_config": {"text_config": LLAMA}},
        {"decoder": LLAMA},
    ],
)
def test_the_decoder_is_found_inside(nested: dict[str, Any]) -> None:
    outer = {"model_type": "something", "num_hidden_layers": 3, "hidden_size": 64, "torch_dtype": "bfloat16"}
    model = ModelConfig.read({**outer, **nested})
    assert (len(model.layers), model.hidden_size, model.dtype) == (32, 4096, "bfloat16")


def test_falcon_is_multi_query_unless_its_architecture_is_new() -> None:
    falcon = {"model_type": "falcon", "num_attention_heads": 71, "num_kv_heads": 71, "hidden_size": 4544}
    assert heads({**falcon, "multi_query": True, "new_decoder_architecture": False}) == 1
    assert heads({**falcon, "multi_query": True, "new_decoder_architecture": True, "num_kv_heads": 8}) == 8
    assert heads({**falcon, "multi_query": False}) == 71
    assert (
        heads({"model_type": "RefinedWeb", "n_layer": 60, "n_head": 128, "n_head_kv": 8, "hidden_size": 8192})
        == 8
    )


def test_key_value_heads_have_many_names() -> None:
    mpt = {"model_type": "mpt", "n_heads": 32, "n_layers": 32, "d_model": 4096}
    assert heads(mpt) == 32
    assert heads({**mpt, "attn_config": {"attn_type": "multiquery_attention"}}) == 1
    assert heads({**mpt, "attn_config": {"attn_type": "grouped_query_attention", "kv_n_heads": 8}}) == 8
    assert heads({"model_type": "gpt_bigcode", "n_embd": 6144, "n_head": 48, "n_layer": 40}) == 1
    chatglm = {"model_type": "chatglm", "num_layers": 28, "hidden_size": 4096, "num_attention_heads": 32}
    assert heads({**chatglm, "multi_query_attention": True, "multi_query_group_num": 2}) == 2
    assert heads(chatglm) == 32


def test_class_defaults_never_give_more_key_value_heads_than_heads() -> None:
    assert heads({"model_type": "qwen2", "num_attention_heads": 12, "hidden_size": 1536}) == 12


def test_per_layer_lists_are_read_layer_by_layer() -> None:
    openelm = {"model_type": "openelm", "num_hidden_layers": 3, "num_attention_heads": 12, "hidden_size": 768}
    layers = ModelConfig.read({**openelm, "num_kv_heads": [3, 4, 5]}).layers
    assert [layer.attention.heads for layer in layers if layer.attention] == [3, 4, 5]
    wider = ModelConfig.read({**LLAMA, "num_hidden_layers": 2, "per_layer_config": {"01": {"head_dim": 256}}})
    assert [layer.attention.key_dim for layer in wider.layers if layer.attention] == [128, 256]


def test_encoder_depth_is_not_decoder_depth() -> None:
    turbo = {**WHISPER, "num_hidden_layers": 32, "decoder_layers": 4}
    assert len(ModelConfig.read(turbo).layers) == 4
    assert len(ModelConfig.read({**T5, "num_decoder_layers": 12}).layers) == 12
    assert len(ModelConfig.read(T5).layers) == 24


def test_pruned_blocks_store_nothing() -> None:
    def block(groups: int | None, width: float) -> dict[str, Any]:
        return {
            "attention": {"no_op": groups is None, "n_heads_in_group": groups},
            "ffn": {"ffn_mult": width},
        }

    pruned = {**LLAMA, "model_type": "nemotron-nas", "num_hidden_layers": 4, "num_key_value_heads": None}
    model = ModelConfig.read(
        {**pruned, "block_configs": [block(8, 1.0), block(None, 5.25), block(4, 1), block(8, 1)]}
    )
    assert [layer.attention.heads if layer.attention else 0 for layer in model.layers] == [4, 0, 8, 4]
    assert model.mlp == 3 * 14336
    narrow = {**pruned, "intermediate_size": 1, "block_configs": [{"ffn": {"intermediate_size": 7168}}] * 4}
    assert ModelConfig.read(narrow).mlp == 3 * 7168


def of(model_type: str, depth: int, **keys: Any) -> dict[str, Any]:
    return {"model_type": model_type, "num_hidden_layers": depth, **keys}


FAMILIES: list[tuple[dict[str, Any], dict[str, int]]] = [
    (of("gemma2", 26), {"window 4096": 13, "global": 13}),
    (of("gemma3_text", 26, sliding_window=512), {"window 512": 22, "global": 4}),
    (of("gemma3_text", 6, sliding_window_pattern=3), {"window 4096": 4, "global": 2}),
    (of("gemma3n_text", 35, num_kv_shared_layers=15), {"window 512": 16, "global": 4, "none": 15}),
    (of("gpt_oss", 24), {"window 128": 12, "global": 12}),
    (of("cohere2", 32), {"window 4096": 24, "global": 8}),
    (of("llama4_text", 48), {"window 8192": 36, "global": 12}),
    (of("llama4_text", 4, no_rope_layers=[1, 0, 1, 0]), {"window 8192": 2, "global": 2}),
    (of("exaone4", 8, sliding_window_pattern="LLLG"), {"window 4096": 6, "global": 2}),
    (of("modernbert-decoder", 6, global_attn_every_n_layers=3), {"global": 2, "window 128": 4}),
    (of("afmoe", 8, global_attn_every_n_layers=4), {"global": 2, "window 1024": 6}),
    (of("phi3", 4, sliding_window=2047), {"window 2047": 4}),
    (of("qwen2", 4, use_sliding_window=False, sliding_window=9), {"global": 4}),
    (
        of("qwen2", 4, use_sliding_window=True, max_window_layers=3, sliding_window=9),
        {"global": 3, "window 9": 1},
    ),
    (of("smollm3", 4, use_sliding_window=True, sliding_window=9), {"global": 4}),
    (of("mimo_v2_flash", 4, hybrid_layer_pattern=[0, 1, 1, 0]), {"global": 2, "window 129": 2}),
    (of("jamba", 16), {"state": 14, "global": 2}),
    (of("zamba", 12), {"state": 10, "both": 2}),
    ({"model_type": "nemotron_h", "hybrid_override_pattern": "ME*-"}, {"state": 1, "none": 2, "global": 1}),
    (
        of("nemotron_h", 3, layers_block_type=["mamba", "moe", "attention"]),
        {"state": 1, "none": 1, "global": 1},
    ),
    (of("qwen3_next", 48), {"state": 36, "global": 12}),
    (of("qwen3_5_text", 8, full_attention_interval=2), {"state": 4, "global": 4}),
    (
        of("kimi_linear", 4, linear_attn_config={"full_attn_layers": [4], "num_heads": 8, "head_dim": 64}),
        {"state": 3, "global": 1},
    ),
    (
        of("minimax_text_01", 4, attn_type_list=[0, 0, 0, 1], hidden_size=64, num_attention_heads=4),
        {"state": 3, "global": 1},
    ),
    (of("bamba", 4, attn_layer_indices=[1]), {"state": 3, "global": 1}),
    (of("lfm2", 4, full_attn_idxs=[1, 3]), {"state": 2, "global": 2}),
    (of("falcon_h1", 4), {"both": 4}),
    (
        of("recurrent_gemma", 6, block_types=["recurrent", "recurrent", "attention"], lru_width=64),
        {"state": 4, "window 2048": 2},
    ),
    (of("rwkv", 2), {"state": 2}),
    (of("mllama_text_model", 5, cross_attention_layers=[3]), {"global": 4, "none": 1}),
    (of("llama", 32, layer_types=["full_attention"] * 30), {"global": 32}),
    (of("llama", 32, layer_types=["a word of the future"] * 32), {"global": 32}),
]


@pytest.mark.parametrize(("config", "expected"), FAMILIES, ids=[c["model_type"] for c, _ in FAMILIES])
def test_each_layer_is_of_the_kind_that_the_file_or_its_family_says(
    config: dict[str, Any], expected: dict[str, int]
) -> None:
    assert kinds(config) == expected


def test_a_recurrent_layer_of_unknown_size_counts_as_attention() -> None:
    assert kinds({**LLAMA, "layer_types": ["linear_attention", "full_attention"] * 16}) == {"global": 32}


def test_windowed_layers_may_have_heads_of_their_own() -> None:
    layers = ModelConfig.read({"model_type": "mimo_v2_flash", "num_hidden_layers": 2}).layers
    shapes = [(a.heads, a.key_dim, a.value_dim) for layer in layers if (a := layer.attention)]
    assert shapes == [(4, 192, 128), (8, 192, 128)]


def test_experts_that_run_for_a_token_and_shared_ones_make_the_mlp() -> None:
    moe = {
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 2048,
        "n_shared_experts": 1,
        "intermediate_size": 1,
    }
    gathered = 8 * max(4 * 2048 + 4096, 4 * 4096)
    assert ModelConfig.read({**LLAMA, **moe}).mlp == gathered + 2048
    dbrx = {"model_type": "dbrx", "ffn_config": {"moe_top_k": 4, "ffn_hidden_size": 10752}}
    assert ModelConfig.read(dbrx).mlp >= 4 * (4 * 10752)


def test_an_mlp_without_a_gate_holds_two_tensors() -> None:
    assert ModelConfig.read({"model_type": "opt", "ffn_dim": 3072}).mlp == 2 * 3072
    assert ModelConfig.read({**T5, "feed_forward_proj": "relu"}).mlp == 2 * 10240
    assert ModelConfig.read({**LLAMA, "intermediate_size": [7, 9, 8]}).mlp == 3 * 9


def test_an_activation_in_steps_holds_a_tensor_for_each_and_a_fused_gate_a_fourth() -> None:
    assert ModelConfig.read({"model_type": "gpt2"}).mlp == 5 * 4 * 768
    assert ModelConfig.read({"model_type": "gpt2", "activation_function": "gelu"}).mlp == 2 * 4 * 768
    assert ModelConfig.read({**T5, "feed_forward_proj": "gated-gelu"}).mlp == 5 * 10240
    assert ModelConfig.read({"model_type": "nemotron", "intermediate_size": 100}).mlp == 3 * 100
    assert ModelConfig.read({"model_type": "phi3", "intermediate_size": 100}).mlp == 4 * 100


def test_a_shortcut_model_keeps_two_caches_a_layer() -> None:
    assert len(ModelConfig.read({"model_type": "longcat_flash", "num_layers": 28}).layers) == 56


@pytest.mark.parametrize("name", [None, "", "from_the_future"])
def test_an_unknown_family_is_taken_as_global_and_said(name: str | None) -> None:
    hybrid = {**LLAMA, "model_type": name, "sliding_window": 9, "layer_types": ["sliding_attention"] * 32}
    with pytest.warns(UnknownModelType, match="every layer"):
        model = ModelConfig.read(hybrid)
    assert not model.known
    assert all(layer.attention and not layer.attention.window for layer in model.layers)


def test_an_unknown_family_never_takes_less_than_all_layers_with_the_heads_given() -> None:
    config = {
        **LLAMA,
        "model_type": "x",
        "num_kv_shared_layers": 8,
        "sliding_window": 9,
        "attn_layer_period": 4,
    }
    with pytest.warns(UnknownModelType):
        kv = KVCache.from_config(config, accounting="windowed")
    assert kv.estimate(Workload(prompt_tokens=1000)).bytes == 1000 * 131072


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ({"model_type": "internlm2"}, "num_hidden_layers"),
        ({"model_type": "internlm2", "num_hidden_layers": 2}, "hidden_size"),
        ({**LLAMA, "num_hidden_layers": 10**6}, "layers"),
        ({**LLAMA, "num_hidden_layers": "32"}, "num_hidden_layers"),
        ({**LLAMA, "hidden_size": -1}, "hidden_size"),
        ({**LLAMA, "num_key_value_heads": True}, "num_key_value_heads"),
        ({**LLAMA, "head_dim": float("nan")}, "head_dim"),
        ({**LLAMA, "head_dim": {}}, "head_dim"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused_by_the_name_of_the_key(
    config: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        ModelConfig.read(config)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 10**12) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
KEYS = st.sampled_from(
    [
        *("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "hidden_size"),
        *("sliding_window", "layer_types", "block_configs", "hybrid_override_pattern", "attn_config"),
        *("linear_attn_config", "text_config", "per_layer_config", "kv_lora_rank", "sliding_window_pattern"),
        *("attn_layer_period", "conv_kernel", "state_size", "vocab_size", "vision_config", "dtype"),
    ]
)


@given(
    changes=st.dictionaries(KEYS, JSON, max_size=4), name=st.sampled_from(["llama", "jamba", "gemma2", "t5"])
)
def test_whatever_a_file_holds_it_is_read_or_refused(changes: dict[str, Any], name: str) -> None:
    try:
        model = ModelConfig.read({**LLAMA, "model_type": name, **changes})
    except ValueError:
        return
    assert 1 <= len(model.layers) <= 10_000


class Loaded:
    """As ``model.config`` of transformers: an object that gives its own ``dict``."""

    def to_dict(self) -> dict[str, Any]:
        return {
            "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
            "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 100, "dtype": "bfloat16",
        }  # fmt: skip


def test_a_loaded_config_is_read_like_its_file() -> None:
    assert ModelConfig.read(Loaded()) == ModelConfig.read(Loaded().to_dict())
    workload = Workload(prompt_tokens=100, new_tokens=10)
    for kind in (TransformersLM, KVCache, Encoder):
        loaded, parsed = kind.from_config(Loaded()), kind.from_config(Loaded().to_dict())
        assert loaded.estimate(workload) == parsed.estimate(workload)


def test_what_is_no_config_is_a_sentence() -> None:
    with pytest.raises(TypeError, match=r"config must be a path, a dict, or a loaded config"):
        TransformersLM.from_config(5)  # type: ignore[arg-type]


def test_an_element_type_may_be_torchs_own() -> None:
    torch = pytest.importorskip("torch")
    workload = Workload(prompt_tokens=100, new_tokens=10)
    for own, name in ((torch.float32, "float32"), (torch.bfloat16, "bf16")):
        ours = TransformersLM.from_config(Loaded(), dtype=own), KVCache.from_config(Loaded(), kv_dtype=own)
        named = TransformersLM.from_config(Loaded(), dtype=name), KVCache.from_config(Loaded(), kv_dtype=name)
        assert [e.estimate(workload) for e in ours] == [e.estimate(workload) for e in named]
    with pytest.raises(TypeError, match=r"dtype must be a name such as 'bf16', or a torch\.dtype"):
        TransformersLM.from_config(Loaded(), dtype=32)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["meta-llama/Llama-3-8B", "/nope/config.json"])
def test_a_config_that_is_not_there_is_said_with_what_would_be_one(name: str) -> None:
    with pytest.raises(FileNotFoundError, match=rf"there is no '{name}': .* AutoConfig\.from_pretrained"):
        ModelConfig.read(name)
