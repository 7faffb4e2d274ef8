"""The self-test before training: weights, an answer and a reward, each in its time, or the run ends
with the first cause."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from coordinator.startup_check import FIRST_ID
from headrace.config.sections.run import RunConfig
from headrace.protocol.messages import control as m
from headrace.protocol.records.record_types import (
    ChunkArrived,
    GroupIssued,
    Incident,
    LeaseIssued,
    RewardArrived,
    UpdateCommitted,
)
from storage.audit import audit_run
from storage.journal.store import read_journal
from tests.coordinator.peers import (
    CoordinatorProcess,
    ScriptedGenerator,
    ScriptedLearner,
    ScriptedPeer,
    ScriptedReward,
    until,
)
from tests.coordinator.test_loop import assert_balanced, records_of, run_config

LIMIT_S = 6.0
"""Long enough for scripted peers on a machine that has other work."""


def self_testing(self_test_s: float = 20.0, **sections: object) -> RunConfig:
    """A configuration with a self-test and no evaluation before training."""
    return run_config(
        transport={"heartbeat_s": 0.2, "stall_timeout_s": 30.0, "self_test_s": self_test_s},
        **{"evaluation": {"before": False, "after": False}, "stop": {"updates": 3}} | sections,  # type: ignore[arg-type]
    )


async def played(run_dir: Path, config: RunConfig, *peers: type[ScriptedPeer]) -> tuple[int, str]:
    """A run with these peers; its exit code and the last line of the coordinator."""
    coordinator = CoordinatorProcess(run_dir, config)
    return await ended(coordinator, coordinator.start(), *peers)


async def ended(
    coordinator: CoordinatorProcess, address: str, *peers: type[ScriptedPeer]
) -> tuple[int, str]:
    """The same, of a coordinator that has started."""
    names = {"generator": "generator-0", "reward": "reward-0", "learner": "learner-0"}
    tasks = [
        asyncio.create_task(peer(address, names[peer.role], capacity=8).run()) for peer in peers
    ]
    try:
        code = await asyncio.to_thread(coordinator.wait)
    finally:
        coordinator.end()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    log = (coordinator.run_dir / "coordinator.log").read_text()
    return code, log.rstrip().splitlines()[-1]


def failed_tests(run_dir: Path) -> list[str]:
    """What the journal says of failed self-tests, also while the run goes on."""
    found = read_journal(run_dir / "journal", only=[Incident])
    records = [record for batch in found for _, record in batch]
    return [r.text for r in records if isinstance(r, Incident) and r.kind == "self_test_failed"]


class WatchedGenerator(ScriptedGenerator):
    """It keeps the leases that it was given."""

    given: list[m.Lease] = []  # noqa: RUF012

    async def answer(self, message: m.Message) -> None:
        if isinstance(message, m.Leases):
            self.given.extend(message.leases)
        await super().answer(message)


async def test_a_run_begins_when_all_is_well_and_the_account_knows_nothing_of_it(
    tmp_path: Path,
) -> None:
    WatchedGenerator.given = []
    run_dir = tmp_path / "run-1"
    code, _ = await played(
        run_dir, self_testing(), WatchedGenerator, ScriptedReward, ScriptedLearner
    )
    assert code == 0
    first, *others = WatchedGenerator.given
    assert (first.lease_id, first.trajectory_id) == (FIRST_ID, FIRST_ID)
    assert first.prompt_ids.size > 0
    assert others
    assert all(lease.trajectory_id < FIRST_ID for lease in others)
    # The run's own first prompt is still its own.
    assert others[0].prompt_ids.tolist() == first.prompt_ids.tolist()
    records = records_of(run_dir)
    assert_balanced(records)
    for record in records:
        match record:
            case GroupIssued():
                assert record.group_id < FIRST_ID
            case ChunkArrived() | LeaseIssued() | RewardArrived():
                assert record.trajectory_id < FIRST_ID
            case Incident():
                raise AssertionError(record.text)
    assert len([r for r in records if isinstance(r, UpdateCommitted)]) == 3
    # Scripted learners write neither weights nor diagnostics.
    found = {finding.kind for finding in audit_run(run_dir).findings}
    assert found <= {"weights", "checkpoint", "diagnostics"}


class Mute(ScriptedGenerator):
    """It loads weights and answers nothing."""

    async def answer(self, message: m.Message) -> None:
        if not isinstance(message, m.Leases):
            await super().answer(message)


class Weak(ScriptedGenerator):
    """It cannot serve a request."""

    def generate(self, lease: m.Lease) -> list[m.TrajectoryChunk]:
        return [replace(self.chunk(lease, 0, 0, 0, "failed"), error="no room for keys and values")]


class Strange(ScriptedGenerator):
    """It samples tokens that the model does not have."""

    def generate(self, lease: m.Lease) -> list[m.TrajectoryChunk]:
        chunks = super().generate(lease)
        chunks[0].token_ids[:] = 10**6
        return chunks


class Empty(ScriptedGenerator):
    """It cannot load weights."""

    async def answer(self, message: m.Message) -> None:
        if isinstance(message, m.WeightNotice):
            error = "tensor lm_head is missing"
            loaded = m.WeightsLoaded(version=message.version, gap_s=0.0, load_s=0.0, error=error)
            await self.dealer.send(loaded)


class Slow(ScriptedGenerator):
    """It never says that it has loaded weights."""

    async def answer(self, message: m.Message) -> None:
        pass


class Unmoved(ScriptedReward):
    """It scores nothing."""

    async def answer(self, message: m.Message) -> None:
        pass


@pytest.mark.parametrize(
    ("generator", "cause"),
    [
        (Weak, "generator-0 could not answer a prompt: no room for keys and"),
        (Strange, "generator-0 could not answer a prompt: a token is not in the"),
        (Empty, "generator-0 could not load its first weights: tensor lm_head is"),
    ],
    ids=["weak", "strange", "no weights"],
)
async def test_the_first_part_that_fails_ends_the_run_and_is_named(
    tmp_path: Path, generator: type[ScriptedPeer], cause: str
) -> None:
    code, line = await played(
        tmp_path / "run-1", self_testing(LIMIT_S), generator, ScriptedReward, ScriptedLearner
    )
    assert code == 1
    assert line.startswith(f"error: self-test: {cause}")


async def test_a_part_that_does_not_answer_ends_the_run_and_is_named(tmp_path: Path) -> None:
    """Three runs at once, since each of them waits for its limit."""
    silent: list[tuple[type[ScriptedPeer], type[ScriptedPeer], str]] = [
        (Mute, ScriptedReward, "generator-0 did not answer a prompt within 6 s"),
        (Slow, ScriptedReward, "generator-0 did not load its first weights within 6 s"),
        (ScriptedGenerator, Unmoved, "reward-0 did not score an answer within 6 s"),
    ]
    runs = [CoordinatorProcess(tmp_path / f"run-{n}", self_testing(LIMIT_S)) for n in range(3)]
    addresses = [run.start() for run in runs]
    found = await asyncio.gather(
        *(
            ended(run, address, generator, reward, ScriptedLearner)
            for run, address, (generator, reward, _) in zip(runs, addresses, silent, strict=True)
        )
    )
    for (code, line), (_, _, cause) in zip(found, silent, strict=True):
        assert code == 1
        assert line.startswith(f"error: self-test: {cause}")


class Broken(ScriptedReward):
    """The first answer cannot be scored, all others can."""

    first = True

    async def answer(self, message: m.Message) -> None:
        if isinstance(message, m.ScoreRequest) and self.first:
            self.first = False
            key = message.items[0].trajectory_id
            score = m.Score(trajectory_id=key, status="crashed", error="not a number")
            await self.dealer.send(m.Scores(scores=[score]))
            return
        await super().answer(message)


async def test_what_a_reward_function_says_is_told_and_ends_nothing(tmp_path: Path) -> None:
    """Rewards have their own rule for how many may fail."""
    run_dir = tmp_path / "run-1"
    code, _ = await played(run_dir, self_testing(), ScriptedGenerator, Broken, ScriptedLearner)
    assert code == 0
    (told,) = [r for r in records_of(run_dir) if isinstance(r, Incident)]
    assert (told.kind, told.text) == (
        "reward_failed", "the answer of the self-test: crashed: not a number",
    )  # fmt: skip


@contextlib.asynccontextmanager
async def joined_late(
    coordinator: CoordinatorProcess, *kinds: type[ScriptedGenerator]
) -> AsyncIterator[list[Any]]:
    """The learner of a run that has trained for a while, and generators that have just joined."""
    address = coordinator.start()
    learner = ScriptedLearner(address, "learner-0")
    classes: list[type[ScriptedGenerator]] = [ScriptedGenerator, *kinds]
    generator, *late = (
        kind(address, f"generator-{number}", capacity=8) for number, kind in enumerate(classes)
    )
    peers: list[Any] = [generator, ScriptedReward(address, "reward-0"), learner]
    tasks = [asyncio.create_task(peer.run()) for peer in peers]
    try:
        await until(lambda: learner.update >= 2)
        tasks += [asyncio.create_task(peer.run()) for peer in late]
        yield [learner, *late]
    finally:
        for task in tasks:
            task.cancel()
        coordinator.kill()
        for peer in (*peers, *late):
            peer.dealer.close()


def leases_of(peer: ScriptedPeer) -> list[m.Lease]:
    return [lease for said in peer.seen if isinstance(said, m.Leases) for lease in said.leases]


async def test_who_joins_late_and_fails_gets_no_lease_and_ends_nothing(tmp_path: Path) -> None:
    config = self_testing(LIMIT_S, stop={"updates": 10**6})
    coordinator = CoordinatorProcess(tmp_path / "run-1", config)
    async with joined_late(coordinator, Mute, ScriptedGenerator) as (learner, late, good):
        async with asyncio.timeout(LIMIT_S + 60.0):
            while not failed_tests(coordinator.run_dir):
                await asyncio.sleep(0.5)
        begun = learner.update
        await until(lambda: learner.update >= begun + 3)
        (lease,) = leases_of(late)
        assert lease.lease_id > FIRST_ID
        assert any(lease.lease_id < FIRST_ID for lease in leases_of(good))
    told = [r for r in records_of(coordinator.run_dir) if isinstance(r, Incident)]
    assert [r.text for r in told if r.kind == "self_test_failed"] == [
        "self-test: generator-1 did not answer a prompt within 6 s (transport.self_test_s)"
    ]


class Unlucky(ScriptedGenerator):
    """The first weights that it hears of are gone: their learner has just died."""

    tried = False

    async def answer(self, message: m.Message) -> None:
        if isinstance(message, m.WeightNotice) and not self.tried:
            self.tried, error = True, "no source of this version works"
            await self.dealer.send(
                m.WeightsLoaded(version=message.version, gap_s=0.0, load_s=0.0, error=error)
            )
            return
        await super().answer(message)


async def test_who_joins_late_and_finds_no_weights_is_tested_with_the_next(tmp_path: Path) -> None:
    coordinator = CoordinatorProcess(tmp_path / "run-1", self_testing(stop={"updates": 10**6}))
    async with joined_late(coordinator, Unlucky) as (_, late):
        await until(lambda: any(lease.lease_id < FIRST_ID for lease in leases_of(late)))
    assert late.tried
    assert failed_tests(coordinator.run_dir) == []


async def test_evaluations_do_not_wait_for_who_joins_late_and_never_loads(tmp_path: Path) -> None:
    evaluation = {"before": False, "after": False, "num_prompts": 16, "every_updates": 4}
    config = self_testing(evaluation=evaluation, stop={"updates": 10**6})
    coordinator = CoordinatorProcess(tmp_path / "run-1", config)
    async with joined_late(coordinator, Empty) as (learner, late):
        await until(lambda: any(isinstance(said, m.WeightNotice) for said in late.seen))
        begun = learner.update
        await until(lambda: learner.update >= begun + 8)
