"""How a run ends when something is in the way of its end: a full disk, a learner that stays silent,
is gone, or says Hello anew."""

import asyncio
import errno
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from coordinator.hub import IMAGES
from coordinator.monitoring.status import status
from coordinator.persistence import recorder
from headrace.errors import StorageBlockedError
from headrace.protocol.messages import control as m
from headrace.protocol.records.record_types import (
    CheckpointWritten,
    ChunkArrived,
    EvaluationDone,
    GroupIssued,
    Record,
    RunPhase,
    VersionPublished,
)
from headrace.protocol.token_spans import Span
from headrace.protocol.transport.endpoints import identity_of
from tests.coordinator.peers import (
    CoordinatorProcess,
    ScriptedGenerator,
    ScriptedLearner,
    ScriptedReward,
)
from tests.coordinator.rollouts.test_probes import evaluated
from tests.coordinator.stage import GENERATOR, LEARNER, REWARD, Stage, endless, staged
from tests.coordinator.test_loop import records_of, run_config

LACK = "room for 9 bytes in /run/journal, and 0 are free"


async def closing(stage: Stage) -> None:
    """Train an update and ask for the end: all that is missing is the last checkpoint."""
    for _ in range(500):
        await stage.work()
        if stage.hub.state.committed:
            stage.coordinator.phases.stop("stopped")
        if stage.coordinator.phases.phase == "closing":
            return
    raise AssertionError("the run does not come to its end")


def asked_for(stage: Stage) -> int | None:
    """The update of which the learner was asked for a checkpoint."""
    return next(iter(stage.training.orders.checkpoints), None)


async def gone_on(stage: Stage) -> str:
    """The phase when the disk has everything."""
    await stage.coordinator.phases.advance()
    await stage.hub.recorder.flush()
    return stage.coordinator.phases.phase


@pytest.mark.parametrize(
    ("committed", "updates", "ends"),
    [
        (20, [10, 20], True),
        (20, [20], False),
        (20, [10, 20, 20], True),
        (20, [20, 20], False),  # the first was rolled back
        (10, [10, 20, 30], False),  # the last two were
        (20, [10, 20, 30, 20], True),
    ],
)
async def test_an_accuracy_ends_a_run_when_two_updates_reach_it(
    tmp_path: Path, committed: int, updates: Sequence[int], ends: bool
) -> None:
    config = endless()
    config = config.model_copy(update={"stop": config.stop.model_copy(update={"accuracy": 0.9})})
    async with staged(config, tmp_path / "run-1") as stage:
        state = stage.hub.state
        state.evaluations += [replace(evaluated(), update=n, accuracy=0.9) for n in updates]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(state), "committed", committed)
            found = stage.coordinator.phases._stop_reason()
        assert found == ("accuracy 0.900 twice" if ends else None)


async def test_a_checkpoint_is_not_as_right_as_weights_that_are_undone(tmp_path: Path) -> None:
    """They had its update on the line that a rollback gave up."""
    async with staged(endless(), tmp_path / "run-1") as stage:
        state = stage.hub.state
        undone = replace(evaluated(), update=0, accuracy=0.9, version=state.versions.current + 7)
        own = replace(undone, accuracy=0.25, version=state.versions.current)
        for known in ([undone], [own, undone]):
            state.evaluations[:] = known
            stage.training.checkpoint_done(m.CheckpointDone(update=0, path="step_0"))
        await stage.hub.recorder.flush()
        written = [r for r in stage.store.replay() if isinstance(r, CheckpointWritten)]
        assert [record.accuracy for record in written] == [None, 0.25]


async def test_an_accuracy_is_looked_for_in_the_last_evaluations_alone(tmp_path: Path) -> None:
    looked = 0

    class Evaluations(list[EvaluationDone]):
        def __reversed__(self) -> Iterator[EvaluationDone]:
            nonlocal looked
            for each in self[::-1]:
                looked += 1
                yield each

    config = endless()
    config = config.model_copy(update={"stop": config.stop.model_copy(update={"accuracy": 0.9})})
    async with staged(config, tmp_path / "run-1") as stage:
        state = stage.hub.state
        state.evaluations = Evaluations(
            replace(evaluated(), update=n, accuracy=0.5) for n in range(1, 101)
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(state), "committed", 100)
            assert stage.coordinator.phases._stop_reason() is None
        assert looked == 2


async def test_an_end_that_waits_for_the_disk_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages are answered, and whoever asks is told what is waited for."""
    monkeypatch.setattr(recorder, "DISK_RETRY_S", 0.01)
    full = False
    async with staged(endless(), tmp_path / "run-1") as stage:
        append = stage.store.append

        def append_or_not(records: Sequence[Record]) -> None:
            if full:
                raise StorageBlockedError(LACK)
            append(records)

        monkeypatch.setattr(stage.store, "append", append_or_not)
        await stage.hub.recorder.flush()
        full = True
        coordinator = stage.coordinator
        coordinator.phases.stop("stopped")
        async with asyncio.timeout(60):
            while not stage.hub.recorder.waits_for:
                await stage.say(LEARNER, m.Heartbeat())
                await asyncio.sleep(0.005)
            coordinator._watch_disk()
            told = status(stage.hub, coordinator.parts, coordinator.waits, "closing")
            assert told.message == f"the journal waits: {LACK}"
            assert (coordinator.phases.phase, coordinator.phases.outcome) == ("ending", "stopped")
            full = False
            assert await gone_on(stage) == "leaving"


async def test_a_wait_for_room_for_images_ends_where_no_prompt_is_drawn(tmp_path: Path) -> None:
    """Else no stall would ever end the run: a wait for a disk is no reason to give up."""
    async with staged(endless(), tmp_path / "run-1") as stage:
        phases = stage.coordinator.phases
        await stage.work()
        assert phases.name == "training"
        stage.hub.troubles.set_wait(IMAGES, "disk", LACK)
        phases.stop("stopped")
        await phases.advance()
        assert phases.name != "training"
        assert not stage.hub.troubles.waits


async def test_an_update_that_comes_while_prompts_are_drawn_may_be_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their images are stored meanwhile, and the windows of another batch are ready."""
    config = run_config(
        evaluation={"before": False, "after": False}, stop={"updates": 2},
        algorithm={"advantages": {"kind": "egae"}, "value": {}},
        schedule={"mode": "streaming", "window": 4, "batch_windows": 2, "max_staleness": 1},
    )  # fmt: skip
    async with staged(config, tmp_path / "run-1") as stage:
        coordinator, account = stage.coordinator, stage.hub.account
        while stage.hub.state.update < 2 or len(account.ready) < 2:
            await stage.work(but=stage.update if stage.hub.state.committed else None)
        done = stage.update()
        assert done is not None

        async def draws() -> None:
            await coordinator._dispatch(stage.identities[LEARNER], done)

        monkeypatch.setattr(coordinator.parts.generation, "lease_training", draws)
        await coordinator.phases.advance()
        assert (stage.hub.state.committed, account.taken) == (2, None)
        assert coordinator.phases.name != "training"


async def test_a_last_checkpoint_that_never_comes_does_not_hold_the_run_for_ever(
    tmp_path: Path,
) -> None:
    async with staged(endless(), tmp_path / "run-1") as stage:
        await closing(stage)
        assert await gone_on(stage) == "closing"
        waits = [wait.words for wait in stage.coordinator.waits.now()]
        assert f"the learner's checkpoint of update {stage.hub.state.committed}" in waits
        stage.hub.failed = "nobody makes progress: the learner's checkpoint"
        assert await gone_on(stage) == "leaving"
        assert stage.coordinator.phases.outcome == "failed"


async def test_a_learner_that_says_hello_anew_is_asked_for_its_checkpoint_anew(
    tmp_path: Path,
) -> None:
    async with staged(endless(), tmp_path / "run-1") as stage:
        await closing(stage)
        update = stage.hub.state.committed
        assert asked_for(stage) == update
        await stage.rejoin()
        assert asked_for(stage) is None
        notice = stage.notice()
        assert notice is not None
        await stage.say(LEARNER, notice)
        assert asked_for(stage) == update
        done = m.CheckpointDone(update=update, path="checkpoints/step")
        assert await stage.say(LEARNER, done)
        assert await gone_on(stage) == "leaving"
        assert stage.coordinator.phases.outcome == "stopped"


async def test_an_end_without_its_last_checkpoint_says_so(tmp_path: Path) -> None:
    async with staged(endless(), tmp_path / "run-1") as stage:
        await closing(stage)
        await stage.say(LEARNER, m.Goodbye())
        assert await gone_on(stage) == "leaving"
        told = list(stage.hub.troubles.newest)
        assert told == ["no checkpoint of the last update: the learner was gone before it"]


async def test_a_learner_that_comes_behind_the_end_takes_nothing_back(tmp_path: Path) -> None:
    """It was started again, from a checkpoint or from the starting model, and loaded too long."""
    async with staged(endless(), tmp_path / "run-1") as stage:
        await closing(stage)
        await stage.say(LEARNER, m.Goodbye())
        state, update = stage.hub.state, stage.hub.state.committed
        back = m.Hello(role="learner", name=LEARNER, pid=2, host="here")
        assert stage.coordinator.phases.name == "closing"  # In `ending`.
        assert not await stage.say(LEARNER, back)
        assert await gone_on(stage) == "leaving"
        assert not await stage.say(LEARNER, back)
        late = m.Hello(role="generator", name="guest-1", pid=2, host="here", capacity=8)
        assert not await stage.send(identity_of("guest-1"), stage.codec.encode(late))
        assert "guest-1" not in stage.hub.peers.identities
        assert stage.hub.peers.learner is None
        assert (state.lineage, state.committed) == (0, update)


async def test_a_learner_that_ends_with_an_error_of_its_own_ends_the_run_with_it(
    tmp_path: Path,
) -> None:
    """In the middle, and while the last checkpoint is waited for."""
    begins: tuple[Callable[[Stage], Awaitable[None]], ...] = (Stage.work, closing)
    for number, begin in enumerate(begins):
        async with staged(endless(), tmp_path / f"run-{number}") as stage:
            await begin(stage)
            await stage.say(LEARNER, m.Goodbye(failed="OSError: the disk is broken"))
            assert await gone_on(stage) == "leaving"
            assert stage.coordinator.phases.outcome == "failed"
            assert stage.hub.failed == "learner-0: OSError: the disk is broken"


async def test_a_learner_that_goes_back_in_the_last_evaluation_trains_on(tmp_path: Path) -> None:
    """It died, and its supervisor started it again from its last checkpoint."""
    config = run_config(
        evaluation={"before": False, "after": True, "num_prompts": 4}, stop={"updates": 4},
        checkpoint={"every_updates": 2}, algorithm={"advantages": {"kind": "egae"}, "value": {}},
        schedule={"mode": "streaming", "window": 4, "batch_windows": 2, "max_staleness": 1},
    )  # fmt: skip
    async with staged(config, tmp_path / "run-1") as stage:
        phases, state = stage.coordinator.phases, stage.hub.state

        def evaluates() -> bool:
            return phases.phase == "evaluating"

        while not evaluates():
            await stage.work()
            if 2 in stage.training.orders.checkpoints:
                await stage.say(LEARNER, m.CheckpointDone(update=2, path="step_2"))
        assert state.committed == 4
        given = stage.hub.leases.given

        async def answer(key: int) -> None:
            trajectory, version = stage.hub.account.trajectories[key], state.versions.current
            (chunk,) = stage.chunk_of(trajectory, 2).chunks
            spans = [Span(version, trajectory.length, trajectory.length + 2)]
            await stage.say(GENERATOR, m.Chunks(chunks=[replace(chunk, spans=spans)]))

        async def go_on() -> None:
            for key, lease in list(given.items()):
                if not lease.training:
                    await answer(key)
            while (scores := stage.scores()) is not None:
                await stage.say(REWARD, scores)
            await phases.advance()

        await answer(next(key for key, lease in given.items() if not lease.training))
        await stage.say(LEARNER, m.Goodbye())
        await stage.rejoin(2)
        for _ in range(3):  # Answers of the weights that are undone come before the others do.
            await go_on()
        notice = stage.notice()
        assert notice is not None
        await stage.say(LEARNER, notice)
        while evaluates():
            if (loaded := stage.loaded()) is not None:
                await stage.say(GENERATOR, loaded)
            await go_on()
        assert (phases.phase, state.committed) == ("training", 2)
        await stage.hub.recorder.flush()
        records = list(stage.store.replay())
        (done,) = (record for record in records if isinstance(record, EvaluationDone))
        counted = [r for r in records if isinstance(r, GroupIssued) and r.purpose == "eval"][-4:]
        ids = {key for group in counted for key in group.trajectory_ids}
        chunks = [r for r in records if isinstance(r, ChunkArrived) and r.trajectory_id in ids]
        assert {span.version for chunk in chunks for span in chunk.spans} == {done.version}
        of_update = {r.version: r.update for r in records if isinstance(r, VersionPublished)}
        assert of_update[done.version] == done.update == 2


async def test_a_disk_that_breaks_at_the_very_end_is_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last records cannot be written, and nobody waits for them."""
    stage = Stage(endless(), tmp_path / "run-1")

    def broken(records: Sequence[Record]) -> None:
        raise OSError(errno.EIO, "the disk is broken")

    monkeypatch.setattr(stage.store, "append", broken)
    stage.coordinator.phases.phase = "closed"
    try:
        with pytest.raises(OSError, match="the disk is broken"):
            async with asyncio.timeout(60):
                await stage.coordinator.run()
    finally:
        stage.hub.router.close()
        stage.store.close()


async def test_a_worker_that_fails_behind_the_end_does_not_change_it(tmp_path: Path) -> None:
    """It finishes what it holds when the run is over, and too much of that fails."""
    config = run_config(stop={"updates": 2}, evaluation={"before": False, "after": False})
    coordinator = CoordinatorProcess(tmp_path / "run-1", config)
    address = coordinator.start()
    reward = ScriptedReward(address, "reward-0")
    reward.failed = "64 scorings in a row failed"
    learner = ScriptedLearner(address, "learner-0")
    peers = [ScriptedGenerator(address, "generator-0", capacity=8), reward, learner]
    await asyncio.wait_for(asyncio.gather(*(peer.run() for peer in peers)), 90)
    assert coordinator.wait() == 0
    phases = [r.phase for r in records_of(coordinator.run_dir) if isinstance(r, RunPhase)]
    assert phases[-1] == "finished"
