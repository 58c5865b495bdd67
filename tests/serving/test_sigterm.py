"""``drain_at_sigterm``: the queue hears of it first, and then the server does what it would have done."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from gpu_admission import Admission
from gpu_admission.serving import drain_at_sigterm


class Told:
    """Stands for an admission, and for a server, in the order in which they are told."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def drain(self, waiting: str = "refuse") -> None:
        self.heard.append(f"drain: {waiting}")

    def stop(self, number: int, frame: object) -> None:
        self.heard.append("stop")


@pytest.fixture(autouse=True)
def sigterm_as_it_was() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("waiting", ["serve", "refuse"])
def test_the_queue_hears_of_it_before_the_server_stops_and_what_is_left_is_refused(waiting: Any) -> None:
    told = Told()
    signal.signal(signal.SIGTERM, told.stop)
    with drain_at_sigterm(told, waiting):
        signal.raise_signal(signal.SIGTERM)
        assert told.heard == [f"drain: {waiting}", "stop"]
    assert told.heard[2:] == ["drain: refuse"], "a job that still waits would hold the end up"
    assert signal.getsignal(signal.SIGTERM) == told.stop


def test_those_that_wait_are_served_unless_told_otherwise() -> None:
    told = Told()
    signal.signal(signal.SIGTERM, told.stop)
    with drain_at_sigterm(told):
        signal.raise_signal(signal.SIGTERM)
        assert told.heard[0] == "drain: serve"


def test_an_app_that_ends_without_the_signal_drains_nothing() -> None:
    told = Told()
    with drain_at_sigterm(told):
        pass
    assert told.heard == []


def test_another_word_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="waiting"), drain_at_sigterm(Told(), "keep"):  # type: ignore[arg-type]
        pass


def test_the_servers_handler_is_back_after_a_failed_start() -> None:
    told = Told()
    signal.signal(signal.SIGTERM, told.stop)
    with pytest.raises(RuntimeError), drain_at_sigterm(told):
        raise RuntimeError
    assert signal.getsignal(signal.SIGTERM) == told.stop


def test_a_signal_that_was_ignored_drains_and_stays_ignored() -> None:
    told = Told()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with drain_at_sigterm(told):
        signal.raise_signal(signal.SIGTERM)
        assert told.heard == ["drain: serve"]


def test_in_another_thread_nothing_is_changed() -> None:
    before, admission, seen = signal.getsignal(signal.SIGTERM), Admission(capacity=1, estimator=1), []

    def start() -> None:
        with drain_at_sigterm(admission):
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert seen == [before]


def test_without_a_server_the_process_ends_as_ever() -> None:
    program = """if True:
        import signal
        from gpu_admission import Admission
        from gpu_admission.serving import drain_at_sigterm
        with drain_at_sigterm(Admission(capacity=1, estimator=1)):
            signal.raise_signal(signal.SIGTERM)
    """
    ended = subprocess.run([sys.executable, "-c", program], timeout=60, check=False)
    assert ended.returncode == -signal.SIGTERM


def test_apps_of_one_process_may_end_in_any_order() -> None:
    one, other, server = Told(), Told(), Told()
    signal.signal(signal.SIGTERM, server.stop)
    with ExitStack() as first:
        first.enter_context(drain_at_sigterm(one))
        with drain_at_sigterm(other):
            first.close()
            signal.raise_signal(signal.SIGTERM)
            assert (one.heard, other.heard, server.heard) == ([], ["drain: serve"], ["stop"])
        assert signal.getsignal(signal.SIGTERM) == server.stop
