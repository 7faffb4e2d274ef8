"""Groups, and lines of answers, that one child scores many at a time."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.config.sections.reward import RewardConfig
from headrace.errors import UserError
from headrace.protocol.messages.control import ScoreItem
from rewards.build import build_verifier
from rewards.functions import coroutines
from rewards.functions.results import Verdict
from rewards.worker.pool import ScoringPool
from tests.rewards.functions.test_group_functions import group
from tests.rewards.functions.test_line_functions import asked
from tests.rewards.items import user_function
from tests.rewards.worker.test_pool import DEADLINE_S, running, score_all

TOGETHER = 6
WAITS = f"""
import asyncio
together = asyncio.Barrier({TOGETHER})

async def groups(prompt, completions, answer):
    await together.wait()
    return [None if not text else 2.0 * (text == answer) for text in completions]

async def lines(completion, answer, lines):
    await together.wait()
    return [None if line.startswith("#") else float(answer in line) for line in lines]

async def few(prompt, completions):
    return [1.0]

def plain_groups(prompt, completions):
    return [1.0 for _ in completions]

def plain_lines(completion, lines):
    return [1.0 for _ in lines]
"""


@pytest.fixture
def module(tmp_path: Path) -> Path:
    path = tmp_path / "waits.py"
    path.write_text(WAITS)
    return path


def config(module: Path, name: str, unit: str, **settings: Any) -> RewardConfig:
    keys = {"unit": unit, "concurrency": TOGETHER, "timeout_s": DEADLINE_S, **settings}
    return user_function(function=f"{module}:{name}", **keys)


def numbered(made: ScoreItem) -> list[ScoreItem]:
    return [msgspec.structs.replace(made, trajectory_id=i) for i in range(2 * TOGETHER)]


async def test_groups_wait_at_a_time(module: Path) -> None:
    """A call goes on only when all are there: group after group none would."""
    questions = numbered(group("7", "8", "", "7..."))
    async with running(config(module, "groups", "group", score_range=[0.0, 4.0])) as pool:
        scores = await score_all(pool, questions)
        assert (pool.restarts, pool.held) == (0, 0)
    for score in scores.values():
        assert score.status == "ok"
        assert [s.status for s in score.siblings] == ["ok", "ok", "invalid", "ok"]
        # Right is what the function pays from the threshold on, before its score is put on a scale.
        assert [(s.reward, s.correct) for s in score.siblings] == [
            (0.5, True), (0.0, False), (0.0, False), (0.0, False)
        ]  # fmt: skip
        assert [s.parts for s in score.siblings] == [{"score": 2.0}, {"score": 0.0}, {}, {}]


async def test_lines_of_many_answers_wait_at_a_time(module: Path) -> None:
    async with running(config(module, "lines", "line")) as pool:
        scores = await score_all(pool, numbered(asked("7\n", "# 7\n", "8\n")))
        assert (pool.restarts, pool.held) == (0, 0)
    assert {score.status for score in scores.values()} == {"ok"}
    assert all(score.lines == [1.0, None, 0.0] for score in scores.values())


async def test_a_group_that_lacks_a_verdict_is_one_failure_of_its_own(module: Path) -> None:
    questions = [group("7"), msgspec.structs.replace(group("7", "8"), trajectory_id=1)]
    async with running(config(module, "few", "group")) as pool:
        scores = await score_all(pool, questions)
        assert pool.restarts == 0
    assert [scores[i].status for i in range(2)] == ["ok", "invalid"]
    assert "a list of 1 for 2 siblings" in str(scores[1].error)


@pytest.mark.parametrize(("name", "unit"), [("plain_groups", "group"), ("plain_lines", "line")])
async def test_functions_that_are_no_coroutines_score_one_by_one(
    module: Path, name: str, unit: str
) -> None:
    with pytest.raises(UserError, match="concurrency = 6: a function that is no coroutine"):
        await ScoringPool(config(module, name, unit)).run()
    alone = config(module, name, unit, concurrency=None)
    assert build_verifier(alone.each()["default"]).concurrency == 0


def test_one_by_one_and_side_by_side_say_the_same(module: Path) -> None:
    """The coroutine of a verifier and its plain judge are one thing in two ways."""
    source = config(module, "few", "group", wrong_reward=-1.0).each()["default"]
    verifier = build_verifier(source)
    assert verifier.judge_later is not None
    cut = group("7...")
    assert verifier(cut) == coroutines.run(verifier.judge_later(cut))
    assert verifier(cut).siblings == (Verdict(-1.0, False, {}),)
