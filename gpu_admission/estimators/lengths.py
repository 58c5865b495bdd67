"""How long prompts and answers really are: what to expect of the tokens that a request asks for.

Owns the tokens, by the route that they were used on; the formula turns them into bytes. The
statistics are in ``history``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from gpu_admission.estimators.histories import Histories
from gpu_admission.estimators.history import History
from gpu_admission.estimators.taken import Followed
from gpu_admission.types import Usage, Workload
from gpu_admission.workloads.usage import really


class Counted(NamedTuple):
    """Tokens that a request asked for and used; 0 where not known."""

    route: str
    new_asked: int
    new: int
    prompt_asked: int = 0
    prompt: int = 0
    is_least: bool = False
    """It was cut short: it would have used at least as many."""


_ALIKE = 4
"""Lengths of prompts that are kept apart, for each route that is: most routes see few."""


class Lengths:
    """How many of the tokens that they ask for the requests of each route use. Not thread-safe.

    Answers count as reported: those of a size that was asked for, and, once a hundred of them are
    known, those to prompts of the same length (within a doubling). Where no more than two in a hundred
    of these were longer than the size allows, that may be chance, and the size alone is believed.
    ``prompts``: whether the count of a prompt follows what earlier prompts turned out to be, with
    ``margin`` on top and shares within ``clip``.
    """

    def __init__(
        self,
        new: Callable[[], History],
        most: int,
        *,
        margin: float,
        clip: tuple[float, float],
        prompts: bool,
    ) -> None:
        self._answers, self._prompts = Histories(new, most), Histories(new, most)
        self._alike = Histories(new, _ALIKE * most)
        self._margin = margin
        self._clip = clip
        self._counts_prompts = prompts

    def expected(self, route: str, asked: Workload, size: int, caution: int) -> Workload:
        """``asked`` as it is expected to turn out; the ``size`` of its body bounds the tokens of a prompt."""
        new, prompt = asked.new_tokens, prompt_of(asked)
        if new and self._answers.count:
            new = min(new, self._answer(route, new, prompt, caution))
        share = 1.0
        if prompt and self._prompts.count:
            high = self._clip[1]
            tokens = self._prompts.size(route, prompt, caution=caution, margin=self._margin, most=high)
            share = min(tokens, max(prompt, size)) / prompt
        if new == asked.new_tokens and share == 1.0:
            return asked
        return msgspec.structs.replace(
            asked,
            new_tokens=new,
            prompt_tokens=math.ceil(asked.prompt_tokens * share),
            total_prompt_tokens=math.ceil(asked.total_prompt_tokens * share),
        )

    def learn(self, told: Counted, caution: int) -> None:
        """Take in what one request used."""
        if told.new_asked and told.new and self._is_news(told, caution):
            share = told.new / told.new_asked
            self._answers.add(told.route, told.new_asked, share)
            self._alike.add(_alike(told.route, told.prompt_asked), told.new_asked, share)
        if told.prompt and told.prompt_asked and self._counts_prompts:
            low, high = self._clip
            share = min(high, max(low, told.prompt / told.prompt_asked))
            self._prompts.add(told.route, told.prompt_asked, share)

    def _is_news(self, told: Counted, caution: int) -> bool:
        usual = self._answer(told.route, told.new_asked, told.prompt_asked, caution)
        return not told.is_least or told.new > usual

    def _answer(self, route: str, asked: int, prompt: int, caution: int) -> int:
        tokens = self._answers.size(route, asked, caution=caution, margin=0.0, most=1.0)
        alike = self._alike.get(_alike(route, prompt))
        if alike is not None and alike.is_known(asked, caution=caution):
            tokens = min(asked, alike.bytes_for(asked, caution=caution), max(tokens, alike.usual(asked)))
        return math.ceil(tokens - 1e-6)

    @property
    def count(self) -> int:
        """Answers ever counted."""
        return self._answers.count

    @property
    def routes(self) -> int:
        """Routes of which anything is known."""
        return self._answers.routes

    def doubt(self) -> None:
        """Believe nothing below what is asked for until much more was seen."""
        for histories in (self._answers, self._alike, self._prompts):
            histories.doubt()

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON types."""
        return {
            "answers": self._answers.to_dict(),
            "alike": self._alike.to_dict(),
            "prompts": self._prompts.to_dict(),
        }

    def restored(self, saved: object) -> tuple[Histories, Histories, Histories]:
        """What ``to_dict`` gave, for ``take``. Raises ``ValueError`` for anything else."""
        if not isinstance(saved, Mapping):
            raise ValueError(f"not saved lengths: {saved!r:.80}")
        answers = self._answers.restored(saved.get("answers", {}))
        alike = self._alike.restored(saved.get("alike", {}))
        return answers, alike, self._prompts.restored(saved.get("prompts", {}))

    def take(self, restored: tuple[Histories, Histories, Histories]) -> None:
        """Put what was kept in place of what was learned."""
        self._answers, self._alike, self._prompts = restored


def heard(request: Followed, usage: Usage | None, sent: int | None) -> Iterator[Counted]:
    """What an answer reports that ``request`` used; if it reports nothing, all that was asked for.

    ``sent``: it was cut short after at least this many tokens, which can only raise the count.
    """
    asked, route = request.asked, request.route
    if asked is None:
        return
    most, long = asked.new_tokens, prompt_of(asked)
    if sent is not None:
        yield Counted(route, most, min(most, sent), long, is_least=True)
    elif usage is None:
        yield Counted(route, most, most, long)
    else:
        real = really(asked, usage, longest_prompt=request.size)
        # None used is as good as one: a share of nothing would say nothing.
        new = max(1, real.new_tokens)
        prompt = 0 if usage.prompt_tokens is None else prompt_of(real)
        yield Counted(route, most, new, long, prompt)


def prompt_of(workload: Workload) -> int:
    """Tokens of all its prompts."""
    return workload.total_prompt_tokens or workload.prompt_tokens


def _alike(route: str, prompt: int) -> str:
    """The name of requests of ``route`` with prompts as long, within a doubling."""
    return f"{route} {prompt.bit_length()}"
