"""Answers of eight servers, written down from their documentation: JSON, and streams as they are sent.

Each has the prompt tokens and the new tokens that it tells; ``None`` where it does not.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple


class Told(NamedTuple):
    kind: str
    text: bytes
    prompt: int | None
    new: int | None


def events(*data: Any, named: bool = False, done: bool = False) -> bytes:
    """Server-sent events, as OpenAI (``done``) and Anthropic (``named``) write them."""
    names = [f"event: {each['type']}\n" if named else "" for each in data]
    lines = [f"{name}data: {json.dumps(each)}\n\n" for name, each in zip(names, data, strict=True)]
    return "".join([*lines, "data: [DONE]\n\n" if done else ""]).encode()


def ndjson(*lines: Any) -> bytes:
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


def packed(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


OPENAI_USAGE = {
    "prompt_tokens": 19,
    "completion_tokens": 10,
    "total_tokens": 29,
    "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
    "completion_tokens_details": {"reasoning_tokens": 0, "accepted_prediction_tokens": 0},
}
RESPONSE = {
    "id": "resp_67ccd2bed1ec8190b14f964abc054267",
    "object": "response",
    "status": "completed",
    "output": [
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "In a peaceful grove", "annotations": []}],
        }
    ],
    "usage": {
        "input_tokens": 36,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 87,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 123,
    },
    "user": None,
    "metadata": {},
}
ANTHROPIC = {
    "id": "msg_013Zva2CMHLNnXjNJJKqJ2EF",
    "type": "message",
    "role": "assistant",
    "model": "claude-sonnet-4-5",
    "content": [{"type": "text", "text": "Hi! My name is Claude."}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {
        "input_tokens": 21,
        "cache_creation_input_tokens": 1000,
        "cache_read_input_tokens": 188,
        "output_tokens": 503,
    },
}
LLAMA_END = {
    "index": 0,
    "content": "",
    "tokens": [],
    "id_slot": 0,
    "stop": True,
    "model": "gpt-3.5-turbo",
    "tokens_predicted": 64,
    "tokens_evaluated": 8,
    "generation_settings": {"n_predict": 64, "seed": 4294967295, "temperature": 0.8},
    "prompt": "<s> Building a website",
    "has_new_line": True,
    "truncated": False,
    "stop_type": "limit",
    "stopping_word": "",
    "tokens_cached": 71,
    "timings": {"prompt_n": 1, "prompt_ms": 30.9, "predicted_n": 64, "predicted_ms": 661.0},
}
OLLAMA_END = {
    "model": "llama3.2",
    "created_at": "2023-08-04T19:22:45.499127Z",
    "response": "",
    "done": True,
    "done_reason": "stop",
    "context": [1, 2, 3],
    "total_duration": 10706818083,
    "load_duration": 6338219291,
    "prompt_eval_count": 26,
    "prompt_eval_duration": 130079000,
    "eval_count": 259,
    "eval_duration": 4232710000,
}
SGLANG_META = {
    "id": "d1f6e7b0",
    "finish_reason": {"type": "length", "length": 32},
    "prompt_tokens": 5,
    "weight_version": "default",
    "completion_tokens": 32,
    "cached_tokens": 1,
    "e2e_latency": 0.18,
}
TGI_TOKENS = [{"id": 311, "text": " to", "logprob": -0.7, "special": False}]
TGI_DETAILS = {"finish_reason": "length", "generated_tokens": 20, "seed": None}
LMSTUDIO_V0 = {
    "id": "chatcmpl-i3gkjwthhw96whukek9tz",
    "object": "chat.completion",
    "model": "granite-3.0-2b-instruct",
    "choices": [
        {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Greetings"}}
    ],
    "usage": {"prompt_tokens": 24, "completion_tokens": 53, "total_tokens": 77},
    "stats": {"tokens_per_second": 51.4, "time_to_first_token": 0.111, "stop_reason": "eosFound"},
    "model_info": {"arch": "granite", "quant": "Q4_K_M", "context_length": 4096},
    "runtime": {"name": "llama.cpp-mac-arm64-apple-metal-advsimd", "version": "1.3.0"},
}
LMSTUDIO_V1 = {
    "model_instance_id": "openai/gpt-oss-20b",
    "output": [{"type": "message", "content": "Hello"}],
    "stats": {"input_tokens": 646, "total_output_tokens": 586, "reasoning_output_tokens": 195},
    "response_id": "resp_02b2017d",
}


def chat(text: str = "Hello!", **more: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": text, "refusal": None}
    return {
        "id": "chatcmpl-B9MBs8CjcvOU2jLn4n570S5qMJKcT",
        "object": "chat.completion",
        "model": "gpt-4.1",
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}],
        **more,
    }


def chunk(text: str, **more: Any) -> dict[str, Any]:
    choices = [{"index": 0, "delta": {"content": text}, "finish_reason": None}] if text else []
    return {"id": "chatcmpl-123", "object": "chat.completion.chunk", "model": "m", "choices": choices, **more}


_ANTHROPIC_START = {**ANTHROPIC, "content": [], "usage": {"input_tokens": 25, "output_tokens": 1}}

ANSWERS: dict[str, Told] = {
    "openai chat": Told("json", packed(chat(usage=OPENAI_USAGE, service_tier="default")), 19, 10),
    "openai chat, indented": Told("json", json.dumps(chat(usage=OPENAI_USAGE), indent=2).encode(), 19, 10),
    "openai chat stream": Told(
        "events",
        events(chunk("He"), chunk("llo", usage=None), chunk("", usage=OPENAI_USAGE), done=True),
        *(19, 10),
    ),
    "openai chat stream without usage": Told(
        "events", events(chunk("He"), chunk("llo"), done=True), None, None
    ),
    "openai completions": Told(
        "json",
        packed(
            {
                "id": "cmpl-uqkvlQyYK7bGYrRHQ0eXlWi7",
                "object": "text_completion",
                "choices": [{"text": "This is a test", "index": 0, "finish_reason": "length"}],
                "usage": {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12},
            }
        ),
        *(5, 7),
    ),
    "openai responses": Told("json", packed(RESPONSE), 36, 87),
    "openai responses stream": Told(
        "events",
        events(
            {"type": "response.created", "response": {**RESPONSE, "output": [], "usage": None}},
            {"type": "response.output_text.delta", "delta": "In a peaceful"},
            {"type": "response.completed", "response": RESPONSE},
            named=True,
        ),
        *(36, 87),
    ),
    "openai embeddings": Told(
        "json",
        packed(
            {
                "object": "list",
                "data": [{"object": "embedding", "index": 0, "embedding": [0.0023064255] * 1536}],
                "model": "text-embedding-ada-002",
                "usage": {"prompt_tokens": 8, "total_tokens": 8},
            }
        ),
        *(8, None),
    ),
    "anthropic": Told("json", packed(ANTHROPIC), 1209, 503),
    "anthropic stream": Told(
        "events",
        events(
            {"type": "message_start", "message": _ANTHROPIC_START},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            {"type": "ping"},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hello"}},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 15}},
            {"type": "message_stop"},
            named=True,
        ),
        *(25, 15),
    ),
    "vllm chat": Told(
        "json",
        packed(
            chat(
                usage={
                    "prompt_tokens": 9,
                    "total_tokens": 21,
                    "completion_tokens": 12,
                    "prompt_tokens_details": None,
                },
                prompt_logprobs=None,
                kv_transfer_params=None,
            )
        ),
        *(9, 12),
    ),
    "vllm stream with continuous usage": Told(
        "events",
        events(
            *(
                chunk("a", usage={"prompt_tokens": 9, "total_tokens": 9 + n, "completion_tokens": n})
                for n in range(1, 4)
            ),
            done=True,
        ),
        *(9, 3),
    ),
    "sglang generate": Told(
        "json", packed({"text": " Paris", "output_ids": [12095] * 32, "meta_info": SGLANG_META}), 5, 32
    ),
    "sglang generate, several": Told("json", packed([{"text": " a", "meta_info": SGLANG_META}] * 2), 10, 64),
    "sglang generate stream": Told(
        "events",
        events(
            {"text": " Pa", "meta_info": {**SGLANG_META, "completion_tokens": 2, "finish_reason": None}},
            {"text": " Paris", "meta_info": SGLANG_META},
            done=True,
        ),
        *(5, 32),
    ),
    "tgi generate": Told(
        "json", packed({"generated_text": "test", "details": {**TGI_DETAILS, "tokens": TGI_TOKENS}}), None, 20
    ),
    "tgi generate with the prompt": Told(
        "json",
        packed(
            {
                "generated_text": "test",
                "details": {**TGI_DETAILS, "prefill": TGI_TOKENS * 4, "tokens": TGI_TOKENS},
            }
        ),
        *(4, 20),
    ),
    "tgi generate, several": Told(
        "json", packed([{"generated_text": "test", "details": TGI_DETAILS}]), None, 20
    ),
    "tgi generate stream": Told(
        "events",
        events(
            {"index": 19, "token": TGI_TOKENS[0], "generated_text": None, "details": None},
            {
                "index": 20,
                "token": TGI_TOKENS[0],
                "generated_text": "test to",
                "details": {**TGI_DETAILS, "input_length": 5},
            },
        ).replace(b"data: ", b"data:"),
        *(5, 20),
    ),
    "tgi chat": Told(
        "json",
        packed(chat(usage={"prompt_tokens": 17, "completion_tokens": 100, "total_tokens": 117})),
        17,
        100,
    ),
    "llama.cpp completion": Told("json", packed({**LLAMA_END, "content": " Hello"}), 8, 64),
    "llama.cpp completion stream": Told(
        "events",
        events({"index": 0, "content": "Hel", "tokens": [9906], "stop": False}, LLAMA_END),
        *(8, 64),
    ),
    "llama.cpp chat stream": Told(
        "events",
        events(
            chunk("He"),
            chunk(
                "",
                usage={"completion_tokens": 63, "prompt_tokens": 12, "total_tokens": 75},
                timings={"prompt_n": 1},
            ),
            done=True,
        ),
        *(12, 63),
    ),
    "ollama generate": Told("json", packed({**OLLAMA_END, "response": "The sky is blue"}), 26, 259),
    "ollama generate stream": Told(
        "lines",
        ndjson({"model": "llama3.2", "response": "The", "done": False}, OLLAMA_END),
        *(26, 259),
    ),
    "ollama chat stream": Told(
        "lines",
        ndjson(
            {"model": "llama3.2", "message": {"role": "assistant", "content": "The"}, "done": False},
            {
                "model": "llama3.2",
                "message": {"role": "assistant", "content": ""},
                "done": True,
                "prompt_eval_count": 26,
                "eval_count": 298,
            },
        ),
        *(26, 298),
    ),
    "ollama chat whose prompt was cached": Told(
        "json",
        packed({"message": {"role": "assistant", "content": "x"}, "done": True, "eval_count": 298}),
        None,
        298,
    ),
    "ollama embed": Told(
        "json",
        packed(
            {
                "model": "all-minilm",
                "embeddings": [[0.01, -0.0017]],
                "load_duration": 1,
                "prompt_eval_count": 8,
            }
        ),
        *(8, None),
    ),
    "lm studio v0 chat": Told("json", packed(LMSTUDIO_V0), 24, 53),
    "lm studio chat stream": Told(
        "events",
        events(
            chunk("Hi"),
            chunk("", usage={"prompt_tokens": 24, "completion_tokens": 53, "total_tokens": 77}),
            done=True,
        ),
        *(24, 53),
    ),
    "lm studio v1 chat": Told("json", packed(LMSTUDIO_V1), 646, 586),
    "lm studio v1 chat stream": Told(
        "events",
        events(
            {"type": "chat.start", "model_instance_id": "openai/gpt-oss-20b"},
            {"type": "message.delta", "content": "Hello"},
            {"type": "chat.end", "result": LMSTUDIO_V1},
            named=True,
        ),
        *(646, 586),
    ),
}
CONTENT_TYPES = {
    "json": b"application/json",
    "events": b"text/event-stream; charset=utf-8",
    "lines": b"application/x-ndjson",
}
