"""A dialect is chosen by path, by name, or given."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_admission.types import Workload
from gpu_admission.workloads import OpenAI, dialect, dialect_for, names
from gpu_admission.workloads.choice import name_for
from tests.workloads.asking import request


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/v1/chat/completions", "openai"),
        ("/v1/chat/completions/", "openai"),
        ("/tenant/a/v1/completions", "openai"),
        ("/v1/embeddings", "openai"),
        ("/v1/responses", "openai"),
        ("/api/generate", "ollama"),
        ("/api/chat", "ollama"),
        ("/api/embed", "ollama"),
        ("/api/embeddings", "ollama"),
        ("/generate_stream", "tgi"),
        ("/v2/models/m/infer", "kserve"),
        ("/v2/models/m/versions/1/infer", "kserve"),
        ("/v2/models/m/generate", "kserve"),
        ("/v2/models/m/generate_stream", "kserve"),
        ("/v1/models/m:predict", "kserve"),
        ("/sdapi/v1/txt2img", "stable-diffusion"),
        ("/sdapi/v1/img2img", "stable-diffusion"),
        ("/rerank", "rerank"),
        ("/v2/rerank", "rerank"),
        ("/v1/audio/transcriptions", "whisper"),
        ("/v1/audio/translations", "whisper"),
        ("/v1/audio/speech", "openai-media"),
        ("/v1/images/generations", "openai-media"),
        ("/v1/images/edits", "openai-media"),
        ("/pooling", "vllm"),
        ("/score", "vllm"),
        ("/embed", "tei"),
        ("/generate", "guess"),
        ("/", "guess"),
        ("", "guess"),
        ("/predict", "guess"),
    ],
)
def test_the_end_of_a_path_tells_the_dialect(path: str, name: str) -> None:
    assert name_for(path) == name
    assert type(dialect_for(path)) is type(dialect(name))


def test_a_default_dialect_is_made_once() -> None:
    assert dialect_for("/a/v1/completions") is dialect_for("/b/v1/completions")


def test_a_name_takes_options() -> None:
    made = dialect("openai", default_new_tokens=7)
    assert made.read(request({"messages": []})).new_tokens == 7
    assert type(dialect("triton")).__name__ == "KServe"


def test_every_name_makes_a_dialect() -> None:
    for name in names():
        options = {"prompt": "p"} if name == "fields" else {}
        assert callable(dialect(name, **options).read)


def test_an_object_is_taken_as_it_is() -> None:
    class Mine:
        def read(self, info: Any) -> Workload:
            return Workload(prompt_tokens=1)

    mine = Mine()
    assert dialect(mine) is mine
    with pytest.raises(TypeError, match="options"):
        dialect(OpenAI(), context=5)


@pytest.mark.parametrize(
    ("choice", "error"), [("gopher", ValueError), (5, TypeError), (None, TypeError), (object(), TypeError)]
)
def test_anything_else_is_refused(choice: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="dialect"):
        dialect(choice)


def test_a_request_reads_itself_by_its_path() -> None:
    assert request({"prompt": "x" * 100, "max_tokens": 5}, "/v1/completions").workload.new_tokens == 5
    assert request({"input": "x"}, "/v1/embeddings").workload.task == "embed"
