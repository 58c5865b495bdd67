"""Reading traces and decision logs, and bending them to a load."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from gpu_admission.planning.service import Card, Decoder
from gpu_admission.planning.trace import Trace, read

DECODER = Decoder(
    weights=1000, bandwidth=1000.0, prefill_rate=100.0, kv_bytes_per_token=10, prefill_bytes_per_token=0
)
HEADER = "arrival_s,input_tokens,output_tokens\n"


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def three() -> Trace:
    return Trace(arrivals=[0.0, 2.0, 4.0], sizes=[10, 30, 20], seconds=[1.0, 2.0, 3.0])


def test_tokens_become_bytes_and_seconds(tmp_path: Path) -> None:
    trace = read(written(tmp_path / "trace.csv", HEADER + "5.5,100,2\n7.0,0,1\n"), DECODER)
    assert trace == Trace(arrivals=[0.0, 1.5], sizes=[1020, 10], seconds=[3.0, 1.0])


def test_further_columns_are_left_alone(tmp_path: Path) -> None:
    path = written(tmp_path / "trace.csv", "arrival_s,input_tokens,output_tokens,note\n1,2,3,x\n")
    assert len(read(path, DECODER)) == 1


def test_requests_are_put_in_the_order_of_their_arrival(tmp_path: Path) -> None:
    trace = read(written(tmp_path / "trace.csv", HEADER + "9,1,1\n4,2,2\n"), DECODER)
    assert trace.sizes == [40, 20]
    assert trace.arrivals == [0.0, 5.0]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "line 1: the first columns"),
        ("time,in,out\n", "line 1: the first columns"),
        (HEADER, "holds no request"),
        (HEADER + "1,2,3\n1,2\n", "line 3: not a time and two counts"),
        (HEADER + "1,x,3\n", "line 2: not a time and two counts"),
        (HEADER + "1,-2,3\n", "line 2: a time and tokens are positive"),
        (HEADER + "-1,2,3\n", "line 2: a time and tokens are positive"),
        (HEADER + "1,0,0\n", "line 2: a time and tokens are positive"),
    ],
)
def test_what_is_no_trace_is_refused_with_its_line(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        read(written(tmp_path / "trace.csv", text), DECODER)


def test_a_file_that_is_not_there_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "none.csv", DECODER)


def decided(**fields: object) -> str:
    return json.dumps({"decision": "admitted", "route": "*", "lane": "a", **fields}) + "\n"


def test_a_decision_log_is_replayed_by_its_estimates_and_holds(tmp_path: Path) -> None:
    lines = decided(arrival=100.0, bytes=50, held=2.0) + decided(arrival=90.0, bytes=20, held=4.0)
    trace = read(written(tmp_path / "decisions.jsonl", lines), DECODER)
    assert trace == Trace(arrivals=[0.0, 10.0], sizes=[20, 50], seconds=[4.0, 2.0])


def test_what_a_decision_never_told_is_the_median_of_its_lane(tmp_path: Path) -> None:
    """One refused before its body was read has no estimate, and none that was refused has held bytes."""
    lines = [
        *(
            decided(arrival=float(n), bytes=size, held=held)
            for n, (size, held) in enumerate([(10, 1.0), (20, 5.0), (90, 9.0)])
        ),
        decided(arrival=5.0, decision="refused", bytes=40, reason="queue_timeout"),
        decided(arrival=6.0, decision="refused", reason="queue_full"),
        decided(arrival=7.0, decision="refused", lane="b", reason="queue_full"),
    ]
    trace = read(written(tmp_path / "decisions.jsonl", "".join(lines)), DECODER)
    assert trace.sizes == [10, 20, 90, 40, 30]
    assert trace.seconds == [1.0, 5.0, 9.0, 5.0, 5.0]


def test_a_line_that_is_no_decision_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="line 2: not a decision"):
        read(written(tmp_path / "decisions.jsonl", decided(arrival=1.0, bytes=1) + "{}\n"), DECODER)


def test_load_is_what_is_asked_over_what_a_full_card_gives() -> None:
    asked = 10 * 1 + 30 * 2 + 20 * 3
    assert three().load(Card(100)) == pytest.approx(asked / (100 * 4))
    assert three().load(Card(100, 0.01)) == pytest.approx(asked * 2 / (100 * 4))
    assert three().at_most(10).load(Card(100)) == math.inf


def test_stretching_the_arrivals_divides_the_load() -> None:
    trace, card = three(), Card(100)
    assert trace.stretched(2.0).arrivals == [0.0, 4.0, 8.0]
    assert trace.stretched(2.0).load(card) == pytest.approx(trace.load(card) / 2)


def test_those_larger_than_a_card_can_be_left_out() -> None:
    assert three().at_most(20) == Trace(arrivals=[0.0, 4.0], sizes=[10, 20], seconds=[1.0, 3.0])


def test_a_repeated_trace_goes_on_at_the_same_rate() -> None:
    twice = three().repeated(2)
    assert twice.sizes == [10, 30, 20] * 2
    assert twice.arrivals == pytest.approx([0.0, 2.0, 4.0, 6.0, 8.0, 10.0])
