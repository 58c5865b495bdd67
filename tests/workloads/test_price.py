"""What a client writes never chooses its price downwards."""

from __future__ import annotations

import base64
import json
import struct
from itertools import product
from typing import Any

import pytest
from msgspec.structs import replace

from gpu_admission.errors import UnreadableBody
from gpu_admission.estimators import Vision
from gpu_admission.request import Dialect
from gpu_admission.types import Workload
from gpu_admission.workloads import (
    TGI,
    VLLM,
    ComfyUI,
    Fields,
    Guess,
    KServe,
    Ollama,
    OpenAI,
    OpenAIMedia,
    Rerank,
    StableDiffusion,
    Whisper,
)
from gpu_admission.workloads.audio import LEAST_BYTES_PER_SECOND, seconds
from gpu_admission.workloads.content import MOST_IMAGES
from tests.workloads import pictures
from tests.workloads.asking import request, upload

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hello"}]
PICTURE = {"type": "image_url", "image_url": {"url": pictures.data_url(pictures.png(640, 480))}}
TEXT = "one two three " * 1000


def read(dialect: Dialect, body: Any, path: str = CHAT, **more: Any) -> Workload:
    return dialect.read(request(body, path, **more))


@pytest.mark.parametrize(
    ("dialect", "path", "body", "others"),
    [
        (VLLM(context=8192), CHAT, {"messages": HELLO}, ("n_predict", "max_output_tokens", "max_new_tokens")),
        (OpenAI(), CHAT, {"messages": HELLO}, ("n_predict", "max_output_tokens", "num_predict")),
        (OpenAI(), "/v1/responses", {"input": "x"}, ("max_tokens", "max_completion_tokens", "n_predict")),
        (OpenAI(), "/v1/completions", {"prompt": "x"}, ("max_completion_tokens", "n_predict")),
        (TGI(context=8192), "/generate", {"inputs": "x"}, ("max_new_tokens", "max_tokens", "max_length")),
        (KServe(), "/v2/models/m/generate", {"text_input": "x"}, ("max_output_len", "request_output_len")),
        (Ollama(), "/api/generate", {"prompt": "x"}, ("num_predict", "max_tokens")),
    ],
)
def test_c6_a_limit_that_the_endpoint_does_not_obey_lowers_nothing(
    dialect: Dialect, path: str, body: dict[str, Any], others: tuple[str, ...]
) -> None:
    plain = read(dialect, body, path).new_tokens
    for name in others:
        assert read(dialect, {**body, name: 1}, path).new_tokens >= plain
        assert read(dialect, {**body, name: 1}, path).defaulted == read(dialect, body, path).defaulted


@pytest.mark.parametrize("name", ["max_tokens", "max_length"])
def test_c6_nor_does_one_inside_parameters(name: str) -> None:
    body = {"inputs": "x", "parameters": {name: 1}}
    assert read(TGI(context=8192), body, "/generate").new_tokens == 8189
    assert read(TGI(), {"inputs": "x", "parameters": {name: 5000}}, "/generate").new_tokens == 5000


@pytest.mark.parametrize("fields", [(100_000, 1), (1, 100_000)])
def test_c6_the_larger_of_two_places_counts(fields: tuple[int, int]) -> None:
    outer, inner = fields
    body = {
        "text_input": "x", "max_tokens": outer, "beam_width": outer,
        "parameters": {"max_tokens": inner, "beam_width": inner},
    }  # fmt: skip
    workload = read(KServe(), body, "/v2/models/m/generate")
    assert (workload.new_tokens, workload.beams) == (100_000, 100_000)


def test_c6_a_clamped_body_names_the_limit_that_is_obeyed() -> None:
    for dialect, path, body in (
        (OpenAI(), CHAT, {"messages": HELLO, "n_predict": 900}),
        (TGI(), "/generate", {"inputs": "x", "parameters": {"max_length": 900}}),
        (KServe(), "/v2/models/m/generate", {"text_input": "x", "max_output_len": 900}),
    ):
        clamped = dialect.clamp(json.dumps(body).encode(), 7)
        assert read(dialect, clamped, path).new_tokens == 7


def test_a_cut_prompt_keeps_its_pictures() -> None:
    def chat(content: Any, **fields: Any) -> Workload:
        messages = [{"role": "user", "content": content}]
        return read(VLLM(image_tokens="qwen2-vl"), {"messages": messages, **fields})

    plain = chat([PICTURE] * 9).prompt_tokens
    assert chat([PICTURE] * 9, truncate_prompt_tokens=1).prompt_tokens >= 9 * 391
    assert (
        chat([PICTURE] * 9 + [{"type": "text", "text": TEXT}], truncate_prompt_tokens=10).prompt_tokens
        < plain
    )
    video = {"type": "video_url", "video_url": {"url": "https://x/y.mp4"}}
    assert chat([video], truncate_prompt_tokens=1).prompt_tokens > 50_000
    assert chat([video] * 3).prompt_tokens > 150_000
    assert chat([{"video_url": [video] * 3}]).prompt_tokens > 150_000


def test_embeddings_that_are_sent_ready_made_are_a_prompt_each() -> None:
    body = {"prompt_embeds": ["AAAA"] * 8, "max_tokens": 5, "truncate_prompt_tokens": 1}
    workload = read(VLLM(context=4096), body, "/v1/completions")
    assert (workload.prompt_tokens, workload.sequences) == (4096, 8)
    assert workload.total_prompt_tokens >= 8 * 4096
    both = read(VLLM(context=4096), {**body, "prompt": "x", "n": 2}, "/v1/completions")
    assert both.sequences >= 18


def test_each_part_of_a_scored_content_is_a_row() -> None:
    parts = [{"type": "text", "text": "one two three"}] * 5 + [PICTURE]
    workload = read(VLLM(), {"data_1": "query", "data_2": {"content": parts}}, "/score")
    assert (workload.sequences, workload.images) == (6, ((640, 480),))
    assert read(VLLM(), {"query": "q", "documents": {"content": parts}}, "/rerank").sequences == 6


def test_a_batch_of_conversations_is_as_many_sequences() -> None:
    body = {"messages": [HELLO, HELLO, [{"role": "user", "content": TEXT}]], "n": 2}
    workload = request(body, "/v1/chat/completions/batch").workload
    assert workload.sequences == 6
    assert workload.prompt_tokens > 3000
    assert workload.total_prompt_tokens > workload.prompt_tokens


@pytest.mark.parametrize(
    "options",
    [
        {"max_dynamic_patch": 100},
        {"images_kwargs": {"max_pixels": 10**8}},
        {"size": {"longest_edge": 10**8}},
        {"crops": [[{"n": 100}]]},
    ],
)
def test_a_processor_that_is_told_to_make_more_of_a_picture_costs_more(options: dict[str, Any]) -> None:
    messages = [{"role": "user", "content": [PICTURE]}]
    dialect = VLLM(image_tokens="qwen2-vl")
    assert read(dialect, {"messages": messages, "mm_processor_kwargs": options}).prompt_tokens > 100_000
    video = [{"role": "user", "content": [{"video_url": {"url": "https://x"}}]}]
    workload = read(dialect, {"messages": video, "mm_processor_kwargs": {"fps": 30}})
    assert workload.prompt_tokens >= 131_072


def test_work_that_outlives_its_request_says_so() -> None:
    workload = read(OpenAI(), {"input": "x", "background": True}, "/v1/responses")
    assert workload.features == {"background": 1.0}
    assert read(OpenAI(), {"input": "x", "background": False}, "/v1/responses").features == {}


def test_names_in_any_case_count_where_the_server_takes_them() -> None:
    body = (
        b'{"MESSAGES": [{"Role": "user", "CONTENT": "' + TEXT.encode() + b'"}], "Max_Tokens": 5000, "N": 3}'
    )
    workload = read(Ollama(), body, CHAT)
    assert workload.prompt_tokens > 3000
    assert (workload.new_tokens, workload.sequences) == (5000, 3)
    kelvin = '{"messages": [], "max_to\u212aens": 5000}'.encode()
    assert read(Ollama(), kelvin, CHAT).new_tokens == 5000


def test_repeated_fields_of_a_form_count_as_the_largest() -> None:
    form = b"prompt=x&n=1&n=64&n=2&size=64x64"
    assert (
        read(OpenAIMedia(), form, "/v1/images/edits", kind="application/x-www-form-urlencoded").sequences
        == 64
    )
    sound = ("file", "a.wav", "audio/wav", pictures.wav(data=32_000))
    sent = upload(sound, ("beam_size", None, "", b"99"), ("beam_size", None, "", b"1"), path="/x")
    assert Whisper().read(sent).beams == 99
    sent = upload(sound, ("prompt", None, "", TEXT.encode()), ("prompt", None, "", b"x"), path="/x")
    assert Whisper().read(sent).prompt_tokens > 3000
    twice = request(b"n=nan&n=64&prompt=x", "/run", kind="application/x-www-form-urlencoded")
    assert Guess().read(twice).sequences == 64
    with pytest.raises(UnreadableBody, match="size"):
        read(
            OpenAIMedia(),
            b"size=64x64&size=9x9",
            "/v1/images/edits",
            kind="application/x-www-form-urlencoded",
        )


def test_a_text_can_not_hide_behind_a_file_of_its_name() -> None:
    parts = (("prompt", "a", "", b"x"), ("prompt", None, "", TEXT.encode()))
    for sent in (upload(*parts, path="/v1/images/edits"), upload(*reversed(parts), path="/v1/images/edits")):
        assert OpenAIMedia().read(sent).prompt_tokens > 3000


def wav(kind: int, *, bits: int = 16, block: int = 2, said: int = 2**31) -> bytes:
    form = struct.pack("<HHIIHH", kind, 1, 2**31, said, block, bits)
    return b"RIFF\0\0\0\0WAVEfmt " + struct.pack("<I", len(form)) + form + b"data" + bytes(4)


@pytest.mark.parametrize("kind", [0, 2, 0x11, 0x31, 0x55, 0x161, 0x6771, 0xF1AC])
def test_a_wav_of_a_compressed_format_is_bounded_by_its_bytes(kind: int) -> None:
    assert seconds(wav(kind), 5_000) == 5_000 / LEAST_BYTES_PER_SECOND


def test_a_wav_that_contradicts_itself_is_bounded_by_its_bytes() -> None:
    assert seconds(wav(1, bits=65535), 5_000) == 5_000 / LEAST_BYTES_PER_SECOND
    assert seconds(wav(1, block=9), 5_000) == 5_000 / LEAST_BYTES_PER_SECOND
    assert seconds(wav(3, bits=16), 5_000) == 5_000 / LEAST_BYTES_PER_SECOND
    twice = pictures.wav()[:36] + pictures.wav(8_000)[12:]
    assert seconds(twice, 5_000) == 5_000 / LEAST_BYTES_PER_SECOND


def test_a_wav_of_the_extensible_form_is_read_by_its_inner_format() -> None:
    inner = struct.pack("<HHIIHH", 0xFFFE, 1, 16_000, 32_000, 2, 16) + struct.pack("<HHI", 22, 16, 4)
    for kind, length in ((1, 1.0), (0x55, 32_000 / LEAST_BYTES_PER_SECOND)):
        form = inner + struct.pack("<H", kind) + bytes(14)
        head = b"RIFF\0\0\0\0WAVEfmt " + struct.pack("<I", len(form)) + form + b"data"
        assert seconds(head, 32_000) == length


IMAGES = [pictures.data_url(pictures.png(9, 9))] * (MOST_IMAGES + 1)


@pytest.mark.parametrize(
    ("dialect", "path", "body"),
    [
        (OpenAI(), CHAT, {"messages": [{"content": [{"image_url": IMAGES}]}]}),
        (OpenAI(), "/v1/embeddings", {"input": [{"image": url} for url in IMAGES]}),
        (OpenAI(), "/v2/embed", {"images": IMAGES}),
        (OpenAI(), "/completion", {"prompt": {"prompt_string": "x", "multimodal_data": IMAGES}}),
        (Rerank(), "/rerank", {"query": "x", "documents": [{"image": url} for url in IMAGES]}),
        (Ollama(), "/api/generate", {"prompt": "x", "images": IMAGES}),
        (StableDiffusion(), "/sdapi/v1/img2img", {"init_images": IMAGES}),
        (OpenAIMedia(), "/v1/images/edits", {"image": IMAGES}),
        (Guess(), "/run", {"text": "x", "sampling_params": {}, "image_data": IMAGES}),
        (Guess(), "/run", {"question": "x", "image": IMAGES}),
    ],
)
def test_the_number_of_images_is_bounded(dialect: Dialect, path: str, body: Any) -> None:
    with pytest.raises(UnreadableBody, match="images"):
        read(dialect, body, path)


def test_what_is_no_image_takes_next_to_nothing_and_the_app_says_so() -> None:
    model = Vision.convolutional(channels=64, max_pixels=10**6)
    for content in (b"", b"hello", b"not an image\n" * 100):
        sent = upload(("file", "x.png", "image/png", content), path="/predict")
        assert model.estimate(sent.workload).bytes < 2**20
        bare = request(content or b"?", "/predict", kind="image/png")
        assert model.estimate(bare.workload).bytes < 2**20
    for content in (b"\x00\x01binary", b"II*\0", b"BM\0\0"):
        sent = upload(("file", "x.png", "image/png", content), path="/predict")
        assert model.estimate(sent.workload).bytes > 900 * 2**20


def test_a_picture_of_two_sizes_costs_the_larger() -> None:
    gif = pictures.data_url(pictures.gif(1, 1, (4000, 3000)), "image/gif")
    body = {"messages": [{"content": [{"image_url": gif}]}]}
    assert read(OpenAI(), body).images == ((4000, 3000),)
    png = base64.b64encode(pictures.png(1, 1) + pictures.png(4000, 3000)[8:]).decode()
    assert read(OpenAI(), {"messages": [{"content": [{"image": png}]}]}).images == ((0, 0),)


@pytest.mark.parametrize(
    ("one", "other"), [(b"5", b"5000"), (b"5", b'"5000"'), (b"5.5", b"5000"), (b"null", b"5000")]
)
def test_of_a_name_that_comes_twice_the_largest_counts_where_the_server_is_not_known(
    one: bytes, other: bytes
) -> None:
    for first, second in ((one, other), (other, one)):
        body = b'{"prompt": "say: \\"x\\": y", "max_tokens": ' + first + b', "max_tokens" : ' + second + b"}"
        assert Guess().read(request(body, "/generate")).new_tokens == 5000
        nested = (
            b'{"inputs": "x", "parameters": {"max_new_tokens": '
            + first
            + b',"max_new_tokens":'
            + second
            + b"}}"
        )
        assert Guess().read(request(nested, "/run")).new_tokens == 5000


def test_of_prompts_of_one_name_the_longest_counts() -> None:
    short, long = b'"prompt": "a"', b'"prompt": "' + b"word " * 1000 + b'"'
    sizes = [
        Guess().read(request(b"{" + first + b", " + second + b"}", "/generate")).prompt_tokens
        for first, second in ((short, long), (long, short))
    ]
    assert sizes[0] == sizes[1] > 1000


def test_a_list_of_prompts_for_pictures_is_as_many_pictures() -> None:
    body = {"prompt": ["a cat", "a dog", "a fox"], "n": 2}
    assert OpenAIMedia().read(request(body, "/v1/images/generations")).sequences == 6


@pytest.mark.parametrize(
    ("field", "behind", "found"),
    [
        ("width", {"value": 8192}, {"width": 8192}),
        ("width", {"value": "8192"}, {"width": 8192}),
        ("width", {"value": 2**60}, {"width": 16384}),
        ("width", {"noise_seed": 2**60}, {"width": 1024}),
        ("batch_size", {"value": 64}, {"sequences": 64}),
        ("length", {"value": 500}, {"frames": 500}),
        ("scale_by", {"value": 4.0}, {"width": 4097}),
        ("upscale_by", {"value": 1000}, {"width": 8193}),
    ],
)
def test_a_number_that_comes_from_another_node_costs_what_stands_there(
    field: str, behind: dict[str, Any], found: dict[str, int]
) -> None:
    linked = {"class_type": "Any", "inputs": {field: ["7", 0]}}
    number = {"class_type": "PrimitiveInt", "inputs": behind}
    reroute = {"class_type": "Reroute", "inputs": {"": ["8", 0], "around": ["7", 0]}}
    for nodes in ({"5": linked, "7": number}, {"5": linked, "7": reroute, "8": number}):
        workload = read(ComfyUI(), {"prompt": nodes}, "/prompt")
        assert {name: getattr(workload, name) for name in found} == found


@pytest.mark.parametrize("link", [[], ["9", 0], [7, 0], [["7"], 0], ["5", 0], [None]])
def test_a_link_that_leads_nowhere_changes_nothing(link: Any) -> None:
    nodes = {"5": {"inputs": {"width": link, "height": 512}}, "6": {"inputs": {"width": 640}}}
    workload = read(ComfyUI(), {"prompt": nodes}, "/prompt")
    assert (workload.width, workload.height) == (640, 512)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": [{"role": "user", "content": TEXT}], "max_tokens": 5000}),
        (CHAT, {"messages": [{"role": "user", "content": TEXT}], "max_tokens": 5000, "n": 3}),
        ("/v1/completions", {"prompt": TEXT, "max_tokens": 5000}),
        ("/v1/responses", {"input": TEXT, "max_output_tokens": 5000}),
        ("/v1/messages", {"messages": [{"role": "user", "content": TEXT}], "max_tokens": 5000}),
        ("/v1/embeddings", {"input": [TEXT, TEXT]}),
        ("/v1/images/generations", {"prompt": "x", "size": "2048x2048", "n": 4}),
        ("/v1/rerank", {"query": "x", "documents": [TEXT, TEXT]}),
    ],
)
def test_names_in_any_case_count_where_the_server_may_be_one_that_takes_them(
    path: str, body: dict[str, Any]
) -> None:
    plain = request(body, path).workload
    cheap = {"messages": HELLO, "prompt": "x", "input": "x", "max_tokens": 1, "n": 1, "size": "64x64"}
    for spell in (str.title, str.upper, lambda name: name.replace("s", "\u017f")):
        odd = _spelled(body, spell)
        assert replace(request(odd, path).workload, defaulted=()) == replace(plain, defaulted=())
        both = request({**{name: cheap[name] for name in body if name in cheap}, **odd}, path).workload
        assert both.prompt_tokens >= plain.prompt_tokens
        assert (both.new_tokens, both.width) >= (plain.new_tokens, plain.width)
        assert both.sequences >= plain.sequences


def _spelled(value: Any, spell: Any) -> Any:
    if isinstance(value, dict):
        return {spell(name): _spelled(each, spell) for name, each in value.items()}
    return [_spelled(each, spell) for each in value] if isinstance(value, list) else value


def test_spelling_names_in_other_ways_hides_nothing_from_a_server_that_takes_them_as_they_are() -> None:
    """Each is a name of its own there; and thousands of them are read in a moment."""
    names = ["".join(letters) for letters in product(*(letter + letter.upper() for letter in "abcdefghijkl"))]
    schema = {name: {"description": f"{name} is one of many"} for name in names}
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"properties": schema}}}]
    plain = {f"{name}{number}".lower(): each for number, (name, each) in enumerate(schema.items())}
    others = [{"type": "function", "function": {"name": "f", "parameters": {"properties": plain}}}]
    body = {"messages": HELLO, "max_tokens": 5}
    odd = request({**body, "tools": tools}, CHAT).workload
    assert odd.prompt_tokens >= 0.8 * request({**body, "tools": others}, CHAT).workload.prompt_tokens


@pytest.mark.parametrize("body", [{"Prompt": ["a"], "prompt": TEXT}, {"prompt": TEXT, "PROMPT": {"a": 1}}])
def test_a_name_in_another_case_takes_nothing_from_the_one_that_is_obeyed(body: dict[str, Any]) -> None:
    plain = request({"prompt": TEXT}, "/v1/completions").workload
    assert request(body, "/v1/completions").workload.prompt_tokens >= plain.prompt_tokens


def test_of_a_field_of_your_own_that_is_there_twice_the_larger_counts() -> None:
    dialect = Fields(prompt="text", new_tokens="limit")
    assert read(dialect, b'{"text": "x", "limit": 5000, "limit": 1}', "/run").new_tokens == 5000
    nested = Fields(new_tokens="options.limit")
    with pytest.raises(UnreadableBody):
        read(nested, b'{"options": {"limit": 5000}, "options": {"limit": 1}}', "/run")
