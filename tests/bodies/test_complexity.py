"""A body of too many values is refused, or charged the fallback, before it is parsed."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from gpu_admission import GPUAdmission, current_lease
from gpu_admission.estimators import Linear
from gpu_admission.types import Receive, Scope, Send
from tests.bench.asgi import call, scope_of

pytestmark = pytest.mark.anyio
LISTS = b'{"messages":[[' + b"[]," * 2**20 + b"1]]}"
SHAPES = {
    "nested empty lists": LISTS,
    "with NaN": b'{"x":NaN,"messages":[[' + b"[]," * 2**20 + b"1]]}",
    "objects": b'{"messages":[' + b'{"a":1},' * 2**19 + b"1]}",
    "members": json.dumps({str(number): 1 for number in range(2**18)}).encode(),
    "rows": b'{"prompt":[' + b"[1,2,3]," * 2**19 + b"1]}",
    "levels": b'{"messages":' + b"[" * 2**20 + b"]" * 2**20 + b"}",
    "strings": b'{"prompt":[' + b'"a",' * 2**20 + b"1]}",
}


def gate(**settings: Any) -> GPUAdmission:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        lease = current_lease()
        assert lease is not None
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"%d" % lease.bytes})

    estimator = Linear({"prompt_tokens": 1, "new_tokens": 1})
    return GPUAdmission(app, capacity="1TiB", estimator=estimator, **settings)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/api/chat", "/embed", "/x"])
@pytest.mark.parametrize("shape", sorted(SHAPES))
async def test_c2_a_body_of_too_many_values_is_refused_by_name(shape: str, path: str) -> None:
    start, *pieces = await call(gate(), scope_of(path), SHAPES[shape])
    problem = json.loads(b"".join(piece["body"] for piece in pieces))
    assert (start["status"], problem["reason"]) == (413, "body_too_complex")
    assert "max_json_values=100000" in problem["detail"]


async def test_c2_it_is_charged_the_fallback_where_there_is_one() -> None:
    packed = scope_of(headers=[(b"content-encoding", b"gzip")])
    for scope, body in ((scope_of(), LISTS), (packed, gzip.compress(LISTS))):
        start, *pieces = await call(gate(fallback=77), scope, body)
        assert (start["status"], pieces[0]["body"]) == (200, b"77")


async def test_the_setting_says_how_many_values_are_too_many() -> None:
    body = json.dumps({"messages": [{"role": "user", "content": "hi"}] * 50}).encode()
    assert (await call(gate(max_json_values=100), scope_of(), body))[0]["status"] == 413
    assert (await call(gate(max_json_values=1000), scope_of(), body))[0]["status"] == 200
