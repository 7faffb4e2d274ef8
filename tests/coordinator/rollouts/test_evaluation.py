"""One meaning of right: what a score calls correct is what accuracy and positive examples count."""

import asyncio
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from msgspec.structs import replace

from coordinator.rollouts.evaluation import can_wait
from headrace.config.sections.reward import RewardConfig
from headrace.config.sections.run import RunConfig
from headrace.protocol.messages import control as m
from headrace.protocol.records.record_types import (
    AnyRecord,
    ChunkArrived,
    EvaluationDone,
    GroupIssued,
    Incident,
    RewardArrived,
    VersionPublished,
)
from learner.batching.token_reads import is_right
from rewards.build import build_verifier
from tests.coordinator.peers import (
    CoordinatorProcess,
    ScriptedGenerator,
    ScriptedLearner,
    ScriptedReward,
)
from tests.coordinator.stage import GENERATOR, LEARNER, REWARD, Stage, staged
from tests.coordinator.test_loop import records_of, run_config
from tests.coordinator.world import World, make_config, policy_windows


def judge(prompt: str, completion: str, answer: str) -> float:
    """Never sure, and never quite dismissive."""
    del prompt, completion, answer
    return 0.9


class JudgeReward(ScriptedReward):
    """A real verifier around `judge`."""

    threshold = 0.5

    async def answer(self, message: m.Message) -> None:
        if isinstance(message, m.Welcome):
            config = RewardConfig.model_validate(
                {
                    "kind": "function",
                    "function": "tests.coordinator.rollouts.test_evaluation:judge",
                    "correct_threshold": self.threshold,
                }
            )
            self.verify = build_verifier(config)
        if isinstance(message, m.ScoreRequest):
            verdicts = [(item.trajectory_id, self.verify(item)) for item in message.items]
            scores = [
                m.Score(trajectory_id=i, status="ok", reward=v.reward, correct=v.correct)
                for i, v in verdicts
            ]
            await self.dealer.send(m.Scores(scores=scores))


@pytest.mark.parametrize(("threshold", "right"), [(0.5, True), (0.95, False)])
async def test_a_judge_that_scores_a_right_answer_with_nine_tenths(
    tmp_path: Path, threshold: float, right: bool
) -> None:
    """All answers get 0.9: all are right from 0.5 on and none from 0.95 on, in the evaluations, in
    the journal and as positive examples of the learner. A marker that no answer has is told once,
    after the first evaluation."""
    marker = None if right else "no letter of the alphabet"
    config = run_config(
        stop={"updates": 6}, evaluation={"num_prompts": 4}, reward={"answer_marker": marker}
    )
    coordinator = CoordinatorProcess(tmp_path / "run-1", config)
    address = coordinator.start()
    judges = JudgeReward(address, "reward-0")
    judges.threshold = threshold
    learner = ScriptedLearner(address, "learner-0")
    peers = [ScriptedGenerator(address, "generator-0", capacity=8), judges, learner]
    await asyncio.wait_for(asyncio.gather(*(peer.run() for peer in peers)), 90)
    assert coordinator.wait() == 0
    records = records_of(coordinator.run_dir)
    alerts = [r.text for r in records if isinstance(r, Incident) and r.kind == "reward_alert"]
    told = "default: no answer of 4 had the answer marker 'no letter of the alphabet', so none"
    assert [text[: len(told)] for text in alerts] == ([] if right else [told])
    accuracies = [r.accuracy for r in records if isinstance(r, EvaluationDone)]
    assert accuracies == [float(right)] * 2
    scored = {(r.reward, r.correct) for r in records if isinstance(r, RewardArrived)}
    assert scored == {(0.9, right)}
    parts = [s for s in learner.seen if isinstance(s, m.BatchPart)]
    ends = [w for part in parts for w in part.shard.windows if w.finished]
    assert ends
    assert {is_right(w) for w in ends} == {right}


class LateLearner(ScriptedLearner):
    """A learner whose versions follow their updates half a second later."""

    async def report(self, batch: m.Batch) -> None:
        """Say done, and which version is still to come."""
        if batch.publish_as == batch.version:
            return await super().report(batch)
        done = m.UpdateDone(
            batch_id=batch.batch_id, update=batch.update, lineage=batch.lineage,
            metrics={"actor/pg_loss": 0.5}, diagnostics=[], follows=batch.publish_as,
        )  # fmt: skip
        await self.dealer.send(done)
        await asyncio.sleep(0.5)
        await self.dealer.send(self.notice(batch.publish_as, batch.update))


async def test_an_evaluation_waits_for_the_version_that_follows_its_update(tmp_path: Path) -> None:
    """The first update is of the value model alone."""
    config = run_config(stop={"updates": 3}, evaluation={"num_prompts": 4})
    coordinator = CoordinatorProcess(tmp_path / "run-1", config)
    address = coordinator.start()
    peers = [
        ScriptedGenerator(address, "generator-0", capacity=8), ScriptedReward(address, "reward-0"),
        LateLearner(address, "learner-0"),
    ]  # fmt: skip
    await asyncio.wait_for(asyncio.gather(*(peer.run() for peer in peers)), 90)
    assert coordinator.wait() == 0
    records = records_of(coordinator.run_dir)
    of_update = {r.version: r.update for r in records if isinstance(r, VersionPublished)}
    evaluated = {r.update: of_update[r.version] for r in records if isinstance(r, EvaluationDone)}
    assert evaluated == {0: 0, 3: 3}


def every_two() -> RunConfig:
    """A configuration of a run that evaluates every second update, and does not end by itself."""
    return run_config(
        evaluation={"before": False, "after": False, "every_updates": 2, "num_prompts": 2},
        stop={"updates": 10**6},
    )


async def end_all(stage: Stage) -> None:
    """The generator loads what it was told of and ends what it has, and all of it is scored."""
    if (loaded := stage.loaded()) is not None:
        await stage.say(GENERATOR, loaded)
    for key in list(stage.hub.leases.given):
        await stage.say(GENERATOR, stage.chunk_of(stage.hub.account.trajectories[key], 2))
    while (scores := stage.scores()) is not None:
        await stage.say(REWARD, scores)


@pytest.mark.parametrize("phase", ["draining", "evaluating"])
async def test_an_evaluation_waits_for_the_weights_of_a_learner_that_came_back(
    tmp_path: Path, phase: str
) -> None:
    """It went back while the generators ended their work, or while they answered. Nobody is asked
    under the weights that are given up."""
    async with staged(every_two(), tmp_path / "run-1") as stage:
        phases = stage.coordinator.phases

        def asked() -> int:
            return sum(group.purpose == "eval" for group in stage.hub.account.groups.values())

        while phases.name != phase:
            await stage.work()
        before = asked()
        await stage.rejoin(2 if phase == "draining" else 1)
        await end_all(stage)
        await phases.advance()
        assert (phases.name, asked()) == (phase, before)
        notice = stage.notice()
        assert notice is not None
        await stage.say(LEARNER, notice)
        assert (phases.name, asked()) == (phase, before)
        loaded = stage.loaded()
        assert loaded is not None
        await stage.say(GENERATOR, loaded)
        assert (phases.name, asked()) == ("evaluating", before + 2)


async def test_an_evaluation_waits_for_weights_that_a_learner_died_with(tmp_path: Path) -> None:
    """Its update is committed, and the version that follows was being written."""
    async with staged(every_two(), tmp_path / "run-1") as stage:
        phases = stage.coordinator.phases
        while (done := stage.update()) is None or done.update < 2:
            if done is not None:
                await stage.say(LEARNER, done)
            await end_all(stage)
        follows = stage.training.orders.publish_as
        await stage.say(LEARNER, replace(done, notice=None, follows=follows))
        await stage.say(LEARNER, m.Goodbye())
        await end_all(stage)
        await phases.advance()
        assert (phases.name, stage.hub.state.committed) == ("draining", 2)
        await stage.rejoin()
        for name, step in ((LEARNER, stage.notice), (GENERATOR, stage.loaded)):
            assert phases.name == "draining"
            message = step()
            assert message is not None
            await stage.say(name, message)
        assert phases.name == "evaluating"


async def test_the_weights_of_an_update_are_evaluated_once(tmp_path: Path) -> None:
    """The learner goes back to an update that was evaluated before the last one; that one comes
    again, with other weights."""
    async with staged(every_two(), tmp_path / "run-1") as stage:
        evaluations = stage.hub.state.evaluations
        for number in (2, 3):
            for _ in range(500):
                if len(evaluations) == number:
                    break
                await stage.work()
                await end_all(stage)
            if number == 2:
                await stage.rejoin(2)
        assert [each.update for each in evaluations] == [2, 4, 4]


async def test_an_evaluation_without_training_tells_of_prompts_that_are_not_asked(
    tmp_path: Path,
) -> None:
    config = run_config(
        evaluation={"only": True, "after": False, "num_prompts": 4},
        task={"kind": "chain_sums", "max_prompt_length": 1, "max_response_length": 12},
    )
    coordinator = CoordinatorProcess(tmp_path / "run-1", config)
    address = coordinator.start()
    peers = [
        ScriptedGenerator(address, "generator-0", capacity=8), ScriptedReward(address, "reward-0"),
    ]  # fmt: skip
    await asyncio.wait_for(asyncio.gather(*(peer.run() for peer in peers)), 90)
    assert coordinator.wait() == 0
    records = records_of(coordinator.run_dir)
    assert [r.num_prompts for r in records if isinstance(r, EvaluationDone)] == [0]
    told = [r.text for r in records if isinstance(r, Incident) and r.kind == "prompt_too_long"]
    assert told == ["4 prompts over task.max_prompt_length were skipped so far"]


async def whole_run(
    tmp_path: Path, config: RunConfig, reward: type[ScriptedReward] = ScriptedReward
) -> list[AnyRecord]:
    """What a run with one peer of each role wrote down, from its start to its end."""
    coordinator = CoordinatorProcess(tmp_path / "run-1", config)
    address = coordinator.start()
    peers = [
        ScriptedGenerator(address, "generator-0", capacity=4),
        reward(address, "reward-0"),
        ScriptedLearner(address, "learner-0"),
    ]
    await asyncio.wait_for(asyncio.gather(*(peer.run() for peer in peers)), 90)
    assert coordinator.wait() == 0
    return records_of(coordinator.run_dir)


class HalfReward(ScriptedReward):
    """Cannot score odd trajectories; the others are right."""

    async def answer(self, message: m.Message) -> None:
        if isinstance(message, m.ScoreRequest):
            scores = [
                m.Score(trajectory_id=key, status="crashed" if key % 2 else "ok", correct=True)
                for key in (item.trajectory_id for item in message.items)
            ]
            await self.dealer.send(m.Scores(scores=scores))


async def test_an_answer_without_a_score_counts_as_wrong_and_as_failed(tmp_path: Path) -> None:
    config = run_config(stop={"updates": 1}, evaluation={"num_prompts": 4, "after": False})
    records = await whole_run(tmp_path, config, HalfReward)
    (done,) = (record for record in records if isinstance(record, EvaluationDone))
    assert (done.num_prompts, done.accuracy, done.failed) == (4, 0.5, 2)
    groups = [r for r in records if isinstance(r, GroupIssued) and r.purpose == "eval"]
    lengths = dict.fromkeys((key for group in groups for key in group.trajectory_ids), 0)
    for record in records:
        if isinstance(record, ChunkArrived) and record.trajectory_id in lengths:
            lengths[record.trajectory_id] += record.token_ids.size
    assert len(set(lengths.values())) > 1
    assert done.response_length == sum(lengths.values()) / 4
    assert (done.max_response_length, done.truncated) == (max(lengths.values()), 0.0)


async def test_the_longest_answers_of_the_last_evaluation_begin_the_next(tmp_path: Path) -> None:
    config = run_config(stop={"updates": 2}, evaluation={"num_prompts": 9})
    records = await whole_run(tmp_path, config)
    length: Counter[int] = Counter()
    for record in records:
        if isinstance(record, ChunkArrived):
            length[record.trajectory_id] += record.token_ids.size
    issued = [r for r in records if isinstance(r, GroupIssued) and r.purpose == "eval"]
    before, after = issued[:9], issued[9:]
    assert [group.position for group in before] == list(range(9))
    of_position = {group.position: length[group.trajectory_ids[0]] for group in before}
    assert len(set(of_position.values())) > 3
    by_length = sorted(range(9), key=lambda position: -of_position[position])
    assert [group.position for group in after] == by_length
    assert {g.position: g.seeds for g in before} == {g.position: g.seeds for g in after}


async def test_a_policy_that_has_not_moved_is_not_evaluated_again(tmp_path: Path) -> None:
    config = run_config(
        algorithm={"advantages": {"kind": "egae"}, "value": {"warmup_updates": 3}},
        evaluation={"num_prompts": 2, "every_updates": 1, "before": False},
        stop={"updates": 6},
    )
    records = await whole_run(tmp_path, config)
    done = [r for r in records if isinstance(r, EvaluationDone)]
    assert [(r.update, r.label) for r in done] == [
        (1, "during"), (4, "during"), (5, "during"), (6, "after"),
    ]  # fmt: skip


async def test_a_trained_policy_is_not_evaluated_as_the_starting_one(tmp_path: Path) -> None:
    """A run began without that evaluation, and a resume of it asks for one."""
    config = run_config(evaluation={"num_prompts": 4}, stop={"updates": 100})
    async with staged(config, tmp_path / "run-1") as stage:
        loaded = stage.loaded()
        assert loaded is not None
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(stage.hub.state), "committed", 50)
            await stage.say(GENERATOR, loaded)
            assert stage.coordinator.phases.phase == "training"


@pytest.mark.parametrize("step", [0.3, 2.0, 9.0])
@pytest.mark.parametrize("spacing", [0.05, 0.1, 0.4])
@pytest.mark.parametrize("begin", [0.0, 6.0])
def test_spaced_evaluations_are_as_dense_as_asked_and_no_denser(
    step: float, spacing: float, begin: float
) -> None:
    """Of evaluations that may be made every `step` seconds: the gap before each is at most that
    share of its time, or of where it begins to count, or a single step, and with the next step it
    would have been too long."""
    times = [0.0]
    for n in range(1, 200):
        if not can_wait(n * step, step, times[-1], spacing, begin=begin):
            times.append(n * step)
    assert len(times) > 3
    for last, at in pairwise(times):
        assert at - last <= max(spacing * max(at, begin), step) + 1e-9
        assert at + step - last > spacing * max(at, begin)


def test_only_the_window_that_ends_a_right_answer_says_so() -> None:
    world = World(make_config(schedule={"batch_windows": 2}))
    first, second = world.fill(2)
    world.chunk(first, 4)
    world.chunk(first, 2, "stop")
    world.reward(first, -1.0, correct=True)
    world.chunk(second, 3, "stop")
    world.reward(second, 0.4, correct=False)
    windows = []
    while (prepared := world.take()) is not None:
        windows += policy_windows(prepared)
        world.commit()
    assert {(w.trajectory_id, w.start): (w.finished, w.correct) for w in windows} == {
        (first.trajectory_id, 0): (False, False),
        (first.trajectory_id, 4): (True, True),
        (second.trajectory_id, 0): (True, False),
    }
