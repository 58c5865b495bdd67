"""Failures that users of other programs reported, second list, as far as they concern reading a body."""

from __future__ import annotations

import base64
import json
import struct
import zlib
from typing import Any

import pytest

from gpu_admission.errors import UnreadableBody
from gpu_admission.estimators import Diffusion
from gpu_admission.types import Workload
from gpu_admission.workloads import Fields, SGLang, is_control, reads_path
from tests.workloads.asking import request

HISTORY = 131_072


def png(width: int, height: int, padding: int = 0) -> str:
    """Base64 of a true header, then padding."""
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunk = struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header))
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + chunk + bytes(padding)).decode()


def chat(*parts: Any, **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": list(parts)}], **more}


def asked(path: str, body: Any, kind: str = "application/json") -> Workload:
    return request(body, path, kind=kind).workload


IMAGE = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": png(1024, 768, 750_000)},
}


def test_n01_an_image_block_is_an_image_and_no_text() -> None:
    workload = asked("/v1/messages", chat(IMAGE, {"type": "text", "text": "what is it"}, max_tokens=64))
    assert workload.images == ((1024, 768),)
    assert workload.prompt_tokens < 20_000
    assert workload.new_tokens == 64
    inside = asked("/v1/messages", chat({"type": "tool_result", "content": [IMAGE]}))
    assert inside.images == ((1024, 768),)
    assert inside.prompt_tokens < 20_000


@pytest.mark.parametrize(
    "source", [{"type": "url", "url": "https://x/y.png"}, {"type": "file", "file_id": "f"}]
)
def test_n01_an_image_that_is_elsewhere_is_one_of_unknown_size(source: dict[str, str]) -> None:
    block = {"type": "image", "source": source}
    assert asked("/v1/messages", chat(block)).images == ((0, 0),)
    assert asked("/v1/messages", chat({"type": "tool_result", "content": [block]})).images == ((0, 0),)


def test_n01_documents_count_as_their_text_or_as_history() -> None:
    def document(**source: Any) -> Workload:
        return asked("/v1/messages", chat({"type": "document", "source": source}))

    assert document(type="text", media_type="text/plain", data="one two " * 10_000).prompt_tokens > 20_000
    blocks = [{"type": "text", "text": "one two " * 10_000}, IMAGE]
    assert document(type="content", content=blocks).prompt_tokens > 20_000
    assert document(type="content", content=blocks).images == ((1024, 768),)
    assert document(type="base64", media_type="application/pdf", data="A" * 100_000).prompt_tokens > 30_000
    assert document(type="url", url="https://x/y.pdf").prompt_tokens == HISTORY
    assert document(type="text", data=["x" * 1000], hidden="one two " * 10_000).prompt_tokens > 20_000


COUNTING = [
    ("/v1/messages/count_tokens", chat({"type": "text", "text": "hi"})),
    ("/api/show", {"model": "m"}),
    ("/detokenize", {"tokens": [1, 2, 3]}),
    ("/apply-template", {"messages": []}),
    ("/tokenize", {"prompt": "x"}),
    ("/v1/tokenize", {"prompt": "x", "n": 5}),
]


@pytest.mark.parametrize(("path", "body"), COUNTING)
def test_n02_calls_that_generate_nothing_ask_for_no_new_tokens(path: str, body: Any) -> None:
    assert asked(path, body).new_tokens == 0


@pytest.mark.parametrize("path", [path for path, _ in COUNTING if path != "/v1/tokenize"])
def test_n02_known_ones_are_control_calls(path: str) -> None:
    assert is_control(path)


@pytest.mark.parametrize(
    "path", ["/interrupt", "/sdapi/v1/interrupt", "/free", "/v1/responses/r_1/cancel", "/reset_prefix_cache",
             "/abort_request"]
)  # fmt: skip
def test_n03_calls_that_stop_work_are_control_calls(path: str) -> None:
    assert is_control(path)


@pytest.mark.parametrize(
    "path",
    [
        "/v1/chat/completions", "/generate", "/queue", "/prompt", "/generate/tokenize",
        "/v1/responses/cancel", "/v1/responses/a/b/cancel", "/interrupt/", "/free/x",
        "/v1/responses//cancel", "/tokenize\n", "",
    ],
)  # fmt: skip
def test_n03_work_can_not_be_called_control(path: str) -> None:
    assert not is_control(path)


def test_n03_a_path_that_no_dialect_names_is_known_as_such() -> None:
    for path in ("/interrupt", "/queue", "/v1/responses/r_1/cancel", "/reset_prefix_cache", "/my/own"):
        assert not reads_path(path)
    for path in ("/v1/chat/completions", "/api/chat", "/v1/messages", "/v1/videos", "/sdapi/v1/txt2img"):
        assert reads_path(path)


KINDS = ["application/x-www-form-urlencoded", "application/octet-stream", "text/plain", "", "audio/wav",
         "multipart/form-data; boundary=x", "image/png"]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("padding", [0, 300_000])
def test_n05_json_is_read_as_json_whatever_its_header_says(kind: str, padding: int) -> None:
    text = {"text": "one two " * 500, "max_new_tokens": 4000, "image": png(640, 480, padding)}
    body = json.dumps(text).encode()
    want, got = asked("/generate", body), asked("/generate", body, kind)
    assert got.prompt_tokens >= want.prompt_tokens
    assert got.new_tokens >= want.new_tokens == 4000
    media = json.dumps({"prompt": "x", "n": 8, "size": "2048x2048"}).encode()
    made = asked("/v1/images/generations", media, kind)
    assert (made.width, made.height, made.sequences) == (2048, 2048, 8)
    paths = Fields(prompt="text", new_tokens="max_new_tokens")
    assert paths.read(request(body, "/run", kind=kind)).new_tokens >= 4000


def test_n05_a_form_that_is_json_too_counts_as_the_larger_of_both() -> None:
    body = b'{"prompt": "&max_tokens=5000&prompt=' + b"one two " * 500 + b'&n=8&", "max_tokens": 7}'
    form = asked("/generate", body, "application/x-www-form-urlencoded")
    assert (form.new_tokens, form.sequences) == (5000, 8)
    assert form.prompt_tokens > 1000
    assert asked("/generate", body).new_tokens == 7


def test_n05_a_file_that_is_no_json_stays_a_file() -> None:
    assert asked("/generate", b"{" + bytes(100), "application/octet-stream").tensor_bytes == 101
    with pytest.raises(UnreadableBody):
        asked("/generate", b'{"a": 1', "text/plain")


def test_n07_history_that_the_server_keeps_costs_the_context() -> None:
    items = [{"type": "item_reference", "id": "msg_1"}, {"role": "user", "content": "go on"}]
    workload = asked("/v1/responses", {"input": items})
    assert workload.prompt_tokens >= HISTORY
    assert "item_reference" in workload.defaulted
    assert asked("/v1/responses", {"input": [{"id": "msg_1"}]}).prompt_tokens >= HISTORY


def test_n07_a_picture_by_its_id_is_one_of_unknown_size() -> None:
    part = {"type": "input_image", "file_id": "file-1"}
    assert asked("/v1/responses", {"input": [{"role": "user", "content": [part]}]}).images == ((0, 0),)


@pytest.mark.parametrize(
    "part",
    [
        {"type": "input_file", "file_id": "file-2"},
        {"type": "input_file", "file_url": "https://x/y.pdf"},
        {"type": "file", "file": {"file_id": "file-2"}},
    ],
)
def test_n07_a_document_by_its_id_or_address_is_unknown_history(part: dict[str, Any]) -> None:
    assert asked("/v1/responses", {"input": [{"role": "user", "content": [part]}]}).prompt_tokens >= HISTORY
    assert asked("/v1/chat/completions", chat(part)).prompt_tokens >= HISTORY


def test_n08_a_prompt_may_be_an_object_with_media() -> None:
    one = {"prompt_string": "describe <__media__>", "multimodal_data": [png(640, 480, 90_000)]}
    workload = asked("/completion", {"prompt": one, "n_predict": 64})
    assert workload.prompt_tokens < 20_000
    assert workload.images == ((640, 480),)
    assert workload.new_tokens == 64
    several = asked("/completion", {"prompt": [one, one, "text"], "n_predict": 64})
    assert (several.sequences, len(several.images)) == (3, 2)
    sound = base64.b64encode(b"ID3" + bytes(30_000)).decode()
    heard = asked("/completion", {"prompt": {**one, "multimodal_data": [sound]}})
    assert heard.audio_seconds > 10
    assert asked("/v1/responses", {"prompt": {"id": "pmpt_1"}}).prompt_tokens >= HISTORY


def test_n08_ids_and_texts_side_by_side_are_one_prompt() -> None:
    workload = asked("/completion", {"prompt": [1, 2, "one two " * 10, 3], "n_predict": 64})
    assert workload.sequences == 1
    assert workload.prompt_tokens > 20
    assert asked("/completion", {"prompt": ["a", "b"]}).sequences == 2


SIZE = {"height": 2048, "width": 2048, "num_outputs_per_prompt": 4}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", chat({"type": "text", "text": "a cat"}, extra_body=SIZE)),
        ("/v1/chat/completions", chat({"type": "text", "text": "a cat"}, **SIZE)),
        ("/", {"inputs": "a cat", "parameters": {"width": 2048, "height": 2048, "num_images_per_prompt": 4}}),
        ("/generate", {"prompt": "a cat", "size": "2048x2048", "num_images": 4}),
        ("/generate", {"anything": "a cat", "image_size": {"width": 2048, "height": 2048}, "n": 4}),
    ],
)
def test_n09_a_picture_costs_the_same_wherever_its_size_stands(path: str, body: Any) -> None:
    want = asked("/v1/images/generations", {"prompt": "a cat", "size": "2048x2048", "n": 4})
    model = Diffusion("qwen-image")
    assert model.estimate(asked(path, body)).bytes >= 0.9 * model.estimate(want).bytes


GRAPH = {
    "3": {"class_type": "KSampler", "inputs": {"latent_image": ["5", 0], "steps": 20}},
    "5": {"class_type": "EmptyLatentImage", "inputs": {"width": 2048, "height": 2048, "batch_size": 8}},
    "9": {"class_type": "ImageScale", "inputs": {"width": ["7", 0], "height": ["7", 1]}},
}


def test_n10_the_largest_number_of_a_graph_counts_and_links_are_skipped() -> None:
    at = "prompt.*.inputs."
    fields = Fields(task="image", width=at + "width", height=at + "height", sequences=at + "batch_size")
    workload = fields.read(request({"client_id": "c", "prompt": GRAPH}, "/prompt"))
    assert (workload.width, workload.height, workload.sequences) == (2048, 2048, 8)
    assert workload.defaulted == ("width", "height")
    links = {"9": GRAPH["9"]}
    assert fields.read(request({"prompt": links}, "/prompt")).width == 1024
    with pytest.raises(UnreadableBody, match="width"):
        fields.read(request({"prompt": {"5": {"inputs": {"width": ["7"]}}}}, "/prompt"))


def test_n10_a_graph_is_no_history_and_its_sizes_are_found() -> None:
    workload = asked("/prompt", {"client_id": "c", "prompt": GRAPH})
    assert workload.prompt_tokens < 10_000
    assert (workload.task, workload.width, workload.height, workload.sequences) == ("image", 2048, 2048, 8)
    upscaled = {**GRAPH, "8": {"class_type": "ImageScaleBy", "inputs": {"scale_by": 2.0}}}
    assert asked("/prompt", {"prompt": upscaled}).width >= 4096
    written = {"5": {"class_type": "E", "inputs": {"width": "4096", "height": "x", "batch_size": None}}}
    assert asked("/prompt", {"prompt": written}).width == 4096
    video = {"1": {"class_type": "EmptyHunyuanLatentVideo", "inputs": {"length": 345}}}
    assert asked("/prompt", {"prompt": video}).frames == 345


def test_n11_frames_are_read_and_are_part_of_the_price() -> None:
    few, many = (
        asked("/v1/videos", {"prompt": "x", "size": "1280x720", "num_frames": frames}) for frames in (81, 345)
    )
    assert (many.width, many.height, many.frames) == (1280, 720, 345)
    assert many.features.get("frames") == 345
    model = Diffusion("qwen-image")
    assert model.estimate(many).bytes >= 3 * model.estimate(few).bytes


@pytest.mark.parametrize(
    "length",
    [{"seconds": "8", "fps": 16}, {"seconds": 8, "frame_rate": 16.0}, {"duration": "8s", "fps": "16"}],
)
def test_n11_seconds_are_frames(length: dict[str, Any]) -> None:
    assert asked("/v1/videos", {"prompt": "x", **length}).frames == 129
    assert asked("/v1/videos", {"prompt": "x", "seconds": "8"}).frames == 193


def test_n13_embeddings_of_pictures_are_pictures() -> None:
    data = "data:image/png;base64," + png(640, 480, 300_000)
    mixed = asked("/v1/embeddings", {"input": [{"image": "https://x/b.jpg"}, {"text": "t"}]})
    assert (mixed.images, mixed.sequences) == (((0, 0),), 2)
    modal = asked("/v1/embeddings", {"modality": "image", "input": ["https://x/a.jpg", data]})
    assert modal.images == ((0, 0), (640, 480))
    assert modal.prompt_tokens < 20_000
    plain = asked("/v1/embeddings", {"modality": "image", "input": ["one two " * 10_000]})
    assert plain.prompt_tokens > 20_000


@pytest.mark.parametrize("path", ["/v1/embed", "/v2/embed"])
def test_n13_coheres_form_is_read(path: str) -> None:
    data = "data:image/png;base64," + png(640, 480, 300_000)
    texts = asked(path, {"model": "m", "input_type": "search_document", "texts": ["a", "b"]})
    assert (texts.sequences, texts.new_tokens) == (2, 0)
    pictures = asked(path, {"model": "m", "input_type": "image", "images": [data]})
    assert pictures.images == ((640, 480),)
    assert pictures.prompt_tokens < 20_000
    inputs = [{"content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": data}}]}]
    both = asked(path, {"model": "m", "inputs": inputs * 2})
    assert (both.sequences, both.images) == (2, ((640, 480), (640, 480)))


def test_n14_a_tensor_without_elements_takes_nothing() -> None:
    tensors = [
        {"name": "edges", "datatype": "INT64", "shape": [2, 0], "data": []},
        {"name": "x", "datatype": "FP32", "shape": [10, 16], "data": [0.0] * 160},
    ]
    assert asked("/v2/models/gcn/infer", {"inputs": tensors}).tensor_bytes == 640
    assert asked("/v2/models/gcn/infer", {"inputs": tensors[:1]}).tensor_bytes == 1
    for shape in ([-1], [2, -1], [1.5]):
        with pytest.raises(UnreadableBody):
            asked("/v2/models/gcn/infer", {"inputs": [{**tensors[0], "shape": shape}]})


def test_n31_a_batch_of_texts_is_as_many_sequences() -> None:
    params = [{"max_new_tokens": 16}] * 31 + [{"max_new_tokens": 500, "n": 2}]
    body = {"text": ["one two three"] * 32, "sampling_params": params}
    workload = asked("/generate", body)
    assert (workload.sequences, workload.new_tokens) == (64, 500)
    assert workload.total_prompt_tokens >= 32 * 3
    assert SGLang().read(request(body, "/generate")) == workload
    one = asked("/generate", {"text": "one", "sampling_params": {"max_new_tokens": 9}})
    assert (one.sequences, one.new_tokens) == (1, 9)
    ids = asked("/generate", {"input_ids": [[1, 2], [3]], "sampling_params": {}})
    assert (ids.sequences, ids.prompt_tokens) == (2, 2)
