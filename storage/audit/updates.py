"""Checks of the way that windows and value trajectories take through updates.

In: records in their order. Out: facts, and a finding for each step that no window, value
trajectory, update or lineage may take. `_BEFORE` has the allowed states of a window before each
step.
"""

from collections.abc import Iterable

from headrace.protocol.records import record_types as r
from headrace.run_files.update_log import first_ids
from storage.audit.journal_facts import RecordChecks, TrajectoryFacts, UpdateFacts, WindowFacts
from storage.audit.reading import JournalRecord

_BEFORE: dict[str, tuple[str, ...]] = {
    "made ready": ("closed",),
    "recalled": ("closed", "ready"),
    "dropped": ("closed", "ready"),
    "taken": ("ready",),
    "given back": ("taken",),
    "committed": ("taken",),
    "rolled back": ("trained", "taken"),
}


class UpdateChecks(RecordChecks):
    """The facts of batches, updates, lineages and checkpoints."""

    def check_record(self, read: JournalRecord) -> None:
        """Note what one record says, and check it."""
        self._where = f"record {read.offset}"
        facts = self._facts
        match read.record:
            case r.WindowsReady() as record:
                for window in self._moved(record.window_ids, "made ready"):
                    window.state = "ready"
            case r.WindowsRecalled() as record:
                for window in self._moved(record.window_ids, "recalled"):
                    self._recall(window)
            case r.WindowsDropped() as record:
                for window in self._moved(record.window_ids, "dropped"):
                    window.state, window.reason = "dropped", record.reason
                for trajectory in self._values(record.value_trajectories):
                    if trajectory.value != "waiting":
                        name = f"trajectory {trajectory.trajectory_id}"
                        self._say("value", f"{name} was dropped and is {trajectory.value}")
                    trajectory.value, trajectory.value_moved = "dropped", True
            case r.BatchTaken() as record:
                self._take(record)
            case r.BatchReturned() as record:
                self._return(record)
            case r.UpdateCommitted() as record:
                self._commit(record)
            case r.LineageBegan() as record:
                self._roll_back(record)
            case r.Forgotten() as record:
                facts.forgotten = max(facts.forgotten, record.update)
                for update in [u for u in facts.committed if u <= record.update]:
                    del facts.committed[update]
            case r.CheckpointWritten() as record:
                # It may have been written while later updates were trained.
                if record.lineage != facts.lineage or record.update > facts.update:
                    self._say(
                        "checkpoint",
                        f"said to be of update {record.update} of lineage {record.lineage}, and "
                        f"the last one is {facts.update} of {facts.lineage}",
                    )
                facts.checkpoints[read.offset] = record
            case r.EvaluationDone():
                facts.evaluations += 1
            case r.TokensLost() as record:
                facts.lost[record.generator, record.reason] += record.tokens
            case r.RunPhase() as record:
                facts.phase, facts.config = record.phase, record.config or facts.config

    # -- windows ----------------------------------------------------------------------------------

    def _moved(self, window_ids: Iterable[int], step: str) -> Iterable[WindowFacts]:
        """The windows that a record moves; each must be in a state in which the step begins."""
        for window_id in window_ids:
            window = self._facts.windows.get(window_id)
            if window is None:
                self._say("window", f"window {window_id} was {step} and never closed")
                continue
            if window.state not in _BEFORE[step]:
                self._say("window", f"{window.name} was {step} and is {window.state}")
            yield window

    def _recall(self, window: WindowFacts) -> None:
        trajectory = self._facts.trajectories[window.trajectory_id]
        is_last = trajectory.windows[-1] is window
        sampled = trajectory.versions(window.end, trajectory.length) >= 0
        if not (trajectory.complete and is_last) or sampled.any():
            self._say("window", f"{window.name} was recalled and the answer does not end there")
        window.state, window.final = "closed", True

    def _release(self, window: WindowFacts) -> None:
        window.state, window.masked = "ready", []
        window.lineage = window.update = window.version = None

    # -- batches ----------------------------------------------------------------------------------

    def _take(self, record: r.BatchTaken) -> None:
        facts = self._facts
        if facts.taken is not None:
            self._say("batch", f"update {facts.taken.update} was still out")
        if (record.lineage, record.update) != (facts.lineage, facts.update + 1):
            self._say(
                "batch",
                f"update {record.update} of lineage {record.lineage} was taken after update "
                f"{facts.update} of lineage {facts.lineage}",
            )
        if record.version not in facts.published:
            self._say("versions", f"batch of version {record.version}, never published")
        facts.taken = record
        masked = {item.window_id: item.masked for item in record.windows}
        if len(masked) < len(record.windows):
            self._say("batch", "a window is in the batch twice")
        for window in self._moved(masked, "taken"):
            window.state, window.masked = "taken", masked[window.window_id]
            window.lineage, window.update = record.lineage, record.update
            window.version = record.version
            trajectory = facts.trajectories[window.trajectory_id]
            self._check_mask(trajectory, window)
            if trajectory.value == "trained":
                self._say(
                    "critic_saw_outcome",
                    f"{window.name} was taken for update {record.update}, and update "
                    f"{trajectory.value_update} had shown the critic how the answer ends",
                )
        for key in record.value_trajectories:
            self._take_value(record, key)
        sizes = len(record.windows), len(record.value_trajectories)
        batch = UpdateFacts(record.lineage, record.update, record.version, *sizes)
        facts.updates[record.lineage, record.update] = batch

    def _check_mask(self, trajectory: TrajectoryFacts, window: WindowFacts) -> None:
        reached = window.start
        for run in sorted(window.masked, key=lambda run: run.start):
            if not reached <= run.start < run.end <= window.end:
                self._say("window", f"{window.name}: its masked runs do not lie in it apart")
                return
            sampled = int((trajectory.versions(run.start, run.end) >= 0).sum())
            if sampled != run.tokens:
                text = f"{run.reason} [{run.start}, {run.end}) of {run.tokens} has {sampled} tokens"
                self._say("window", f"{window.name}: {text}")
            reached = run.end

    def _take_value(self, record: r.BatchTaken, key: int) -> None:
        trajectory = self._facts.trajectories.get(key)
        if trajectory is None:
            self._say("value", f"trajectory {key} was never issued")
            return
        name = f"trajectory {key}"
        if not (trajectory.complete and trajectory.reward_status == "ok"):
            text = f"{trajectory.status}, reward {trajectory.reward_status or 'missing'}"
            self._say("value", f"{name} went to the value model: {text}")
        elif trajectory.value != "waiting":
            self._say("value", f"{name} went to the value model and is {trajectory.value}")
        last = trajectory.windows[-1] if trajectory.windows else None
        is_early = last is not None and last.state in ("closed", "ready")
        if record.windows and is_early:
            self._say(
                "critic_saw_outcome",
                f"{name} went to the value model while its last window was {last and last.state}",
            )
        trajectory.value, trajectory.value_moved = "taken", True
        trajectory.value_lineage, trajectory.value_update = record.lineage, record.update

    def _out(self, record: r.BatchReturned | r.UpdateCommitted) -> r.BatchTaken | None:
        """The batch that a record names, after a check that it is the one that is out."""
        taken, self._facts.taken = self._facts.taken, None
        name = f"update {record.update} of lineage {record.lineage}"
        if taken is None or (taken.lineage, taken.update) != (record.lineage, record.update):
            self._say("batch", f"{name} came back and was not out")
            return None
        windows = sorted(item.window_id for item in taken.windows)
        if sorted(record.window_ids) != windows:
            self._say("batch", f"{name} came back with other windows than it was taken with")
        if sorted(record.value_trajectories) != sorted(taken.value_trajectories):
            self._say("batch", f"{name} came back with other value trajectories")
        return taken

    def _return(self, record: r.BatchReturned) -> None:
        self._out(record)
        for window in self._moved(record.window_ids, "given back"):
            self._release(window)
        for trajectory in self._values(record.value_trajectories):
            _release_value(trajectory)
        if update := self._facts.updates.get((record.lineage, record.update)):
            update.state = "returned"

    def _commit(self, record: r.UpdateCommitted) -> None:
        facts, key = self._facts, (record.lineage, record.update)
        taken = self._out(record)
        for window in self._moved(record.window_ids, "committed"):
            if record.skipped is None:
                window.state = "trained"
                window.trained.append(key)
            else:
                window.state, window.reason, window.masked = "dropped", "non_finite", []
        for trajectory in self._values(record.value_trajectories):
            trajectory.value = "trained" if record.skipped is None else "dropped"
            if record.skipped is None:
                trajectory.value_trained.append(key)
        facts.update = record.update
        if taken is not None and record.skipped is None:
            facts.committed[record.update] = taken
        if update := facts.updates.get(key):
            update.state = "skipped" if record.skipped else "committed"
            update.version, update.trained_tokens = record.version, record.trained_tokens
            update.abandoned, update.reported = False, bool(record.metrics)

    def _values(self, keys: Iterable[int]) -> Iterable[TrajectoryFacts]:
        return filter(None, map(self._facts.trajectories.get, keys))

    # -- lineages ---------------------------------------------------------------------------------

    def _roll_back(self, record: r.LineageBegan) -> None:
        facts = self._facts
        name = f"lineage {record.lineage}"
        if record.lineage != facts.lineage + 1:
            self._say("rollback", f"{name} follows lineage {facts.lineage}")
        if not facts.forgotten <= record.update <= facts.update:
            self._say(
                "rollback",
                f"{name} goes on from update {record.update}; those from {facts.forgotten} to "
                f"{facts.update} can be gone back to",
            )
        undone = [batch for update, batch in facts.committed.items() if update > record.update]
        if facts.taken is not None:
            undone.append(facts.taken)
        windows = [item.window_id for batch in undone for item in batch.windows]
        values = [key for batch in undone for key in batch.value_trajectories]
        self._compare(name, "windows", record.window_ids, windows)
        self._compare(name, "value trajectories", record.value_trajectories, values)
        for window in self._moved(record.window_ids, "rolled back"):
            if window.state == "trained":
                trajectory = facts.trajectories[window.trajectory_id]
                facts.abandoned += int(trajectory.in_loss(window).sum())
            window.trained = [key for key in window.trained if key[1] <= record.update]
            self._release(window)
        for trajectory in self._values(record.value_trajectories):
            past = trajectory.value_trained
            trajectory.value_trained = [key for key in past if key[1] <= record.update]
            _release_value(trajectory)
        for update in facts.updates.values():
            if update.update > record.update:
                update.abandoned |= update.state in ("committed", "skipped")
                update.state = "returned" if update.state == "taken" else update.state
        facts.taken = None
        facts.committed = {u: b for u, b in facts.committed.items() if u <= record.update}
        facts.lineage, facts.update = record.lineage, record.update

    def _compare(self, name: str, what: str, said: list[int], undone: list[int]) -> None:
        """Check that a rollback names exactly what the updates that it undoes had."""
        missing, more = set(undone) - set(said), set(said) - set(undone)
        if missing:
            self._say("rollback", f"{name} leaves out {what} {first_ids(missing)}")
        if more or len(set(said)) < len(said):
            text = f"{name} gives back {what} {first_ids(more)} that it does not undo"
            self._say("rollback", text)


def _release_value(trajectory: TrajectoryFacts) -> None:
    trajectory.value = "waiting"
    trajectory.value_lineage = trajectory.value_update = None
