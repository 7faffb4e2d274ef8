"""Windows and value trajectories to the messages the learner ranks get.

Comes in: a selection, the state. Goes out: the Batch message's shards and the BatchTaken record
that says, window by window, how many tokens are trained and why the rest is not. Promises: masks
and the record are made from the same arrays, so what is counted is what is trained; the windows
of one trajectory are in one shard; shards are balanced by tokens, context included.
"""

import time
from collections import Counter
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from coordinator.schedule import Selection
from coordinator.state import State
from coordinator.trajectories import Trajectory, Window
from headrace.config.algorithm import EgaeConfig, GroupAdvantageConfig
from headrace.config.run import RunConfig
from headrace.protocol.messages import PolicyWindow, Shard, ValueTrajectory
from headrace.protocol.records import BatchTaken, WindowTrained


@dataclass(frozen=True)
class Masked:
    """A window's loss mask and what it leaves out."""

    loss_mask: npt.NDArray[np.uint8]
    dropped: dict[str, int]
    lags: npt.NDArray[np.int64]
    """Updates between sampling and training, of the trained tokens."""


@dataclass(frozen=True)
class Prepared:
    """One batch, ready to be written down and sent."""

    shards: list[Shard]
    taken: BatchTaken
    metrics: dict[str, float]


def mask_window(trajectory: Trajectory, window: Window, state: State, config: RunConfig) -> Masked:
    """Which tokens of a window are trained; the first reason that holds is the one counted."""
    size = window.tokens
    versions = np.empty(size, np.int64)
    for span in trajectory.spans_between(window.start, window.end):
        versions[span.start - window.start : span.end - window.start] = span.version
    lags = state.version - versions
    final = trajectory.ended and window.end == trajectory.length
    advantages = config.algorithm.advantages
    margin = advantages.boundary_mask if isinstance(advantages, EgaeConfig) and not final else 0
    logprobs = trajectory.logprobs[window.start : window.end]
    overlong = config.algorithm.overlong
    too_long = overlong is not None and overlong.filter and trajectory.status == "truncated"
    reasons = (
        ("non_finite", ~np.isfinite(logprobs)),
        ("stale", lags > config.schedule.max_staleness),
        ("boundary_mask", np.arange(size) >= size - margin),
        ("overlong", np.full(size, too_long)),
    )
    mask = np.ones(size, np.bool_)
    dropped: Counter[str] = Counter()
    for reason, out in reasons:
        dropped[reason] += int((mask & out).sum())
        mask &= ~out
    return Masked(mask.astype(np.uint8), {r: n for r, n in dropped.items() if n}, lags[mask])


def prepare(selection: Selection, state: State, config: RunConfig) -> Prepared:
    """Messages, record and staleness metrics of a batch."""
    windows: list[PolicyWindow] = []
    trained: list[WindowTrained] = []
    lags: list[npt.NDArray[np.int64]] = []
    for window in selection.windows:
        trajectory = state.trajectories[window.trajectory_id]
        masked = mask_window(trajectory, window, state, config)
        tokens = int(masked.loss_mask.sum())
        trained.append(
            WindowTrained(
                window_id=window.window_id,
                trajectory_id=window.trajectory_id,
                index=window.index,
                start=window.start,
                end=window.end,
                trained=tokens,
                dropped=masked.dropped,
                min_version=window.min_version,
                max_version=window.max_version,
            )
        )
        if tokens:
            lags.append(masked.lags)
            windows.append(_policy_window(trajectory, window, masked, state, config))
    kl = config.algorithm.kl
    penalised = kl is not None and kl.where == "reward"
    values = [
        ValueTrajectory(
            trajectory_id=t.trajectory_id,
            prompt_length=t.prompt_ids.size,
            token_ids=np.concatenate([t.prompt_ids, t.tokens]),
            reward=_reward(t),
            logprobs=t.logprobs if penalised else np.zeros(0, np.float32),
        )
        for t in selection.value_trajectories
    ]
    taken = BatchTaken(
        at=time.time(),
        update=state.update + 1,
        lineage=state.lineage,
        version=state.version,
        windows=trained,
        value_trajectories=[t.trajectory_id for t in selection.value_trajectories],
    )
    return Prepared(balance(windows, values, config.learner.ranks), taken, _lag_metrics(lags))


def _policy_window(
    trajectory: Trajectory, window: Window, masked: Masked, state: State, config: RunConfig
) -> PolicyWindow:
    final = trajectory.ended and window.end == trajectory.length
    logprobs = trajectory.logprobs[window.start : window.end]
    rivals = _rivals(trajectory, state, config)
    return PolicyWindow(
        window_id=window.window_id,
        trajectory_id=trajectory.trajectory_id,
        group_id=trajectory.group_id,
        prompt_length=trajectory.prompt_ids.size,
        start=window.start,
        end=window.end,
        token_ids=np.concatenate([trajectory.prompt_ids, trajectory.tokens[: window.end]]),
        logprobs=np.where(np.isfinite(logprobs), logprobs, np.float32(0.0)),
        spans=trajectory.spans_between(window.start, window.end),
        loss_mask=masked.loss_mask,
        finished=final,
        reward=_reward(trajectory) if final else 0.0,
        correct=final and bool(trajectory.correct),
        group_rewards=np.array([_reward(t) for t in rivals], np.float32),
        group_lengths=np.array([t.length for t in rivals], np.int32),
        group_index=sum(t.trajectory_id < trajectory.trajectory_id for t in rivals),
    )


def _rivals(trajectory: Trajectory, state: State, config: RunConfig) -> list[Trajectory]:
    """Whose scores a critic-free advantage is made from: the scored members of the group where
    the unit is one, else the trajectory alone."""
    if not isinstance(config.algorithm.advantages, GroupAdvantageConfig):
        return []
    if config.schedule.unit != "group":
        return [trajectory]
    return [t for t in state.members(trajectory.group_id) if t.reward_status == "ok"]


def _reward(trajectory: Trajectory) -> float:
    assert trajectory.reward is not None, f"trajectory {trajectory.trajectory_id} has no reward"
    return trajectory.reward


def balance(windows: list[PolicyWindow], values: list[ValueTrajectory], ranks: int) -> list[Shard]:
    """Longest first, always to the rank with the fewest tokens so far."""
    load = [0] * ranks
    shards: list[tuple[list[PolicyWindow], list[ValueTrajectory]]] = [([], []) for _ in load]
    by_trajectory: dict[int, list[PolicyWindow]] = {}
    for window in windows:
        by_trajectory.setdefault(window.trajectory_id, []).append(window)
    for group in sorted(by_trajectory.values(), key=lambda g: -max(w.token_ids.size for w in g)):
        rank = load.index(min(load))
        load[rank] += max(w.token_ids.size for w in group)
        shards[rank][0].extend(group)
    for value in sorted(values, key=lambda v: -v.token_ids.size):
        rank = load.index(min(load))
        load[rank] += value.token_ids.size
        shards[rank][1].append(value)
    return [Shard(windows=w, values=v) for w, v in shards]


def _lag_metrics(lags: list[npt.NDArray[np.int64]]) -> dict[str, float]:
    if not lags:
        return {}
    every = np.concatenate(lags)
    return {"staleness/mean": float(every.mean()), "staleness/max": float(every.max())}
