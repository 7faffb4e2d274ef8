"""The pool with real children and reward functions that misbehave."""

import asyncio
import contextlib
import json
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import msgspec
import psutil
import pytest

from headrace.config.sections.reward import RewardConfig, SourceConfig
from headrace.errors import RunFailedError, UserError
from headrace.protocol.messages.control import Score, ScoreItem
from rewards.worker.child_process import ScoringChild
from rewards.worker.pool import ScoringPool
from tests.rewards.environments import make_environment
from tests.rewards.items import BEHAVE, foreign_function, item, user_function

DEADLINE_S = 60.0


@contextlib.asynccontextmanager
async def running(config: RewardConfig) -> AsyncIterator[ScoringPool]:
    pool = ScoringPool(config)
    children = asyncio.create_task(pool.run())
    try:
        yield pool
    finally:
        children.cancel()
        await asyncio.gather(children, return_exceptions=True)


async def score_all(pool: ScoringPool, items: Sequence[ScoreItem]) -> dict[int, Score]:
    await pool.submit(items)
    scores: dict[int, Score] = {}
    async with asyncio.timeout(DEADLINE_S):
        for _ in items:
            score = await pool.scores.get()
            assert score.trajectory_id not in scores
            scores[score.trajectory_id] = score
    return scores


async def score_texts(config: RewardConfig, *texts: str) -> list[Score]:
    async with running(config) as pool:
        items = [item(text, trajectory_id=i) for i, text in enumerate(texts)]
        scores = await score_all(pool, items)
        assert pool.held == 0
        return [scores[i] for i in range(len(texts))]


@pytest.mark.parametrize("children", [1, 2])
async def test_one_that_hangs_costs_only_itself(children: int) -> None:
    scores = await score_texts(user_function(children=children), "7", "hang", "7", "8")
    assert [score.status for score in scores] == ["ok", "timeout", "ok", "ok"]
    assert [score.reward for score in scores] == [1.0, 0.0, 1.0, 0.0]
    assert [score.correct for score in scores] == [True, False, True, False]
    assert scores[1].seconds >= 1.0
    assert "no result within 1 s" in str(scores[1].error)


async def test_a_busy_loop_is_stopped_too() -> None:
    assert [s.status for s in await score_texts(user_function(), "spin", "7")] == ["timeout", "ok"]


async def test_a_crash_costs_only_itself() -> None:
    async with running(user_function()) as pool:
        texts = ("7", "exit", "exit", "7")
        scores = await score_all(
            pool, [item(text, trajectory_id=i) for i, text in enumerate(texts)]
        )
        assert (pool.restarts, pool.held) == (2, 0)
    assert [scores[i].status for i in range(4)] == ["ok", "crashed", "crashed", "ok"]
    assert "exit code 7" in str(scores[1].error)


async def test_an_exception_is_told_and_the_child_goes_on() -> None:
    async with running(user_function()) as pool:
        texts = ("raise", "quit", "memory", "7")
        scores = await score_all(
            pool, [item(text, trajectory_id=i) for i, text in enumerate(texts)]
        )
        assert pool.restarts == 0
    assert [scores[i].status for i in range(4)] == ["crashed", "crashed", "crashed", "ok"]
    assert scores[0].error == "RuntimeError: no such luck (misbehaviour.py, line 26)"
    assert scores[1].error == "SystemExit: enough (misbehaviour.py, line 24)"
    assert "MemoryError" in str(scores[2].error)


async def test_half_a_character_in_what_a_function_says_ends_no_child() -> None:
    """A column may hold one, and the function name its part or error by that."""
    async with running(user_function()) as pool:
        texts = ("half", "named", "7")
        items = [item(text, trajectory_id=i) for i, text in enumerate(texts)]
        scores = await score_all(pool, items)
        assert pool.restarts == 0
    assert [scores[i].status for i in range(3)] == ["crashed", "ok", "ok"]
    assert str(scores[0].error).startswith("RuntimeError: no ? (misbehaviour.py, line ")
    assert scores[1].parts == {"of ?": 1.0}


async def test_what_is_no_number_is_invalid_and_never_zero_in_silence() -> None:
    texts = ("nan", "inf", "text", "none", "many", "huge", "7")
    scores = await score_texts(user_function(), *texts)
    assert [score.status for score in scores] == ["invalid"] * 5 + ["ok"] * 2
    assert all(score.error for score in scores[:5])
    assert all(len(str(score.error)) < 3000 for score in scores)


async def test_prints_do_not_disturb_the_pipe(capfd: pytest.CaptureFixture[str]) -> None:
    scores = await score_texts(user_function(), "print", "print", "7")
    assert [score.status for score in scores] == ["ok"] * 3
    assert scores[0].reward == 1.0
    out, err = capfd.readouterr()
    assert out == ""
    assert err.count("y") >= 2 << 20


async def test_parts_and_times_are_recorded() -> None:
    (score,) = await score_texts(user_function(), "parts")
    assert score.correct
    assert (score.reward, score.parts) == (0.5, {"format": 1.0, "length": 5.0})
    assert 0.0 < score.seconds < DEADLINE_S


async def test_what_a_hung_child_started_dies_with_it(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    async with running(user_function(timeout_s=3.0)) as pool:
        scores = await score_all(pool, [item("spawn", info=json.dumps({"note": str(note)}))])
        assert scores[0].status == "timeout"
        await gone(int(note.read_text()))


async def test_children_end_with_the_pool(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    async with running(user_function(timeout_s=DEADLINE_S)) as pool:
        await pool.submit([item("pid", info=json.dumps({"note": str(note)})), item("7")])
        async with asyncio.timeout(DEADLINE_S):
            while not (note.exists() and note.read_text()):
                await asyncio.sleep(0.01)
    await gone(int(note.read_text()))
    assert pool.held == 2


async def gone(pid: int) -> None:
    """Wait until a process is dead (a zombie is)."""
    async with asyncio.timeout(DEADLINE_S):
        while psutil.pid_exists(pid):
            with contextlib.suppress(psutil.NoSuchProcess):
                if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                    return
            await asyncio.sleep(0.01)


async def test_too_many_failures_in_a_row_end_the_worker() -> None:
    config = user_function(max_consecutive_failures=3)
    pool = ScoringPool(config)
    await pool.submit([item(text) for text in ("nan", "7", "nan", "raise", "text", "7")])
    with pytest.raises(RunFailedError, match="3 scorings in a row failed; the last: invalid"):
        async with asyncio.timeout(DEADLINE_S):
            await pool.run()
    found = Counter(pool.scores.get_nowait().status for _ in range(pool.scores.qsize()))
    assert found == {"ok": 1, "crashed": 1, "invalid": 3}


async def test_a_verifier_that_cannot_be_built_is_told() -> None:
    with pytest.raises(UserError, match="has no function 'nothing'"):
        await ScoringPool(user_function(function="tests.rewards.misbehaviour:nothing")).run()


async def test_a_module_that_fails_to_load_is_told(tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("import os\nraise RuntimeError('at import')\n")
    with pytest.raises(RunFailedError, match=r"RuntimeError: at import \(broken.py, line 2\)"):
        await ScoringPool(user_function(function=f"{broken}:score")).run()
    broken.write_text("import os\nos._exit(9)\n")
    with pytest.raises(RunFailedError, match=r"did not start \(exit code 9"):
        await ScoringPool(user_function(function=f"{broken}:score")).run()


async def test_a_child_that_is_killed_while_it_starts_is_replaced(tmp_path: Path) -> None:
    """By somebody, or for memory; one that always is ends the worker."""
    mine = tmp_path / "mine.py"
    mine.write_text(
        "import os, pathlib, signal\n"
        "before = pathlib.Path(__file__).with_name('before')\n"
        "if not before.exists():\n"
        "    before.touch()\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "def score(completion):\n"
        "    return 1.0\n"
    )
    async with running(user_function(function=f"{mine}:score", children=1)) as pool:
        scores = await score_all(pool, [item("7")])
        assert {score.status for score in scores.values()} == {"ok"}
    mine.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    with pytest.raises(RunFailedError, match=r"5 scoring children in a row died .*exit code -9"):
        await ScoringPool(user_function(function=f"{mine}:score", children=1)).run()


async def test_a_source_that_hangs_holds_no_other_up() -> None:
    """Ten seconds of hanging in the one; the other's scores come before its first deadline."""
    slow = {"kind": "function", "function": BEHAVE, "timeout_s": DEADLINE_S}
    fast = {"kind": "exact"}
    config = RewardConfig.model_validate({"sources": {"slow": slow, "fast": fast}, "batch": 4})
    async with running(config) as pool:
        hanging = [item("hang", trajectory_id=i, source="slow") for i in range(20)]
        await pool.submit(hanging)
        others = [item("7", trajectory_id=100 + i, source="fast") for i in range(50)]
        scores = await score_all(pool, others)
        assert {score.status for score in scores.values()} == {"ok"}
        assert pool.held == 20


async def test_a_source_that_keeps_failing_ends_the_worker_whatever_others_do() -> None:
    bad = {"kind": "function", "function": BEHAVE}
    config = RewardConfig.model_validate(
        {"sources": {"bad": bad, "good": {"kind": "exact"}}, "max_consecutive_failures": 3}
    )
    pool = ScoringPool(config)
    for number in range(3):
        await pool.submit([item("nan", trajectory_id=2 * number, source="bad")])
        await pool.submit([item("7", trajectory_id=2 * number + 1, source="good")])
    with pytest.raises(RunFailedError, match="3 scorings in a row failed"):
        async with asyncio.timeout(DEADLINE_S):
            await pool.run()
    with pytest.raises(RunFailedError, match="no reward source 'other'"):
        await pool.submit([item("7", source="other")])


async def test_token_ids_and_chats_reach_the_function() -> None:
    config = foreign_function("areal_gsm8k")
    async with running(config) as pool:
        items = [item("is 7", ids=True, trajectory_id=0), item("7", trajectory_id=1)]
        scores = await score_all(pool, items)
    assert [scores[i].status for i in (0, 1)] == ["ok", "invalid"]
    async with running(foreign_function("trl_format")) as pool:
        scores = await score_all(pool, [item("7", chat=True)])
    assert (scores[0].status, scores[0].reward) == ("ok", 0.0)


async def test_a_coroutine_has_the_deadline_of_all(tmp_path: Path) -> None:
    slow = tmp_path / "slow.py"
    slow.write_text(
        "import asyncio\nasync def score(completion):\n"
        "    await asyncio.sleep(3600 if completion == 'hang' else 0)\n    return 1.0\n"
    )
    scores = await score_texts(user_function(function=f"{slow}:score"), "7", "hang", "7")
    assert [score.status for score in scores] == ["ok", "timeout", "ok"]


async def test_another_python_scores_with_its_own_packages(tmp_path: Path) -> None:
    """Its packages are other versions of ours, and ours are not seen."""
    python = make_environment(tmp_path / "env", sympy="VERSION = 'older than ours'\n")
    scorer = tmp_path / "scorer.py"
    scorer.write_text(
        "import sympy\n"
        "def version(completion):\n    return float(sympy.VERSION == 'older than ours')\n"
        "def ours(completion):\n    import psutil\n    return 1.0\n"
    )
    named = {"function": f"{scorer}:version", "python": python}
    (score,) = await score_texts(user_function(**named), "7")
    assert score.reward == 1.0
    (score,) = await score_texts(user_function(**named | {"function": f"{scorer}:ours"}), "7")
    assert (score.status, score.error) == (
        "crashed", "ModuleNotFoundError: No module named 'psutil' (scorer.py, line 5)",
    )  # fmt: skip


async def test_another_python_without_what_children_need_is_told(tmp_path: Path) -> None:
    python = make_environment(tmp_path / "env", needed=())
    with pytest.raises(RunFailedError, match="needs numpy, msgspec and pydantic"):
        await ScoringPool(user_function(python=python)).run()
    with pytest.raises(RunFailedError, match="needs numpy, msgspec and pydantic"):
        await ScoringPool(user_function(python="/bin/false")).run()


async def statuses_after_an_idle_death(source: RewardConfig) -> set[str]:
    """What becomes of answers after a child was killed that had nothing to do."""
    here = psutil.Process(os.getpid())
    others = set(here.children())
    async with running(source) as pool:
        await score_all(pool, [item("7")])
        (child,) = set(here.children()) - others
        child.kill()
        await gone(child.pid)
        scores = await score_all(pool, [item("7", trajectory_id=i) for i in range(3)])
    return {score.status for score in scores.values()}


async def test_a_child_killed_between_batches_costs_nothing() -> None:
    assert await statuses_after_an_idle_death(user_function()) == {"ok"}


async def test_audits_that_fail_end_no_worker() -> None:
    """Neither many failures in a row, nor a source that cannot be built; what has a reward to give
    goes on."""
    bad = {"kind": "function", "function": BEHAVE}
    unbuilt = {"kind": "function", "function": "tests.rewards.misbehaviour:nothing"}
    for audit, status in ((bad, "invalid"), (unbuilt, "crashed")):
        config = RewardConfig.model_validate(
            {
                "sources": {"audit": audit, "good": {"kind": "exact"}},
                "route": {"default": "good"},
                "audit": {"source": "audit"},
                "max_consecutive_failures": 2,
            }
        )
        async with running(config) as pool:
            items = [item("nan", trajectory_id=i, source="audit") for i in range(5)]
            audits = [msgspec.structs.replace(each, audit=True) for each in items]
            scores = await score_all(pool, audits)
            assert {(s.status, s.audit) for s in scores.values()} == {(status, True)}
            scores = await score_all(pool, [item("7", source="good")])
            assert [(s.status, s.audit) for s in scores.values()] == [("ok", False)]


async def test_a_kill_that_is_cancelled_leaves_nothing_open() -> None:
    """As when a run ends while a child that missed its deadline is being replaced."""
    child = await ScoringChild.start(SourceConfig(kind="exact"))
    killing = asyncio.create_task(child.kill())
    await asyncio.sleep(0)
    killing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await killing
    assert child._process.returncode == -signal.SIGKILL


async def test_nobody_waits_for_an_audit_at_the_end() -> None:
    slow = {"kind": "function", "function": BEHAVE, "timeout_s": DEADLINE_S}
    config = RewardConfig.model_validate(
        {
            "sources": {"audit": slow, "good": {"kind": "exact"}},
            "route": {"default": "good"},
            "audit": {"source": "audit"},
        }
    )
    async with running(config) as pool:
        hanging = msgspec.structs.replace(item("hang", source="audit"), audit=True)
        await pool.submit([hanging, item("7", source="good", trajectory_id=1)])
        assert (await pool.scores.get()).trajectory_id == 1
        pool.scores.task_done()
        async with asyncio.timeout(DEADLINE_S / 2):
            await pool.finish()
        assert pool.held == 1
