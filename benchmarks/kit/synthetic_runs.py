"""Synthetic runs without training: for scripted peers, or as run folders.

In: a configuration's own keys (`stream`); for a run folder, a `RunShape`. Out: a configuration, of
whose model nothing but the tokenizer is ever read; a run folder with journal, token diagnostics and
SQL, written by the real store. Promises: the records go through the coordinator's own state and
rules, so that windows, batches and ledger are realistic; a partial run goes on where it stopped,
and a complete one is reused.
"""

import contextlib
import json
import math
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from msgspec.structs import replace

from coordinator.persistence.snapshots import restored, snapshot_of
from coordinator.persistence.state import State
from coordinator.scheduling.window_lifecycle import WindowLifecycle
from headrace.config.loading.recipe import deep_merge
from headrace.config.sections.run import RunConfig
from headrace.host.install import ROOT
from headrace.metrics.registry import METRICS
from headrace.protocol.messages.control import Finish
from headrace.protocol.messages.diagnostics import COLUMN_NAMES, TokenDiagnostics
from headrace.protocol.records import record_types as r
from headrace.protocol.token_spans import Span
from headrace.run_files.run_folder import name_latest, read_config
from headrace.trajectory.trajectories import Trajectory
from headrace.trajectory.windows import Window
from storage import queries
from storage.run_store import RunStore

MODEL = ROOT / "recipes" / "models" / "chain-sums-cold"
STARTED_AT = 1_767_268_800.0
UPDATE_SECONDS = 20.0
RECORDS_PER_APPEND = 8_000
CHECKPOINT_EVERY = 20
EVALUATIONS = 10
TOKENS = (3, 18)
"""Ids of the demonstration's tokens."""
GENERATORS = tuple(f"generator-{number}" for number in range(4))
PROCESSES = {**dict.fromkeys(GENERATORS, "generator"), "learner-0": "learner", "reward-0": "reward"}
_GAUGES = ("schedule/", "idle/", "ledger/")


def stream(**own: Any) -> RunConfig:
    """Configure streaming with a critic, on the demonstration's task and model.

    `own`: keys and tables of a recipe that override these."""
    table: dict[str, Any] = {
        "model": {"path": str(MODEL)},
        "task": {"kind": "chain_sums"},
        "algorithm": {"advantages": {"kind": "egae"}, "value": {}},
        "schedule": {"mode": "streaming"},
    }
    deep_merge(table, own)
    return RunConfig.model_validate(table)


@dataclass(frozen=True)
class RunShape:
    """Size and contents of a synthetic run.

    `trajectories` in updates of `batch`, rounded up, in groups of `group`; answers within the token
    limits `lengths`, in chunks of `chunk` and windows of `window`, of which the last `masked` are
    not trained where the answer goes on. `figures`: the share of the updates, the newest, that have
    token diagnostics. `mishaps`: some answers fail, some scores are lost, some windows are dropped.
    `late`: the first answer of each group ends only in the next update."""

    trajectories: int
    lengths: tuple[int, int] = (4, 128)
    metric_rows: int = 0
    batch: int = 128
    group: int = 4
    window: int = 64
    chunk: int = 128
    masked: int = 0
    figures: float = 0.0
    mishaps: bool = False
    late: bool = False

    @property
    def updates(self) -> int:
        """Number of updates of the whole run."""
        return -(-self.trajectories // self.batch)

    @property
    def samples(self) -> int:
        """Number of samples of the gauges in each update."""
        of_updates = self.updates * len(update_names())
        return max(1, round((self.metric_rows - of_updates) / self.updates / len(gauge_names())))

    def config(self) -> RunConfig:
        """Return the configuration of such a run, without short time-outs."""
        most = self.lengths[1] * (1 + self.late)
        return stream(
            name="made",
            task={"max_prompt_length": 64, "max_response_length": most},
            schedule={
                "window": min(self.window, most),
                "batch_windows": self.batch,
                "num_generations": self.group,
                "max_staleness": 8,
            },
            evaluation={"before": False, "after": False},
            transport={"heartbeat_timeout_s": 3600.0, "stall_timeout_s": 3600.0},
        )


def update_names() -> list[str]:
    """Return the metrics that each update has."""
    plain = [name for name, info in METRICS.items() if not info.bins and "NAME" not in name]
    sources = [name for name in METRICS if name.startswith("rewards/NAME/")]
    return [*plain, *(name.replace("NAME", "default") for name in sources)]


def gauge_names() -> list[str]:
    """Return the metrics that each sample between updates has."""
    gauges = [n for n, info in METRICS.items() if n.startswith(_GAUGES) and not info.bins]
    of_processes = [f"{kind}/{name}" for kind in ("heartbeat", "memory") for name in PROCESSES]
    return [*gauges, *of_processes, "rewards/default/queue", "rewards/default/in_flight"]


class SyntheticRun:
    """A synthetic run's folder, store and state. Close the store when done."""

    def __init__(self, run_dir: Path, shape: RunShape) -> None:
        self.shape = shape
        if (run_dir / "journal").exists():
            self.store = RunStore.open(run_dir)
            config = read_config(run_dir)
            self.state = restored(config, self.store)
        else:
            config = shape.config()
            self.store = RunStore.create(run_dir, run_dir.name, config)
            self.state = State(config)
        self._keep = config.checkpoint.keep_last
        self._settlement = WindowLifecycle(config, self.state.account)
        self._records: list[r.Record] = []
        self._rng = np.random.default_rng(0)

    def grow(self, updates: int) -> None:
        """Write updates until there are this many."""
        printed_at = time.monotonic()
        records: list[r.Record] = []
        for number in range(self.state.committed + 1, updates + 1):
            records += self.update(number)
            if len(records) >= RECORDS_PER_APPEND or number == updates:
                self.store.append(records)
                records = []
                end = self.store.end.records
                if self.store.wants_snapshot and (found := snapshot_of(self.state, end)):
                    self.state.apply(found)
                    records.append(found)
            if time.monotonic() - printed_at > 10.0:
                print(f"update {number:,} of {updates:,} is made")
                printed_at = time.monotonic()
        self.store.append(records)

    def update(self, number: int) -> list[r.Record]:
        """Return the records of an update, its commit among the last. Call this in order."""
        shape, self._records = self.shape, []
        self._rng = np.random.default_rng(number)
        began = STARTED_AT + 60.0 + UPDATE_SECONDS * (number - 1)
        if number == 1:
            self._beginning()
        ended = [t for t in self.state.account.active.values() if not t.ended]
        issued = self._issued(began)
        late = issued[:: shape.group] if shape.late else []
        ended += [one for one in issued if one not in late]
        for trajectory in late:
            self._sampled(trajectory, began + 1.0, finish=None)
        for trajectory in ended:
            self._answered(trajectory, began + 1.0)
        for record in self._settlement.next_records([*late, *ended]):
            self._note(replace(record, at=began + UPDATE_SECONDS / 2))
        self._trained(number, began)
        return self._records

    def sample(self, at: float) -> r.MetricsSampled:
        """Return a sample of the gauges between updates."""
        figures = self._figures(gauge_names())
        for name in PROCESSES:
            figures[f"memory/{name}"] = 4e8 + 1e8 * float(self._rng.random())
        return r.MetricsSampled(at=at, update=self.state.update, metrics=figures)

    # -- parts of an update -----------------------------------------------------------------------

    def _note(self, record: r.Record) -> None:
        self.state.apply(record)
        self._records.append(record)

    def _beginning(self) -> None:
        self._note(r.RunPhase(at=STARTED_AT, phase="starting"))
        for pid, (name, role) in enumerate(PROCESSES.items(), 4000):
            self._note(
                r.ProcessChanged(
                    at=STARTED_AT + 1, name=name, role=role, pid=pid, host="node-a", state="up"
                )
            )
        self._publish(STARTED_AT + 2)
        self._evaluate("before", STARTED_AT + 50.0, 0.2)
        self._note(r.RunPhase(at=STARTED_AT + 55.0, phase="training"))

    def _issued(self, at: float) -> list[Trajectory]:
        state, ids = self.state, list[int]()
        for _ in range(self.shape.batch // self.shape.group):
            first, terms = state.next_trajectory, self._rng.integers(1, 100, 3).tolist()
            members = list(range(first, first + self.shape.group))
            self._note(
                r.GroupIssued(
                    at=at, group_id=state.next_group, prompt_id=f"sum-{state.next_group % 997}",
                    position=state.position, purpose="train",
                    prompt=f"{' + '.join(map(str, terms))} =", answer=str(sum(terms)),
                    info=json.dumps({"terms": len(terms)}),
                    prompt_ids=self._rng.integers(*TOKENS, 16).astype(np.int32),
                    trajectory_ids=members, seeds=members,
                )
            )  # fmt: skip
            for key in members:
                self._note(
                    r.LeaseIssued(
                        at=at, lease_id=state.next_lease, trajectory_id=key,
                        generator=GENERATORS[key % len(GENERATORS)], start=0,
                        version=state.versions.current,
                    )
                )  # fmt: skip
            ids += members
        return [state.account.trajectories[key] for key in ids]

    def _sampled(self, trajectory: Trajectory, at: float, finish: Finish | None) -> None:
        """Sample a drawn number of tokens, in chunks; the last chunk has `finish`."""
        least, most = self.shape.lengths
        left, version = int(self._rng.integers(least, most + 1)), self.state.versions.current
        lease_id, generator = self.state.leases[trajectory.trajectory_id]
        while left:
            start, size = trajectory.length, min(left, self.shape.chunk)
            left -= size
            self._note(
                r.ChunkArrived(
                    at=at, trajectory_id=trajectory.trajectory_id, lease_id=lease_id,
                    chunk_index=trajectory.next_chunk, generator=generator, start=start,
                    token_ids=self._rng.integers(*TOKENS, size).astype(np.int32),
                    logprobs=-self._rng.random(size, np.float32),
                    spans=[Span(version, start, start + size)], finish=None if left else finish,
                )
            )  # fmt: skip

    def _answered(self, trajectory: Trajectory, at: float) -> None:
        odd = self._rng.random() if self.shape.mishaps else 0.5
        key, failed, lost = trajectory.trajectory_id, odd < 0.004, odd > 0.998
        self._sampled(trajectory, at, "failed" if failed else "stop")
        full = trajectory.length >= self.shape.lengths[1] and self.shape.mishaps
        status: r.TrajectoryStatus = "truncated" if full else "finished"
        at += trajectory.length * UPDATE_SECONDS / (4.0 * self.shape.lengths[1])
        self._note(
            r.TrajectoryEnded(
                at=at, trajectory_id=key, status="failed" if failed else status,
                length=trajectory.length, error="the engine died" if failed else None,
            )
        )  # fmt: skip
        if failed:
            return
        right = bool(self._rng.random() < 0.2 + 0.65 * self._skill)
        reward = float(right) + 0.1 * float(self._rng.random())
        self._note(
            r.RewardArrived(
                at=at + 0.1, trajectory_id=key, status="timeout" if lost else "ok",
                reward=None if lost else reward, correct=None if lost else right,
                parts={} if lost else {"right": float(right), "form": 0.1},
                seconds=float(self._rng.exponential(0.004)),
                error="no score within 10 s" if lost else None,
            )
        )  # fmt: skip

    def _trained(self, number: int, began: float) -> None:
        """Train a batch of all ready windows, with gauges meanwhile and new weights."""
        state, account, at = self.state, self.state.account, began + UPDATE_SECONDS / 2
        stale = [key for key in account.ready if self.shape.mishaps and self._rng.random() < 0.02]
        if stale:
            self._note(r.WindowsDropped(at=at, window_ids=stale, reason="stale"))
        windows = list(account.ready.values())
        shared: dict[str, Any] = {
            "update": number, "lineage": state.lineage, "version": state.versions.current,
            "value_trajectories": list(account.values), "batch_id": number,
        }  # fmt: skip
        taken = [r.TakenWindow(window_id=w.window_id, masked=self._masked(w)) for w in windows]
        self._note(r.BatchTaken(at=at, windows=taken, **shared))
        for step in range(self.shape.samples):
            self._note(self.sample(began + step * UPDATE_SECONDS / self.shape.samples))
        seen = number > self.shape.updates * (1.0 - self.shape.figures)
        commit = r.UpdateCommitted(
            at=began + UPDATE_SECONDS, train_time_s=number * UPDATE_SECONDS,
            trained_tokens=int(account.ledger.accounts["trained_policy"]),
            window_ids=[w.window_id for w in windows], metrics={},
            diagnostics=[self._seen(w) for w in windows if seen], **shared,
        )  # fmt: skip
        state.apply(commit)
        metrics: dict[str, Any] = self._figures(update_names())
        for name, info in METRICS.items():
            if info.bins:
                metrics[name] = (self._rng.random(len(info.bins)) * 0.1).tolist()
        self._records.append(replace(commit, metrics=metrics))
        self._publish(began + UPDATE_SECONDS)
        if number % max(1, self.shape.updates // EVALUATIONS) == 0:
            self._evaluate("during", began + UPDATE_SECONDS + 0.5, 0.2 + 0.65 * self._skill)
        if number % CHECKPOINT_EVERY == 0:
            at, path = began + UPDATE_SECONDS + 0.6, f"checkpoints/step_{number}"
            self._note(r.CheckpointWritten(at=at, update=number, lineage=state.lineage, path=path))
            self._note(r.Forgotten(at=at, update=state.checkpoints[-self._keep :][0]))

    def _publish(self, at: float) -> None:
        state, version = self.state, self.state.versions.issued + 1
        self._note(r.VersionIssued(at=at, version=version))
        published = r.VersionPublished(
            at=at, version=version, lineage=state.lineage, update=state.update, num_bytes=1
        )
        self._note(published)
        for name in GENERATORS:
            self._note(
                r.VersionLoaded(at=at + 0.2, generator=name, version=version, gap_s=0.1, load_s=0.2)
            )

    def _evaluate(self, label: Literal["before", "during"], at: float, accuracy: float) -> None:
        self._note(
            r.EvaluationDone(
                at=at, label=label, update=self.state.update, version=self.state.versions.current,
                num_prompts=1024, accuracy=accuracy, response_length=50.0,
                max_response_length=self.shape.lengths[1], truncated=0.01, failed=0, seconds=5.0,
                train_time_s=self.state.train_time_s,
            )
        )  # fmt: skip

    # -- figures ----------------------------------------------------------------------------------

    @property
    def _skill(self) -> float:
        """The policy's progress, 0 to 1."""
        return min(1.0, self.state.update / self.shape.updates)

    def _masked(self, window: Window) -> list[r.MaskedRun]:
        size = self.shape.masked
        if window.final or not size:
            return []
        return [r.MaskedRun("boundary_mask", window.end - size, window.end, size)]

    def _figures(self, names: Sequence[str]) -> dict[str, float]:
        """Draw metrics around 1 and shares around 0.02; the ledger is the real one."""
        shares = {name for name, info in METRICS.items() if info.unit == "share"}
        noise = (1.0 + 0.08 * self._rng.standard_normal(len(names))).tolist()
        found = {n: 0.02 * x if n in shares else x for n, x in zip(names, noise, strict=True)}
        ledger = {name: 0.0 for name in names if name.startswith("ledger/")}
        return found | ledger | self.state.account.ledger.as_metrics()

    def _seen(self, window: Window) -> TokenDiagnostics:
        size = window.end - window.start
        columns = {name: self._rng.random(size, np.float32) for name in COLUMN_NAMES}
        if not window.final:
            columns["returns"] = np.full(size, math.nan, np.float32)
        return TokenDiagnostics(
            window_id=window.window_id, trajectory_id=window.trajectory_id, start=window.start,
            lam=0.95, columns=columns,
        )  # fmt: skip


def make_run(run_dir: Path, shape: RunShape) -> Path:
    """Write a finished run, or the missing rest of it; `latest` names it."""
    line = queries.run_line(run_dir) if (run_dir / "journal").exists() else None
    if line is not None and line.status == "finished" and line.updates >= shape.updates:
        return run_dir
    made = SyntheticRun(run_dir, shape)
    with contextlib.closing(made.store):
        made.grow(shape.updates)
        at = STARTED_AT + 61.0 + UPDATE_SECONDS * shape.updates
        made.store.append([r.RunPhase(at=at, phase="finished", detail="updates")])
    name_latest(run_dir)
    return run_dir


class LiveRun:
    """A complete run that goes on inside the block, as its coordinator would write it.

    One sample per second, an update every few samples. `samples` counts those written."""

    def __init__(
        self, run_dir: Path, shape: RunShape, *, every_s: float = 1.0, update: int = 5
    ) -> None:
        self._run_dir, self._shape = run_dir, shape
        self._every_s, self._each = every_s, update
        self._stop, self._lives = threading.Event(), ThreadPoolExecutor(1)
        self.samples = 0

    def __enter__(self) -> Self:
        line = queries.run_line(self._run_dir)
        self._at = (line.started_at or STARTED_AT) + line.wall_s
        self._made = SyntheticRun(self._run_dir, self._shape)
        self._made.store.append([r.RunPhase(at=self._at, phase="training")])
        self._life = self._lives.submit(self._live)
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._lives.shutdown()
        end = r.RunPhase(at=self._at + 1.0, phase="finished", detail="updates")
        self._made.store.append([end])
        self._made.store.close()
        self._life.result()

    def _live(self) -> None:
        made = self._made
        while not self._stop.wait(self._every_s):
            self._at += self._every_s
            records: list[r.Record] = [made.sample(self._at)]
            self.samples += 1
            if self.samples % self._each == 0:
                records += made.update(made.state.update + 1)
                self._at = max(self._at, records[-1].at)
            made.store.append(records)
