"""Compilation of a selection into shards for the learner's ranks, and its record.

In: a selection, the state, the rules of the recipe. Out: for each rank its shards, each of which
fits into one message; the BatchTaken record; figures about the batch. Promises: masks and record
are made from the same arrays; the windows of one trajectory go to one rank and share one sequence;
ranks are balanced by tokens, context included, unless a trajectory has to stay with its rank.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from coordinator.persistence.state import State
from coordinator.scheduling.base import BatchSelection
from coordinator.training.loss_masks import WindowMask, mask_window
from headrace.config.validation.batch_rules import BatchRules
from headrace.protocol.messages.batches import (
    PART_BYTES,
    BatchSequence,
    GroupScores,
    PolicyWindow,
    Shard,
    ValueTrajectory,
    part_bytes,
)
from headrace.protocol.records.record_types import BatchTaken, GroupIssued, TakenWindow
from headrace.protocol.token_spans import KL, Coefficient, Reward
from headrace.trajectory.logprob_statistics import state_after
from headrace.trajectory.trajectories import Trajectory
from headrace.trajectory.windows import Window

_NO_LOGPROBS = np.zeros(0, np.float32)


@dataclass(frozen=True)
class PreparedBatch:
    """One batch, ready to be recorded and sent: `parts[r]` are the shards of rank r."""

    parts: list[list[Shard]]
    taken: BatchTaken
    metrics: dict[str, float]

    @property
    def trains_policy(self) -> bool:
        """True where it has windows with tokens in the loss."""
        return any(shard.windows for shards in self.parts for shard in shards)


@dataclass
class _BatchItem:
    """Share of a trajectory in a batch."""

    trajectory: Trajectory
    windows: list[tuple[Window, WindowMask]] = field(default_factory=list)
    value: bool = False

    @property
    def end(self) -> int:
        """End of the positions that its segments read."""
        ends = [window.end for window, _ in self.windows]
        return max([*ends, self.trajectory.length if self.value else 0])

    @property
    def size(self) -> int:
        """Number of tokens of its sequence, context included."""
        return self.trajectory.opening.size + self.end


def prepare(
    selection: BatchSelection,
    state: State,
    rules: BatchRules,
    *,
    ranks: int,
    max_bytes: int,
    batch_id: int | None = None,
) -> PreparedBatch:
    """Compile a batch whose parts take at most `max_bytes` each on the wire."""
    trajectories = state.account.trajectories
    policy: dict[int, _BatchItem] = {}
    taken: list[TakenWindow] = []
    ages: list[npt.NDArray[np.int64]] = []
    for window in selection.windows:
        trajectory = trajectories[window.trajectory_id]
        spans = trajectory.spans_between(window.start, window.end)
        age = state.versions.ages(spans, window.start, window.end, state.update)
        masked = mask_window(trajectory, window, age, rules)
        taken.append(TakenWindow(window_id=window.window_id, masked=masked.runs))
        if masked.trained.any():
            ages.append(age[masked.trained])
            item = policy.setdefault(window.trajectory_id, _BatchItem(trajectory))
            item.windows.append((window, masked))
    values = {t.trajectory_id: _BatchItem(t, value=True) for t in selection.value_trajectories}
    record = BatchTaken(
        update=state.update + 1,
        lineage=state.lineage,
        version=state.versions.current,
        windows=taken,
        value_trajectories=list(values),
        batch_id=batch_id,
    )
    dealt = _deal(policy, values, ranks, stays=rules.stays_with_rank)
    parts = [_cut(items, state, rules, max_bytes) for items in dealt]
    metrics: dict[str, float] = {}
    if ages:
        every = np.concatenate(ages)
        metrics = {"staleness/mean": float(every.mean()), "staleness/max": float(every.max())}
    return PreparedBatch(parts, record, metrics)


def _deal(
    policy: dict[int, _BatchItem], values: dict[int, _BatchItem], ranks: int, *, stays: bool
) -> list[list[_BatchItem]]:
    """Deal the items to ranks: the longest first, to the rank with the fewest tokens.

    Each half is balanced for itself, because the ranks compute them one after the other. Where a
    trajectory `stays` with its rank, its id determines the rank of its windows: members of a group,
    and trajectories issued in a row, go to different ranks, and nothing has to be remembered."""
    dealt: list[dict[int, _BatchItem]] = [{} for _ in range(ranks)]
    for half in (policy, values):
        load = [0] * ranks
        for key, item in sorted(half.items(), key=lambda pair: -pair[1].size):
            rank = key % ranks if stays and half is policy else load.index(min(load))
            load[rank] += item.size
            known = dealt[rank].setdefault(key, _BatchItem(item.trajectory))
            known.windows += item.windows
            known.value |= item.value
    return [list(items.values()) for items in dealt]


def _cut(
    items: Iterable[_BatchItem], state: State, rules: BatchRules, max_bytes: int
) -> list[Shard]:
    """Pack items, in their order, into as few shards as hold them; none without items."""
    shards: list[Shard] = []
    room = 0
    for item in items:
        number = len(shards[-1].sequences) if shards else 0
        piece = _piece(item, number, state, rules)
        size = sum(map(part_bytes, piece.sequences)) + sum(map(part_bytes, piece.windows))
        size += sum(map(part_bytes, piece.values)) + sum(map(part_bytes, piece.groups))
        if size > room:
            shards.append(Shard(sequences=[], windows=[], values=[], groups=[]))
            room = max_bytes - PART_BYTES
            piece = _piece(item, 0, state, rules)
        room -= size
        known = {group.group_id for group in shards[-1].groups}
        shards[-1].sequences.extend(piece.sequences)
        shards[-1].windows.extend(piece.windows)
        shards[-1].values.extend(piece.values)
        shards[-1].groups.extend(g for g in piece.groups if g.group_id not in known)
    return shards


def _piece(item: _BatchItem, number: int, state: State, rules: BatchRules) -> Shard:
    """Return one item as a shard in which its sequence has this number."""
    trajectory = item.trajectory
    group = state.account.groups[trajectory.group_id]
    kl = rules.kl_of_prompt(group.info)
    compares = item.windows and rules.compares != "nobody"
    return Shard(
        sequences=[_sequence(trajectory, item.end, rules, group)],
        windows=[
            _window(trajectory, w, masked, number, kl, rules, group.info)
            for w, masked in item.windows
        ],
        values=[_value(trajectory, number, rules, kl)] if item.value else [],
        groups=[_scores(trajectory, state, rules)] if compares else [],
    )


def _sequence(
    trajectory: Trajectory, end: int, rules: BatchRules, group: GroupIssued
) -> BatchSequence:
    return BatchSequence(
        trajectory_id=trajectory.trajectory_id,
        group_id=_group_id(trajectory, rules),
        token_ids=np.concatenate([trajectory.opening, trajectory.tokens[:end]]),
        opening=trajectory.opening.size,
        sampled=trajectory.sampled_between(0, end),
        aside=group.aside,
        media=group.media,
    )


def _window(
    trajectory: Trajectory,
    window: Window,
    masked: WindowMask,
    sequence: int,
    kl: float | None,
    rules: BatchRules,
    row: str,
) -> PolicyWindow:
    logprobs = trajectory.logprobs[window.start : window.end]
    length = sum(w.tokens for w in trajectory.windows[: window.index + 1])
    return PolicyWindow(
        window_id=window.window_id,
        trajectory_id=trajectory.trajectory_id,
        sequence=sequence,
        start=window.start,
        end=window.end,
        length=length,
        logprobs=np.where(np.isfinite(logprobs), logprobs, np.float32(0.0)),
        loss_weights=masked.weights,
        spans=trajectory.spans_between(window.start, window.end),
        rewards=_rewards(trajectory, window),
        coefficients=_coefficients(trajectory, window.start, window.end, kl),
        marks=[m for m in trajectory.marks if m.start < window.end and m.end > window.start],
        finished=window.final,
        correct=window.final and bool(trajectory.correct),
        turns=trajectory.turns_between(window.start, window.end) if rules.by_turn else [],
        confidence=_confidence(trajectory, window.start) if rules.value_statistics else [],
        outcome=_outcome(trajectory, window) if rules.sends_outcomes else None,
        answer_length=trajectory.sampled,
        row=row if rules.sends_rows and window.final else "",
    )


def _rewards(trajectory: Trajectory, window: Window) -> list[Reward]:
    """Return the rewards of a window's positions.

    A reward behind the last sampled token of all (a tool's answer ended the sequence) counts at
    that token."""
    last = window.end - 1
    return [
        Reward(reward.value, min(reward.position, last))
        for reward in trajectory.rewards
        if window.start <= reward.position and (reward.position <= last or window.final)
    ]


def _outcome(trajectory: Trajectory, window: Window) -> float | None:
    """Return the reward behind a cut window; None until its answer has ended and is scored."""
    if window.final or not trajectory.complete or trajectory.reward_status != "ok":
        return None
    return sum(x.value for x in trajectory.rewards if x.position >= window.end)


def _value(
    trajectory: Trajectory, sequence: int, rules: BatchRules, kl: float | None
) -> ValueTrajectory:
    return ValueTrajectory(
        trajectory_id=trajectory.trajectory_id,
        sequence=sequence,
        length=trajectory.sampled,
        rewards=trajectory.rewards,
        coefficients=_coefficients(trajectory, 0, trajectory.length, kl),
        logprobs=trajectory.logprobs if rules.value_logprobs else _NO_LOGPROBS,
        turns=trajectory.turns_between(0, trajectory.length) if rules.by_turn else [],
        marks=trajectory.marks if rules.value_statistics else [],
    )


def _confidence(trajectory: Trajectory, end: int) -> list[float]:
    """Return [5] the state of the sampler's logprobs before position `end`.

    A token that FIRE drew hot counts as certain, because its low probability says nothing about
    the answer."""
    logprobs = trajectory.logprobs[:end].copy()
    for mark in trajectory.marks:
        if mark.name == "hot":
            logprobs[mark.start : mark.end] = 0.0
    runs = [logprobs[start:stop] for start, stop in trajectory.sampled_between(0, end)]
    return state_after(np.concatenate([_NO_LOGPROBS, *runs]))


def _coefficients(
    trajectory: Trajectory, start: int, end: int, kl: float | None
) -> list[Coefficient]:
    """Return the coefficients of positions [start, end), the source's `kl` first.

    The stream's values for single tokens follow and override it. A token whose logprob is not
    finite has a divergence that nobody knows, so its coefficient is 0."""
    of_source = [] if kl is None else [Coefficient(KL, kl, start, end)]
    own = (c for c in trajectory.coefficients if c.start < end and c.end > start)
    unknown = np.flatnonzero(~np.isfinite(trajectory.logprobs[start:end])) + start
    return [*of_source, *own, *(Coefficient(KL, 0.0, at, at + 1) for at in unknown.tolist())]


def _scores(trajectory: Trajectory, state: State, rules: BatchRules) -> GroupScores:
    """Return the scores from which the trajectory's advantages are made."""
    rivals = [trajectory]
    if rules.compares == "group":
        members = state.account.members(trajectory.group_id)
        rivals = [t for t in members if t.reward_status == "ok"]
    rewards = [t.reward for t in rivals]
    assert None not in rewards, f"trajectory {trajectory.trajectory_id} has no reward"
    return GroupScores(
        group_id=_group_id(trajectory, rules),
        trajectory_ids=[t.trajectory_id for t in rivals],
        scores=np.array(rewards, np.float32),
        lengths=np.array([t.sampled for t in rivals], np.int32),
    )


def _group_id(trajectory: Trajectory, rules: BatchRules) -> int:
    """Return the group in which it is compared: that of its prompt, or one of its own."""
    alone = rules.compares == "itself"
    return -1 - trajectory.trajectory_id if alone else trajectory.group_id
