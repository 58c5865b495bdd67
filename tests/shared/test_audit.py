"""The auditor of the chaos tests: what it must find, and what it must not take for too much."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.shared.audit import Audit, FalseReport


def audit(folder: Path, *reports: str, **known: object) -> Audit:
    for worker, lines in enumerate(reports):
        (folder / f"{worker}.txt").write_text("\n".join(line.strip() for line in lines.split(";")))
    return Audit(folder, **known)  # type: ignore[arg-type]


def test_what_is_in_use_at_once_is_added_up_over_workers_and_within_one(tmp_path: Path) -> None:
    found = audit(tmp_path, "+ 1 60 a; + 2 10 b; - 3 10 b; - 9 60 a", "+ 2.5 45 c; - 4 45 c").peak()
    assert (found.bytes, found.at) == (115, 2.5)
    assert {work.name for work in found.works} == {"a", "b", "c"}


def test_bytes_passed_on_in_the_same_moment_are_counted_once(tmp_path: Path) -> None:
    assert audit(tmp_path, "+ 1 60 a; - 2 60 a", "+ 2 60 b; - 3 60 b").peak().bytes == 60


def test_an_overlap_of_a_microsecond_is_found(tmp_path: Path) -> None:
    assert audit(tmp_path, "+ 1 60 a; - 2.000001 60 a", "+ 2 60 b; - 3 60 b").peak().bytes == 120


def test_what_a_killed_worker_had_begun_counts_until_it_was_killed(tmp_path: Path) -> None:
    reports = "+ 1 60 a", "+ 4 60 b; - 5 60 b"
    assert audit(tmp_path, *reports, killed_at={0: 3.9}).peak().bytes == 60
    assert audit(tmp_path, *reports, killed_at={0: 4.1}).peak().bytes == 120, "given away while it lived"


def test_a_line_written_after_the_kill_began_shows_that_it_lived_until_then(tmp_path: Path) -> None:
    reports = "+ 1 60 a; + 4.2 5 b", "+ 4.1 60 c; - 5 60 c"
    assert audit(tmp_path, *reports, killed_at={0: 4.0}).peak().bytes == 120


def test_one_that_stood_still_counts_for_as_long_as_nobody_may_be_given_its_bytes(tmp_path: Path) -> None:
    reports = "+ 1 60 a; - 9 60 a; + 9.5 60 d; - 10 60 d", "+ 5 60 b; - 6 60 b"
    assert audit(tmp_path, *reports, stood_still=[(0, 2.0, 4.9)]).peak().bytes == 60
    assert audit(tmp_path, *reports, stood_still=[(0, 2.0, 5.1)]).peak().bytes == 120
    late = "+ 9.6 60 c; - 9.7 60 c"
    assert audit(tmp_path, *reports, late, stood_still=[(0, 2.0, 4.9)]).peak().bytes == 120, (
        "what it begins afterwards counts"
    )


@pytest.mark.parametrize(
    "report", ["- 1 60 a", "+ 1 60 a; + 2 60 a", "+ 1 60 a; - 2 50 a", "+ 1 60 a", "? 1 60 a"]
)
def test_a_report_that_cannot_be_true_is_said(tmp_path: Path, report: str) -> None:
    with pytest.raises(FalseReport):
        audit(tmp_path, report).peak()
