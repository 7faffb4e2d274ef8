"""A lease says where an answer goes on, where it ends, and by which settings it is sampled."""

from dataclasses import replace
from pathlib import Path

import pytest

from headrace.protocol.messages import control as m
from tests.coordinator.stage import GENERATOR, endless, staged
from tests.coordinator.test_loop import run_config
from tests.coordinator.test_restart import a_chunk, leased

PURPOSES: tuple[m.Purpose, ...] = ("train", "probe", "eval", "along")


async def test_a_lease_goes_on_behind_what_is_known_as_its_purpose_says(tmp_path: Path) -> None:
    """Windows of 4 tokens, answers of at most 12, of which six are there. Held-out prompts have
    settings of their own, and a first token alone is hot, in training alone."""
    config = run_config(
        evaluation={"before": False, "after": False, "temperature": 0.5, "top_p": 0.25},
        generator={"temperature": 0.75, "fire": {"top_k": 3}},
        stop={"updates": 10**6},
    )
    async with staged(config, tmp_path / "run") as stage:
        make_lease = stage.coordinator.parts.generation._make_lease
        key = await leased(stage)
        known = stage.hub.account.trajectories[key]
        fresh = {p: make_lease(replace(known, purpose=p)) for p in PURPOSES}
        for index in range(2):
            await stage.say(GENERATOR, a_chunk(stage, key, index, tokens=3))
        later = {p: make_lease(replace(known, purpose=p)) for p in PURPOSES}
    hot = {p: None if lease.fire is None else lease.fire.top_k for p, lease in fresh.items()}
    assert hot == {"train": 3, "probe": None, "eval": None, "along": None}
    assert all(lease.fire is None for lease in later.values())
    for lease in later.values():
        assert (lease.prefix_ids.tolist(), lease.next_chunk) == ([5] * 6, 2)
        assert (lease.seed, lease.max_total, lease.stop_at) == (known.seed, 12, 12)
    borders = {p: (lease.window, lease.next_border) for p, lease in later.items()}
    assert borders == {"train": (4, 8), "probe": (12, 12), "eval": (12, 12), "along": (12, 12)}
    sampling = {p: (lease.temperature, lease.top_p, lease.top_k) for p, lease in later.items()}
    training, held_out = (0.75, 1.0, -1), (0.5, 0.25, -1)
    assert sampling == {
        "train": training, "probe": training, "eval": held_out, "along": held_out,
    }  # fmt: skip


async def test_prompts_are_scored_by_answers_as_training_samples_them(tmp_path: Path) -> None:
    """`headrace score` of a recipe with greedy evaluations would get one answer sixteen times, and
    `select` would take every prompt that this one misses for a prompt that nobody can solve."""
    config = run_config(
        evaluation={
            "before": False, "after": False, "rows": "training", "temperature": 0.0, "top_p": 0.25,
        },
        generator={"temperature": 0.75, "fire": {"top_k": 3}},
        stop={"updates": 10**6},
    )  # fmt: skip
    async with staged(config, tmp_path / "run") as stage:
        known = stage.hub.account.trajectories[await leased(stage)]
        asked = replace(known, purpose="eval")
        lease = stage.coordinator.parts.generation._make_lease(asked)
    assert (lease.temperature, lease.top_p, lease.top_k, lease.fire) == (0.75, 1.0, -1, None)


async def test_a_hold_at_a_border_comes_before_its_acknowledgement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A generator waits for that: a later hold would spare what has ended behind the border."""
    said: list[m.Message] = []

    async def send(_name: str, message: m.Message) -> bool:
        said.append(message)
        return True

    async with staged(endless(), tmp_path / "run") as stage:
        key = await leased(stage)
        lease, _ = stage.hub.state.leases[key]
        monkeypatch.setattr(stage.hub, "send", send)
        monkeypatch.setattr(stage.hub.scheduler, "goes_on", lambda _trajectory: False)
        await stage.say(GENERATOR, a_chunk(stage, key, 0, tokens=4))
        await stage.hub.recorder.flush()
    own = [message for message in said if isinstance(message, m.Hold | m.ChunkAck)]
    assert own == [m.Hold(leases=[(lease, 4)]), m.ChunkAck(acked=[(key, 0)])]
