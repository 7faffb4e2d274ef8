"""Tokens that the journal never gets: thrown away at holds, or gone with their generator."""

from pathlib import Path
from typing import Any

import pytest

from headrace.protocol.messages import control as m
from headrace.protocol.transport.endpoints import identity_of
from tests.coordinator.stage import GENERATOR, Stage, endless, staged


def report(**counts: Any) -> m.GeneratorReport:
    usual = {
        "live": 1, "version": 0, "tokens": 20, "discarded_tokens": 0, "pending_tokens": 0,
        "prefill_tokens": 0, "preempted": 0, "idle_s": 0.0, "pause_s": 0.0, "busy_s": 0.0,
    }  # fmt: skip
    return m.GeneratorReport(**{**usual, **counts})


async def leave(stage: Stage) -> None:
    await stage.say(GENERATOR, m.Goodbye())


async def leave_with_an_error(stage: Stage) -> None:
    """It delivers its chunks before it says so."""
    await stage.say(GENERATOR, m.Goodbye(failed="its engine died"))


async def fall_silent(stage: Stage) -> None:
    stage.coordinator.membership.forget(GENERATOR)


async def another_process(stage: Stage) -> None:
    """Starts under the same name, after the old one's connection closed."""
    stage.identities[GENERATOR] = identity_of(GENERATOR)
    hello = m.Hello(role="generator", name=GENERATOR, pid=2, host="here", capacity=8)
    await stage.say(GENERATOR, hello)


@pytest.mark.parametrize(
    ("end", "lost"),
    [(leave, 0), (leave_with_an_error, 0), (fall_silent, 8), (another_process, 8)],
    ids=["leaves", "leaves failed", "silent", "replaced"],
)
async def test_what_a_dead_generator_had_not_sent_is_counted(
    tmp_path: Path, end: Any, lost: int
) -> None:
    async with staged(endless(), tmp_path / "run") as stage:
        await stage.reach(stage.chunks)
        await stage.say(GENERATOR, report(pending_tokens=10))
        await stage.say(GENERATOR, report(pending_tokens=8))
        await end(stage)
        ledger = stage.hub.account.ledger
        assert ledger.lost["died"] == lost
        assert ledger.as_metrics()["ledger/lost"] == lost
        assert ledger.balance() == 0
    assert stage.replayed().account.ledger.lost["died"] == lost


async def test_holds_and_the_dead_are_told_apart(tmp_path: Path) -> None:
    async with staged(endless(), tmp_path / "run") as stage:
        await stage.say(GENERATOR, report(discarded_tokens=3, pending_tokens=10))
        await stage.say(GENERATOR, report(discarded_tokens=7, pending_tokens=4))
        await fall_silent(stage)
        assert dict(stage.hub.account.ledger.lost) == {"held": 7, "died": 4}


async def test_a_new_process_counts_its_holds_from_nothing(tmp_path: Path) -> None:
    """Seven tokens of the first one, then six of another of its name, told in two reports."""
    async with staged(endless(), tmp_path / "run") as stage:
        await stage.say(GENERATOR, report(discarded_tokens=7))
        await another_process(stage)
        for total in (5, 5, 6):
            await stage.say(GENERATOR, report(discarded_tokens=total))
        assert dict(stage.hub.account.ledger.lost) == {"held": 13}
    assert stage.replayed().discarded == {GENERATOR: (2, 6)}
