"""Eight web workers on one budget in front of the demo's memory wall, audited."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpu_admission.demo import plan as plans
from gpu_admission.demo import rounds, setups, workers
from gpu_admission.demo.figures import Trial
from gpu_admission.demo.plan import Plan
from gpu_admission.demo.process import ServerProcess
from tests.demo.auditedworkers import REPORTS
from tests.shared.audit import Audit

COUNT = 8
pytestmark = pytest.mark.slow


@contextmanager
def serve(settings: workers.Settings) -> Iterator[int]:
    with ServerProcess("tests.demo.auditedworkers", settings) as process:
        port = process.hear(workers.Listening).port
        for _ in range(settings.count):
            assert not process.hear(workers.Started).error
        yield port


def replayed(folder: Path, room: int, requests: int, monkeypatch: pytest.MonkeyPatch) -> Trial:
    """The trace on workers that write into ``folder`` what they hold."""
    monkeypatch.setenv(REPORTS, str(folder))
    monkeypatch.setattr(workers, "serve", serve)
    for module in (plans, setups):
        monkeypatch.setitem(module.REPLAYS, "workers", ("one budget",))
    plan = Plan(
        rounds=("workers",),
        requests=requests,
        clients=48,
        workers=COUNT,
        room=room,
        engine="batch",
        seconds=3600,
    )
    return rounds.run(plan, lambda line: None, lambda label, count: lambda answer: None).trials["one budget"]


def test_eight_workers_together_never_hold_more_than_the_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = replayed(tmp_path, 36 << 20, 80, monkeypatch)
    capacity = int((tmp_path / "capacity").read_text())
    audit = Audit(tmp_path)
    peak, works = audit.peak(), audit.works()
    assert peak.bytes <= capacity
    assert peak.bytes > capacity / 2, "else nothing was shown"
    assert len({work.worker for work in works}) > 1
    assert sum(answer.outcome == "ok" for answer in trial.run.answers) > 20
