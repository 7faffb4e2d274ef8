"""Idle shares: of the training time, not of evaluations. What is dropped for its age. Memory and
CPU seconds."""

import asyncio
import os
import socket
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from msgspec.structs import replace

from coordinator.connections.peers import Peer, Peers
from coordinator.hub import TrainingClock
from coordinator.training.gauges import Gauges, _outcomes, _prefill
from headrace.protocol.messages.control import GeneratorReport, Hello
from headrace.protocol.records.record_types import TrajectoryStatus
from headrace.protocol.token_spans import EnvironmentStep
from headrace.trajectory.trajectories import Trajectory
from tests.coordinator.stage import LEARNER, endless, staged


def report(idle: float, busy: float) -> GeneratorReport:
    return GeneratorReport(
        live=0, version=0, tokens=0, discarded_tokens=0, pending_tokens=0, prefill_tokens=0,
        preempted=0, idle_s=idle, pause_s=0.0, busy_s=busy,
    )  # fmt: skip


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A clock that is set by hand, and gauges that read it."""
    seconds = SimpleNamespace(now=0.0)
    monkeypatch.setattr("coordinator.hub.time.monotonic", lambda: seconds.now)
    clock = TrainingClock(train_s=100.0)
    ledger = SimpleNamespace(
        generated=0, accounts={"trained_policy": 0}, abandoned=0, dropped=Counter(),
        as_metrics=dict,
    )  # fmt: skip
    monitors = SimpleNamespace(at_commit=dict)
    peers = Peers()
    hub = SimpleNamespace(
        clock=clock, account=SimpleNamespace(ledger=ledger), monitors=monitors, peers=peers,
        state=SimpleNamespace(cpu_s=50.0),
    )  # fmt: skip
    gauges = Gauges(cast(Any, hub))
    return SimpleNamespace(seconds=seconds, clock=clock, gauges=gauges, ledger=ledger, peers=peers)


def test_an_evaluation_is_in_no_idle_share(world: Any) -> None:
    """10 s of training in turns (generator 4 s idle, learner 6 s), then 90 s of an evaluation."""
    world.seconds.now = 1.0
    world.clock.start()
    world.gauges.mark_training()
    world.clock.learner_waits(True)
    world.gauges.reported("g", report(idle=50.0, busy=0.0))
    world.seconds.now = 7.0
    world.clock.learner_waits(False)
    world.seconds.now = 11.0
    world.gauges.reported("g", report(idle=54.0, busy=6.0))
    world.clock.stop()
    world.seconds.now = 101.0
    world.gauges.reported("g", report(idle=54.0, busy=96.0))
    shares = world.gauges.idle_shares()
    assert shares == pytest.approx({"idle/learner": 0.6, "idle/generator": 0.4})
    world.clock.start()
    world.gauges.mark_training()
    world.gauges.reported("g", report(idle=54.0, busy=96.0))
    assert world.gauges.idle_shares() == pytest.approx(shares)


async def test_a_learner_that_is_gone_waits_for_no_batch(tmp_path: Path) -> None:
    """From its death on until it has published again; nor does one that has a batch."""

    async def waits(clock: TrainingClock) -> bool:
        before = clock.idle()
        await asyncio.sleep(0.01)
        return clock.idle() > before

    async with staged(endless(), tmp_path / "run-1") as stage:
        clock = stage.hub.clock
        await stage.reach(stage.chunks)
        assert clock.running
        assert await waits(clock)
        stage.coordinator.membership.forget(LEARNER)
        assert not await waits(clock)
        await stage.rejoin()
        assert not await waits(clock)
        notice = stage.notice()
        assert notice is not None
        await stage.say(LEARNER, notice)
        assert await waits(clock)
        await stage.reach(stage.update)
        assert not await waits(clock)


def test_prefill_and_preemptions_are_counted_over_generators() -> None:
    """(30 + 90) tokens of prompts and prefixes for (10 + 30) sampled ones; one preemption each."""
    counts = [(30, 10), (90, 30)]
    reports = [
        replace(report(idle=0.0, busy=1.0), prefill_tokens=computed, preempted=1, tokens=sampled)
        for computed, sampled in counts
    ]
    assert _prefill(reports) == {"perf/preempted": 2.0, "perf/prefill_per_token": 3.0}
    assert _prefill([report(idle=0.0, busy=1.0)]) == {}


def test_figures_of_the_answers_that_end_in_a_batch() -> None:
    """One is cut at the limit, and one has no reward; two are episodes, one of which has a figure
    at its second step alone."""
    answers = []
    ends: tuple[tuple[int, TrajectoryStatus, float | None], ...] = (
        (2, "finished", 1.0), (4, "truncated", -1.0), (9, "finished", None),
    )  # fmt: skip
    for sampled, status, reward in ends:
        answer = Trajectory(0, 0, "train", np.zeros(1, np.int32), 0)
        answer.sampled, answer.status, answer.reward = sampled, status, reward
        answers.append(answer)
    answers[0].steps = [
        EnvironmentStep(turn=0, digest="", seconds=1.0),
        EnvironmentStep(turn=3, digest="", seconds=4.0, metrics={"hits": 2.0}),
    ]
    answers[1].steps = [EnvironmentStep(turn=1, digest="", seconds=4.0, metrics={"hits": 0.5})]
    assert _outcomes(answers) == {
        "environment/turns": 2.0,
        "environment/hits": 1.25,
        "environment/step_s": 3.0,
        "response_length/mean": 5.0,
        "response_length/max": 9.0,
        "response_length/min": 2.0,
        "response_length/clip_ratio": pytest.approx(1 / 3),
        "reward/mean": 0.0,
        "reward/std": 1.0,
        "reward/max": 1.0,
        "reward/min": -1.0,
    }
    assert _outcomes([]) == {}


def test_a_generator_that_came_back_counts_from_its_own_start(world: Any) -> None:
    world.seconds.now = 1.0
    world.clock.start()
    world.gauges.mark_training()
    world.gauges.reported("g", report(idle=5.0, busy=5.0))
    world.gauges.reported("g", report(idle=0.0, busy=1.0))
    world.gauges.reported("g", report(idle=1.0, busy=2.0))
    assert world.gauges.idle_shares()["idle/generator"] == pytest.approx(0.5)


def test_the_share_dropped_for_age_is_of_what_came_since_the_last_update(world: Any) -> None:
    ledger, share = world.ledger, "staleness/dropped_share"
    ledger.generated, ledger.dropped["stale"] = 1000, 300
    world.gauges.mark_training()
    assert share not in world.gauges.at_commit({})  # nothing came
    ledger.generated, ledger.dropped["stale"] = 1200, 350
    assert world.gauges.at_commit({})[share] == pytest.approx(0.25)
    ledger.generated = 1300
    ledger.dropped["filtered"] = 90
    assert world.gauges.at_commit({})[share] == 0.0
    ledger.generated, ledger.dropped["stale"] = 1310, 990
    assert world.gauges.at_commit({})[share] == 1.0


def test_tokens_that_a_rollback_undid_were_trained(world: Any) -> None:
    """100 trained; 60 of them are given up, and 20 are trained in 10 s."""
    ledger = world.ledger
    ledger.accounts["trained_policy"] = 100
    world.gauges.mark_training()
    ledger.accounts["trained_policy"], ledger.abandoned = 60, 60
    world.seconds.now = 10.0
    assert world.gauges.at_commit({})["perf/trained_tokens_per_s"] == pytest.approx(2.0)


def test_memory_is_that_of_processes_of_this_host(world: Any) -> None:
    def peer(name: str, pid: int, host: str) -> Peer:
        return Peer(Hello(role="learner", name=name, pid=pid, host=host))

    here = socket.gethostname()[:255]
    world.peers.learner = peer("learner-0", os.getpid(), here)
    world.peers.monitors["monitor-1"] = peer("monitor-1", os.getpid(), here)
    world.peers.generators["generator-0"] = cast(Any, peer("generator-0", os.getpid(), "elsewhere"))
    world.peers.generators["generator-1"] = cast(Any, peer("generator-1", 2**31 - 1, here))
    found = world.gauges._use()
    assert set(found) == {"memory/learner-0", "memory/coordinator"}
    assert found["memory/learner-0"] > 2**20
    world.gauges._looked_at, began = time.monotonic() - 10.0, time.process_time()
    while time.process_time() - began < 0.2:
        pass
    world.gauges._cpu()  # which is asked oftener, and changes nothing of it
    assert 0.01 < world.gauges._use()["cpu/coordinator"] < 0.2


def test_cpu_seconds_go_on_where_the_run_was(world: Any) -> None:
    assert "perf/cpu_s" not in world.gauges.at_commit({}), "no process was looked at yet"
    world.gauges._use()
    first, then = (world.gauges.at_commit({})["perf/cpu_s"] for _ in range(2))
    assert 50.0 < first <= then
