"""From answers and samples to the figures that are shown. No text is made here, nothing is run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from gpu_admission.demo.load import Outcome, Run


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the table. Rates count requests that were answered; memory is a share of the wall."""

    label: str
    counts: dict[Outcome, int]
    per_second: float
    per_cpu_second: float
    """Requests for each second of the server's CPU time: what a busy machine disturbs least."""
    p50: float | None
    """Seconds, of the requests that were answered."""
    p95: float | None
    peak: float
    mean: float
    """While loaded: from the first request sent to the last."""

    @property
    def sent(self) -> int:
        return sum(self.counts.values())

    def count(self, outcome: Outcome) -> int:
        return self.counts.get(outcome, 0)


class Trial(msgspec.Struct, frozen=True):
    """One replay and the wall it met, in bytes."""

    label: str
    run: Run
    room: int

    @property
    def began(self) -> float:
        return self.run.answers[0].sent

    @property
    def ended(self) -> float:
        return max(answer.ended for answer in self.run.answers)

    @property
    def figures(self) -> Figures:
        return self.figures_from(0)

    def figures_from(self, first: int) -> Figures:
        """Figures of what was answered after the ``first`` answers, from then on."""
        answers = sorted(self.run.answers, key=lambda answer: answer.ended)
        began = answers[min(first, len(answers)) - 1].ended if first else self.began
        answers = answers[first:]
        times = sorted(answer.seconds for answer in answers if answer.outcome == "ok")
        use = [share for _, share in self.use(began, self.ended)]
        loaded = [share for _, share in self.use(began, self.run.answers[-1].sent)]
        return Figures(
            label=self.label,
            counts=dict(Counter(answer.outcome for answer in answers)),
            per_second=_rate(len(times), self.ended - began),
            per_cpu_second=_rate(len(times), self._cpu_seconds(began)),
            p50=quantile(times, 0.50),
            p95=quantile(times, 0.95),
            peak=max(use, default=0.0),
            mean=_mean(loaded),
        )

    def use(self, start: float, end: float) -> list[tuple[float, float]]:
        """(seconds since it began, share of the wall in use) between two times."""
        seen = (sample for sample in self.run.samples if start <= sample.at <= end)
        return [(sample.at - self.began, sample.used / self.room) for sample in seen]

    def _cpu_seconds(self, since: float) -> float:
        """CPU seconds of the engine's process, until the end."""
        seen = [sample.cpu_seconds for sample in self.run.samples if since <= sample.at <= self.ended]
        return seen[-1] - seen[0] if seen else 0.0

    def columns(self, width: int, seconds: float) -> list[float | None]:
        """Mean use in each of ``width`` equal pieces of ``seconds``; ``None`` where it had ended."""
        pieces: list[list[float]] = [[] for _ in range(width)]
        for t, share in self.use(self.began, self.ended):
            pieces[min(width - 1, int(t / seconds * width))].append(share)
        return [_mean(piece) if piece else None for piece in pieces]

    def lost(self) -> list[float]:
        """Seconds since it began at which a request ran out of memory."""
        return [a.ended - self.began for a in self.run.answers if a.outcome == "out_of_memory"]


def quantile(ordered: Sequence[float], share: float) -> float | None:
    """The smallest value that ``share`` of them do not exceed; ``None`` of none."""
    if not ordered:
        return None
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def first_error(trials: Iterable[Trial]) -> str:
    """What the device said when a request first ran out of memory; empty when none did."""
    answers = (answer for trial in trials for answer in trial.run.answers)
    return next((answer.detail for answer in answers if answer.outcome == "out_of_memory"), "")


def _rate(count: int, seconds: float) -> float:
    return count / seconds if seconds > 0 else 0.0


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
