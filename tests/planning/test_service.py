"""From tokens to bytes and seconds."""

from __future__ import annotations

import pytest

from gpu_admission.planning.service import Card, Decoder, decoders
from gpu_admission.sizes import GIB


def test_the_bytes_of_a_request_are_its_cache_and_the_activations_of_its_prompt() -> None:
    decoder = Decoder(kv_bytes_per_token=100, prefill_bytes_per_token=7, prefill_chunk=50)
    assert decoder.size(10, 20) == 30 * 100 + 10 * 7
    assert decoder.size(200, 1) == 201 * 100 + 50 * 7


def test_the_default_cache_is_that_of_llama_3_1_8b() -> None:
    layers, heads, head_size, two_bytes = 32, 8, 128, 2
    assert Decoder().kv_bytes_per_token == 2 * layers * heads * head_size * two_bytes


def test_a_request_alone_takes_its_prompt_and_one_pass_over_the_weights_a_token() -> None:
    decoder = Decoder(weights=1000, bandwidth=500.0, prefill_rate=100.0)
    assert decoder.seconds(200, 3) == pytest.approx(2.0 + 3 * 2.0)


def test_the_more_is_held_the_slower_everybody_runs() -> None:
    assert Card(100).slowdown(80) == 1.0
    assert Card(100, 0.01).slowdown(50) == pytest.approx(1.5)
    decoder = Decoder(memory=3000, weights=1000, overhead=500)
    assert decoder.card.capacity == 1500
    assert decoder.card.slowdown(1500) == pytest.approx((1000 + 1500) / 1000)


@pytest.mark.parametrize(("name", "room"), [("24GiB", 8), ("80GiB", 64)])
def test_each_card_has_room_beside_the_weights(name: str, room: int) -> None:
    assert decoders()[name].card.capacity // GIB == room
