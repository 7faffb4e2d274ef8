"""Runs of record format 1, told in today's records.

Comes in: the records of a format-1 journal in their order, and two settings of the run. Goes out:
today's records. Format 1 wrote down which windows the learner took, and how many tokens of each it
left out and why; every reader had to work out where a window ended, when it was ready, which of its
tokens were left out, and what was lost with a reward. The rules for that stand here and nowhere
else, and they do not change any more.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.protocol import records as today
from headrace.protocol.fields import Metric
from headrace.protocol.records import (
    ChunkArrived,
    ClosedWindow,
    DropReason,
    GroupIssued,
    MaskedRun,
    Record,
    RewardArrived,
    TakenWindow,
    TrajectoryEnded,
    VersionIssued,
    VersionPublished,
    WindowsClosed,
    WindowsDropped,
    WindowsReady,
    WindowsRecalled,
)
from headrace.protocol.streams import Span
from storage.version1.shapes import (
    FLAT_ARRAYS,
    BatchReturned,
    BatchTaken,
    LineageBegan,
    TokensDropped,
    UpdateCommitted,
    WindowTrained,
)


class Settings(NamedTuple):
    """What the rules depend on: most tokens of a window, and what the policy was trained on."""

    window: int
    unit: Literal["window", "trajectory", "group"]


def settings_of(config: Mapping[str, Any]) -> Settings:
    """The settings in a run's resolved configuration."""
    schedule = config["schedule"]
    window = schedule["window"]
    if schedule["mode"] == "synchronous" or window is None:
        window = config["task"]["max_response_length"]
    return Settings(window, schedule["unit"])


@dataclass(slots=True)
class _Window:
    window_id: int
    start: int
    end: int
    state: Literal["waiting", "ready", "taken", "trained", "dropped"] = "waiting"


@dataclass(slots=True)
class _Trajectory:
    group_id: int
    status: str = "running"
    reward_status: str | None = None
    length: int = 0
    spans: list[Span] = field(default_factory=list)
    non_finite: list[int] = field(default_factory=list)
    windows: list[_Window] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        return self.status in ("finished", "truncated")

    @property
    def open_start(self) -> int:
        return self.windows[-1].end if self.windows else 0

    def append(self, chunk: ChunkArrived) -> None:
        for span in chunk.spans:
            last = self.spans[-1] if self.spans else None
            if last and (last.version, last.end) == (span.version, span.start):
                self.spans[-1] = Span(last.version, last.start, span.end)
            else:
                self.spans.append(span)
        self.non_finite += (np.flatnonzero(~np.isfinite(chunk.logprobs)) + chunk.start).tolist()
        self.length += len(chunk.token_ids)

    def versions(self, start: int, end: int) -> npt.NDArray[np.int64]:
        """Which weights sampled each token of [start, end)."""
        versions = np.zeros(end - start, np.int64)
        for span in self.spans:
            versions[max(span.start - start, 0) : max(span.end - start, 0)] = span.version
        return versions


class _Outcome:
    """What a record did to windows, gathered to one record of each kind."""

    def __init__(self) -> None:
        self.closed: list[ClosedWindow] = []
        self.recalled: list[int] = []
        self.ready: list[int] = []
        self.dropped: list[tuple[int, DropReason]] = []

    def records(self, at: float) -> Iterator[Record]:
        if self.closed:
            yield WindowsClosed(at=at, windows=self.closed)
        if self.recalled:
            yield WindowsRecalled(at=at, window_ids=self.recalled)
        if self.ready:
            yield WindowsReady(at=at, window_ids=self.ready)
        for reason in dict.fromkeys(reason for _, reason in self.dropped):
            ids = [window_id for window_id, why in self.dropped if why == reason]
            yield WindowsDropped(at=at, window_ids=ids, reason=reason)


class Translator:
    """Follows a run from its first record; `translate` must see every one, in order."""

    def __init__(self, settings: Settings) -> None:
        self._window, self._unit = settings
        self._trajectories: dict[int, _Trajectory] = {}
        self._groups: dict[int, list[int]] = {}
        self._windows: dict[int, _Window] = {}
        self._taken: BatchTaken | None = None
        self._committed: dict[int, BatchTaken] = {}

    def translate(self, record: Record) -> Iterator[Record]:
        """Today's records that say what this one said."""
        outcome = _Outcome()
        match record:
            case GroupIssued(purpose="train"):
                self._groups[record.group_id] = record.trajectory_ids
                for key in record.trajectory_ids:
                    self._trajectories[key] = _Trajectory(record.group_id)
                yield record
            case ChunkArrived():
                yield record
                self._arrive(record, outcome)
            case TrajectoryEnded():
                yield record
                self._end(record, outcome)
            case RewardArrived():
                yield record
                if trajectory := self._trajectories.get(record.trajectory_id):
                    trajectory.reward_status = record.status
                    self._settle_group(trajectory, outcome)
            case TokensDropped():
                self._drop(record, outcome)
            case BatchTaken():
                yield self._take(record)
            case BatchReturned():
                yield self._return(record)
            case UpdateCommitted():
                yield self._commit(record)
            case LineageBegan():
                yield self._roll_back(record)
            case VersionPublished():
                yield VersionIssued(at=record.at, version=record.version)
                yield record
            case _:
                yield record
        yield from outcome.records(record.at)

    def _arrive(self, record: ChunkArrived, outcome: _Outcome) -> None:
        trajectory = self._trajectories.get(record.trajectory_id)
        if trajectory is None:
            return
        trajectory.append(record)
        while trajectory.length - trajectory.open_start >= self._window:
            end = trajectory.open_start + self._window
            if end == trajectory.length and record.finish in ("stop", "length"):
                break  # it closes with the trajectory
            window = self._close(record.trajectory_id, end, outcome)
            self._settle(trajectory, window, outcome)

    def _end(self, record: TrajectoryEnded, outcome: _Outcome) -> None:
        trajectory = self._trajectories.get(record.trajectory_id)
        if trajectory is None:
            return
        trajectory.status = record.status
        last = trajectory.windows[-1] if trajectory.windows else None
        if trajectory.length > trajectory.open_start:
            self._close(record.trajectory_id, trajectory.length, outcome)
        elif trajectory.complete and last and last.state in ("waiting", "ready"):
            last.state = "waiting"
            outcome.recalled.append(last.window_id)
        if not trajectory.complete:
            for window in trajectory.windows:
                if window.state == "waiting":
                    self._drop_window(window, "reward_failed", outcome)
            self._settle_group(trajectory, outcome)

    def _close(self, trajectory_id: int, end: int, outcome: _Outcome) -> _Window:
        trajectory = self._trajectories[trajectory_id]
        start, index = trajectory.open_start, len(trajectory.windows)
        window = _Window(trajectory_id << 16 | index, start, end)
        versions = trajectory.versions(start, end)
        trajectory.windows.append(window)
        self._windows[window.window_id] = window
        outcome.closed.append(
            ClosedWindow(
                window_id=window.window_id,
                trajectory_id=trajectory_id,
                index=index,
                start=start,
                end=end,
                tokens=end - start,
                min_version=int(versions.min()),
                max_version=int(versions.max()),
                final=trajectory.status != "running",
            )
        )
        return window

    def _settle_group(self, trajectory: _Trajectory, outcome: _Outcome) -> None:
        """A reward has come, or will never come: say which windows are ready or dropped because of
        that."""
        members = [self._trajectories[key] for key in self._groups[trajectory.group_id]]
        for member in members if self._unit == "group" else [trajectory]:
            for window in member.windows:
                if window.state == "waiting":
                    self._settle(member, window, outcome)

    def _settle(self, trajectory: _Trajectory, window: _Window, outcome: _Outcome) -> None:
        """A window is ready when nothing is missing any more, and dropped when what is missing will
        never come."""
        is_final = trajectory.status != "running" and window.end == trajectory.length
        status = trajectory.reward_status
        if status not in (None, "ok") and (is_final or self._unit != "window"):
            self._drop_window(window, "reward_failed", outcome)
            return
        is_ready = status == "ok" or (self._unit == "window" and not is_final)
        if self._unit == "group":
            members = [self._trajectories[key] for key in self._groups[trajectory.group_id]]
            is_ready = is_ready and all(
                m.reward_status is not None or m.status == "failed" for m in members
            )
        if is_ready:
            window.state = "ready"
            outcome.ready.append(window.window_id)

    def _drop_window(self, window: _Window, reason: DropReason, outcome: _Outcome) -> None:
        window.state = "dropped"
        outcome.dropped.append((window.window_id, reason))

    def _drop(self, record: TokensDropped, outcome: _Outcome) -> None:
        trajectory = self._trajectories[record.trajectory_id]
        if trajectory.open_start < min(record.end, trajectory.length):
            self._close(record.trajectory_id, min(record.end, trajectory.length), outcome)
        for window in trajectory.windows:
            inside = window.start >= record.start and window.end <= record.end
            if inside and window.state in ("waiting", "ready"):
                self._drop_window(window, record.reason, outcome)

    def _take(self, record: BatchTaken) -> today.BatchTaken:
        self._taken = record
        self._move(record, "taken")
        return today.BatchTaken(
            at=record.at,
            update=record.update,
            lineage=record.lineage,
            version=record.version,
            windows=[
                TakenWindow(
                    window_id=window.window_id,
                    masked=masked_runs(window, self._trajectories[window.trajectory_id]),
                )
                for window in record.windows
            ],
            value_trajectories=record.value_trajectories,
        )

    def _return(self, record: BatchReturned) -> today.BatchReturned:
        batch, self._taken = self._taken, None
        windows, values = self._give_back([batch] if batch else [])
        return today.BatchReturned(
            at=record.at,
            update=record.update,
            lineage=record.lineage,
            reason=record.reason,
            window_ids=windows,
            value_trajectories=values,
        )

    def _commit(self, record: UpdateCommitted) -> today.UpdateCommitted:
        batch, self._taken = self._taken, None
        assert batch is not None, f"update {record.update} was committed and never taken"
        self._move(batch, "dropped" if record.skipped else "trained")
        if not record.skipped:  # what was dropped stays dropped
            self._committed[record.update] = batch
        fields = {name: getattr(record, name) for name in record.__struct_fields__}
        fields["metrics"] = with_arrays(record.metrics)
        return today.UpdateCommitted(
            **fields,
            window_ids=[window.window_id for window in batch.windows],
            value_trajectories=batch.value_trajectories,
            diagnostics=[],
        )

    def _roll_back(self, record: LineageBegan) -> today.LineageBegan:
        undone = [self._committed.pop(u) for u in sorted(self._committed) if u > record.update]
        if self._taken is not None:
            undone.append(self._taken)
            self._taken = None
        windows, values = self._give_back(undone)
        fields = {name: getattr(record, name) for name in record.__struct_fields__}
        return today.LineageBegan(**fields, window_ids=windows, value_trajectories=values)

    def _give_back(self, batches: list[BatchTaken]) -> tuple[list[int], list[int]]:
        for batch in batches:
            self._move(batch, "ready")
        windows = [window.window_id for batch in batches for window in batch.windows]
        return windows, [key for batch in batches for key in batch.value_trajectories]

    def _move(
        self, batch: BatchTaken, state: Literal["ready", "taken", "trained", "dropped"]
    ) -> None:
        for window in batch.windows:
            self._windows[window.window_id].state = state


def with_arrays(metrics: dict[str, float]) -> dict[str, Metric]:
    """Metrics with those that were numbered by bins as arrays."""
    left = dict(metrics)
    arrays: dict[str, Metric] = {}
    for name, bins in FLAT_ARRAYS.items():
        values = [left.pop(flat, None) for flat in bins]
        if any(value is not None for value in values):
            arrays[name] = values
    return {**left, **arrays}


def masked_runs(window: WindowTrained, trajectory: _Trajectory) -> list[MaskedRun]:
    """Which tokens a window left out, from how many: the non-finite ones, then the oldest, then the
    last before the cut, or all that was left of an overlong answer. Each reason counted only the
    tokens that no earlier reason had counted, so the counts determine the tokens."""
    left = np.ones(window.end - window.start, np.bool_)
    versions = trajectory.versions(window.start, window.end)
    non_finite = np.array(trajectory.non_finite, np.int64) - window.start
    non_finite = non_finite[(non_finite >= 0) & (non_finite < left.size)]
    counts = Counter(window.dropped)
    found: list[MaskedRun] = []
    for reason, order in (
        ("non_finite", non_finite),
        ("stale", np.argsort(versions, kind="stable")),
        ("boundary_mask", np.arange(left.size)[::-1]),
        ("overlong", np.arange(left.size)[::-1]),
    ):
        out = np.sort(order[left[order]][: counts[reason]])
        left[out] = False
        found += _runs(reason, out, window.start)  # type: ignore[arg-type]
    return found


def _runs(reason: DropReason, positions: npt.NDArray[np.int64], start: int) -> Iterator[MaskedRun]:
    """Ascending positions as runs."""
    for run in np.split(positions, np.flatnonzero(np.diff(positions) != 1) + 1):
        if run.size:
            yield MaskedRun(reason, start + int(run[0]), start + int(run[-1]) + 1, run.size)
