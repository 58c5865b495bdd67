"""No body makes a dialect raise anything but ``UnreadableBody``, and none asks for nothing."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpu_admission.errors import UnreadableBody
from gpu_admission.request import Dialect
from gpu_admission.workloads import Fields, Ollama, OpenAI, dialect, names
from tests.workloads.asking import request
from tests.workloads.pictures import data_url, png, wav
from tests.workloads.test_conformance import checked

WORDS = re.findall(
    r"\w+",
    """
    a accept audio audio_url batch_size beam_size beam_width beams best_of binary_data_size content
    context conversation data datatype detail documents echo enable_hr file functions height hr_resize_x
    hr_resize_y hr_scale image image_embeds image_url images init_images input input_audio inputs
    instructions logprobs mask max_chunks_per_doc max_completion_tokens max_length max_new_tokens
    max_output_tokens max_pixels max_tokens messages min_tokens mm_processor_kwargs model n n_iter
    n_predict num_beams num_ctx num_predict options OPTIONS output parameters prediction
    previous_response_id prompt Prompt prompt_embeds prompt_logprobs query role sampling_params shape
    shared_memory_byte_size size steps stream suffix system template temperature text text_1 text_2
    text_input texts tools truncate truncate_prompt_tokens type url use_beam_search video_url width
    """,
)
PATHS = re.findall(
    r"\S+",
    """
    /v1/chat/completions /v1/completions /v1/embeddings /v1/responses /generate /generate_stream
    /api/generate /api/chat /api/embed /v2/models/m/infer /v2/models/m/generate /v1/models/m:predict
    /sdapi/v1/txt2img /rerank /score /pooling /v1/audio/transcriptions /v1/audio/speech
    /v1/images/generations /embed /x
    """,
)
KINDS = (
    "application/json", "", "text/plain", "audio/wav", "image/png", "application/octet-stream",
    "application/x-www-form-urlencoded", "multipart/form-data; boundary=b", "multipart/form-data",
)  # fmt: skip
SPECIAL: list[Any] = [
    0, -1, 1.5, 1e308, 10**18, 2**64, 10**40, float("nan"), float("inf"), "", "100", "1e5", "nan",
    "512x512", "auto", "FP32", "BYTES", "\ud800", "é中😀", "https://x/a.png", data_url(png(64, 48)),
    data_url(wav(data=100), "audio/wav"),
]  # fmt: skip

leaves = (
    st.sampled_from(SPECIAL) | st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
)
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=4),
    max_leaves=8,
)
objects = st.dictionaries(st.sampled_from(WORDS), values, max_size=6)
paths = st.sampled_from(PATHS)


def dialects() -> dict[str, Dialect]:
    """Each dialect with its defaults, and some with options that change what they do."""
    made: dict[str, Dialect] = {name: dialect(name) for name in names() if name != "fields"}
    made["fields"] = Fields(
        prompt="prompt", new_tokens="parameters.max_new_tokens", images="images", audio="audio",
        width="width", height="height", sequences="n", beams="beams", tensor_bytes="data",
        context="context", model="model", stream="stream",
        features={"steps": "steps", "texts": "messages.*.content"},
    )  # fmt: skip
    made["openai bound"] = OpenAI(tokens="bound", context=4096)
    made["ollama context"] = Ollama(context=2048)
    made["tgi seeing"] = dialect("tgi", image_tokens="qwen2-vl", context=100)
    return made


DIALECTS = dialects()
every_dialect = pytest.mark.parametrize("name", sorted(DIALECTS))
often = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def survives(name: str, body: bytes, path: str, kind: str = "application/json", **headers: str) -> None:
    with contextlib.suppress(UnreadableBody):
        checked(DIALECTS[name], request(body, path, kind=kind, **headers))
    with contextlib.suppress(UnreadableBody):
        DIALECTS[name].clamp(body, 5)  # type: ignore[attr-defined]


@every_dialect
@given(fields=objects, path=paths, ascii=st.booleans())
@often
def test_any_object_is_read_or_refused(name: str, fields: dict[str, Any], path: str, ascii: bool) -> None:
    survives(name, json.dumps(fields, ensure_ascii=ascii).encode("utf-8", "surrogatepass"), path)


@every_dialect
@given(body=st.binary(max_size=60), path=paths, kind=st.sampled_from(KINDS))
@often
def test_any_bytes_are_read_or_refused(name: str, body: bytes, path: str, kind: str) -> None:
    survives(name, body, path, kind)


@every_dialect
@given(fields=objects, path=paths, cut=st.integers(0, 80), kind=st.sampled_from(KINDS))
@often
def test_any_broken_object_is_read_or_refused(
    name: str, fields: dict[str, Any], path: str, cut: int, kind: str
) -> None:
    survives(name, json.dumps(fields).encode()[:-cut], path, kind)


@every_dialect
@given(
    parts=st.lists(st.tuples(st.sampled_from(WORDS), st.booleans(), leaves.map(str)), max_size=4),
    path=paths,
    tail=st.sampled_from([b"--b--\r\n", b"--b", b"", b"--bx"]),
)
@often
def test_any_upload_is_read_or_refused(
    name: str, parts: list[tuple[str, bool, str]], path: str, tail: bytes
) -> None:
    pieces = [
        f'--b\r\nContent-Disposition: form-data; name="{word}"{"; filename=f" * file}\r\n\r\n{text}\r\n'
        for word, file, text in parts
    ]
    body = "".join(pieces).encode("utf-8", "surrogatepass") + tail
    survives(name, body, path, "multipart/form-data; boundary=b")


@every_dialect
@given(fields=objects, length=st.sampled_from(["0", "1", "20", "-1", "x", "999999", "²"]))
@often
def test_any_binary_extension_is_read_or_refused(name: str, fields: dict[str, Any], length: str) -> None:
    body = json.dumps(fields).encode() + bytes(30)
    survives(name, body, "/v2/models/m/infer", inference_header_content_length=length)


LONG = [
    "z" * 140, data_url(png(640, 480) + bytes(120)), 'say "' + "q" * 150 + '" ok', "\n" * 130, "é" * 130,
    "z" * 70 + "😀" * 50, "z" * 70 + "\n\\" * 50,
]  # fmt: skip
long_values = st.recursive(
    st.sampled_from([*LONG, 1, None, "x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=4),
    max_leaves=8,
)


@every_dialect
@given(
    fields=st.dictionaries(st.sampled_from(WORDS), long_values, max_size=6), path=paths, ascii=st.booleans()
)
@often
def test_a_body_that_is_read_in_slices_never_asks_for_less(
    name: str, fields: dict[str, Any], path: str, ascii: bool
) -> None:
    body = json.dumps(fields, ensure_ascii=ascii).encode()
    try:
        whole = DIALECTS[name].read(request(body, path))
    except UnreadableBody:
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gpu_admission.bodies.json.LARGE", 0)
        patch.setattr("gpu_admission.bodies.shorten.LONG", 40)
        patch.setattr("gpu_admission.bodies.shorten._GAP", 20)
        patch.setattr("gpu_admission.bodies.shorten._LIST", 10)
        sliced = checked(DIALECTS[name], request(body, path))
    assert sliced.prompt_tokens >= whole.prompt_tokens
    assert sliced.prompt_tokens + sliced.new_tokens >= whole.prompt_tokens + whole.new_tokens
    assert (sliced.images, sliced.sequences, sliced.defaulted) == (
        whole.images,
        whole.sequences,
        whole.defaulted,
    )
    assert sliced.tensor_bytes >= whole.tensor_bytes
    assert sliced.audio_seconds >= whole.audio_seconds


@pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="atheris is not installed")
def test_coverage_guided_fuzzing_finds_nothing(tmp_path: Path) -> None:
    program = [sys.executable, "-m", "tests.workloads.coverage_guided", str(tmp_path)]
    done = subprocess.run(
        [*program, "-runs=20000", "-max_len=2048"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
