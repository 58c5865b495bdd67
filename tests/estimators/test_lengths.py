"""What requests use of the tokens that they ask, and who can't make it less than it is."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_admission.estimators import Learned, Linear
from gpu_admission.estimators.taken import Followed
from gpu_admission.planning.trace import read_tokens
from gpu_admission.types import Usage, Workload
from tests.bench.learning import CLIENTS, play

MIB = 2**20
ROUTE = "/v1/chat/completions m"
DATA = Path(__file__).parents[1] / "planning" / "data"


def made(**options: object) -> Learned:
    return Learned(Linear({"prompt_tokens": MIB, "new_tokens": MIB}), usage=True, **options)  # type: ignore[arg-type]


def expected(learned: Learned, asked: int = 4096, route: str = ROUTE, prompt: int = 1) -> int:
    """New tokens that are charged."""
    workload = Workload(prompt_tokens=prompt, new_tokens=asked)
    return learned.estimate(workload, route=route).bytes // MIB - prompt


def use(
    learned: Learned,
    times: int,
    new: int | None,
    *,
    asked: int = 4096,
    route: str = ROUTE,
    outcome: str = "ok",
    prompt: int = 1,
) -> None:
    """So many answers of ``new`` tokens; ``None``: they do not say."""
    for _ in range(times):
        workload = Workload(prompt_tokens=prompt, new_tokens=asked)
        request = Followed(route, learned.estimate(workload, route=route), workload, 100)
        usage = None if new is None else Usage(prompt, new)
        learned.ended(request, outcome, peak=None, usage=usage, pieces=new or 0)


def test_eight_short_answers_lower_nothing() -> None:
    learned = made()
    use(learned, 8, 10)
    assert expected(learned) == 4096


def test_sixteen_cheap_answers_after_a_hundred_honest_ones_lower_nothing() -> None:
    learned = made()
    use(learned, 100, 2000)
    before = expected(learned)
    use(learned, 16, 140)
    assert expected(learned) >= before >= 2000


def test_a_lone_outlier_waits_for_a_second() -> None:
    learned = made()
    use(learned, 100, 100)
    use(learned, 1, 3200)
    assert expected(learned) == 100
    use(learned, 1, 3200)
    assert expected(learned) == 3200


def test_two_models_on_one_path_and_two_flows_are_learned_apart() -> None:
    learned = made()
    use(learned, 200, 100, route="/v1/chat/completions small")
    use(learned, 200, 3000, route="/v1/chat/completions large")
    assert expected(learned, route="/v1/chat/completions small") == 100
    assert expected(learned, route="/v1/chat/completions large") == 3000
    assert expected(learned, route="/v1/chat/completions small tenant") == 4096


def test_a_model_that_answers_longer_is_believed_by_its_second_answer() -> None:
    learned = made()
    use(learned, 300, 100)
    use(learned, 2, 4000)
    assert expected(learned) == 4000


def test_a_size_that_was_not_asked_before_is_charged_as_it_asks() -> None:
    learned = made()
    use(learned, 300, 100)
    assert expected(learned, asked=16) == 16
    assert expected(learned, asked=32_000) == 32_000
    assert expected(learned, asked=100_000) == 100_000


def test_prompts_of_different_length_that_are_answered_differently_are_charged_apart() -> None:
    learned = made()
    for _ in range(200):
        use(learned, 1, 100, prompt=50)
        use(learned, 1, 2000, prompt=1000)
    assert expected(learned, prompt=50) == 100
    assert expected(learned, prompt=1000) == 2000
    assert expected(learned, prompt=8000) == 2000, "of others the size alone is known"


def test_a_hundred_short_answers_to_prompts_of_a_length_lower_no_others() -> None:
    learned = made()
    use(learned, 200, 2000, prompt=1000)
    use(learned, 99, 10, prompt=50)
    assert expected(learned, prompt=50) == 2000
    use(learned, 101, 10, prompt=50)
    assert expected(learned, prompt=50) == 10
    use(learned, 400, 10, prompt=50)
    assert expected(learned, prompt=1000) == 2000


def test_one_long_answer_in_a_hundred_to_prompts_of_a_length_is_taken_for_chance() -> None:
    learned = made()
    for _ in range(4):
        use(learned, 50, 100, prompt=50)
        use(learned, 1, 180, prompt=50)
        use(learned, 600, 100, prompt=1000)
    assert expected(learned, prompt=50) == 100
    use(learned, 8, 180, prompt=50)
    assert expected(learned, prompt=50) == 180


def test_an_answer_that_was_cut_short_can_not_lower_what_prompts_of_its_length_are_charged() -> None:
    learned = made()
    use(learned, 200, 2000, prompt=50)
    use(learned, 300, 5, prompt=50, outcome="client")
    assert expected(learned, prompt=50) == 2000


def test_an_out_of_memory_puts_it_back_at_once_and_makes_it_careful() -> None:
    learned = made()
    use(learned, 300, 100)
    use(learned, 1, 100, outcome="oom")
    assert expected(learned) == 4096
    use(learned, 64, 100)
    assert expected(learned) == 4096
    use(learned, 136, 100)
    assert expected(learned) < 200


def test_answers_that_do_not_say_it_count_as_all_that_was_asked() -> None:
    learned = made()
    for _ in range(30):
        use(learned, 9, 100)
        use(learned, 1, None)
    assert expected(learned) == 4096


def test_what_is_used_is_never_charged_below_by_more_than_one_in_fifty() -> None:
    draw, learned, short = random.Random(4), made(), 0
    for _ in range(3000):
        new = min(4096, int(draw.lognormvariate(5, 0.8)) + 1)
        short += expected(learned) < new
        use(learned, 1, new)
    assert short <= 60
    assert expected(learned) < 2500


@pytest.mark.parametrize("honest", [50, 2000])
def test_clients_that_lure_with_short_answers_can_not_overfill_a_device(honest: int) -> None:
    """Short answers for as long as they like, then long ones all at once: the first failure ends it."""
    learned, capacity, failed = made(), 40_000, 0
    use(learned, 400, honest)
    for _ in range(20):
        charge = expected(learned)
        running = capacity // charge
        ran_out = max(0, running * 4096 - capacity) > 0
        failed += ran_out
        use(learned, 1, 4096, outcome="oom" if ran_out else "ok")
    assert failed <= 1


@pytest.mark.parametrize("clients", CLIENTS)
@pytest.mark.parametrize("file", ["azure2023_code_head.csv", "mooncake_conversation_head.csv"])
def test_on_slices_of_real_traces_learning_completes_more_and_none_runs_out_of_memory(
    file: str, clients: str
) -> None:
    cell = play(file, read_tokens(DATA / file), clients)
    assert cell.learned >= cell.plain
    assert cell.out_of_memory <= cell.requests / 1000
    if file.startswith("azure") and clients.startswith("(a)"):
        assert cell.ratio >= 1.4


def test_what_was_learned_is_kept() -> None:
    learned, again = made(), made()
    use(learned, 200, 100)
    use(learned, 200, 1000, prompt=50)
    again.restore(learned.to_dict())
    assert expected(again) == expected(learned) == 100
    assert expected(again, prompt=50) == expected(learned, prompt=50) == 1000


@pytest.mark.parametrize(
    "spoil",
    [
        lambda state: state["lengths"].update(answers=[]),
        lambda state: state["lengths"]["answers"].update({ROUTE: {"1": {"shares": ["x"], "evidence": 1}}}),
        lambda state: state.update(lengths=5),
    ],
)
def test_a_state_that_was_not_saved_by_it_is_refused(spoil: Callable[[dict[str, object]], None]) -> None:
    learned = made()
    use(learned, 3, 100)
    state = learned.to_dict()
    spoil(state)
    with pytest.raises(ValueError, match=r".+"):
        made().restore(state)
