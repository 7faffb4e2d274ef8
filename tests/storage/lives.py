"""Runs for the audit: one by hand, and lives of a coordinator by chance.

Every record is one that a coordinator in that state may write: the account and the rules about
windows are the real ones, so what an audit finds in such a run is a mistake of one or the other.
"""

import hashlib
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from coordinator.scheduling.window_lifecycle import WindowLifecycle
from headrace.config.sections.run import RunConfig
from headrace.protocol.messages.diagnostics import COLUMN_NAMES, TokenDiagnostics
from headrace.protocol.records.record_types import (
    BatchReturned,
    BatchTaken,
    CheckpointWritten,
    ChunkArrived,
    ClosedWindow,
    Forgotten,
    GroupIssued,
    LeaseIssued,
    LineageBegan,
    MaskedRun,
    MetricsSampled,
    Record,
    Restarted,
    RewardArrived,
    RunPhase,
    TakenWindow,
    TokensLost,
    TrajectoryEnded,
    UpdateCommitted,
    VersionIssued,
    VersionPublished,
    WindowsClosed,
    WindowsDropped,
    WindowsReady,
)
from headrace.protocol.token_spans import Piece, Span, Streams
from headrace.run_files.run_folder import CHECKPOINT_FORMAT, manifest_text
from headrace.trajectory.account import Account
from headrace.trajectory.trajectories import Trajectory
from storage.journal.diagnostics import DiagnosticsWriter
from storage.journal.store import Journal
from storage.run_store import RunStore
from tests.storage.samples import chunk, closed, group, run_config, taken

LIMIT = 24


def diagnostics_of(window: ClosedWindow | Any, window_id: int) -> TokenDiagnostics:
    """A figure for each position of a window."""
    values = np.linspace(-1, 1, window.end - window.start, dtype=np.float32)
    return TokenDiagnostics(
        window_id=window_id,
        trajectory_id=window.trajectory_id,
        start=window.start,
        lam=0.95,
        columns=dict.fromkeys(COLUMN_NAMES, values),
    )


def committed(account: Account, batch: BatchTaken, **values: Any) -> UpdateCommitted:
    """The commit of a batch, with the ledger as it is behind it; the account has it then."""
    ids = [item.window_id for item in batch.windows]
    record = UpdateCommitted(
        at=batch.at + 1,
        update=batch.update,
        lineage=batch.lineage,
        version=batch.version,
        train_time_s=1.0,
        trained_tokens=0,
        window_ids=ids,
        value_trajectories=batch.value_trajectories,
        metrics={},
        diagnostics=[diagnostics_of(account.window(key), key) for key in ids],
        **values,
    )
    account.apply(record)
    return msgspec.structs.replace(
        record,
        metrics=account.ledger.as_metrics(),
        trained_tokens=account.ledger.accounts["trained_policy"],
    )


def run_by_hand() -> list[Record]:
    """10: 12 tokens, finished and right; 20: 8 tokens and goes on; 40: an evaluation. Update 1
    trains 10's first window (2 tokens masked) and 20's; update 2 10's last one and its value, is
    rolled back, and trains them again."""
    account = Account(has_value=True)
    records: list[Record] = []

    def write(*new: Record) -> None:
        for record in new:
            account.apply(record)
            records.append(record)

    def commit(batch: BatchTaken) -> None:
        write(batch)
        records.append(committed(account, batch))

    first, last, other = closed(10, 0, 0, 8), closed(10, 1, 8, 12, final=True), closed(20, 0, 0, 8)
    batch = BatchTaken(
        at=10.0, update=1, lineage=0, version=0, value_trajectories=[],
        windows=[taken(10, 0, MaskedRun("boundary_mask", 6, 8, 2)), taken(20, 0)],
    )  # fmt: skip
    second = BatchTaken(
        at=20.0, update=2, lineage=0, version=1, value_trajectories=[10], windows=[taken(10, 1)]
    )
    write(
        RunPhase(at=0.0, phase="training"),
        VersionIssued(at=0.0, version=0),
        VersionPublished(at=0.0, version=0, lineage=0, update=0, num_bytes=1),
        *(group(number) for number in (1, 2)),
        group(4, purpose="eval"),
        *(
            LeaseIssued(
                at=1.0, lease_id=n, trajectory_id=n, generator="generator-0", start=0, version=0
            )
            for n in (10, 20, 40)
        ),
        chunk(10, 0, 8),
        WindowsClosed(at=2.0, windows=[first]),
        WindowsReady(at=2.0, window_ids=[first.window_id]),
        chunk(10, 8, 12, index=1, finish="stop"),
        TrajectoryEnded(at=3.0, trajectory_id=10, status="finished", length=12),
        WindowsClosed(at=3.0, windows=[last]),
        chunk(20, 0, 8),
        WindowsClosed(at=3.0, windows=[other]),
        WindowsReady(at=3.0, window_ids=[other.window_id]),
        RewardArrived(at=4.0, trajectory_id=10, status="ok", reward=1.0),
        WindowsReady(at=4.0, window_ids=[last.window_id]),
        chunk(40, 0, 4, finish="stop"),
        TrajectoryEnded(at=5.0, trajectory_id=40, status="finished", length=4),
        RewardArrived(at=5.0, trajectory_id=40, status="ok", reward=0.0),
    )
    commit(batch)
    write(
        VersionIssued(at=12.0, version=1),
        VersionPublished(at=12.0, version=1, lineage=0, update=1, num_bytes=1),
        CheckpointWritten(at=12.0, update=1, lineage=0, path="checkpoints/step_1"),
        Forgotten(at=12.0, update=1),
    )
    commit(second)
    write(
        LineageBegan(
            at=25.0, lineage=1, update=1, version=2, reason="", value_trajectories=[10],
            window_ids=[last.window_id],
        ),
        VersionIssued(at=25.0, version=2),
        VersionPublished(at=25.0, version=2, lineage=1, update=1, num_bytes=1),
    )  # fmt: skip
    commit(msgspec.structs.replace(second, at=30.0, lineage=1, version=2))
    write(
        TokensLost(at=40.0, generator="generator-0", tokens=3, reason="held"),
        RunPhase(at=41.0, phase="finished"),
    )
    return records


def write_checkpoint(run_dir: Path, update: int, lineage: int = 0) -> Path:
    """A checkpoint's folder as far as an audit looks at it."""
    folder = run_dir / "checkpoints" / f"step_{update}"
    folder.mkdir(parents=True)
    (folder / "weights").write_bytes(b"1234")
    manifest = {
        "format": CHECKPOINT_FORMAT, "update": update, "lineage": lineage,
        "files": {"weights": {"bytes": 4, "sha256": hashlib.sha256(b"1234").hexdigest()}},
    }  # fmt: skip
    (folder / "manifest.json").write_text(manifest_text(manifest))
    (folder.parent / "latest").write_text(f"{folder.name}\n")
    return folder


def write_whole(run_dir: Path, records: Iterable[Record], config: RunConfig | None = None) -> Path:
    """A run with everything: journal, diagnostics, SQL, the checkpoint of update 1."""
    store = RunStore.create(run_dir, run_dir.name, config or run_config())
    left = list(records)
    while left:
        store.append(left[:7])
        left = left[7:]
    store.close()
    write_checkpoint(run_dir, 1)
    return run_dir


def write_journal(run_dir: Path, records: Sequence[Record]) -> None:
    """Journal and diagnostics anew, with records that no account and no database need take."""
    for path in (*(run_dir / "journal").iterdir(), *(run_dir / "diagnostics").iterdir()):
        path.unlink()
    journal = Journal(run_dir / "journal", run_id=run_dir.name, segment_mib=1)
    diagnostics = DiagnosticsWriter(run_dir / "diagnostics", segment_mib=1)
    diagnostics.append(record for record in records if isinstance(record, UpdateCommitted))
    journal.append(records)
    # So that the end of the run is in another batch, and all before it has settled.
    journal.append([RunPhase(at=50.0, phase="finished")])
    diagnostics.close()
    journal.close()


class Life:
    """A coordinator's life by chance."""

    def __init__(self, config: RunConfig, seed: int) -> None:
        self.random = random.Random(seed)
        self.account = Account(has_value=config.algorithm.value is not None)
        self.settlement = WindowLifecycle(config, self.account)
        self.size = config.schedule.num_generations
        self.records: list[Record] = []
        self.leases: dict[int, int] = {}
        self.clock = 0.0
        self.next_trajectory = self.next_group = self.next_lease = self.update = self.lineage = 0
        self.forgotten = 0
        self.version = -1
        self.publish()

    def write(self, record: Record) -> None:
        self.clock += 1.0
        self.account.apply(record)
        self.records.append(record)

    def settle(self, trajectories: Iterable[Trajectory]) -> None:
        for record in self.settlement.next_records(trajectories):
            self.write(record)

    def live(self, steps: int) -> None:
        acts = {
            self.issue: 3, self.grow: 18, self.score: 6, self.take: 5, self.give_back: 7,
            self.drop: 1, self.roll_back: 1, self.fail: 1, self.forget: 1, self.restart: 1,
            self.sample: 2, self.lose: 1,
        }  # fmt: skip
        for act in self.random.choices(list(acts), list(acts.values()), k=steps):
            act()

    def publish(self) -> None:
        self.version += 1
        self.write(VersionIssued(at=self.clock, version=self.version))
        self.write(
            VersionPublished(
                at=self.clock, version=self.version, lineage=self.lineage, update=self.update,
                num_bytes=1,
            )
        )  # fmt: skip

    def issue(self) -> None:
        first = self.next_trajectory
        ids = list(range(first, first + self.size))
        self.next_trajectory += self.size
        self.write(
            GroupIssued(
                at=self.clock, group_id=self.next_group, prompt_id=f"p{self.next_group % 5}",
                position=self.next_group, prompt="?", answer="!", info="{}",
                purpose=self.random.choice(["train", "train", "train", "eval"]),
                prompt_ids=np.zeros(3, np.int32), trajectory_ids=ids, seeds=ids,
            )
        )  # fmt: skip
        self.next_group += 1

    def running(self) -> Trajectory | None:
        found = [t for t in self.account.trajectories.values() if not t.ended]
        return self.random.choice(found) if found else None

    def grow(self) -> None:
        trajectory = self.running()
        if trajectory is None:
            return
        key, start = trajectory.trajectory_id, trajectory.length
        if key not in self.leases:
            self.leases[key] = self.next_lease
            self.next_lease += 1
            self.write(
                LeaseIssued(
                    at=self.clock, lease_id=self.leases[key], trajectory_id=key, generator="g",
                    start=start, version=self.version,
                )
            )  # fmt: skip
        end = min(start + self.random.randint(1, 10), LIMIT)
        finish = "length" if end == LIMIT else self.random.choice([None, None, "stop", "window"])
        if trajectory.windows and not trajectory.open_tokens and self.random.random() < 0.2:
            end, finish = start, "stop"  # which is told behind the border
        cut, streams = end, None
        if self.random.random() < 0.25 and end - start > 1:  # the policy, then a tool's answer
            cut = self.random.randint(start + 1, end - 1)
            pieces = [
                Piece("policy", "assistant", 0, start, cut), Piece("tool", "tool", 1, cut, end)
            ]  # fmt: skip
            streams = Streams(pieces=pieces)
        middle = self.random.randint(start, cut)
        spans = [(max(0, self.version - 1), start, middle), (self.version, middle, cut)]
        size = end - start
        self.write(
            ChunkArrived(
                at=self.clock, trajectory_id=key, lease_id=self.leases[key], generator="g",
                chunk_index=trajectory.next_chunk, start=start,
                token_ids=np.zeros(size, np.int32), logprobs=np.zeros(size, np.float32),
                spans=[Span(*span) for span in spans if span[2] > span[1]],
                finish=finish, streams=streams,
            )
        )  # fmt: skip
        if finish is not None:
            del self.leases[key]
        if finish in ("stop", "length"):
            status = "finished" if finish == "stop" else "truncated"
            self.end(trajectory, status)
        self.settle([trajectory])

    def end(self, trajectory: Trajectory, status: Any) -> None:
        key = trajectory.trajectory_id
        self.leases.pop(key, None)
        length = trajectory.length
        self.write(TrajectoryEnded(at=self.clock, trajectory_id=key, status=status, length=length))

    def fail(self) -> None:
        trajectory = self.running()
        if trajectory is not None:
            self.end(trajectory, self.random.choice(["failed", "aborted"]))
            self.settle([trajectory])

    def score(self) -> None:
        waiting = [
            t for t in self.account.trajectories.values() if t.complete and not t.reward_status
        ]
        if not waiting:
            return
        trajectory = self.random.choice(waiting)
        status: Any = self.random.choice(["ok", "ok", "ok", "timeout"])
        reward = 1.0 if status == "ok" else None
        key = trajectory.trajectory_id
        self.write(RewardArrived(at=self.clock, trajectory_id=key, status=status, reward=reward))
        self.settle([trajectory])

    # -- updates ----------------------------------------------------------------------------------

    def take(self) -> None:
        if self.account.taken is not None:
            return
        windows = list(self.account.ready.values())[: self.random.randint(0, 4)]
        chosen = {window.window_id for window in windows}
        values = [
            t.trajectory_id
            for t in self.account.values.values()
            if not windows
            or all(w.state in ("trained", "dropped") or w.window_id in chosen for w in t.windows)
        ]
        values = values[: self.random.randint(0, 3)]
        if windows or values:
            self.write(
                BatchTaken(
                    at=self.clock, update=self.update + 1, lineage=self.lineage,
                    version=self.version, value_trajectories=values,
                    windows=[
                        TakenWindow(window_id=w.window_id, masked=self.mask(w)) for w in windows
                    ],
                )
            )  # fmt: skip

    def mask(self, window: Any) -> list[MaskedRun]:
        start = self.random.randint(window.start, window.end)
        end = self.random.randint(start, window.end)
        trajectory = self.account.trajectories[window.trajectory_id]
        tokens = sum(b - a for a, b in trajectory.sampled_between(start, end))
        return [MaskedRun("stale", start, end, tokens)] if tokens else []

    def give_back(self) -> None:
        """Commit, skip or return what was taken."""
        batch = self.account.taken
        if batch is None:
            return
        if self.random.random() < 0.2:
            self.write(
                BatchReturned(
                    at=self.clock, update=batch.update, lineage=batch.lineage, reason="died",
                    window_ids=[item.window_id for item in batch.windows],
                    value_trajectories=batch.value_trajectories,
                )
            )  # fmt: skip
            return
        skipped = "NaN" if self.random.random() < 0.2 else None
        self.records.append(committed(self.account, batch, skipped=skipped))
        self.update = batch.update
        if not batch.windows:  # the critic was warmed up on them
            trajectories = [self.account.trajectories[key] for key in batch.value_trajectories]
            states = ("closed", "ready")
            ids = [w.window_id for t in trajectories for w in t.windows if w.state in states]
            if ids:
                self.write(WindowsDropped(at=self.clock, window_ids=ids, reason="value_warmup"))
        self.publish()

    def drop(self) -> None:
        ended = [t for t in self.account.trajectories.values() if t.ended and t.windows]
        if ended:
            trajectory = self.random.choice(ended)
            for record in self.settlement.discard(trajectory, "filtered"):
                if isinstance(record, WindowsDropped) and trajectory.value == "waiting":
                    values = [trajectory.trajectory_id]
                    record = msgspec.structs.replace(record, value_trajectories=values)
                self.write(record)

    def roll_back(self) -> None:
        if self.account.taken is not None:
            return
        target = self.random.randint(self.forgotten, self.update)
        undone = [b for u, b in self.account.committed.items() if u > target]
        self.lineage += 1
        self.write(
            LineageBegan(
                at=self.clock, lineage=self.lineage, update=target, version=self.version + 1,
                reason="", window_ids=[w.window_id for b in undone for w in b.windows],
                value_trajectories=[key for b in undone for key in b.value_trajectories],
            )
        )  # fmt: skip
        self.update = target
        self.publish()

    def forget(self) -> None:
        self.forgotten = self.random.randint(self.forgotten, self.update)
        self.write(Forgotten(at=self.clock, update=self.forgotten))

    def restart(self) -> None:
        self.leases.clear()
        self.next_lease += 1000
        self.write(Restarted(at=self.clock, next_lease=self.next_lease))

    def sample(self) -> None:
        metrics = self.account.ledger.as_metrics()
        self.write(MetricsSampled(at=self.clock, update=self.update, metrics=metrics))

    def lose(self) -> None:
        reason: Any = self.random.choice(["held", "refused"])
        tokens = self.random.randint(1, 5)
        self.write(TokensLost(at=self.clock, generator="g", tokens=tokens, reason=reason))
