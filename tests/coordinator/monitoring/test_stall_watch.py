"""Whom a run waits for: each wait has an owner and an age of its own, and only useful work counts
as progress."""

import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from coordinator.monitoring.stall_watch import LOOK_S, names
from headrace.protocol.messages import control as m
from headrace.protocol.records.record_types import Incident, Record
from headrace.protocol.transport.endpoints import identity_of
from headrace_cli.launch.monitor import waits_of
from storage import queries
from tests.coordinator.peers import CoordinatorProcess
from tests.coordinator.stage import GENERATOR, LEARNER, REWARD, Stage, staged
from tests.coordinator.test_loop import run_config


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds of the coordinator's clock, turned by hand."""
    now = [1000.0]
    turned = SimpleNamespace(monotonic=lambda: now[0], time=time.time)
    for module in ("hub", "monitoring.stall_watch"):
        monkeypatch.setattr(f"coordinator.{module}.time", turned)
    return now


def test_names_are_shown_up_to_three() -> None:
    assert names(["b", "a"]) == "a, b"
    assert names(f"g{n}" for n in range(7)) == "g0, g1, g2 and 4 more"


def ages(stage: Stage) -> dict[str, float]:
    return {wait.words: wait.age_s for wait in stage.coordinator.waits.now()}


async def test_each_wait_has_its_own_age(tmp_path: Path, clock: list[float]) -> None:
    stage = Stage(run_config(evaluation={"before": False}), tmp_path / "run-1")
    stage.coordinator.phases.record_start()
    assert ages(stage) == {
        "a generator to join": 0.0,
        "a reward worker to join": 0.0,
        "the learner to join": 0.0,
    }
    clock[0] += 7
    await stage.say(GENERATOR, m.Hello(role="generator", name=GENERATOR, pid=1, host="here"))
    assert ages(stage) == {"a reward worker to join": 7.0, "the learner to join": 7.0}
    clock[0] += 1
    await stage.say(LEARNER, m.Hello(role="learner", name=LEARNER, pid=1, host="here"))
    clock[0] += 2
    assert ages(stage) == {
        "a reward worker to join": 10.0,
        "the learner to publish its weights": 2.0,
    }
    notice = stage.notice()
    assert notice is not None
    await stage.say(LEARNER, notice)
    clock[0] += 3
    assert ages(stage)[f"{GENERATOR} to load version 0"] == 0.0
    clock[0] += 4
    assert ages(stage)[f"{GENERATOR} to load version 0"] == 4.0
    stage.hub.router.close()
    stage.store.close()


async def test_an_answer_that_goes_on_is_no_wait_for_rewards(
    tmp_path: Path, clock: list[float]
) -> None:
    """The age of what is waited for begins anew whenever that moves, and only then."""
    async with staged(run_config(evaluation={"before": False}), tmp_path / "run-1") as stage:
        await stage.say(GENERATOR, m.WeightsLoaded(version=0, gap_s=0.0, load_s=0.0))
        await stage.coordinator.phases.advance()
        chunks = stage.chunks()
        assert chunks is not None
        await stage.say(GENERATOR, chunks)
        stage.coordinator.waits.now()
        clock[0] += 5
        chunks = stage.chunks()
        assert chunks is not None
        await stage.say(GENERATOR, chunks)
        found = ages(stage)
        rewards = {words: age for words, age in found.items() if "rewards" in words}
        going_on = {words: age for words, age in found.items() if "to go on" in words}
        assert list(rewards.values()) == [5.0]
        assert f"of {REWARD}" in next(iter(rewards))
        assert list(going_on.values()) == [0.0]


async def test_an_evaluation_that_stands_still_names_who_holds_it_up(tmp_path: Path) -> None:
    config = run_config(evaluation={"num_prompts": 4})
    async with staged(config, tmp_path / "run-1") as stage:
        await stage.say(GENERATOR, m.WeightsLoaded(version=0, gap_s=0.0, load_s=0.0))
        assert stage.coordinator.phases.phase == "evaluating"
        assert list(ages(stage)) == [f"4 trajectories of {GENERATOR} to go on"]


async def test_a_generator_that_failed_its_self_test_late_is_waited_for(tmp_path: Path) -> None:
    """It gets no lease, and where it is the only one the run stands still."""
    config = run_config(transport={"self_test_s": 20.0}, evaluation={"before": False})
    async with staged(config, tmp_path / "run-1") as stage:
        test = stage.coordinator.parts.self_test
        test.is_over = True
        await stage.say(GENERATOR, m.WeightsLoaded(version=0, gap_s=0.0, load_s=0.0))
        test._fail(GENERATOR, f"{GENERATOR} could not answer a prompt")
        assert stage.hub.failed is None
        assert list(ages(stage)) == [f"{GENERATOR} to answer the prompt of the self-test"]


async def test_before_training_each_generator_is_waited_for(tmp_path: Path) -> None:
    """As well where another one has passed its self-test by then."""
    config = run_config(transport={"self_test_s": 20.0}, evaluation={"before": False})
    async with staged(config, tmp_path / "run-1") as stage:
        await stage.say(GENERATOR, m.WeightsLoaded(version=0, gap_s=0.0, load_s=0.0))
        stage.hub.peers.generators[GENERATOR].passed()
        late = m.Hello(role="generator", name="late", pid=2, host="here", capacity=8)
        await stage.send(identity_of("late"), stage.codec.encode(late))
        assert stage.coordinator.phases.phase == "starting"
        assert "late to load version 0" in ages(stage)


async def test_what_is_refused_or_known_is_no_progress(tmp_path: Path, clock: list[float]) -> None:
    async with staged(run_config(evaluation={"before": False}), tmp_path / "run-1") as stage:
        await stage.say(GENERATOR, m.WeightsLoaded(version=0, gap_s=0.0, load_s=0.0))
        await stage.coordinator.phases.advance()
        chunks = stage.chunks()
        assert chunks is not None
        await stage.say(GENERATOR, chunks)
        before = stage.hub.progress_at
        clock[0] += 50
        assert await stage.say(GENERATOR, chunks)
        hello = m.Hello(role="generator", name=GENERATOR, pid=2, host="here", capacity=8)
        await stage.say(GENERATOR, m.Goodbye())
        await stage.say(GENERATOR, hello)
        await stage.say(GENERATOR, m.WeightsLoaded(version=0, gap_s=0.0, load_s=0.0))
        assert stage.hub.progress_at == before


async def test_an_amount_that_moves_is_progress_and_one_that_stands_is_none(
    tmp_path: Path, clock: list[float]
) -> None:
    """Of a learner's update, of a generator's loading, and of a learner that has said no Hello yet;
    what they say stands with what is waited for."""
    said = m.Progress(stage="update 9: step 3 of 8", done=57, unit="micro-batches")
    text = "update 9: step 3 of 8, 57 micro-batches"
    async with staged(run_config(evaluation={"before": False}), tmp_path / "run-1") as stage:
        hub = stage.hub
        for name in (LEARNER, GENERATOR):
            for progress, moves in ((said, True), (said, False), (m.Progress(stage=""), False)):
                clock[0] += 50
                before = hub.progress_at
                await stage.say(name, progress)
                assert (hub.progress_at > before) == moves
        await stage.say(GENERATOR, said)
        assert f"{GENERATOR} to load version 0 ({text})" in ages(stage)
        await stage.say(LEARNER, m.Goodbye())
        clock[0] += 50
        before = hub.progress_at
        await stage.say(LEARNER, said)
        assert hub.progress_at > before
        assert f"the learner to join ({text})" in ages(stage)
        assert hub.rejections.counts["before_hello"] == 0


async def test_a_stall_is_said_before_it_ends_the_run(tmp_path: Path) -> None:
    """Whoever watches has a moment to look at the processes; who moves meanwhile saves the run."""
    async with staged(run_config(evaluation={"before": False}), tmp_path / "run-1") as stage:
        hub, seen = stage.hub, []
        for overdue_s in (0.0, 0.1, -1.0, 0.1, LOOK_S + 0.1):
            stage.coordinator.waits.watch(overdue_s)
            seen.append((hub.stalled is not None, hub.failed is not None))
        assert seen == [(False, False), (True, False), (False, False), (True, False), (True, True)]
        assert hub.failed == hub.stalled
        assert hub.failed is not None
        assert hub.failed.startswith(f"nobody makes progress: {GENERATOR} to load version 0 for")


async def test_a_long_wait_is_written_down_once(tmp_path: Path, clock: list[float]) -> None:
    transport = {"stall_timeout_s": 100.0}
    config = run_config(evaluation={"before": False}, transport=transport)
    async with staged(config, tmp_path / "run-1") as stage:
        written: list[Incident] = []
        write = stage.hub.recorder.write

        def see(record: Record) -> None:
            if isinstance(record, Incident):
                written.append(record)
            write(record)

        stage.hub.recorder.write = see  # type: ignore[method-assign]
        for seconds in (0, 19, 2, 5):
            clock[0] += seconds
            stage.coordinator.waits.watch(-1.0)
        assert [(row.kind, row.text) for row in written] == [
            ("waiting", f"for {GENERATOR} to load version 0, 21 s so far")
        ]


async def test_who_could_not_load_the_newest_weights_is_told_of_them_again(
    tmp_path: Path,
) -> None:
    """Else a generator whose way to the learner was cut for a while would hold a round for ever."""
    async with staged(run_config(evaluation={"before": False}), tmp_path / "run-1") as stage:
        generator = stage.hub.peers.generators[GENERATOR]
        failed = m.WeightsLoaded(version=0, gap_s=0.0, load_s=0.0, error="silent for 10 s")
        assert await stage.say(GENERATOR, failed)
        generation = stage.coordinator.parts.generation
        generation.expire()
        assert not generator.noticed
        generator.not_loaded_at = time.monotonic() - stage.config.transport.heartbeat_timeout_s - 1
        generation.expire()
        assert generator.noticed == {0}
        assert stage.hub.peers.generators[GENERATOR].not_loaded_at is None
        assert await stage.say(GENERATOR, m.WeightsLoaded(version=0, gap_s=0.0, load_s=0.0))
        assert generation.all_loaded()


async def test_whoever_looks_into_the_folder_sees_what_is_waited_for(
    tmp_path: Path, clock: list[float]
) -> None:
    stage = Stage(run_config(evaluation={"before": False}), tmp_path / "run-1")
    stage.coordinator.phases.record_start()
    await stage.say(GENERATOR, m.Hello(role="generator", name=GENERATOR, pid=1, host="here"))
    waits = stage.coordinator.waits
    assert set(ages(stage).values()) == {0.0}
    clock[0] += 3
    waits.show("starting")
    writing = waits._writing
    waits.show("starting")
    assert waits._writing is writing, "the disk has not taken the first yet"
    assert writing is not None
    await writing
    word = queries.coordinator_status(stage.run_dir)
    assert word is not None
    assert word.phase == "starting"
    assert word.waits == {"a reward worker to join": 3.0, "the learner to join": 3.0}
    assert set(word.heard) == {GENERATOR}
    stage.hub.run_dir = str(tmp_path / "full")  # where nothing can be written
    waits.show("starting")
    assert waits._writing is not None
    await waits._writing
    stage.hub.router.close()
    stage.store.close()


def test_a_running_run_says_what_it_waits_for(tmp_path: Path) -> None:
    config = run_config()
    coordinator = CoordinatorProcess(tmp_path / "run-1", config)
    assert waits_of(coordinator.run_dir, config) is None
    coordinator.start()
    try:
        waits = waits_of(coordinator.run_dir, config)
    finally:
        coordinator.kill()
    assert waits is not None
    assert "a generator to join" in waits
