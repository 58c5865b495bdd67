"""Ten minutes of two numbers in steps of five seconds."""

from __future__ import annotations

from gpu_admission.observe.history import History


def test_a_step_keeps_the_most_of_each_number() -> None:
    history = History()
    for second, in_use, waiting in ((100, 5, 0), (101, 9, 1), (102, 2, 3)):
        history.record(second, in_use, waiting)
    assert history.rows() == ((9, 3),)


def test_what_was_true_last_fills_a_quiet_time() -> None:
    history = History()
    history.record(100, 9, 4)
    history.record(104, 2, 0)
    history.record(121, 0, 0)
    assert history.rows() == ((9, 4), (2, 0), (2, 0), (2, 0), (2, 0))


def test_no_more_than_ten_minutes_are_kept() -> None:
    history = History()
    history.record(0, 1, 1)
    history.record(10_000, 7, 0)
    rows = history.rows()
    assert len(rows) == 120
    assert set(rows[:-1]) == {(1, 1)}
    assert rows[-1] == (7, 1)


def test_an_event_that_comes_a_little_late_counts_in_the_running_step() -> None:
    history = History()
    history.record(105, 1, 0)
    history.record(104.9, 8, 0)
    assert history.rows() == ((8, 0),)
