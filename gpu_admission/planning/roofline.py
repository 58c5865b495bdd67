"""How fast a card runs a decoder: seconds of a prompt, of a step, and of many together.

Owns the roofline and the efficiencies it assumes, each stated and settable. How many requests fit
is up to the plan, how they queue is up to the ledger.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from gpu_admission.estimators import KVCache, ModelConfig
from gpu_admission.planning.gpus import Gpu
from gpu_admission.planning.weights import Weights
from gpu_admission.types import Workload


class Engine(msgspec.Struct, frozen=True, kw_only=True):
    """The engine that serves the model, as far as speed goes: what shares of a card's peaks it reaches."""

    name: str
    bandwidth: float
    """Share of the memory bandwidth that reading weights and caches reaches."""
    compute: float
    """Share of the matrix rate that prompts and full batches reach."""
    layer: float
    """Seconds that a step takes for each layer whatever it computes: launches, Python, sampling."""
    overlaps: bool = False
    """Whether the card works while the next layers are launched: then the longer of the two counts."""
    batches: bool = True
    """Whether requests that run at once share a step; if not, each takes its own turn."""
    pool: bool = True
    """Whether caches live in a pool of blocks that the engine takes at its start."""
    share: float = 0.9
    """Share of the card that weights and pool may take together."""
    passes: int = 1
    """How many times a step moves the cache: 3 if the cache grows by copying (read, written, read)."""


def engines() -> Mapping[str, Engine]:
    """The engines by name. Their shares are fitted to published single-card rows: ``tests/planning/data``."""
    return {
        each.name: each
        for each in (
            Engine(
                name="transformers",
                bandwidth=0.85,
                compute=0.6,
                layer=870e-6,
                overlaps=True,
                batches=False,
                pool=False,
                passes=3,
            ),
            Engine(name="vllm", bandwidth=0.85, compute=0.6, layer=115e-6),
            Engine(name="tensorrt-llm", bandwidth=0.85, compute=0.65, layer=50e-6),
            Engine(name="llama.cpp", bandwidth=0.85, compute=0.6, layer=50e-6),
        )
    }


class Roofline(msgspec.Struct, frozen=True, kw_only=True):
    """A model on a card under an engine. Times in seconds, sizes in bytes.

    A step reads the weights once, or multiplies with them for each of its tokens, whichever
    takes longer, and reads the cache of every request in it: ``max(weights, tokens x operations)
    + caches + layers``. A prompt is one step of all its tokens, with attention over their pairs.
    """

    gpu: Gpu
    engine: Engine
    weights: Weights
    layers: int
    cache: int
    """For each token of a request."""
    width: int
    """Query heads times their size: an attention score costs four operations for each element."""
    eight_bit: bool = False
    """Whether it multiplies in 8 bits, on cards that can."""

    @property
    def rate(self) -> float:
        """Matrix operations a second that are reached."""
        flops = self.gpu.flops8 if self.eight_bit and self.gpu.flops8 else self.gpu.flops
        return flops * self.engine.compute

    @property
    def bandwidth(self) -> float:
        """Bytes a second that are reached."""
        return self.gpu.bandwidth * self.engine.bandwidth

    @property
    def overhead(self) -> float:
        return self.layers * self.engine.layer

    def prefill(self, tokens: int) -> float:
        """Seconds of a prompt."""
        pairs = tokens * tokens / 2
        work = 2 * self.weights.active * tokens + 4 * self.layers * self.width * pairs
        return self._launched(max(work / self.rate, self.weights.read / self.bandwidth))

    def step(self, requests: int = 1, held: float = 0.0) -> float:
        """Seconds of one new token for each of ``requests`` whose caches are ``held`` bytes together."""
        matrices = max(
            self._weights(requests) / self.bandwidth, 2 * self.weights.active * requests / self.rate
        )
        return self._launched(matrices + held * self.engine.passes / self.bandwidth)

    def decode(self, prompt: int, new: int, requests: int = 1) -> float:
        """Seconds of ``new`` tokens for each of ``requests`` alike, with caches half way grown."""
        return new * self.step(requests, requests * self.cache * (prompt + new / 2))

    def seconds(self, prompt: int, new: int) -> float:
        """Seconds of a request alone."""
        return self.prefill(prompt) + self.decode(prompt, new)

    def machine(self, prompt: int, new: int, requests: int) -> float:
        """Seconds of the card's time that each request takes while so many like it run at once."""
        if not self.engine.batches:
            return self.seconds(prompt, new)
        return self.prefill(prompt) + self.decode(prompt, new, requests) / requests

    def _launched(self, busy: float) -> float:
        """Seconds of a step that keeps the card ``busy`` so long."""
        return max(self.overhead, busy) if self.engine.overlaps else self.overhead + busy

    def _weights(self, requests: int) -> float:
        """Bytes of the weights that a step of so many tokens reads: the experts that any of them picked."""
        idle = self.weights.every - self.weights.read
        return self.weights.every - idle * (idle / self.weights.every) ** (requests - 1)


def roofline_of(
    model: ModelConfig,
    gpu: Gpu,
    engine: Engine,
    weights: Weights,
    *,
    kv_dtype: str,
    eight_bit: bool = False,
) -> Roofline:
    """``model`` on ``gpu``, its cache stored as ``kv_dtype``."""
    many = 4096
    cache = KVCache.from_config(model, kv_dtype=kv_dtype).estimate(Workload(new_tokens=many))
    return Roofline(
        gpu=gpu,
        engine=engine,
        weights=weights,
        layers=len(model.layers),
        cache=cache.bytes // many,
        width=model.heads * model.head_dim,
        eight_bit=eight_bit,
    )
