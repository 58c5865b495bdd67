"""Cache and state bytes: published cases to the byte, and the rules of engines one by one."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from gpu_admission.estimators import KVCache, ModelConfig
from gpu_admission.types import Workload
from tests.estimators.published import DEEPSEEK, GEMMA, JAMBA, LLAMA, T5, WHISPER, load

CASES: list[dict[str, Any]] = load("kv_cases.json")["cases"]
CACHES = load("transformers_caches.json")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_a_published_case_is_met_to_the_byte(case: dict[str, Any]) -> None:
    pair = (case["k_dtype"], case["v_dtype"]) if "k_dtype" in case else case["kv_dtype"]
    kv = KVCache.from_config(
        case["config"], kv_dtype=pair, accounting=case["accounting"], **case.get("options", {})
    )
    estimate = kv.estimate(Workload(prompt_tokens=case["tokens"], sequences=case["batch"]))
    assert estimate.bytes == case["kv_bytes_expected"]
    if published := case.get("published"):
        assert abs(estimate.bytes - published["bytes"]) <= published["tolerance_bytes"]


@pytest.mark.parametrize("case", CACHES["decoders"], ids=lambda case: case["config"]["model_type"])
def test_a_decoder_holds_what_transformers_was_seen_to_hold(case: dict[str, Any]) -> None:
    tokens, elements = case["tokens"], 0
    for layer in ModelConfig.read(case["config"]).layers:
        if a := layer.attention:
            elements += (
                (min(tokens, a.window - 1) if a.window else tokens) * a.heads * (a.key_dim + a.value_dim)
            )
        if layer.state:
            elements += layer.state.matrix + layer.state.channels * layer.state.kernel
    assert elements == case["elements"]


@pytest.mark.parametrize("case", CACHES["latent"], ids=lambda case: case["config"]["model_type"])
def test_latent_attention_holds_what_transformers_was_seen_to_hold(case: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = ModelConfig.read(case["config"])
    kv = KVCache.from_config(
        model,
        kv_dtype="bf16",
        accounting="mla_latent+indexer+state",
        ssm_dtype="bf16",
        conv_full_width=True,
    )
    assert kv.estimate(Workload(prompt_tokens=case["tokens"])).bytes == 2 * case["elements"]


@pytest.mark.parametrize("case", CACHES["encoder_decoders"], ids=lambda case: case["config"]["model_type"])
def test_an_encoder_decoder_holds_what_transformers_was_seen_to_hold(case: dict[str, Any]) -> None:
    own = KVCache.from_config(case["config"], accounting="full")
    assert own.estimate(Workload(new_tokens=case["tokens"])).bytes == 2 * case["elements"]
    crossed = KVCache.from_config(case["config"], accounting="cross")
    assert crossed.estimate(Workload(prompt_tokens=case["positions"])).bytes == 2 * case["cross_elements"]


def size(config: dict[str, Any], tokens: int = 1000, rows: int = 1, **options: Any) -> int:
    return (
        KVCache.from_config(config, **options).estimate(Workload(prompt_tokens=tokens, sequences=rows)).bytes
    )


def test_every_row_is_charged_its_prompt_and_its_new_tokens() -> None:
    kv = KVCache.from_config(LLAMA)
    assert kv.estimate(Workload(prompt_tokens=100, new_tokens=28, sequences=4)).bytes == 4 * 128 * 131072


def test_a_page_that_is_begun_is_charged_whole_in_every_row() -> None:
    assert size(LLAMA, 1001, rows=3, block=16) == 3 * 1008 * 131072


def test_tensor_parallel_ranks_hold_at_least_one_head() -> None:
    assert size(LLAMA, tp=4) == size(LLAMA) // 4
    assert size(LLAMA, tp=32) == size(LLAMA) // 8


def test_heads_that_ranks_cannot_share_evenly_are_rounded_up() -> None:
    assert size({**LLAMA, "num_key_value_heads": 10}, tp=4) == size({**LLAMA, "num_key_value_heads": 3})


def test_latent_caches_are_not_divided_by_ranks() -> None:
    assert (
        size(DEEPSEEK, accounting="mla_latent", tp=8) == size(DEEPSEEK, accounting="mla_latent") == 70_272_000
    )


def test_packed_latent_caches_take_656_bytes_a_layer() -> None:
    packed = size(DEEPSEEK, 1, accounting="mla_latent", kv_dtype="fp8_ds_mla")
    assert packed == 61 * 656


def test_the_index_of_sparse_attention_is_counted_when_asked_and_else_named() -> None:
    sparse = {"model_type": "deepseek_v32"}
    kv = KVCache.from_config(sparse, accounting="mla_latent")
    assert any("+indexer" in note for note in kv.estimate(Workload(prompt_tokens=1)).notes)
    both = size(sparse, 1, accounting="mla_latent+indexer")
    assert both - size(sparse, 1, accounting="mla_latent") == 61 * 128 * 2


def test_where_the_engine_decides_the_high_end_is_charged_and_the_low_end_told() -> None:
    hybrid = KVCache.from_config(GEMMA).estimate(Workload(prompt_tokens=131072))
    assert (hybrid.bytes, hybrid.low) == (66571993088, 11173625856)
    latent = KVCache.from_config(DEEPSEEK, mla="expanded").estimate(Workload(prompt_tokens=1))
    assert (latent.bytes, latent.low) == (4_997_120, 70_272)
    assert KVCache.from_config(LLAMA).estimate(Workload(prompt_tokens=1)).low is None


@pytest.mark.parametrize(
    ("name", "per_token"),
    [("f32", 262144), ("q8_0", 69632), ("q4_0", 36864), ("iq4_nl", 36864), ("q5_1", 49152), ("fp8", 65536)],
)
def test_block_formats_are_counted_with_their_scales(name: str, per_token: int) -> None:
    assert size(LLAMA, 1, kv_dtype=name) == per_token


def test_scales_for_each_token_and_head_are_counted() -> None:
    assert size(LLAMA, 1, kv_dtype="int8_per_token_head") == 65536 + 32 * 8 * 2 * 4


def test_keys_and_values_may_be_stored_differently() -> None:
    assert size(LLAMA, 1, kv_dtype=("q8_0", "q4_0")) == (69632 + 36864) // 2


def test_vllm_keeps_a_window_and_a_step_in_pages_and_one_page_more() -> None:
    windowed = {"model_type": "mistral", "num_hidden_layers": 1, "sliding_window": 1024}
    cells = size(windowed, 100_000, accounting="vllm", batch_tokens=2048) // (8 * 128 * 2 * 2)
    assert cells == 3072 + 16
    short = size(windowed, 100, accounting="vllm", batch_tokens=2048, block=32) // (8 * 128 * 2 * 2)
    assert short == 128


def test_llamacpp_shares_one_pool_among_slots_unless_streams_are_split() -> None:
    shared = size(GEMMA, 65536, accounting="llamacpp_iswa", slots=4)
    split = size(GEMMA, 65536, accounting="llamacpp_iswa", slots=4, split_streams=True)
    full = size(GEMMA, 65536, accounting="llamacpp_iswa", slots=4, swa_full=True)
    assert shared < split < full == size(GEMMA, 65536)


def test_a_context_that_the_request_makes_the_server_load_is_charged_whole() -> None:
    kv = KVCache.from_config(LLAMA, accounting="ollama")
    asked = kv.estimate(Workload(prompt_tokens=10, context=4096))
    assert asked.bytes == kv.estimate(Workload(prompt_tokens=4096)).bytes


def test_an_engine_that_shares_prompts_stores_each_once() -> None:
    kv = KVCache.from_config(LLAMA, prompts="shared", block=16)
    choices = Workload(prompt_tokens=1600, new_tokens=16, sequences=4)
    assert kv.estimate(choices).bytes == (1600 + 4 * 32) * 131072
    batch = Workload(prompt_tokens=1600, total_prompt_tokens=1920, sequences=100)
    assert kv.estimate(batch).bytes == (1920 + 100 * 16) * 131072


def test_state_is_constant_in_tokens_and_grows_with_sequences() -> None:
    state = size(JAMBA, 10, accounting="state")
    assert state == size(JAMBA, 100_000, accounting="state")
    assert size(JAMBA, 10, rows=3, accounting="state") == 3 * state
    assert size(JAMBA, 10, accounting="full+state") == size(JAMBA, 10, accounting="full") + state


def test_state_that_is_left_out_is_named() -> None:
    notes = KVCache.from_config(JAMBA, accounting="full").estimate(Workload(prompt_tokens=1)).notes
    assert any("+state" in note for note in notes)


def test_a_model_without_attention_is_charged_its_state() -> None:
    assert size({"model_type": "mamba"}, accounting="full") == size(
        {"model_type": "mamba"}, accounting="state"
    )


def test_whisper_holds_its_window_whatever_the_prompt() -> None:
    assert size(WHISPER, 4, accounting="cross") == 245_760_000


def test_cross_attention_to_images_holds_every_patch_of_every_tile() -> None:
    vision = {"image_size": 560, "patch_size": 14, "max_num_tiles": 4}
    mllama = {
        "model_type": "mllama",
        "text_config": {"model_type": "mllama_text_model"},
        "vision_config": vision,
    }
    kv = KVCache.from_config(mllama, accounting="full+cross")
    text = kv.estimate(Workload(prompt_tokens=10)).bytes
    image = kv.estimate(Workload(prompt_tokens=10, images=((640, 480),))).bytes
    assert kv.estimate(Workload(prompt_tokens=10)).parts["global layers"] == 10 * 32 * 4096
    assert image - text == 4 * 1601 * 8 * 4096
    assert text == 10 * 32 * 4096


def test_values_that_were_assumed_are_in_the_notes() -> None:
    estimate = KVCache.from_config(LLAMA).estimate(Workload(prompt_tokens=1, defaulted=("max_tokens",)))
    assert any("max_tokens" in note for note in estimate.notes)


def test_an_unknown_model_is_said_in_the_estimate_too() -> None:
    with pytest.warns(match="not known"):
        kv = KVCache.from_config({**LLAMA, "model_type": "from_the_future"})
    assert any("from_the_future" in note for note in kv.estimate(Workload()).notes)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"kv_dtype": "q9"}, "q9"),
        ({"accounting": "half"}, "half"),
        ({"accounting": "full+windowed"}, "more than once"),
        ({"accounting": "mla_latent"}, "latent"),
        ({"block": 0}, "block"),
        ({"tp": True}, "tp"),
        ({"slots": 1.5}, "slots"),
    ],
)
def test_an_option_that_makes_no_sense_is_named(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises((TypeError, ValueError), match=complaint):
        KVCache.from_config(LLAMA, **options)


def test_basis_is_the_pool_unless_said_otherwise() -> None:
    assert KVCache.from_config(LLAMA).estimate(Workload()).basis == "pool"
    assert KVCache.from_config(LLAMA, basis="device").estimate(Workload()).basis == "device"


def test_an_encoder_decoder_with_both_caches() -> None:
    estimate = KVCache.from_config(T5, accounting="full+cross").estimate(Workload(prompt_tokens=512))
    assert estimate.parts == {"cross-attention": 201326592, "global layers": 201326592}


class TestAllByItself:
    """Without an accounting, what the model's layers store is counted, whatever it is."""

    def test_latent_attention_is_stored_as_it_is(self) -> None:
        assert size(DEEPSEEK, 1) == 70_272
        assert size(DEEPSEEK, 1, mla="expanded") == 4_997_120
        with pytest.raises(ValueError, match="mla"):
            KVCache.from_config(DEEPSEEK, mla="wide")  # type: ignore[arg-type]

    def test_states_cross_attention_and_indexes_are_in_it(self) -> None:
        assert size(JAMBA, 10) == size(JAMBA, 10, accounting="full+state", conv_full_width=True)
        assert size(WHISPER, 4) == size(WHISPER, 4, accounting="full+cross")
        sparse = {**DEEPSEEK, "model_type": "deepseek_v32", "index_head_dim": 128}
        assert size(sparse, 7) == size(sparse, 7, accounting="mla_latent+indexer")

    @pytest.mark.parametrize(
        "case", [*CACHES["decoders"], *CACHES["latent"]], ids=lambda case: case["config"]["model_type"]
    )
    def test_no_decoder_is_charged_less_than_it_holds_nor_half_more_without_a_note(
        self, case: dict[str, Any]
    ) -> None:
        kv = KVCache.from_config(case["config"], kv_dtype="bf16")
        estimate = kv.estimate(Workload(prompt_tokens=case["tokens"]))
        assert estimate.bytes >= 0.98 * 2 * case["elements"]
        assert estimate.bytes <= 1.5 * 2 * case["elements"] or estimate.notes


def test_a_draft_model_keeps_a_cache_of_its_own() -> None:
    assert size(LLAMA, 1, draft=1) == 33 * 4096
    assert size(LLAMA, 1, draft={**LLAMA, "num_hidden_layers": 4}) == 36 * 4096
    for wrong in (-1, True):
        with pytest.raises(ValueError, match="draft"):
            KVCache.from_config(LLAMA, draft=wrong)
    with pytest.raises(ValueError, match="draft=1"):
        KVCache.from_config({"model_type": "mamba"}, draft=1)


def test_a_cache_in_quantised_groups_keeps_its_newest_tokens_and_one_layer_unpacked() -> None:
    per_token = 131_072
    for kind, bits in (("int8_g64", 8), ("int4_g64", 4), ("int2_g64", 2)):
        packed = 10_000 * per_token * (bits + 0.5) / 16
        assert size(LLAMA, 10_000, kv_dtype=kind) == packed + 128 * per_token + 10_000 * per_token // 32
