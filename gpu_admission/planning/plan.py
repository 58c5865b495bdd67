"""A plan: what a model leaves of a card, how many requests that holds, and how fast they run.

Owns the terms of the capacity and the figures that follow from them. Seconds come from
``roofline``, waits from ``waiting``; words and pictures are made elsewhere.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Protocol

import msgspec

from gpu_admission.estimators import KVCache, ModelConfig, TransformersLM
from gpu_admission.planning.demand import Demand
from gpu_admission.planning.roofline import Roofline
from gpu_admission.planning.steady import Steady
from gpu_admission.sizes import GIB
from gpu_admission.types import Estimate, Workload

CONTEXT = GIB // 2
"""Bytes of the CUDA context, loaded kernels and the libraries' workspaces; 0.3 to 1 GiB in practice."""
BLOCK = 16
"""Tokens of a page of a pool."""
STEP = 8192
"""Prompt tokens that a pool engine computes in one step."""


class Sized(Protocol):
    """An estimator with a formula."""

    def estimate(self, workload: Workload) -> Estimate:
        """Bytes of ``workload``."""
        ...


class Size(msgspec.Struct, frozen=True, kw_only=True):
    """Requests of one size: the largest, one of the largest twentieth, or the mean."""

    name: str
    prompt: int
    new: int
    bytes: int
    at_once: int
    """How many fit together if all are like it."""
    tokens_per_second: float
    """New tokens of all of them together."""
    requests_per_second: float
    seconds: float
    """Seconds that one of them takes while all run."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What was worked out, in bytes, tokens and seconds."""

    card: Roofline
    terms: Mapping[str, int]
    """The terms that make up the capacity, signed, in order."""
    capacity: int
    per_token: int
    """Bytes of the cache for each token."""
    per_prompt_token: int
    """Bytes computed for each prompt token, beside its cache; 0 where the engine set them aside."""
    sizes: Sequence[Size]
    """The worst, the 95 % quantile and the mean."""
    slots: int
    """The safe N of a semaphore: capacity over the largest request."""
    load_limit: float
    """Requests a second that the card can answer in the long run, of those that fit."""
    notes: Sequence[str] = ()


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """What else a plan may be told about memory, besides the card and the model. Bytes."""

    total: int | None = None
    """Memory to use instead of the card's own."""
    context: int = CONTEXT
    margin: float = 0.1
    """Share of the rest that is kept free, as by an admission that measures its capacity."""


def estimator_for(model: ModelConfig, card: Roofline, *, dtype: str | None, kv_dtype: str) -> Sized:
    """The estimator of a request: ``TransformersLM``, or the cache alone where there is a pool of blocks."""
    if card.engine.pool:
        return KVCache.from_config(model, kv_dtype=kv_dtype, block=BLOCK)
    return TransformersLM.from_config(model, dtype=dtype)


def make_plan(
    model: ModelConfig, card: Roofline, demand: Demand, estimator: Sized, *, memory: Memory, dtype: str | None
) -> Plan:
    """The plan of ``demand`` on ``card``. Raises ``ValueError`` where the weights leave no room."""
    computing = TransformersLM.from_config(model, dtype=dtype)
    terms = _terms(card, memory, computing)
    capacity = int(sum(terms.values()))
    if capacity <= 0:
        raise ValueError(_no_room(card, terms))
    charged = charges(demand, estimator)
    worst = max(charged)
    return Plan(
        card=card,
        terms=terms,
        capacity=capacity,
        per_token=card.cache,
        per_prompt_token=0 if card.engine.pool else computing.plan.activations,
        sizes=_sizes(card, demand, charged, capacity),
        slots=capacity // worst,
        load_limit=_long_run(card, demand, charged, capacity),
        notes=_notes(demand, charged, capacity),
    )


def charges(demand: Demand, estimator: Sized) -> Sequence[int]:
    """Bytes that each request of ``demand`` is charged."""

    @cache
    def charge(prompt: int, new: int) -> int:
        return estimator.estimate(Workload(prompt_tokens=prompt, new_tokens=new)).bytes

    return [charge(prompt, new) for prompt, new in zip(demand.prompts, demand.news, strict=True)]


def _terms(card: Roofline, memory: Memory, computing: TransformersLM) -> Mapping[str, int]:
    gpu, engine = card.gpu, card.engine
    total = gpu.memory if memory.total is None else memory.total
    terms = {"memory": total}
    if gpu.usable < 1:
        terms["the system's share"] = -int(total * (1 - gpu.usable))
    if engine.pool:
        terms[f"outside the pool ({engine.share:.0%} taken)"] = -int(total * gpu.usable * (1 - engine.share))
    terms["weights"] = -card.weights.bytes
    terms["context and libraries"] = -memory.context
    if engine.pool:
        terms[f"activations of a step of {STEP:,} tokens"] = -STEP * computing.plan.activations
        return terms
    terms[f"margin {memory.margin:.0%}"] = -int(max(0, sum(terms.values())) * memory.margin)
    return terms


def _no_room(card: Roofline, terms: Mapping[str, int]) -> str:
    parts = ", ".join(f"{name} {size / GIB:+.2f} GiB" for name, size in terms.items())
    return f"{card.gpu.name} has no room for requests: {parts}"


def _sizes(card: Roofline, demand: Demand, charged: Sequence[int], capacity: int) -> Sequence[Size]:
    by_size = sorted(range(len(demand)), key=charged.__getitem__)
    late = by_size[max(0, -(-len(by_size) * 95 // 100) - 1)]
    rows = [("worst", by_size[-1]), ("p95", late)]
    exact = [_size(card, name, demand.prompts[i], demand.news[i], charged[i], capacity) for name, i in rows]
    prompt, new, size = (round(statistics.fmean(each)) for each in (demand.prompts, demand.news, charged))
    return [*exact, _size(card, "mean", prompt, new, size, capacity)]


def _size(card: Roofline, name: str, prompt: int, new: int, size: int, capacity: int) -> Size:
    count = capacity // size
    each = card.machine(prompt, new, max(1, count))
    return Size(
        name=name,
        prompt=prompt,
        new=new,
        bytes=size,
        at_once=count,
        tokens_per_second=new / each if count else 0.0,
        requests_per_second=1 / each if count else 0.0,
        seconds=each * count,
    )


def _long_run(card: Roofline, demand: Demand, charged: Sequence[int], capacity: int) -> float:
    fits = [i for i, size in enumerate(charged) if size <= capacity]
    if not fits:
        return 0.0
    rows = [(demand.prompts[i], demand.news[i]) for i in fits]
    return Steady.of(card, rows, [charged[i] for i in fits]).rate(capacity)


def _notes(demand: Demand, charged: Sequence[int], capacity: int) -> Sequence[str]:
    over = sum(size > capacity for size in charged)
    if not over:
        return ()
    return (f"{over:,} of {len(demand):,} requests are larger than all the capacity, and would get 413",)


def settings(plan: Plan, *, config: str, kv_dtype: str, wait: float, costs: Path | None = None) -> str:
    """The lines of Python to paste."""
    path = json.dumps(str(config if costs is None else costs))  # a Python literal, whatever it contains
    if costs is not None:
        name, estimator = "Linear", f"Linear.load({path})"
    elif plan.card.engine.pool:
        name, estimator = "KVCache", f'KVCache.from_config({path}, kv_dtype="{kv_dtype}", block={BLOCK})'
    else:
        name, estimator = "TransformersLM", f"TransformersLM.from_config({path})"
    return (
        "from gpu_admission import GPUAdmission\n"
        f"from gpu_admission.estimators import {name}\n\n"
        "app.add_middleware(\n"
        "    GPUAdmission,\n"
        f'    capacity="{plan.capacity / GIB:.2f}GiB",\n'
        f"    estimator={estimator},\n"
        f"    timeout={wait:g},\n"
        ")"
    )
