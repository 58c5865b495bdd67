"""How many bytes a request holds and for how long: the model of a card that a replay runs on.

Owns the formulas from tokens to bytes and seconds, and how requests that run together slow
each other down. It is simple on purpose: one dense decoder on one card, a cache that is
allocated at once, no paging and no preemption. Who may start is the ledger's business.
"""

from __future__ import annotations

import msgspec

from gpu_admission.sizes import GIB


class Card(msgspec.Struct, frozen=True):
    """What requests run on: ``capacity`` bytes that they may hold together, and its ``drag``.

    While ``held`` bytes are in use everybody runs ``1 + held * drag`` times slower than alone.
    """

    capacity: int
    drag: float = 0.0

    def slowdown(self, held: float, running: int = 1, alone: float = 0.0) -> float:
        """Slowdown by the bytes held, however many requests hold them."""
        return 1.0 + held * self.drag


class Decoder(msgspec.Struct, frozen=True, kw_only=True):
    """A language model on a card. The defaults are Llama-3.1-8B in bfloat16 on 24 GiB and 1 TB/s.

    A request takes its prompt at ``prefill_rate``, and then one pass over the weights for
    each new token. A pass that serves several reads all their caches as well, so its time
    grows with the bytes held, as ``(weights + held) / bandwidth``: the roofline of a
    decoder that is bound by memory bandwidth. The same factor is put on prompts.
    """

    memory: int = 24 * GIB
    """Bytes of the card."""
    weights: int = 16_060_522_496
    """Bytes of the weights: 8,030,261,248 parameters x 2."""
    overhead: int = GIB
    """Bytes of the context and of what the runtime keeps."""
    bandwidth: float = 1.0e12
    """Bytes a second."""
    prefill_rate: float = 5_000.0
    """Prompt tokens a second, about half of the card's FLOP/s over 2 x parameters."""
    kv_bytes_per_token: int = 131_072
    """2 x layers x KV heads x head size x 2 bytes."""
    prefill_bytes_per_token: int = 81_920
    """Activations of a prompt token: two feed-forward rows and three of the hidden state, x 2 bytes."""
    prefill_chunk: int = 8_192
    """Prompt tokens that are computed at once."""

    @property
    def card(self) -> Card:
        """Bytes left for requests."""
        return Card(self.memory - self.weights - self.overhead, 1.0 / self.weights)

    def size(self, input_tokens: int, output_tokens: int) -> int:
        """Bytes of a request: its cache at the end, and the activations of its prompt."""
        cache = (input_tokens + output_tokens) * self.kv_bytes_per_token
        return cache + min(input_tokens, self.prefill_chunk) * self.prefill_bytes_per_token

    def seconds(self, input_tokens: int, output_tokens: int) -> float:
        """Seconds that a request takes when it is alone."""
        return input_tokens / self.prefill_rate + output_tokens * self.weights / self.bandwidth


def decoders() -> dict[str, Decoder]:
    """Decoders by card: ``24GiB`` is like an RTX 4090, ``80GiB`` like an A100."""
    return {
        "24GiB": Decoder(),
        "80GiB": Decoder(memory=80 * GIB, bandwidth=2.0e12, prefill_rate=10_000.0),
    }
