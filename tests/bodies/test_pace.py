"""Which of several reading threads computes: one at a time, the smallest body first."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from gpu_admission.bodies import pace
from gpu_admission.bodies.pace import Pace, give_way


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "PATIENCE", 20.0)


@contextmanager
def threads(*work: Callable[[], object]) -> Iterator[None]:
    running = [threading.Thread(target=each) for each in work]
    for thread in running:
        thread.start()
    yield
    for thread in running:
        thread.join(20)
        assert not thread.is_alive()


class Readers:
    """Threads that read bodies of given sizes, step by step, and what they did in which order."""

    def __init__(self) -> None:
        self.pace = Pace()
        self.did: list[int] = []
        self.began, self.go_on = threading.Event(), threading.Event()

    def first(self, size: int, steps: int = 2) -> Callable[[], object]:
        """It has the turn, and goes on when it may."""

        def read() -> None:
            self.did.append(size)
            self.began.set()
            self.go_on.wait(20)
            for _ in range(steps):
                give_way()
                self.did.append(size)

        return lambda: self.pace.run(read, size)

    def other(self, size: int) -> Callable[[], object]:
        return lambda: self.pace.run(lambda: self.did.append(size), size)

    def wait_for(self, count: int) -> None:
        """Until ``count`` stand in line."""
        turn = threading.Event()
        while len(self.pace._line) < count:
            turn.wait(0.001)


def test_a_smaller_body_is_read_at_the_next_step_of_a_larger_one() -> None:
    readers = Readers()
    with threads(readers.first(100)):
        readers.began.wait(20)
        with threads(readers.other(500), readers.other(7)):
            readers.wait_for(2)
            readers.go_on.set()
    assert readers.did == [100, 7, 100, 100, 500]


def test_those_in_line_have_their_turns_by_size() -> None:
    readers = Readers()
    with threads(readers.first(100, steps=0)):
        readers.began.wait(20)
        with threads(*map(readers.other, (30, 10, 20))):
            readers.wait_for(3)
            readers.go_on.set()
    assert readers.did == [100, 10, 20, 30]


def test_one_that_does_not_give_way_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "PATIENCE", 0.0)
    readers = Readers()
    with threads(readers.first(100)):
        readers.began.wait(20)
        readers.other(500)()  # it reads beside the first
        assert readers.did == [100, 500]
        readers.go_on.set()
    assert readers.did == [100, 500, 100, 100]
    readers.other(1)()
    assert not readers.pace._busy


def test_the_turn_comes_back_when_reading_fails() -> None:
    readers = Readers()

    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        readers.pace.run(fail, 1)
    assert readers.pace.run(lambda: 5, 1) == 5


def test_outside_of_a_reading_thread_there_is_nobody_to_give_way_to() -> None:
    give_way()
