"""What every estimator promises: positive, finite, monotone, explainable, pure."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_admission.estimators import (
    Constant,
    Diffusion,
    Encoder,
    KServeTensors,
    KVCache,
    Learned,
    Linear,
    Table,
    Traced,
    TransformersLM,
    Vision,
    Whisper,
)
from gpu_admission.request import RequestInfo
from gpu_admission.sizes import MAX_BYTES
from gpu_admission.types import Estimate, Workload
from tests.estimators.published import (
    DEEPSEEK,
    GEMMA,
    JAMBA,
    LLAMA,
    QWEN_VISION,
    T5,
    VIT,
    WHISPER,
)


class Formula(Protocol):
    def __call__(self, info: RequestInfo, /) -> Any: ...
    def estimate(self, workload: Workload) -> Estimate: ...
    def explain(self, workload: Workload) -> str: ...


def learned() -> Learned:
    estimator = Learned(KVCache.from_config(LLAMA))
    for size, share in ((2**20, 3.0), (2**26, 0.2), (2**28, 2.0), (2**33, 0.5)):
        for _ in range(10):
            estimator.observe("*", size, int(size * share))
    return estimator


TRACES = Path(__file__).parent / "data" / "traces"
"""Written by ``gpu-admission trace``: small models with windows, with an encoder, with images, with beams."""
ROWS = [({"prompt_tokens": p, "sequences": s}, 2**20 * p * s) for p in (10, 100, 1000) for s in (1, 4)]

ESTIMATORS: dict[str, Callable[[], Formula]] = {
    "constant": lambda: Constant("1.2GiB"),
    "linear": lambda: Linear({"prompt_tokens": "0.11MiB", "prompt_tokens*sequences": 0.5, "pixels": 3}),
    "linear fit": lambda: Linear.fit(ROWS, ["prompt_tokens", "sequences", "prompt_tokens*sequences"]),
    "table": lambda: Table(ROWS),
    "table scaled": lambda: Table(ROWS, beyond="scale"),
    "kv full": lambda: KVCache.from_config(LLAMA),
    "kv hybrid": lambda: KVCache.from_config(GEMMA, block=16, prompts="shared"),
    "kv windowed": lambda: KVCache.from_config(GEMMA, accounting="windowed", kv_dtype=("q8_0", "q4_0")),
    "kv vllm": lambda: KVCache.from_config(GEMMA, accounting="vllm", batch_tokens=2048),
    "kv ollama": lambda: KVCache.from_config(GEMMA, accounting="ollama", slots=2),
    "kv llama.cpp": lambda: KVCache.from_config(
        GEMMA, accounting="llamacpp_iswa", slots=3, split_streams=True
    ),
    "kv latent": lambda: KVCache.from_config(DEEPSEEK),
    "kv state": lambda: KVCache.from_config(JAMBA, accounting="full+state"),
    "kv cross": lambda: KVCache.from_config(T5, accounting="full+cross"),
    "lm": lambda: TransformersLM.from_config(LLAMA, dtype="bf16"),
    "lm eager": lambda: TransformersLM.from_config(
        GEMMA, dtype="bf16", attention="eager", reserved_factor=1.2
    ),
    "lm hybrid": lambda: TransformersLM.from_config(
        GEMMA, dtype="f16", keeps_all_logits=True, prefill_chunk=512
    ),
    "lm tuple": lambda: TransformersLM.from_config(LLAMA, dtype="f16", attention="flash", cache="tuple"),
    "lm static": lambda: TransformersLM.from_config(LLAMA, dtype="f16", cache="static", max_cache_len=8192),
    "lm latent": lambda: TransformersLM.from_config(DEEPSEEK, dtype="bf16"),
    "lm cross": lambda: TransformersLM.from_config(T5, dtype="f32", attention="eager"),
    "lm state": lambda: TransformersLM.from_config(JAMBA, dtype="bf16"),
    "encoder": lambda: Encoder.from_config(LLAMA, dtype="f16", keeps_cache=True, max_batch=32),
    "encoder eager": lambda: Encoder.from_config(T5, dtype="f32", attention="eager", max_length=512),
    "diffusion": lambda: Diffusion("sd15"),
    "diffusion eager": lambda: Diffusion("sdxl", attention="eager", slicing=True, tile=1024),
    "diffusion split": lambda: Diffusion("flux", attention="split", offload={"vae": "160MiB"}),
    "whisper": lambda: Whisper.from_config(WHISPER, dtype="f16", windows=8, beams=2),
    "whisper eager": lambda: Whisper.from_config(WHISPER, dtype="f32", attention="eager"),
    "vision": lambda: Vision.convolutional(channels=64, max_pixels=2**24),
    "vision fixed": lambda: Vision.from_config(VIT, attention="eager"),
    "vision tower": lambda: Vision.from_config(QWEN_VISION),
    "kserve": lambda: KServeTensors(factor=3.5, constant="16MiB"),
    "learned": learned,
    **{f"traced {path.stem}": partial(Traced.load, path) for path in sorted(TRACES.glob("*.json"))},
}
SIZES = st.one_of(st.integers(1, 5000), st.integers(1, 2**40))
FEWER = settings(max_examples=50)
GROWING = ("prompt_tokens", "total_prompt_tokens", "new_tokens", "sequences", "beams", "width", "height")

workloads = st.builds(
    Workload,
    prompt_tokens=SIZES,
    total_prompt_tokens=SIZES,
    new_tokens=SIZES,
    sequences=SIZES,
    beams=st.integers(1, 16),
    prompt_logprobs=st.booleans(),
    images=st.lists(st.tuples(st.integers(0, 9000), st.integers(0, 9000)), max_size=4).map(tuple),
    width=SIZES,
    height=SIZES,
    audio_seconds=st.floats(0.1, 1e7),
    tensor_bytes=SIZES,
    context=SIZES,
)


@pytest.fixture(params=list(ESTIMATORS), scope="module")
def estimator(request: pytest.FixtureRequest) -> Formula:
    make = ESTIMATORS[request.param]
    return make()


@FEWER
@given(workload=workloads)
def test_every_estimate_is_a_whole_number_of_bytes_that_can_exist(
    estimator: Formula, workload: Workload
) -> None:
    estimate = estimator.estimate(workload)
    assert type(estimate.bytes) is int
    assert 1 <= estimate.bytes <= MAX_BYTES
    if estimate.low is not None:
        assert 1 <= estimate.low <= estimate.bytes
    assert all(type(size) is int for size in estimate.parts.values())


@FEWER
@given(
    workload=workloads, grown=st.dictionaries(st.sampled_from((*GROWING, "tensor_bytes", "context")), SIZES)
)
def test_more_of_anything_never_costs_less(
    estimator: Formula, workload: Workload, grown: dict[str, int]
) -> None:
    larger = {name: getattr(workload, name) + more for name, more in grown.items()}
    if "beams" in larger:  # which are multiplied into the sequences already
        times = -(-larger["beams"] // max(1, workload.beams))
        larger["sequences"] = larger.get("sequences", workload.sequences) * times
    after = msgspec.structs.replace(workload, **larger)
    assert estimator.estimate(after).bytes >= estimator.estimate(workload).bytes


@given(
    workload=workloads, seconds=st.floats(0, 1e6), image=st.tuples(st.integers(1, 9000), st.integers(1, 9000))
)
def test_longer_audio_and_further_images_never_cost_less(
    estimator: Formula, workload: Workload, seconds: float, image: tuple[int, int]
) -> None:
    workload = msgspec.structs.replace(workload, images=workload.images or ((8, 8),))
    after = msgspec.structs.replace(
        workload,
        audio_seconds=workload.audio_seconds + seconds,
        images=(*workload.images, image),
        prompt_logprobs=True,
    )
    assert estimator.estimate(after).bytes >= estimator.estimate(workload).bytes


@settings(max_examples=20)
@given(workload=workloads)
def test_the_same_workload_gives_the_same_estimate(estimator: Formula, workload: Workload) -> None:
    assert estimator.estimate(workload) == estimator.estimate(workload)


def test_an_empty_workload_is_not_free(estimator: Formula) -> None:
    assert estimator.estimate(Workload()).bytes >= 1


def test_an_absurd_workload_is_the_most_there_is_and_not_an_error(estimator: Formula) -> None:
    huge = 10**400
    workload = Workload(prompt_tokens=huge, new_tokens=huge, sequences=huge, width=huge, height=huge)
    assert 1 <= estimator.estimate(workload).bytes <= MAX_BYTES


def test_a_request_is_estimated_as_its_workload(estimator: Formula) -> None:
    workload = Workload(prompt_tokens=100, new_tokens=20, sequences=2, width=512, height=512)

    class Reads:
        def read(self, info: RequestInfo) -> Workload:
            return workload

    info = RequestInfo({"type": "http", "path": "/x", "headers": []}, dialect=Reads())
    result = estimator(info)
    assert isinstance(result, Estimate)
    assert result.bytes == estimator.estimate(workload).bytes


def test_it_explains_itself_term_by_term(estimator: Formula) -> None:
    workload = Workload(prompt_tokens=300, new_tokens=20, sequences=2, width=512, height=512, tensor_bytes=9)
    estimate = estimator.estimate(workload)
    text = estimator.explain(workload)
    assert f"{estimate.bytes:,} B" in text
    assert all(name in text for name, size in estimate.parts.items() if size)
    assert all(note in text for note in estimate.notes)


def test_it_says_what_it_is(estimator: Formula) -> None:
    assert type(estimator).__name__ in repr(estimator)


def test_the_parts_of_an_estimate_add_up_to_it(estimator: Formula) -> None:
    estimate = estimator.estimate(
        Workload(prompt_tokens=300, new_tokens=20, sequences=2, width=512, height=512)
    )
    assert estimate.parts
    assert abs(sum(estimate.parts.values()) - estimate.bytes) <= len(estimate.parts)
