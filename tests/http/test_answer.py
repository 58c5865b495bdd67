"""Answers that pass by are looked at for what they used, and nothing of them is held or changed."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from typing import Any

import pytest

from gpu_admission import Admission, Estimate, GPUAdmission, RequestInfo, current_lease
from gpu_admission.estimators import Learned, Linear
from gpu_admission.http.answer import Answer
from gpu_admission.types import Message, Receive, Scope, Send, Usage
from gpu_admission.workloads.usage import HEAD_BYTES, TAIL_BYTES
from tests.bench.asgi import call, scope_of
from tests.workloads.answers import ANSWERS, CONTENT_TYPES, Told, chat, chunk, events, packed

pytestmark = pytest.mark.anyio

PER_TOKEN = 1000
PATH = "/v1/chat/completions"
BODY = json.dumps({"messages": [{"role": "user", "content": "x" * 380}], "max_tokens": 4096}).encode()


def learned(**options: Any) -> Learned:
    return Learned(Linear({"prompt_tokens": PER_TOKEN, "new_tokens": PER_TOKEN}), usage=True, **options)


def charge(estimator: Learned, body: bytes = BODY, path: str = PATH) -> int:
    result = estimator(RequestInfo(scope_of(path), body))
    assert isinstance(result, Estimate)
    return result.bytes


class Says:
    """An app that answers with ``text``, in pieces of ``size`` bytes."""

    def __init__(
        self, kind: str, text: bytes, *, size: int = 10**9, status: int = 200, headers: Sequence[Any] = ()
    ) -> None:
        self.headers = [(b"Content-Type", CONTENT_TYPES[kind]), *headers]
        self.status = status
        self.pieces = [text[at : at + size] for at in range(0, len(text), size)]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive()).get("more_body", False):
            pass
        await send({"type": "http.response.start", "status": self.status, "headers": self.headers})
        for piece in self.pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def served(app: Any, estimator: Learned, *, times: int = 120, path: str = PATH, **options: Any) -> None:
    gate = GPUAdmission(app, capacity="1GiB", estimator=estimator, **options)
    for _ in range(times):
        await call(gate, scope_of(path), BODY)


def chat_of(new: int, prompt: int = 100) -> bytes:
    return packed(chat(usage={"prompt_tokens": prompt, "completion_tokens": new}))


async def test_clients_that_ask_for_much_and_use_little_are_charged_what_they_use() -> None:
    estimator = learned(tokens="learned")
    before = charge(estimator)
    await served(Says("json", chat_of(200)), estimator)
    assert before > 4196 * PER_TOKEN
    assert 300 * PER_TOKEN <= charge(estimator) <= 330 * PER_TOKEN


async def test_without_usage_nothing_is_looked_at() -> None:
    estimator = Learned(Linear({"new_tokens": PER_TOKEN}))
    await served(Says("json", chat_of(200)), estimator)
    assert charge(estimator) == 4096 * PER_TOKEN


def messages_of(app: Says) -> list[Message]:
    pieces = [{"type": "http.response.body", "body": piece, "more_body": True} for piece in app.pieces]
    start = {"type": "http.response.start", "status": app.status, "headers": app.headers}
    return [start, *pieces, {"type": "http.response.body", "body": b""}]


async def heard_of(app: Says) -> Answer:
    """What is heard of an answer, every message of which went on as the same object."""
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    heard, messages = Answer(send), messages_of(app)
    for message in messages:
        await heard(message)
    assert all(one is other for one, other in zip(sent, messages, strict=True))
    return heard


@pytest.mark.parametrize("size", [1, 7, 1000, 10**9])
@pytest.mark.parametrize("answer", ANSWERS.values(), ids=list(ANSWERS))
async def test_an_answer_may_come_in_any_pieces_and_goes_on_as_it_came(answer: Told, size: int) -> None:
    heard = await heard_of(Says(answer.kind, answer.text, size=size))
    told = None if answer.prompt is None and answer.new is None else Usage(answer.prompt, answer.new)
    assert heard.usage == told


async def test_an_answer_is_read_when_its_last_message_has_gone() -> None:
    order: list[object] = []

    async def send(message: Message) -> None:
        order.append(heard.usage)

    heard = Answer(send)
    for message in messages_of(Says("json", chat_of(200))):
        await heard(message)
    assert order == [None, None, None]
    assert heard.usage == Usage(100, 200)


@pytest.mark.parametrize("size", [1000, 50_000, 10**9])
async def test_of_a_long_answer_a_bounded_part_is_remembered(size: int) -> None:
    text = events(
        *(chunk("word " * 40) for _ in range(3000)), chunk("", usage={"prompt_tokens": 9}), done=True
    )
    heard = Answer(_nothing)
    most = 0
    for message in messages_of(Says("events", text, size=size))[:-1]:
        await heard(message)
        most = max(most, sum(map(len, heard._tail)) + sum(map(len, heard._head)))
    assert len(text) > 800_000
    assert most <= TAIL_BYTES + size + 2 * HEAD_BYTES if size < 10**6 else most <= TAIL_BYTES + HEAD_BYTES
    await heard({"type": "http.response.body", "body": b""})
    assert heard.usage == Usage(9, None)
    assert not heard._tail


async def _nothing(message: Message) -> None:
    pass


@pytest.mark.parametrize(
    "app",
    [
        Says("json", gzip.compress(chat_of(1)), headers=[(b"content-encoding", b"gzip")]),
        Says("json", chat_of(1), headers=[(b"content-type", b"text/plain")]),
        Says("json", packed(chat())),
        Says("events", events(chunk("He"), chunk("llo"), done=True)),
        Says("json", b"{"),
    ],
    ids=["packed", "of another type", "without usage", "a stream without usage", "broken"],
)
async def test_an_answer_that_does_not_tell_counts_as_all_that_was_asked(app: Says) -> None:
    estimator = learned()
    before = charge(estimator)
    await served(app, estimator)
    assert charge(estimator) == before
    assert "120 observations" in repr(estimator)


async def test_one_in_ten_answers_that_do_not_tell_keeps_the_charge_where_it_is() -> None:
    estimator = learned()
    before = charge(estimator)
    for _ in range(12):
        await served(Says("json", chat_of(10)), estimator, times=9)
        await served(Says("events", events(chunk("He"), done=True)), estimator, times=1)
    assert charge(estimator) == before


async def test_a_refusal_of_the_app_teaches_nothing() -> None:
    estimator = learned()
    await served(Says("json", chat_of(1), status=400), estimator)
    assert "0 observations" in repr(estimator)


async def test_an_answer_on_a_path_of_no_known_api_may_be_the_models_own() -> None:
    estimator = learned()
    before = charge(estimator, path="/ask")
    await served(Says("json", chat_of(1)), estimator, path="/ask")
    assert charge(estimator, path="/ask") == before
    await served(Says("json", chat_of(1)), estimator, path="/ask", dialect="openai")
    assert charge(estimator, path="/ask") < before


async def test_what_the_app_records_counts_more_than_what_its_answer_says() -> None:
    estimator = learned()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        lease = current_lease()
        assert lease is not None
        lease.record_peak(3_000_000)
        await Says("json", chat_of(1))(scope, receive, send)

    await served(app, estimator)
    assert charge(estimator) == pytest.approx(3_150_000, rel=1e-3)


async def test_what_was_heard_is_known_when_the_lease_ends_with_the_response() -> None:
    estimator = learned(tokens="learned")
    await served(Says("json", chat_of(200)), estimator, hold="response")
    assert charge(estimator) < 330 * PER_TOKEN


@pytest.mark.parametrize("sent", [10, 1000])
async def test_a_stream_that_was_cut_short_can_only_raise_what_is_charged(sent: int) -> None:
    estimator = learned()
    await served(Says("json", chat_of(200)), estimator, times=200)
    before = charge(estimator)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(messages_of(Says("events", b""))[0])
        for _ in range(sent):
            await send({"type": "http.response.body", "body": events(chunk("x")), "more_body": True})

    await served(app, estimator, times=20)
    if sent == 10:
        assert charge(estimator) == before
    else:
        assert charge(estimator) >= 1100 * PER_TOKEN


async def test_an_answer_says_no_more_than_was_asked() -> None:
    estimator = learned()
    before = charge(estimator)
    await served(Says("json", chat_of(10**9, prompt=10**9)), estimator)
    at_most = 4096 + len(BODY)
    assert before <= charge(estimator) <= 1.05 * at_most * PER_TOKEN


class TestPrompts:
    """``tokens="learned"``: what a prompt is counted follows what prompts took."""

    async def test_a_prompt_is_counted_as_prompts_of_its_route_were(self) -> None:
        estimator = learned(tokens="learned", margin=0)
        await served(Says("json", chat_of(4096, prompt=60)), estimator)
        assert charge(estimator) == pytest.approx((60 + 4096) * PER_TOKEN, rel=0.001)
        assert charge(estimator, path="/v1/completions") > (150 + 4096) * PER_TOKEN

    async def test_other_sizes_of_answers_are_not_touched_by_it(self) -> None:
        estimator = learned(tokens="learned", margin=0)
        await served(Says("json", chat_of(4096, prompt=60)), estimator)
        body = json.dumps({"messages": [{"role": "user", "content": "x" * 380}], "max_tokens": 1}).encode()
        assert charge(estimator, body) == pytest.approx(61 * PER_TOKEN, rel=0.02)

    async def test_it_is_never_above_one_token_a_byte(self) -> None:
        estimator = learned(tokens="learned")
        await served(Says("json", chat_of(4096, prompt=10**6)), estimator, times=400)
        assert charge(estimator) <= 1.05 * (len(BODY) + 4096) * PER_TOKEN

    async def test_it_falls_only_for_a_size_that_was_seen_often(self) -> None:
        estimator = learned(tokens="learned")
        before = charge(estimator)
        await served(Says("json", chat_of(4096, prompt=20)), estimator, times=16)
        assert charge(estimator) == before

    async def test_what_was_learned_of_prompts_is_kept(self) -> None:
        estimator, again = learned(tokens="learned"), learned(tokens="learned")
        await served(Says("json", chat_of(4096, prompt=60)), estimator)
        again.restore(json.loads(json.dumps(estimator.to_dict())))
        assert charge(again) == charge(estimator)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"usage": True}, "inner that makes bytes of tokens"),
        ({"tokens": "learned"}, "needs usage=True"),
        ({"tokens": "exact", "usage": True}, "tokens must be 'learned' or None"),
    ],
)
def test_what_can_t_learn_from_answers_says_so(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Learned(lambda info: 1, **options)


async def test_one_flow_can_not_lower_the_charge_of_another() -> None:
    estimator = learned(flow=lambda info: info.headers.get("x-tenant"))
    gate = GPUAdmission(Says("json", chat_of(1)), admission=Admission(capacity="1GiB", estimator=estimator))
    cheap: dict[str, Any] = {"headers": [*scope_of()["headers"], (b"x-tenant", b"cheap")]}
    for _ in range(120):
        await call(gate, scope_of(**cheap), BODY)
    assert charge(estimator) > 4096 * PER_TOKEN
