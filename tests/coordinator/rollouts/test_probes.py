"""Probes of an evaluation: which prefixes, what goes out, what comes back."""

import asyncio
from collections import Counter, deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.rollouts.evaluation import Evaluator
from coordinator.rollouts.probes import (
    CONTINUATIONS,
    SHARE,
    draw_prefixes,
    may_probe,
    pooled,
)
from coordinator.scheduling.base import EXPLAINED
from headrace.config.sections.run import RunConfig
from headrace.protocol.messages import control as m
from headrace.protocol.records.record_types import (
    ChunkArrived,
    EvaluationDone,
    GroupIssued,
)
from headrace.trajectory.account import Account
from headrace.trajectory.trajectories import Trajectory
from storage import queries
from storage.audit.run_audit import audit_run
from tests.coordinator.peers import (
    CoordinatorProcess,
    ScriptedGenerator,
    ScriptedLearner,
    ScriptedReward,
)
from tests.coordinator.test_loop import records_of, run_config

TOKEN = 5
"""What the scripted generator writes."""


def answer(key: int, length: int) -> Trajectory:
    found = Trajectory(key, key, "eval", np.arange(3, dtype=np.int32), 0)
    found.length = length
    return found


def evaluated(**found: Any) -> EvaluationDone:
    return EvaluationDone(
        label="during", update=1, version=1, num_prompts=1, accuracy=0.0, response_length=1.0,
        max_response_length=1, truncated=0.0, failed=0, seconds=1.0, train_time_s=1.0, **found,
    )  # fmt: skip


@given(lengths=st.lists(st.integers(0, 60), max_size=40), most=st.integers(0, 70), seed=st.text())
def test_prefixes_leave_room_and_are_the_same_again(
    lengths: list[int], most: int, seed: str
) -> None:
    answers = [answer(i, n) for i, n in enumerate(lengths)]
    found = draw_prefixes(answers, most, seed)
    assert found == draw_prefixes(answers, most, seed)
    assert len(found) <= most
    assert all(0 <= prefix < one.length for one, prefix in found)
    left = [n - prefix for n in lengths for prefix in range(n)]
    if left and len(found) < most:
        of_one = CONTINUATIONS * sum(left) / len(left)
        assert len(found) == int(SHARE * sum(lengths) / of_one)


def test_every_token_is_as_likely_to_end_a_prefix() -> None:
    """Of answers of 10 and 30 tokens, beside one without any, and many short ones that pay."""
    answers = [answer(0, 10), answer(1, 0), answer(2, 30), *(answer(i, 1) for i in range(3, 403))]
    drawn = Counter(
        (one.trajectory_id, prefix)
        for seed in range(4000)
        for one, prefix in draw_prefixes(answers, 64, str(seed))
        if one.trajectory_id < 3
    )
    expected = drawn.total() / 40
    assert len(drawn) == 40
    assert expected > 100
    assert sum((n - expected) ** 2 / expected for n in drawn.values()) < 80  # chi square of 39


@pytest.mark.parametrize(
    ("changes", "may"),
    [
        ({}, True),
        ({"evaluation": {"probes": 0}}, False),
        ({"evaluation": {"temperature": 0.0}}, False),
        ({"evaluation": {"top_p": 0.9}}, False),
        ({"algorithm": {"advantages": {"kind": "group"}, "value": None},
          "schedule": {"window": 12, "batch_windows": 8, "num_generations": 4}}, False),
    ],
)  # fmt: skip
def test_only_where_training_samples_alike_and_a_value_model_learns(
    changes: dict[str, Any], may: bool
) -> None:
    assert may_probe(run_config(**changes)) is may


def test_earlier_evaluations_are_taken_until_there_are_enough() -> None:
    def evaluation(*returns: float) -> EvaluationDone:
        return evaluated(continuations=[(0, [r, r]) for r in returns])

    new = [(7, [1.0, 0.0])]
    old, older = evaluation(*[2.0] * 63), evaluation(3.0)
    assert pooled(new, []) == new
    assert pooled(new, [older, old]) == [*new, *old.continuations]
    assert len(pooled(new, [older, evaluation(2.0)])) == 3


def evaluator(config: RunConfig, records: list[Any]) -> tuple[Evaluator, Account]:
    """An evaluator during training, whose hub writes into a list and an account."""
    account = Account(has_value=True, has_environment=False)

    def record_event(record: Any) -> None:
        records.append(record)
        account.apply(record)
        state.next_group, state.next_trajectory = len(account.groups), len(account.trajectories)

    state = SimpleNamespace(evaluations=[], next_group=0, next_trajectory=0, lineage=0, committed=0)
    troubles = SimpleNamespace(report=lambda kind, text: records.append((kind, text)))
    scheduler = SimpleNamespace(explained=[])
    hub: Any = SimpleNamespace(
        config=config, account=account, state=state, record_event=record_event,
        troubles=troubles, scheduler=scheduler,
    )  # fmt: skip
    found = Evaluator(hub, cast(Any, None), cast(Any, None), lambda group: "default")
    found.start("during")
    return found, account


def test_a_restart_goes_on_with_the_same_probes() -> None:
    """Another coordinator that knows the answers and some of the probes issues the others."""
    records: list[Any] = []
    first, account = evaluator(run_config(), records)
    prompt = np.array([1, 2], np.int32)
    for key in range(40):
        first._hub.record_event(
            GroupIssued(
                group_id=key, prompt_id=f"p{key}", position=key, purpose="eval", prompt="?",
                answer="", info="{}", prompt_ids=prompt, trajectory_ids=[key], seeds=[key],
            )
        )  # fmt: skip
        trajectory = account.trajectories[key]
        trajectory._tokens = [np.full(12, TOKEN, np.int32)]
        trajectory.length, trajectory.status = 12, "finished"
    first._asked = [(key, [key]) for key in range(40)]
    known = list(records)
    answers = list(account.trajectories.values())
    whole = first._probe(answers)
    issued = records[len(known) :]
    assert len(issued) == len(whole) > 3
    assert first._probe(answers) == whole
    assert len(records) == len(known) + len(issued)

    again: list[Any] = []
    second, account = evaluator(run_config(), again)
    for record in [*known, *issued[:3]]:
        second._hub.record_event(record)
    second._asked = first._asked
    for old in answers:
        new = account.trajectories[old.trajectory_id]
        new._tokens, new.length, new.status = old._tokens, old.length, old.status
    assert second._probe([account.trajectories[key] for key in range(40)]) == whole

    def said(of: list[Any]) -> list[Any]:
        places = [(r.group_id, r.prefix, r.position, r.trajectory_ids, r.seeds) for r in of]
        return [*places, *(r.prompt_ids.tolist() for r in of)]

    assert said(again[len(known) + 3 :]) == said(issued[3:])
    assert len({seed for r in issued for seed in r.seeds}) == CONTINUATIONS * len(issued)


@pytest.mark.parametrize(("explained", "tells"), [(0.1, 1), (0.25, 0)])
def test_an_alert_where_the_critic_explains_less_than_half(explained: float, tells: int) -> None:
    """Of the interval's lower end; told once, and again after it was better."""
    told: list[Any] = []
    judge, _ = evaluator(run_config(), told)
    done = evaluated(prefixes=64, attainable=0.6, attainable_low=0.4, attainable_high=0.7)
    judge._compare(done)
    assert not told  # no update yet
    for values, number in [([explained], tells), ([explained], tells), ([0.5], tells)]:
        judge._hub.scheduler.explained = deque(values * EXPLAINED)
        judge._compare(done)
        assert len(told) == number
    judge._hub.scheduler.explained = deque([0.0] * EXPLAINED)
    judge._compare(msgspec.structs.replace(done, attainable_low=None))
    assert len(told) == tells
    judge._compare(done)
    assert len(told) == tells + 1
    kind, text = told[-1]
    assert kind == "critic_alert"
    assert text.startswith("the critic explains 0.00 of the returns' variance in its last 10")


def test_no_alert_where_the_critic_knows_mixed_groups_alone() -> None:
    """Of prompts that are always right or always wrong all can be explained, and it has none."""
    told: list[Any] = []
    mixed = {"advantages": {"kind": "egae"}, "value": {}, "admit": "mixed_groups"}
    judge, _ = evaluator(run_config(algorithm=mixed), told)
    judge._hub.scheduler.explained = deque([0.0] * EXPLAINED)
    judge._compare(evaluated(prefixes=64, attainable=1.0, attainable_low=0.9, attainable_high=1.0))
    assert not told


class Listener(ScriptedReward):
    """What prefixes got: a probe's answer is scored with its prefix."""

    def __init__(self, address: str, name: str) -> None:
        super().__init__(address, name)
        self.items: dict[int, m.ScoreItem] = {}

    async def answer(self, message: m.Message) -> None:
        if isinstance(message, m.ScoreRequest):
            self.items |= {item.trajectory_id: item for item in message.items}
        await super().answer(message)


async def test_evaluations_go_on_from_prefixes_of_their_answers(tmp_path: Path) -> None:
    """They count towards length and reward, and neither towards accuracy nor as training tokens;
    SQL has their outcome, and pages and exports have none of them."""
    config = run_config(
        stop={"updates": 4}, evaluation={"num_prompts": 64, "every_updates": 2},
        reward={"token_ids": True},
    )  # fmt: skip
    coordinator = CoordinatorProcess(tmp_path / "run-1", config)
    address = coordinator.start()
    rewards = Listener(address, "reward-0")
    generator = ScriptedGenerator(address, "generator-0", capacity=8)
    peers = [generator, rewards, ScriptedLearner(address, "learner-0")]
    await asyncio.wait_for(asyncio.gather(*(peer.run() for peer in peers)), 90)
    assert coordinator.wait() == 0
    records = records_of(coordinator.run_dir)
    sampled: Counter[int] = Counter()
    for record in records:
        if isinstance(record, ChunkArrived):
            sampled[record.trajectory_id] += record.token_ids.size
    groups = [r for r in records if isinstance(r, GroupIssued)]
    prompts = {r.prompt_id: r for r in groups if r.purpose == "eval"}
    probes = [r for r in groups if r.purpose == "probe"]
    done = [r for r in records if isinstance(r, EvaluationDone)]
    assert [bool(r.continuations) for r in done] == [False, *[True] * (len(done) - 1)]
    assert len(done) > 2
    assert sum(len(r.continuations) for r in done) == len(probes)
    assert all(r.accuracy == done[0].accuracy for r in done if r.num_prompts == 64)
    assert any(group.prefix for group in probes)
    sent = [x for x in generator.seen if isinstance(x, m.Leases)]
    leases = {lease.trajectory_id: lease for x in sent for lease in x.leases}
    for group in probes:
        opening = prompts[group.prompt_id].prompt_ids
        assert group.prompt_ids.tolist() == [*opening, *[TOKEN] * group.prefix]
        assert len(set(group.seeds)) == CONTINUATIONS
        for key in group.trajectory_ids:
            assert leases[key].purpose == "probe"
            assert group.prefix + sampled[key] <= leases[key].max_total + group.prefix <= 12
            item = rewards.items[key]
            assert item.num_tokens == group.prefix + sampled[key]
            assert item.prompt_ids is not None
            assert item.prompt_ids.tolist() == opening.tolist()
    rows = queries.evaluations(coordinator.run_dir)
    assert rows["prefixes"].tolist() == [r.prefixes for r in done]
    assert rows["prefixes"].iloc[-1] == sum(len(r.continuations) for r in done)
    report = audit_run(coordinator.run_dir)
    assert report.balanced
    # A scripted learner writes neither.
    assert {finding.kind for finding in report.findings} <= {"checkpoint", "diagnostics"}
    queries.export(coordinator.run_dir, "trajectories", "parquet", tmp_path / "t.parquet")
    exported = pq.read_table(tmp_path / "t.parquet", columns=["purpose"])
    assert set(exported["purpose"].to_pylist()) == {"train", "eval"}
