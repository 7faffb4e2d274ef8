"""Children that score many responses at a time, with coroutines that misbehave."""

import asyncio
from pathlib import Path

import pytest

from headrace.config.sections.reward import RewardConfig
from headrace.errors import RunFailedError, UserError
from rewards.worker.pool import ScoringPool
from tests.rewards.items import item, user_function
from tests.rewards.worker.test_pool import (
    DEADLINE_S,
    running,
    score_all,
    statuses_after_an_idle_death,
)

WAITS = """
import asyncio, os, time
together = asyncio.Barrier(32)

async def score(completion, answer):
    match completion:
        case "hang":
            await asyncio.sleep(3600)
        case "deaf":
            while True:
                try:
                    await asyncio.sleep(3600)
                except asyncio.CancelledError:
                    pass
        case "block":
            time.sleep(3600)
        case "exit":
            await asyncio.sleep(0.05)
            os._exit(7)
        case "cancel":
            raise asyncio.CancelledError
        case "raise":
            raise RuntimeError("no such luck")
        case "nan":
            return float("nan")
        case "together":
            await together.wait()
            return 1.0
    return float(completion == answer)
"""


@pytest.fixture
def waits(tmp_path: Path) -> str:
    module = tmp_path / "waits.py"
    module.write_text(WAITS)
    return f"{module}:score"


def config(function: str, **settings: object) -> RewardConfig:
    return user_function(function=function, **{"concurrency": 32, **settings})


async def statuses(settings: RewardConfig, *texts: str) -> tuple[list[str], int]:
    """Statuses in the order of the texts, and how many children were replaced."""
    async with running(settings) as pool:
        scores = await score_all(pool, [item(t, trajectory_id=i) for i, t in enumerate(texts)])
        assert pool.held == 0
        return [scores[i].status for i in range(len(texts))], pool.restarts


async def test_32_wait_at_a_time_in_one_child(waits: str) -> None:
    """Each of them goes on only when all 32 are there: one after the other none would."""
    found, restarts = await statuses(config(waits, timeout_s=DEADLINE_S), *["together"] * 64)
    assert (set(found), restarts) == ({"ok"}, 0)


async def test_no_more_than_that_wait_at_a_time(waits: str) -> None:
    found, _ = await statuses(config(waits, concurrency=31), *["together"] * 31)
    assert set(found) == {"timeout"}


async def test_one_that_hangs_holds_no_other_up(waits: str) -> None:
    async with running(config(waits, concurrency=2, timeout_s=DEADLINE_S)) as pool:
        await pool.submit([item("hang", trajectory_id=99)])
        others = [item("7", trajectory_id=i) for i in range(40)]
        scores = await score_all(pool, others)
        assert {score.status for score in scores.values()} == {"ok"}
        assert pool.held == 1


async def test_one_that_hangs_is_a_timeout_of_its_own(waits: str) -> None:
    found, restarts = await statuses(config(waits), "7", "hang", "8", "hang", "7")
    assert found == ["ok", "timeout", "ok", "timeout", "ok"]
    assert restarts == 0


async def test_exceptions_cost_only_their_own(waits: str) -> None:
    found, restarts = await statuses(config(waits), "raise", "7", "nan", "cancel", "7")
    assert found == ["crashed", "ok", "invalid", "crashed", "ok"]
    assert restarts == 0


@pytest.mark.parametrize("stuck", ["block", "deaf"])
async def test_a_child_that_is_stuck_is_replaced(waits: str, stuck: str) -> None:
    found, restarts = await statuses(config(waits, concurrency=1), "7", stuck, "7")
    assert found == ["ok", "timeout", "ok"]
    assert restarts == 1


async def test_a_child_that_dies_costs_what_it_was_scoring(waits: str) -> None:
    """And is one failure for those who count, however much it was scoring."""
    settings = config(waits, concurrency=4, max_consecutive_failures=3, timeout_s=DEADLINE_S)
    texts = ["hang", "hang", "exit", "hang", "7", "7"]
    found, restarts = await statuses(settings, *texts)
    assert found == ["crashed"] * 4 + ["ok"] * 2
    assert restarts == 1


async def test_a_child_killed_while_it_has_nothing_to_do_costs_nothing(waits: str) -> None:
    assert await statuses_after_an_idle_death(config(waits)) == {"ok"}


async def test_failures_in_a_row_end_the_worker(waits: str) -> None:
    pool = ScoringPool(config(waits, max_consecutive_failures=3))
    await pool.submit([item("nan", trajectory_id=i) for i in range(5)])
    with pytest.raises(RunFailedError, match="3 scorings in a row failed; the last: invalid"):
        async with asyncio.timeout(DEADLINE_S):
            await pool.run()


async def test_a_plain_function_does_not_wait() -> None:
    with pytest.raises(UserError, match="a function that is no coroutine scores one response"):
        await ScoringPool(user_function(concurrency=2)).run()
