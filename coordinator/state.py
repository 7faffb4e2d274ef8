"""The coordinator's state: a fold over the journal's records.

Comes in: records, live or replayed. Goes out: trajectories, queues, counters, the ledger. Promises:
`apply` is the only way in which anything here changes, so that replaying the journal rebuilds the
state of a coordinator that died; leases and holds are not rebuilt (they died with it) and whoever
was running waits for a new lease.
"""

from collections import OrderedDict
from collections.abc import Iterator

import msgspec

from coordinator.ledger import Account, Ledger
from coordinator.trajectories import Group, Trajectory, Window
from headrace.config.run import RunConfig
from headrace.protocol.records import (
    BatchReturned,
    BatchTaken,
    ChunkArrived,
    EvaluationDone,
    GroupIssued,
    LeaseIssued,
    LineageBegan,
    Record,
    RewardArrived,
    TokensDropped,
    TrajectoryEnded,
    UpdateCommitted,
    VersionPublished,
)


class State:
    """Everything that survives the coordinator's death."""

    def __init__(self, config: RunConfig) -> None:
        self.window_size = config.window
        self.unit = config.schedule.unit
        self.has_value = config.algorithm.value is not None
        self.ledger = Ledger()
        self.trajectories: dict[int, Trajectory] = {}
        self.groups: dict[int, Group] = {}
        self.active: OrderedDict[int, Trajectory] = OrderedDict()
        """Training trajectories that run or have a window waiting for its reward or group."""
        self.ready: OrderedDict[int, Window] = OrderedDict()
        self.value_queue: OrderedDict[int, Trajectory] = OrderedDict()
        self.taken: BatchTaken | None = None
        self.returned: BatchTaken | None = None
        """The batch that came back last, until another leaves."""
        self.committed: dict[int, BatchTaken] = {}
        """Batches committed on this lineage since the last checkpoint that nothing precedes."""
        self.next_group = 0
        self.next_trajectory = 0
        self.next_lease = 0
        self.position = 0
        self.update = 0
        self.lineage = 0
        self.version = -1
        self.issued_version = -1
        self.first_policy_update: int | None = None
        """The first update on this lineage that trained the policy: the warm-up was over."""
        self.train_time_s = 0.0
        self.evaluations: list[EvaluationDone] = []
        self.issued = 0
        self.ended: dict[str, int] = {"finished": 0, "truncated": 0, "failed": 0, "dropped": 0}
        self._order = 0

    # -- reading ----------------------------------------------------------------------------------

    def running(self) -> Iterator[Trajectory]:
        """Training trajectories that still want tokens."""
        return (t for t in self.active.values() if t.status == "running")

    @property
    def newest_update(self) -> int:
        """The last update on this lineage that a learner was given."""
        batch = self.taken or self.returned
        return max(self.update, batch.update if batch else 0)

    def window(self, trajectory_id: int, index: int) -> Window:
        """A complete window."""
        return self.trajectories[trajectory_id].windows[index]

    # -- the fold ---------------------------------------------------------------------------------

    def apply(self, record: Record) -> None:
        """Change the state as the record says."""
        match record:
            case GroupIssued():
                self._issue(record)
            case LeaseIssued():
                self.next_lease = max(self.next_lease, record.lease_id + 1)
                trajectory = self.trajectories[record.trajectory_id]
                trajectory.lease_id, trajectory.generator = record.lease_id, record.generator
                trajectory.holding = False
            case ChunkArrived():
                self._arrive(record)
            case TrajectoryEnded():
                self._end(record)
            case RewardArrived():
                self._reward(record)
            case BatchTaken():
                self._take(record)
            case BatchReturned():
                self._return()
            case UpdateCommitted():
                self._commit(record)
            case TokensDropped():
                self._drop(record)
            case LineageBegan():
                self._roll_back(record)
            case VersionPublished():
                self.version = record.version
                self.issued_version = max(self.issued_version, record.version)
            case EvaluationDone():
                self.evaluations.append(record)
            case _:
                pass

    def _issue(self, record: GroupIssued) -> None:
        self.groups[record.group_id] = Group(
            record.group_id,
            record.prompt_id,
            record.purpose,
            record.prompt,
            record.answer,
            record.info,
            record.trajectory_ids,
        )
        for trajectory_id, seed in zip(record.trajectory_ids, record.seeds, strict=True):
            trajectory = Trajectory(
                trajectory_id,
                record.group_id,
                record.purpose,
                record.prompt_ids,
                seed,
                self.window_size,
            )
            self.trajectories[trajectory_id] = trajectory
            if record.purpose == "train":
                self.active[trajectory_id] = trajectory
        self.next_group = max(self.next_group, record.group_id + 1)
        self.next_trajectory = max(self.next_trajectory, record.trajectory_ids[-1] + 1)
        if record.purpose == "train":
            self.issued += len(record.trajectory_ids)
            self.position = max(self.position, record.position + 1)

    def _arrive(self, record: ChunkArrived) -> None:
        trajectory = self.trajectories[record.trajectory_id]
        trajectory.append(record)
        tokens = record.token_ids.size
        if trajectory.purpose == "eval":
            self.ledger.evaluation += tokens
        else:
            self.ledger.arrive(tokens)
            while trajectory.length - trajectory.open_start >= self.window_size:
                # A window that ends with the response is closed by TrajectoryEnded.
                end = trajectory.open_start + self.window_size
                if end == trajectory.length and record.finish in ("stop", "length"):
                    break
                trajectory.window_open = False
                self._settle(trajectory, trajectory.close_window(end))
        if record.finish is not None:
            trajectory.lease_id = trajectory.generator = None
            trajectory.holding = False
            trajectory.failures += record.finish == "failed"

    def _end(self, record: TrajectoryEnded) -> None:
        trajectory = self.trajectories[record.trajectory_id]
        trajectory.status = record.status
        trajectory.window_open = False
        trajectory.lease_id = trajectory.generator = None
        if trajectory.purpose == "eval":
            return
        self.ended[record.status if record.status in self.ended else "dropped"] += 1
        if trajectory.length > trajectory.open_start:
            window = trajectory.close_window(trajectory.length)
            if trajectory.complete:
                self._settle(trajectory, window)
            else:
                self._drop_window(window, "reward_failed")
        elif trajectory.complete and trajectory.windows[-1].state == "ready":
            # The end came after the last border's chunk: the window is final after all.
            self.ready.pop(trajectory.windows[-1].window_id)
            trajectory.windows[-1].state = "waiting"
            self.ledger.move(trajectory.windows[-1].tokens, "ready", "in_flight")
        if not trajectory.complete:
            for window in trajectory.windows:
                if window.state == "waiting":
                    self._drop_window(window, "reward_failed")
            self._settle_group(trajectory)
            self.active.pop(trajectory.trajectory_id, None)

    def _reward(self, record: RewardArrived) -> None:
        trajectory = self.trajectories[record.trajectory_id]
        trajectory.reward, trajectory.reward_status = record.reward, record.status
        if trajectory.purpose == "eval":
            return
        if record.status == "ok" and self.has_value:
            self.ledger.finish_value(trajectory.length)
            self.value_queue[trajectory.trajectory_id] = trajectory
        self._settle_group(trajectory)

    def members(self, group_id: int) -> list[Trajectory]:
        """The trajectories of a group."""
        return [self.trajectories[i] for i in self.groups[group_id].trajectory_ids]

    def _settle_group(self, trajectory: Trajectory) -> None:
        """A trajectory got its reward or failed: see which windows that makes ready."""
        for member in self.members(trajectory.group_id) if self.unit == "group" else [trajectory]:
            for window in member.windows:
                if window.state == "waiting":
                    self._settle(member, window)
            if member.ended and all(w.state != "waiting" for w in member.windows):
                self.active.pop(member.trajectory_id, None)

    def _settle(self, trajectory: Trajectory, window: Window) -> None:
        """Waiting to ready, when nothing is missing any more; to dropped, when it never will be."""
        final = trajectory.ended and window.end == trajectory.length
        if trajectory.reward_status not in (None, "ok") and (final or self.unit != "window"):
            self._drop_window(window, "reward_failed")
            return
        if self.unit == "window":
            good = not final or trajectory.reward_status == "ok"
        elif self.unit == "trajectory":
            good = trajectory.reward_status == "ok"
        else:
            good = trajectory.reward_status == "ok" and all(
                m.reward_status is not None or m.status == "failed"
                for m in self.members(trajectory.group_id)
            )
        if good:
            window.state = "ready"
            window.order = self._order
            self._order += 1
            self.ready[window.window_id] = window
            self.ledger.move(window.tokens, "in_flight", "ready")

    def _drop_window(self, window: Window, reason: str) -> None:
        source: Account = "in_flight" if window.state == "waiting" else "ready"
        self.ledger.move(window.tokens, source, "dropped", reason)
        window.state = "dropped"
        self.ready.pop(window.window_id, None)

    def _take(self, record: BatchTaken) -> None:
        assert self.taken is None, "a batch is out already"
        self.taken, self.returned = record, None
        self.update = record.update
        for item in record.windows:
            window = self.window(item.trajectory_id, item.index)
            window.state, window.update = "taken", record.update
            self.ready.pop(window.window_id, None)
        for trajectory_id in record.value_trajectories:
            self.value_queue.pop(trajectory_id).value_update = -1

    def _return(self) -> None:
        """What the learner had is ready again, in its old order."""
        assert self.taken is not None
        batch, self.taken = self.taken, None
        self.returned = batch
        self.update = batch.update - 1
        self._requeue(batch)

    def _requeue(self, batch: BatchTaken) -> None:
        for item in batch.windows:
            window = self.window(item.trajectory_id, item.index)
            window.state, window.update = "ready", -1
            self.ready[window.window_id] = window
        self.ready = OrderedDict(sorted(self.ready.items(), key=lambda kv: kv[1].order))
        for trajectory_id in batch.value_trajectories:
            trajectory = self.trajectories[trajectory_id]
            trajectory.value_update = None
            self.value_queue[trajectory_id] = trajectory
        self.value_queue = OrderedDict(sorted(self.value_queue.items()))

    def _commit(self, record: UpdateCommitted) -> None:
        assert self.taken is not None
        assert self.taken.update == record.update
        batch, self.taken = self.taken, None
        self.committed[record.update] = batch
        if batch.windows and self.first_policy_update is None:
            self.first_policy_update = record.update
        self.train_time_s = record.train_time_s
        for item in batch.windows:
            window = self.window(item.trajectory_id, item.index)
            window.state = "trained" if item.trained and not record.skipped else "dropped"
            for tokens, account, reason in _outcome(item.trained, item.dropped, record.skipped):
                self.ledger.move(tokens, "ready", account, reason)
        for trajectory_id in batch.value_trajectories:
            trajectory = self.trajectories[trajectory_id]
            trajectory.value_update = record.update
            self.ledger.move_value(
                trajectory.length, "waiting", "dropped" if record.skipped else "trained"
            )
        if record.skipped:
            # What was dropped stays dropped: a rollback has nothing to give back.
            self.committed[record.update] = msgspec.structs.replace(
                batch, windows=[], value_trajectories=[]
            )

    def _drop(self, record: TokensDropped) -> None:
        trajectory = self.trajectories[record.trajectory_id]
        for window in trajectory.windows:
            inside = window.start >= record.start and window.end <= record.end
            if inside and window.state in ("waiting", "ready"):
                self._drop_window(window, record.reason)
        if trajectory.open_start < record.end and trajectory.open_start < trajectory.length:
            window = trajectory.close_window(min(record.end, trajectory.length))
            self._drop_window(window, record.reason)
        if trajectory.ended and all(w.state != "waiting" for w in trajectory.windows):
            self.active.pop(trajectory.trajectory_id, None)

    def _roll_back(self, record: LineageBegan) -> None:
        """Undo what was committed after the cut."""
        if self.taken is not None:
            self._return()
        for update in sorted(u for u in self.committed if u > record.update):
            batch = self.committed.pop(update)
            for item in batch.windows:
                self.ledger.abandoned += item.trained
                for tokens, account, reason in _outcome(item.trained, item.dropped, None):
                    self.ledger.move(tokens, account, "ready", reason)
            for trajectory_id in batch.value_trajectories:
                self.ledger.move_value(
                    self.trajectories[trajectory_id].length, "trained", "waiting"
                )
            self._requeue(batch)
        self.lineage, self.update = record.lineage, record.update
        if self.first_policy_update is not None and record.update < self.first_policy_update - 1:
            self.first_policy_update = None

    def forget_leases(self) -> None:
        """After a replay: leases died with the coordinator, and evaluations begin anew. Some lease
        ids may have been given out and not journaled, so the count jumps."""
        self.next_lease += 1_000_000
        for trajectory in list(self.trajectories.values()):
            if trajectory.purpose == "eval":
                del self.trajectories[trajectory.trajectory_id]
                self.groups.pop(trajectory.group_id, None)
            trajectory.lease_id = trajectory.generator = None
            trajectory.holding = trajectory.window_open = False

    def forget(self, up_to_update: int) -> None:
        """Let go of what a checkpoint has made final: a rollback can no longer reach it."""
        for update in [u for u in self.committed if u <= up_to_update]:
            del self.committed[update]
        reachable = {
            item.trajectory_id for batch in self.committed.values() for item in batch.windows
        } | {i for batch in self.committed.values() for i in batch.value_trajectories}
        for group in list(self.groups.values()):
            members = [self.trajectories[i] for i in group.trajectory_ids]
            if all(self._consumed(t) and t.trajectory_id not in reachable for t in members):
                for trajectory in members:
                    del self.trajectories[trajectory.trajectory_id]
                del self.groups[group.group_id]

    def _consumed(self, trajectory: Trajectory) -> bool:
        """Nothing of it can be trained any more."""
        if not trajectory.ended:
            return False
        if trajectory.purpose == "eval":
            return trajectory.reward_status is not None or trajectory.status == "failed"
        windows_done = all(w.state in ("trained", "dropped") for w in trajectory.windows)
        value_done = not self.has_value or (
            trajectory.value_update is not None and trajectory.value_update >= 0
        )
        return windows_done and (value_done or trajectory.reward_status not in (None, "ok"))


def _outcome(
    trained: int, dropped: dict[str, int], skipped: str | None
) -> Iterator[tuple[int, Account, str]]:
    """(tokens, account, reason) of a window that left the learner."""
    if skipped:
        yield trained + sum(dropped.values()), "dropped", "non_finite"
        return
    yield trained, "trained_policy", ""
    for reason, tokens in dropped.items():
        yield tokens, "dropped", reason
