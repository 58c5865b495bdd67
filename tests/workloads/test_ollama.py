"""Ollama, field by field, in the ways of a Go server."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_admission.errors import UnreadableBody
from gpu_admission.types import Workload
from gpu_admission.workloads import Ollama
from tests.workloads import pictures
from tests.workloads.asking import request


def generate(context: int | None = None, /, **fields: Any) -> Workload:
    return Ollama(context=context).read(
        request({"model": "m", "prompt": "x" * 100, **fields}, "/api/generate")
    )


def raw(body: bytes, path: str = "/api/generate") -> Workload:
    return Ollama().read(request(body, path))


def test_a_request_says_what_it_asks() -> None:
    workload = generate(options={"num_ctx": 8192, "num_predict": 50})
    assert (workload.model, workload.context, workload.new_tokens) == ("m", 8192, 50)
    assert workload.stream
    assert not generate(stream=False).stream


@pytest.mark.parametrize("predict", [None, -1, -2, 0])
def test_no_limit_fills_the_context(predict: Any) -> None:
    workload = generate(options={"num_ctx": 4096, "num_predict": predict})
    assert workload.prompt_tokens + workload.new_tokens == 4096
    assert workload.defaulted == ("num_predict",)


def test_prompt_and_output_never_outgrow_the_context() -> None:
    workload = generate(prompt="x" * 100_000, options={"num_ctx": 2048, "num_predict": 10**9})
    assert (workload.prompt_tokens, workload.new_tokens) == (2048, 1)
    assert generate(2048, options={"num_predict": 10**9}).new_tokens < 2048


def test_without_any_context_a_limit_is_taken_as_it_is() -> None:
    assert generate(options={"num_predict": 10**9}).new_tokens == 10**9
    assert generate().new_tokens == 1024
    assert generate(options=None).context == 0


def test_every_text_counts() -> None:
    plain = generate().prompt_tokens
    for name in ("system", "template", "suffix"):
        assert generate(**{name: "x" * 100}).prompt_tokens == plain + 41
    assert generate(context=[1] * 1000).prompt_tokens == plain + 1000
    assert generate(context=None).prompt_tokens == plain
    assert generate(tools=[{"name": "f"}]).prompt_tokens > plain + 200


def test_images_cost_by_their_size() -> None:
    encoded = pictures.data_url(pictures.png(640, 480)).partition(",")[2]
    workload = Ollama(image_tokens="gemma-3").read(
        request({"prompt": "x", "images": [encoded, encoded]}, "/api/generate")
    )
    assert workload.images == ((640, 480), (640, 480))
    messages = [{"role": "user", "content": "x", "images": [encoded], "thinking": "x" * 100}]
    chat = Ollama(image_tokens="gemma-3").read(request({"messages": messages}, "/api/chat"))
    assert chat.images == ((640, 480),)
    assert chat.prompt_tokens > 256 + 50


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/embed", {"input": ["x" * 100, "y"]}),
        ("/api/embed", {"input": "x" * 100}),
        ("/api/embeddings", {"prompt": "x" * 100}),
    ],
)
def test_embeddings_generate_nothing(path: str, body: Any) -> None:
    workload = Ollama().read(request(body, path))
    assert (workload.task, workload.new_tokens, workload.prompt_tokens, workload.stream) == (
        "embed",
        0,
        43,
        False,
    )
    assert Ollama(context=10).read(request(body, path)).prompt_tokens == 10
    assert Ollama().read(request({}, path)).prompt_tokens == 1


def test_names_count_in_any_case() -> None:
    workload = raw(b'{"Prompt": "xxxxxxxxxx", "OPTIONS": {"num_ctx": 9000}, "Model": "m", "STREAM": false}')
    assert (workload.context, workload.model, workload.stream) == (9000, "m", False)
    assert raw('{"option\u017f": {"num_ctx": 9000}}'.encode()).context == 9000
    chat = raw(b'{"messages": [{"Content": "' + b"x" * 1000 + b'"}]}', "/api/chat")
    assert chat.prompt_tokens > 400


def test_of_several_spellings_the_last_counts() -> None:
    long, short = b'"' + b"x" * 1000 + b'"', b'"x"'
    assert raw(b'{"prompt": ' + short + b', "Prompt": ' + long + b"}").prompt_tokens > 400
    assert (
        raw(b'{"prompt": ' + short + b', "Prompt": ' + short + b', "prompt": ' + long + b"}").prompt_tokens
        > 400
    )


def test_options_keep_their_case() -> None:
    assert raw(b'{"options": {"NUM_CTX": 9000, "num_ctx": 20}}').context == 20


def test_an_object_that_is_written_twice_is_joined() -> None:
    assert raw(b'{"options": {"num_ctx": 9000}, "options": {"temperature": 1}}').context == 9000
    assert raw(b'{"options": {"num_ctx": 9000}, "Options": {"num_ctx": 50}}').context == 50
    twice = b'{"messages": [{"content": "' + b"x" * 1000 + b'"}], "messages": [{"role": "user"}]}'
    assert raw(twice, "/api/chat").prompt_tokens > 400


@pytest.mark.parametrize("options", [[], "x", 5, True])
def test_options_must_be_an_object(options: Any) -> None:
    with pytest.raises(UnreadableBody, match="options"):
        generate(options=options)


def test_a_long_image_is_read_by_its_head() -> None:
    encoded = pictures.data_url(pictures.png(640, 480) + bytes(300_000)).partition(",")[2]
    assert generate(images=[encoded]).images == ((640, 480),)


def test_the_openai_paths_are_openais() -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 7}
    assert Ollama().read(request(body, "/v1/chat/completions")).new_tokens == 7
    assert Ollama().clamp(request(body).body, 5) == request({**body, "max_tokens": 5}).body


def test_an_error_is_a_line() -> None:
    assert Ollama().sse_error("full", "x") == b'{"error":"full"}\n'
