"""KServe's tensors, wherever their data is, and Triton's generate extension."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpu_admission.bodies.numbers import CEILING
from gpu_admission.errors import UnreadableBody
from gpu_admission.types import Workload
from gpu_admission.workloads import KServe
from tests.workloads.asking import request

INFER = "/v2/models/m/versions/1/infer"


def infer(*tensors: Any) -> Workload:
    return KServe().read(request({"inputs": list(tensors)}, INFER))


def tensor(shape: Any = (1,), datatype: Any = "FP32", **more: Any) -> dict[str, Any]:
    return {
        "name": "x",
        "shape": list(shape) if isinstance(shape, tuple) else shape,
        "datatype": datatype,
        **more,
    }


@pytest.mark.parametrize(
    ("datatype", "size"),
    [
        *((kind, 1) for kind in ("BOOL", "INT8", "UINT8")),
        *((kind, 2) for kind in ("INT16", "UINT16", "FP16", "BF16")),
        *((kind, 4) for kind in ("INT32", "UINT32", "FP32")),
        *((kind, 8) for kind in ("INT64", "UINT64", "FP64")),
    ],
)
def test_a_tensor_is_its_shape_times_its_type(datatype: str, size: int) -> None:
    workload = infer(tensor((2, 3, 224, 224), datatype))
    assert (workload.task, workload.tensor_bytes) == ("infer", 2 * 3 * 224 * 224 * size)


def test_tensors_add_up() -> None:
    workload = infer(tensor((10,)), tensor((20,)), tensor(()))
    assert workload.tensor_bytes == 124
    assert workload.features == {"tensors": 3.0, "largest_tensor_bytes": 80.0}


def test_shared_memory_counts_though_it_is_not_in_the_body() -> None:
    region = {"shared_memory_region": "r", "shared_memory_byte_size": 10**9}
    assert infer(tensor((1,), parameters=region)).tensor_bytes == 10**9
    assert infer(tensor((1,), "BYTES", parameters=region)).tensor_bytes == 10**9


def test_binary_data_stands_behind_the_json() -> None:
    head = json.dumps({"inputs": [tensor((256,), "UINT8", parameters={"binary_data_size": 256})]}).encode()
    workload = KServe().read(
        request(head + bytes(256), INFER, inference_header_content_length=str(len(head)))
    )
    assert workload.tensor_bytes == 256


def test_more_binary_data_than_is_declared_counts() -> None:
    head = json.dumps({"inputs": [tensor((1,), "UINT8")]}).encode()
    workload = KServe().read(
        request(head + bytes(5000), INFER, inference_header_content_length=str(len(head)))
    )
    assert workload.tensor_bytes == 5000


def test_a_raw_request_is_all_tensor() -> None:
    assert KServe().read(request(bytes(777), INFER, inference_header_content_length="0")).tensor_bytes == 777
    assert KServe().read(request(b"", INFER, inference_header_content_length="0")).tensor_bytes == 1


@pytest.mark.parametrize("length", ["-1", "x", "", "99999", "1e2", "²", "9" * 30])
def test_a_length_outside_the_body_is_refused(length: str) -> None:
    with pytest.raises(UnreadableBody, match="inference-header-content-length"):
        KServe().read(request(b"{}", INFER, inference_header_content_length=length))


def test_texts_count_with_their_length_prefixes() -> None:
    assert infer(tensor((2,), "BYTES", data=["x" * 100, "y" * 100])).tensor_bytes >= 208
    assert infer(tensor((1,), "BYTES", data="x" * 100)).tensor_bytes >= 104
    assert infer(tensor((1000,), "BYTES")).tensor_bytes == 4000
    assert infer(tensor((1,), "BYTES", data=["x" * 300_000])).tensor_bytes >= 300_004
    assert infer(tensor((1,), "BYTES", data=list(range(300_000)))).tensor_bytes >= 1_200_000


@pytest.mark.parametrize(
    "shape", [None, 5, "x", {}, [-1], [2, -1, 3], [1.5], [True], ["2"], [None], [[2]], [1] * 65]
)
def test_a_malformed_shape_is_refused(shape: Any) -> None:
    with pytest.raises(UnreadableBody, match="shape"):
        infer(tensor(shape))


def test_a_huge_shape_is_finite() -> None:
    assert infer(tensor((2**40, 2**40))).tensor_bytes == CEILING


@pytest.mark.parametrize("datatype", [None, "FP128", 5, [], "fp32"])
def test_an_unknown_type_is_refused(datatype: Any) -> None:
    with pytest.raises(UnreadableBody, match="datatype"):
        infer(tensor((1,), datatype))


@pytest.mark.parametrize("inputs", [None, [], {}, "x", 5])
def test_inputs_must_be_tensors(inputs: Any) -> None:
    with pytest.raises(UnreadableBody, match="inputs"):
        KServe().read(request({"inputs": inputs}, INFER))
    with pytest.raises(UnreadableBody, match="inputs"):
        infer("x")
    with pytest.raises(UnreadableBody, match="parameters"):
        infer(tensor((1,), parameters=[]))


def test_the_first_protocol_counts_its_json() -> None:
    body = {"instances": [[1, 2, 3]] * 100}
    workload = KServe().read(request(body, "/v1/models/m:predict"))
    assert workload.tensor_bytes >= 8 * 300


def generate(**fields: Any) -> Workload:
    return KServe().read(request({"text_input": "x" * 100, **fields}, "/v2/models/m/generate"))


def test_generate_finds_its_limit_in_either_place() -> None:
    assert generate(max_tokens=50).new_tokens == 50
    assert generate(parameters={"max_tokens": 50}).new_tokens == 50
    absent = generate(parameters=None)
    assert (absent.new_tokens, absent.defaulted) == (1024, ("max_tokens",))


def test_generate_counts_text_beams_and_images() -> None:
    workload = generate(parameters={"beam_width": 4, "num_return_sequences": 2}, image="https://x/a.png")
    assert (workload.sequences, workload.beams, workload.images) == (8, 4, ((0, 0),))
    assert workload.prompt_tokens >= 50
    assert not workload.stream
    assert generate(stream=True).stream
    streamed = KServe().read(request({"text_input": "x"}, "/v2/models/m/generate_stream"))
    assert streamed.stream


def test_tensors_are_never_rewritten() -> None:
    body = request({"inputs": [tensor()]}).body
    assert KServe().clamp(body, 5) == body
