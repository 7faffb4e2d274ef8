"""A run that is interrupted after every update and resumed equals one that goes through, to the
bit: models, optimizers and random numbers in its checkpoints, tokens, logprobs and rewards of its
trajectories, what its batches held and what the learner said of each token. A replay of its last
update agrees with it."""

import hashlib
import json
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from headrace.protocol.records.record_types import (
    BatchTaken,
    ChunkArrived,
    GroupIssued,
    RewardArrived,
    UpdateCommitted,
    WindowsClosed,
)
from headrace.run_files.update_log import read_applied
from tests.integration.audit import assert_trained_once, records_of
from tests.integration.runs import PLAIN, Run, headrace

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
UPDATES = 3
EXACT = (
    *PLAIN, "generator.batch_invariant=true", f"stop.updates={UPDATES}",
    "evaluation.every_updates=null",
    "checkpoint.every_updates=1", f"checkpoint.keep_last={UPDATES}",
)  # fmt: skip
SETTINGS = {
    "windowed": ("schedule.mode=windowed", "schedule.window=20"),
    "synchronous, two ranks": (
        "schedule.mode=synchronous", "learner.ranks=2", "learner.policy.minibatches=2",
    ),
}  # fmt: skip
EXEMPT = (
    # Times and what follows from them.
    *("timing_s/", "perf/", "idle/"),
    # Of windows that the very version sampled which the learner has: a resume publishes the same
    # weights under another number.
    *("rollout/mismatch_kl", "rollout/logprob_diff"),
    # Of the answers and tokens that this coordinator saw arrive; some came before the kill.
    *("rewards/default/", "rollout/finished_length", "staleness/dropped_share"),
)


class Trajectory(NamedTuple):
    """What was sampled."""

    seed: int
    prompt_ids: list[int]
    token_ids: list[int]
    logprobs: list[float]
    reward: list[Any]


class Account(NamedTuple):
    """Everything that is to be equal, versions, ids of messages and times left out."""

    trajectories: dict[int, Trajectory]
    batches: dict[int, list[Any]]
    metrics: dict[int, dict[str, Any]]
    diagnostics: dict[int, list[Any]]
    checkpoints: dict[str, str]


def account(run_dir: Path) -> Account:
    """The run's journal and checkpoints."""
    trajectories: dict[int, Trajectory] = {}
    windows: dict[int, tuple[int, int, int]] = {}
    found = Account(trajectories, {}, {}, {}, _checkpoints(run_dir / "checkpoints"))
    for record in records_of(run_dir):
        match record:
            case GroupIssued():
                for key, seed in zip(record.trajectory_ids, record.seeds, strict=True):
                    trajectories[key] = Trajectory(seed, record.prompt_ids.tolist(), [], [], [])
            case ChunkArrived():
                trajectory = trajectories[record.trajectory_id]
                assert len(trajectory.token_ids) == record.start
                trajectory.token_ids.extend(record.token_ids.tolist())
                trajectory.logprobs.extend(record.logprobs.tolist())
            case RewardArrived():
                said = [record.status, record.reward, record.rewards, record.correct]
                trajectories[record.trajectory_id].reward.append(said)
            case WindowsClosed():
                for window in record.windows:
                    place = (window.trajectory_id, window.start, window.end)
                    windows[window.window_id] = place
            case BatchTaken():
                taken = [(windows[one.window_id], one.masked) for one in record.windows]
                found.batches[record.update] = [taken, record.value_trajectories]
            case UpdateCommitted():
                found.metrics[record.update] = {
                    name: value
                    for name, value in record.metrics.items()
                    if not name.startswith(EXEMPT)
                }
                found.diagnostics[record.update] = [
                    {name: column.tobytes() for name, column in one.columns.items()}
                    for one in record.diagnostics
                ]
    return found


def _checkpoints(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.glob("step_*/*/*.safetensors"))
    }


def _has_applied(run: Run, update: int) -> bool:
    """Whether the learner wrote this update down."""
    if not any(path.is_dir() and not path.is_symlink() for path in run.root.iterdir()):
        return False
    return any(one.update >= update for _, one in read_applied(run.run_dir))


@pytest.mark.parametrize("name", SETTINGS)
def test_a_run_interrupted_after_every_update_is_the_run_that_was_not(
    name: str, tmp_path: Path
) -> None:
    whole = Run(tmp_path / "whole", *EXACT, *SETTINGS[name])
    try:
        assert whole.wait() == 0, whole.text()
    finally:
        whole.end()
    run = Run(tmp_path / "cut", *EXACT, *SETTINGS[name])
    for update in range(1, UPDATES):
        try:
            run.until(partial(_has_applied, run, update))
            run.interrupt()
            run.wait()
        finally:
            run.end()
        run = Run(run.root, resume="latest")
    try:
        assert run.wait() == 0, run.text()
    finally:
        run.end()
    assert_trained_once(run.run_dir)
    expected, found = account(whole.run_dir), account(run.run_dir)
    assert len(expected.checkpoints) == 4 * UPDATES
    for update in range(1, UPDATES + 1):
        assert found.batches[update] == expected.batches[update], update
        assert found.metrics[update] == expected.metrics[update], update
        assert found.diagnostics[update] == expected.diagnostics[update], update
    assert found.checkpoints == expected.checkpoints
    assert found.trajectories == expected.trajectories
    if name == "windowed":  # Replays on two ranks are compared in test_replay.py.
        assert_replay_agrees(run.run_dir)


def assert_replay_agrees(run_dir: Path) -> None:
    """Of the last update, with its models."""
    done = headrace("replay", str(run_dir), "--json", "--update", str(UPDATES))
    assert done.returncode == 0, done.stdout + done.stderr
    quantities = json.loads(done.stdout)["quantities"]
    compared = {q["name"]: q["compared"] for q in quantities if q["source"] == "models"}
    assert min(compared[f"weights of the {name}"] for name in ("policy", "critic")) > 0
    assert {q["name"] for q in quantities if q["differing"]} == set()
