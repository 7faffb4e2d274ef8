"""Idle shares: of the training time, not of evaluations."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from coordinator.gauges import Gauges
from coordinator.hub import Clock
from headrace.protocol.messages import GeneratorReport


def report(idle: float, busy: float) -> GeneratorReport:
    return GeneratorReport(
        live=0, version=0, tokens=0, discarded_tokens=0, pending_tokens=0, prefill_tokens=0,
        idle_s=idle, pause_s=0.0, busy_s=busy,
    )  # fmt: skip


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A clock that is set by hand, and gauges that read it."""
    seconds = SimpleNamespace(now=0.0)
    monkeypatch.setattr("coordinator.hub.time.monotonic", lambda: seconds.now)
    clock = Clock(train_s=100.0)
    ledger = SimpleNamespace(generated=0, accounts={"trained_policy": 0})
    hub = SimpleNamespace(clock=clock, account=SimpleNamespace(ledger=ledger))
    return SimpleNamespace(seconds=seconds, clock=clock, gauges=Gauges(cast(Any, hub)))


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


def test_a_generator_that_came_back_counts_from_its_own_start(world: Any) -> None:
    world.seconds.now = 1.0
    world.clock.start()
    world.gauges.mark_training()
    world.gauges.reported("g", report(idle=5.0, busy=5.0))
    world.gauges.reported("g", report(idle=0.0, busy=1.0))
    world.gauges.reported("g", report(idle=1.0, busy=2.0))
    assert world.gauges.idle_shares()["idle/generator"] == pytest.approx(0.5)
