"""The queue against a plain list, at every size."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_admission.budget.queue import SizedQueue
from gpu_admission.budget.ticket import Ticket


class Model:
    """The queue, and beside it a list that is searched from the front."""

    def __init__(self) -> None:
        self.queue = SizedQueue()
        self.plain: list[Ticket] = []

    def append(self, size: int) -> None:
        ticket = Ticket(size)
        self.queue.append(ticket)
        self.plain.append(ticket)

    def remove(self, index: int) -> None:
        self.queue.remove(self.plain.pop(index))

    def resize(self, index: int, size: int) -> None:
        self.queue.resize(self.plain[index], size)

    def check(self, *sizes: int) -> None:
        assert len(self.queue) == len(self.plain)
        assert not self.plain or self.queue.first is self.plain[0]
        for size in sizes:
            expected = next((ticket for ticket in self.plain if ticket.bytes <= size), None)
            assert self.queue.first_at_most(size) is expected

    def check_all(self) -> None:
        assert list(self.queue) == self.plain


_joins = st.tuples(st.just("join"), st.integers(1, 30))
_leaves = st.tuples(st.just("leave"), st.integers(0, 10**6))
_fronts = st.tuples(st.just("front"), st.just(0))
_resizes = st.tuples(st.just("resize"), st.integers(0, 10**6))


@settings(max_examples=150, deadline=None, database=None, derandomize=True)
@given(
    st.lists(st.integers(1, 40), max_size=200),
    st.lists(st.one_of(_joins, _leaves, _fronts, _resizes), max_size=200),
    st.integers(0, 40),
)
def test_it_answers_as_a_plain_list_does(first: list[int], steps: list[tuple[str, int]], size: int) -> None:
    model = Model()
    for wanted in first:
        model.append(wanted)
    for what, value in steps:
        if what == "join":
            model.append(value)
        elif model.plain and what == "resize":
            model.resize(value % len(model.plain), 1 + value % 37)
        elif model.plain:
            model.remove(0 if what == "front" else value % len(model.plain))
        model.check(size)
    model.check_all()


@pytest.mark.parametrize("front", [0.1, 0.5, 0.9])
def test_it_answers_as_a_plain_list_does_while_thousands_wait(front: float) -> None:
    """Longer than two levels of the index, with leaving from the front and from anywhere."""
    chance = random.Random(front)
    model = Model()
    for target in (9000, 100, 5000, 1):
        while len(model.plain) != target:
            grows = chance.random() < (0.7 if len(model.plain) < target else 0.3)
            if grows or not model.plain:
                model.append(chance.randint(1, 1000))
            elif chance.random() < 0.1:
                model.resize(chance.randrange(len(model.plain)), chance.randint(1, 1000))
            else:
                model.remove(0 if chance.random() < front else chance.randrange(len(model.plain)))
            if chance.random() < 0.01:
                model.check(0, 1, 3, 50, 1000)
    model.check_all()


def test_it_finds_the_right_one_among_a_hundred_thousand() -> None:
    chance = random.Random(1)
    tickets = [Ticket(chance.randint(10, 10**9)) for _ in range(100_000)]
    queue = SizedQueue()
    for ticket in tickets:
        queue.append(ticket)
    for ticket in chance.sample(tickets, 200):
        expected = next(t for t in tickets if t.bytes <= ticket.bytes)
        assert queue.first_at_most(ticket.bytes) is expected
    assert queue.first_at_most(9) is None
    chance.shuffle(tickets)
    for ticket in tickets:
        queue.remove(ticket)
    assert len(queue) == 0
    assert queue.first_at_most(10**9) is None


def test_an_empty_queue_has_nobody_of_any_size() -> None:
    assert SizedQueue().first_at_most(2**62) is None
    assert list(SizedQueue()) == []


def test_memory_follows_the_waiters_when_one_goes_on_waiting_at_the_front() -> None:
    queue = SizedQueue()
    queue.append(stays := Ticket(100))
    for _ in range(10_000):
        queue.append(leaves := Ticket(1))
        queue.remove(leaves)
    assert queue.first is stays
    assert len(queue._tickets) < 500


def test_memory_follows_the_waiters_when_they_leave_in_order() -> None:
    queue = SizedQueue()
    tickets = [Ticket(n % 7 + 1) for n in range(20_000)]
    for ticket in tickets[:500]:
        queue.append(ticket)
    for joins, leaves in zip(tickets[500:], tickets, strict=False):
        queue.append(joins)
        queue.remove(leaves)
    assert len(queue) == 500
    assert len(queue._tickets) < 20_000 / 2
