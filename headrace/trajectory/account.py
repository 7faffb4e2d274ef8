"""The account of a run's sequences: trajectories, windows, queues, ledger from records.

In: records, live or replayed. Promise: `apply` is the only way in which anything here changes, and
it depends on the records alone, so a replay of the journal gives the account of the coordinator
that wrote it, memory included. It decides nothing: which windows close, become ready or are dropped
is written in the records (`headrace.trajectory.transitions`).
"""

from collections import OrderedDict

from headrace.protocol.records import record_types as r
from headrace.protocol.token_spans import Reward
from headrace.trajectory.token_ledger import Ledger
from headrace.trajectory.trajectories import Trajectory
from headrace.trajectory.transitions import ValueMove, WindowMove, moves, value_moves
from headrace.trajectory.windows import Window, trajectory_of


class Account:
    """Everything that records say about sequences.

    Attributes:
        trajectories, groups: all that can still be trained, scored or rolled back to, by id.
        active: training trajectories that run or have a closed window that is not ready. closed:
        how many windows of active trajectories are closed and not ready. ready: windows to train,
        by id, in the order in which they became ready. values: trajectories for the value model, by
        id: those in state `waiting`. taken: the batch in flight at the learner. committed:
        batches by update, of this lineage, that a rollback could still undo. again: batches that
        came back, from a learner or by a rollback: they are to be taken again as they were, in this
        order. order: how many windows have become ready in the run.
    """

    def __init__(self, *, has_value: bool, has_environment: bool = False) -> None:
        self._has_value, self._has_environment = has_value, has_environment
        self.order = 0
        self.ledger = Ledger()
        self.trajectories: dict[int, Trajectory] = {}
        self.groups: dict[int, r.GroupIssued] = {}
        self.active: OrderedDict[int, Trajectory] = OrderedDict()
        self.closed = 0
        self.ready: OrderedDict[int, Window] = OrderedDict()
        self.values: OrderedDict[int, Trajectory] = OrderedDict()
        self.taken: r.BatchTaken | None = None
        self.committed: dict[int, r.BatchTaken] = {}
        self.again: list[r.BatchTaken] = []

    # -- reading ----------------------------------------------------------------------------------

    def window(self, window_id: int) -> Window:
        """A closed window by its id."""
        trajectory_id, index = trajectory_of(window_id)
        return self.trajectories[trajectory_id].windows[index]

    def members(self, group_id: int) -> list[Trajectory]:
        """The trajectories of a group."""
        return [self.trajectories[i] for i in self.groups[group_id].trajectory_ids]

    def is_wanted(self, batch: r.BatchTaken) -> bool:
        """Return whether anything of a batch that came back can still be trained."""
        return any(window.window_id in self.ready for window in batch.windows) or any(
            trajectory_id in self.values for trajectory_id in batch.value_trajectories
        )

    # -- the fold ---------------------------------------------------------------------------------

    def apply(self, record: r.Record) -> None:
        """Change the account as the record says."""
        match record:
            case r.ChunkArrived():
                self._arrive(record)
                return  # The most frequent one moves no window.
            case r.GroupIssued():
                self._issue(record)
            case r.TrajectoryEnded():
                self._end(record)
            case r.RewardArrived():
                self._reward(record)
            case r.AuditArrived():
                # It may come when its trajectory is spent and forgotten.
                if trajectory := self.trajectories.get(record.trajectory_id):
                    trajectory.audit_status = record.status
            case r.LinesScored():
                trajectory = self.trajectories[record.trajectory_id]
                trajectory.lines_through = record.through
                trajectory.lines += record.lines
                trajectory.paid += record.rewards
                trajectory.rewards += record.rewards
            case r.TokensLost():
                self.ledger.lost[record.reason] += record.tokens
            case r.Forgotten():
                self._forget(record.update)
            case r.EvaluationDone() | r.Restarted(keeps_evaluation=False):
                for group in [g for g in self.groups.values() if g.purpose in ("eval", "probe")]:
                    self._forget_group(group)
            case r.LineageBegan():
                self._abandon(record)
            case r.WindowsClosed():
                for closed in record.windows:
                    self._close(Window.closed(closed))
        for move in moves(record):
            self._move(move)
        for value_move in value_moves(record):
            self._move_value(value_move)
        match record:
            case r.BatchTaken():
                self.taken = record
                self.again = [batch for batch in self.again if self.is_wanted(batch)]
            case r.UpdateCommitted():
                assert self.taken is not None
                assert self.taken.update == record.update
                if record.skipped is None:  # What was skipped stays dropped, even if rolled back.
                    self.committed[record.update] = self.taken
                self.taken = None
            case r.BatchReturned():
                if self.taken is not None:
                    self.again.insert(0, self.taken)
                self.taken = None
                self._sort()
            case r.LineageBegan():
                self.taken = None
                self._sort()

    def _issue(self, record: r.GroupIssued) -> None:
        self.groups[record.group_id] = record
        for trajectory_id, seed in zip(record.trajectory_ids, record.seeds, strict=True):
            trajectory = Trajectory(
                trajectory_id, record.group_id, record.purpose, record.prompt_ids, seed,
                prefix=record.prefix,
            )  # fmt: skip
            trajectory.paused = self._has_environment
            self.trajectories[trajectory_id] = trajectory
            if record.purpose == "train":
                self.active[trajectory_id] = trajectory

    def _arrive(self, record: r.ChunkArrived) -> None:
        trajectory = self.trajectories[record.trajectory_id]
        sampled = trajectory.append(record)
        trajectory.failures += record.finish == "failed"
        trajectory.paused |= self._has_environment and record.finish == "stop"
        if trajectory.purpose != "train":
            self.ledger.evaluation += sampled
        else:
            self.ledger.add_generated(sampled)
            self.ledger.inserted += record.token_ids.size - sampled

    def _end(self, record: r.TrajectoryEnded) -> None:
        trajectory = self.trajectories[record.trajectory_id]
        trajectory.status = record.status
        self._settle(trajectory)

    def _reward(self, record: r.RewardArrived) -> None:
        trajectory = self.trajectories[record.trajectory_id]
        trajectory.reward, trajectory.reward_status = record.reward, record.status
        trajectory.correct, trajectory.reward_model = record.correct, record.model
        if record.reward is not None:
            at_end = [Reward(record.reward, trajectory.last_sampled)]
            trajectory.rewards += record.rewards or at_end
        if trajectory.purpose == "train" and record.status == "ok" and self._has_value:
            self.ledger.finish_value(trajectory.sampled)
            trajectory.value = "waiting"
            self.values[trajectory.trajectory_id] = trajectory

    def _close(self, window: Window) -> None:
        trajectory = self.trajectories[window.trajectory_id]
        assert (window.index, window.start) == (len(trajectory.windows), trajectory.open_start)
        trajectory.windows.append(window)
        trajectory.in_windows += window.tokens
        trajectory.closed += 1
        self.closed += 1

    def _move(self, move: WindowMove) -> None:
        """One step of a window's life, in its own state, the queues and the ledger alike."""
        window = self.window(move.window_id)
        self.ledger.remove_window(window)
        before, window.state = window.state, move.state
        window.final = window.final if move.final is None else move.final
        window.update = -1 if move.update is None else move.update
        window.reason = move.reason
        window.lines = move.lines or window.lines
        if move.state != "trained":
            window.masked = move.masked
        self.ledger.add_window(window)
        trajectory = self.trajectories[window.trajectory_id]
        change = (move.state == "closed") - (before == "closed")
        trajectory.closed += change
        self.closed += change
        if move.state == "ready":
            if before == "closed":
                window.order = self.order
                self.order += 1
            self.ready[move.window_id] = window
        else:
            self.ready.pop(move.window_id, None)
        self._settle(trajectory)

    def _move_value(self, move: ValueMove) -> None:
        trajectory = self.trajectories[move.trajectory_id]
        assert trajectory.value is not None
        self.ledger.move_value(trajectory.sampled, trajectory.value, move.state)
        trajectory.value = move.state
        trajectory.value_update = -1 if move.update is None else move.update
        if move.state == "waiting":
            self.values[move.trajectory_id] = trajectory
        else:
            self.values.pop(move.trajectory_id, None)

    def _settle(self, trajectory: Trajectory) -> None:
        """Keep `active` to those that run or have a closed window that is not ready."""
        if trajectory.purpose != "train":
            return
        if trajectory.closed or not trajectory.ended:
            self.active.setdefault(trajectory.trajectory_id, trajectory)
        else:
            self.active.pop(trajectory.trajectory_id, None)

    def _sort(self) -> None:
        """Put windows and trajectories that came back into the queues' order again."""
        self.ready = OrderedDict(sorted(self.ready.items(), key=lambda item: item[1].order))
        self.values = OrderedDict(sorted(self.values.items()))

    # -- batches ----------------------------------------------------------------------------------

    def _abandon(self, record: r.LineageBegan) -> None:
        """Count what the lineage given up had trained; its batches are no more."""
        for window_id in record.window_ids:
            window = self.window(window_id)
            if window.state == "trained":
                self.ledger.abandoned += window.tokens - sum(window.dropped().values())
        undone = [b for u, b in sorted(self.committed.items()) if u > record.update]
        self.again = undone + self.again
        self.committed = {u: b for u, b in self.committed.items() if u <= record.update}

    # -- letting go -------------------------------------------------------------------------------

    def _forget(self, up_to_update: int) -> None:
        """Let go of groups that nothing can train, and no rollback can bring back, any more."""
        self.committed = {u: b for u, b in self.committed.items() if u > up_to_update}
        self.again = [batch for batch in self.again if self.is_wanted(batch)]
        reachable = {
            trajectory_of(item.window_id)[0]
            for batch in self.committed.values()
            for item in batch.windows
        } | {i for batch in self.committed.values() for i in batch.value_trajectories}
        for group in list(self.groups.values()):
            members = self.members(group.group_id)
            if all(_spent(t) and t.trajectory_id not in reachable for t in members):
                self._forget_group(group)

    def _forget_group(self, group: r.GroupIssued) -> None:
        for trajectory_id in group.trajectory_ids:
            del self.trajectories[trajectory_id]
        del self.groups[group.group_id]


def _spent(trajectory: Trajectory) -> bool:
    """Return whether nothing of a trajectory can be scored or trained any more."""
    if trajectory.purpose in ("eval", "probe") or not trajectory.ended:
        return False
    scored = trajectory.reward_status is not None or not trajectory.complete
    windows = all(w.state in ("trained", "dropped") for w in trajectory.windows)
    return scored and windows and trajectory.value in (None, "trained", "dropped")
