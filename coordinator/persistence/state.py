"""State of the coordinator: a fold over the journal's records.

In: records, live or replayed. Out: the account of all sequences, versions and their age, counters
of the run. Promise: only `apply` changes anything here, so that replaying the journal, from a
snapshot of it or from the beginning, rebuilds the state of a coordinator that died, memory
included. It holds the leases given; `coordinator.dispatch.leases` derives from them which
trajectories wait for one.
"""

from collections import Counter

from coordinator.connections.versions import Versions
from coordinator.dispatch.mixture import MixtureProgress, banded_domains
from headrace.config.sections.run import RunConfig
from headrace.protocol.records import record_types as r
from headrace.trajectory.account import Account


class State:
    """All that survives the coordinator's death.

    Attributes:
        account: trajectories, windows, queues and the ledger. versions: weight versions and their
        updates. update: the update in flight at the learner, else the last one committed. given:
        the highest update that any learner of the run was ever given. lineage: the line of updates
        that the learner is on; a rollback begins a new one. line: the places on it that a learner
        can still go back to: by update, its batch (None: the starting model). first_policy_update:
        the first update on this lineage that trained the policy. checkpoints: updates of the
        checkpoints on this lineage, oldest first. leases: id and generator of each trajectory's
        last lease without an answer; it may be over, where a generator was lost. mixture: prompts
        asked and their rewards, by domain. discarded: by generator, its process id and the number
        of tokens thrown away at holds. issued, ended: training trajectories so far, the ended ones
        by status. rejected: refused messages of peers, as last sampled. cpu_s: CPU seconds that the
        run had used by then. milestones: journal offsets at which groups began; the first is that
        of the oldest group that is not forgotten, or lies before it.
    """

    def __init__(self, config: RunConfig) -> None:
        self.account = Account(
            has_value=config.algorithm.value is not None,
            has_environment=config.environment is not None,
        )
        self.versions = Versions()
        self.next_group = 0
        self.next_trajectory = 0
        self.next_lease = 0
        self.position = 0
        self._banded = banded_domains(config.task)
        self.mixture = MixtureProgress(rates={} if self._banded else None)
        self.update = self.given = 0
        self.lineage = 0
        self.line: dict[int, int | None] = {0: None}
        self.first_policy_update: int | None = None
        value = config.algorithm.value
        self._enough = None if value is None else value.warmup_explained_variance
        self.train_time_s = 0.0
        self.evaluations: list[r.EvaluationDone] = []
        self.checkpoints: list[int] = []
        self.leases: dict[int, tuple[int, str]] = {}
        self.discarded: dict[str, tuple[int, int]] = {}
        self.issued = 0
        self.ended: Counter[str] = Counter()
        self.rejected = self.cpu_s = 0.0
        self.milestones = [r.Milestone(0, 0)]

    @property
    def committed(self) -> int:
        """The last committed update."""
        return self.update - (self.account.taken is not None)

    def is_on_line(self, update: int, batch_id: int | None) -> bool:
        """Return whether weights after this update and batch are on the line."""
        return (update, batch_id) in self.line.items()

    def apply(self, record: r.Record) -> None:
        """Change the state as the record says."""
        self.account.apply(record)
        match record:
            case r.ChunkArrived():
                if record.finish is not None:
                    self.leases.pop(record.trajectory_id, None)
            case r.WindowsClosed() | r.WindowsReady():
                pass  # The most frequent ones are the account's alone.
            case r.GroupIssued():
                self._issue(record)
            case r.RewardArrived(trajectory_id=key) if self._banded:
                trajectory = self.account.trajectories[key]
                group = self.account.groups[trajectory.group_id]
                if trajectory.purpose == "train" and group.domain in self._banded:
                    self.mixture.score(record, group)
            case r.LeaseIssued():
                self.next_lease = max(self.next_lease, record.lease_id + 1)
                self.leases[record.trajectory_id] = record.lease_id, record.generator
            case r.Restarted():
                self.next_lease = record.next_lease
                self._forget_leases()
            case r.TokensLost():
                if record.pid:
                    self.discarded[record.generator] = record.pid, record.total
            case r.TrajectoryEnded():
                self.leases.pop(record.trajectory_id, None)
                trajectory = self.account.trajectories[record.trajectory_id]
                self.ended[record.status] += trajectory.purpose == "train"
            case r.BatchTaken():
                self.update, self.given = record.update, max(self.given, record.update)
            case r.BatchReturned():
                self.update = record.update - 1
            case r.UpdateCommitted():
                self._commit(record)
            case r.LineageBegan():
                self._roll_back(record)
            case r.MetricsSampled():
                self.rejected = record.metrics.get("transport/rejected", self.rejected)
                self.cpu_s = record.metrics.get("perf/cpu_s", self.cpu_s)
            case r.Snapshot():
                self.milestones = record.milestones
            case r.VersionIssued():
                self.versions.issue(record.version)
            case r.VersionPublished():
                self.versions.publish(record.version, record.update)
            case r.EvaluationDone():
                self.evaluations.append(record)
                self._forget_leases()
            case r.CheckpointWritten():
                self.checkpoints.append(record.update)
            case r.Forgotten():
                self.checkpoints = [u for u in self.checkpoints if u >= record.update]
                self.line = {u: b for u, b in self.line.items() if u >= record.update}
                # The oldest version that a token still to be trained may have.
                first = (t.spans[0].version for t in self.account.trajectories.values() if t.spans)
                self.versions.forget(min(first, default=self.versions.current))

    def _issue(self, record: r.GroupIssued) -> None:
        self.next_group = max(self.next_group, record.group_id + 1)
        self.next_trajectory = max(self.next_trajectory, record.trajectory_ids[-1] + 1)
        if record.purpose == "train":
            self.issued += len(record.trajectory_ids)
            self.position = max(self.position, record.position + 1)
            self.mixture.issue(record)

    def _commit(self, record: r.UpdateCommitted) -> None:
        self.line[record.update] = record.batch_id
        self.train_time_s = record.train_time_s
        self.mixture.asked = {}
        windows = map(self.account.window, record.window_ids)
        if not any(window.tokens > sum(window.dropped().values()) for window in windows):
            self.versions.keep_version(record.update)
        explained, bar = record.metrics.get("critic/vf_explained_var"), self._enough
        enough = bar is not None and isinstance(explained, float) and explained >= bar
        if self.first_policy_update is None and (record.window_ids or enough):
            # A warm-up that explains enough ends with this update.
            self.first_policy_update = record.update + (not record.window_ids)

    def _roll_back(self, record: r.LineageBegan) -> None:
        self.lineage, self.update = record.lineage, record.update
        self.line = {u: b for u, b in self.line.items() if u <= record.update}
        self.checkpoints = [u for u in self.checkpoints if u <= record.update]
        self.versions.roll_back(record.update)
        if self.first_policy_update is not None and record.update < self.first_policy_update - 1:
            self.first_policy_update = None

    def _forget_leases(self) -> None:
        """Forget the leases of evaluations that are over."""
        known = self.account.trajectories
        self.leases = {key: lease for key, lease in self.leases.items() if key in known}
