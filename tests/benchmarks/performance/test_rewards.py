"""The rewards' benchmark: its arithmetic on made figures, and small real runs of both halves."""

from pathlib import Path
from random import Random

import pytest

from benchmarks.performance import rewards
from benchmarks.performance.rewards import (
    RECIPE,
    Cost,
    cost,
    cost_figures,
    stream_figures,
    while_full,
)
from benchmarks.performance.slow_source import SECONDS, TURN_S, coroutine, function, slow_at
from benchmarks.performance.slow_stream import (
    KINDS,
    LOAD,
    SLOTS,
    STEP_S,
    Kind,
    Stream,
    Turn,
    config,
    longest_free,
    mean_length,
    most_open,
    most_per_s,
    stream,
)
from headrace.errors import RunFailedError
from headrace.protocol.records.record_types import RewardArrived
from rewards.preflight import check_sources


def test_answers_count_while_prompts_wait() -> None:
    begun = [0.0, 0.0, 1.0, 2.0]
    ended = [2.0, 1.0, 9.0, 3.0]
    assert while_full(begun, ended, 0) == [1.0, 2.0]
    assert while_full(begun, ended, 1) == [2.0]


def test_a_share_is_the_cost_of_an_answer_at_the_generators_rate() -> None:
    found = cost_figures(Cost(answers=101, wall_s=2.0, cpu_s=0.0808, most_waiting=3))
    assert found == {
        "math_core_share": 0.0404,
        "answers_per_s": 50.5,
        "cpu_s_per_answer": 0.0008,
        "answers": 101,
        "most_waiting": 3,
    }


@pytest.mark.slow
def test_a_real_worker_scores_what_the_generator_finished(tmp_path: Path) -> None:
    found = cost(RECIPE, ["generator.engine=fake"], 1024, tmp_path)
    assert 256 <= found.answers <= 1024 - 256
    assert 0.0 < found.cpu_s <= 4 * found.wall_s
    assert 1 <= found.most_waiting <= 1024


def test_an_answer_that_cannot_be_scored_ends_the_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = RewardArrived(at=1.0, trajectory_id=1, status="crashed", reward=None, error="no answer")
    monkeypatch.setattr(rewards, "train", lambda *asked, **how: {"folder": str(tmp_path)})
    monkeypatch.setattr(rewards, "read_journal", lambda path: [[(0, lost)]])
    with pytest.raises(RunFailedError, match="not scored: no answer"):
        cost(RECIPE, [], 4, tmp_path)


def test_a_slot_is_free_from_an_end_to_the_next_lease() -> None:
    # Two slots: both leased at 0, ends at 1 and 2, leases at 1.5 and 5.
    ended, leased = [1.0, 2.0], [0.0, 0.0, 1.5, 5.0]
    assert longest_free(ended, leased, 2, 0.0, 10.0) == 3.0
    assert longest_free(ended, leased, 2, 4.0, 10.0) == 1.0
    assert longest_free(ended, leased, 2, 0.0, 1.9) == 0.5
    assert longest_free(ended, leased, 2, 0.0, 4.0) == 2.0, "still free at the end"
    assert longest_free([], [0.0], 2, 0.0, 10.0) == 0.0, "a slot that nobody had yet"


def test_most_at_a_time_agrees_with_looking_at_every_time() -> None:
    rng = Random(0)
    for _ in range(50):
        began = [float(rng.randint(0, 20)) for _ in range(10)]
        ended = [at + rng.randint(1, 9) for at in began]
        start, end = 5.0, 15.0
        looks = [start + 0.5 * step for step in range(21)]
        seen = [sum(a <= at < b for a, b in zip(began, ended, strict=True)) for at in looks]
        assert most_open(began, ended, start, end) == max(seen)


def test_ratios_are_of_pairs() -> None:
    def pair(instant: float, slow: float, free: float) -> tuple[Turn, Turn]:
        return Turn(False, instant, 10.0, 0.01, 1), Turn(True, slow, 8.0, free, 30)

    found = stream_figures(
        {
            "coroutine": Stream([pair(100.0, 99.0, 0.02), pair(100.0, 100.0, 0.03)], 95.0),
            "function": Stream([pair(200.0, 100.0, 1.5)], 95.0),
        }
    )
    assert found["stream_ratio"] == 0.99
    assert (found["stream_ratio_min"], found["stream_ratio_max"]) == (0.5, 1.0)
    assert (found["longest_free_s"], found["longest_free_instant_s"]) == (1.5, 0.01)
    kinds = found["kinds"]
    assert kinds["coroutine"]["stream_ratio"] == 0.995
    assert kinds["function"]["longest_free_s"] == 1.5
    assert kinds["coroutine"]["most_unscored"] == 30


@pytest.mark.parametrize("kind", KINDS)
def test_the_generator_asks_for_less_than_the_slow_source_can_do(kind: Kind) -> None:
    answers_per_s = SLOTS / STEP_S / mean_length(kind)
    assert answers_per_s == pytest.approx(LOAD * most_per_s(kind))


async def test_turns_go_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [slow_at(n * TURN_S) for n in range(4)] == [False, True, False, True]
    waits: list[float] = []

    async def wait(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr("benchmarks.performance.slow_source.asyncio.sleep", wait)
    monkeypatch.setattr("benchmarks.performance.slow_source.time.sleep", waits.append)
    for now in (0.0, TURN_S):
        monkeypatch.setattr("benchmarks.performance.slow_source.time.time", lambda now=now: now)
        assert (await coroutine("an answer"), function("an answer")) == (1.0, 1.0)
    assert waits == [SECONDS, SECONDS]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
async def test_a_real_stream_has_turns_of_both_kinds(tmp_path: Path, kind: Kind) -> None:
    found = await stream(tmp_path / "run", kind, 1)
    ((instant, slow),) = found.pairs
    assert (instant.slow, slow.slow) == (False, True)
    assert min(instant.tokens_per_s, slow.tokens_per_s, found.trained_per_s) > 0
    # As many answers at least as end while one is being scored; what piles up in a turn in which
    # nothing waits is a matter of how busy the machine is.
    assert slow.most_unscored >= SECONDS * slow.answers_per_s


def test_the_sources_are_what_a_run_accepts() -> None:
    for kind in KINDS:
        check_sources(config(kind, 1).reward, lambda: {"terms"})
