"""A large run that nobody trained: the same records that a coordinator writes, made by a script.

In: a folder, and how many metric rows and trajectories the run shall have. Out: a run folder with
journal, token diagnostics and SQL, all written by `storage.run_store`. What an update holds follows
from its number alone, so that a run that was begun goes on where it stopped, and one that is whole
is not made again. Figures move as those of training do, and the ledger agrees with the windows.
"""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import made_runs
from headrace.config.run import RunConfig
from headrace.metrics import METRICS
from headrace.protocol import records as r
from headrace.protocol.diagnostics import TokenDiagnostics
from headrace.protocol.streams import Span
from headrace.run_folder import name_latest
from storage import queries
from storage.run_store import RunStore

STARTED = 1_767_268_800.0
BATCH, GROUP, WINDOW = 64, 8, 64
MOST_TOKENS = 2 * WINDOW
SECONDS = 20.0
"""Of an update."""
RECORDS = 8_000
"""About so many go into one append."""
LABELS = {"during": 10}
GENERATORS = tuple(f"generator-{number}" for number in range(4))
PROCESSES = {**dict.fromkeys(GENERATORS, "generator"), "learner-0": "learner", "reward-0": "reward"}
_GAUGES = ("schedule/", "idle/", "ledger/")
TRENDS = {
    "actor/entropy": (1.2, 0.4),
    "actor/ppo_kl": (0.012, 0.008),
    "critic/vf_explained_var": (0.1, 0.65),
    "critic/vf_loss": (0.12, 0.05),
    "reward/mean": (0.2, 0.85),
    "response_length/mean": (40.0, 64.0),
    "rollout/ess": (0.95, 0.9),
    "rollout/weight_mean": (1.0, 1.0),
    "rollout/logprob_diff": (4e-4, 4e-4),
    "staleness/mean": (1.5, 1.5),
    "staleness/max": (3.0, 3.0),
    "schedule/admitted_share": (0.8, 0.6),
}
"""From where to where a metric moves; the others stand still, with noise."""


@dataclass(frozen=True)
class Size:
    """What a run shall have. `figures`: the share of the updates, the newest, of whose tokens the
    learner's figures are kept."""

    metric_rows: int
    trajectories: int
    figures: float = 0.1

    @property
    def updates(self) -> int:
        """Updates of BATCH trajectories each."""
        return max(4, self.trajectories // BATCH)

    @property
    def samples(self) -> int:
        """Samples of the gauges in each update."""
        of_updates = self.updates * len(update_names())
        return max(1, round((self.metric_rows - of_updates) / self.updates / len(gauge_names())))


def update_names() -> list[str]:
    """Metrics that each update has."""
    plain = [name for name, info in METRICS.items() if not info.bins and "NAME" not in name]
    sources = [name for name in METRICS if name.startswith("rewards/NAME/")]
    return [*plain, *(name.replace("NAME", "default") for name in sources)]


def gauge_names() -> list[str]:
    """Metrics that each sample between updates has."""
    gauges = [n for n, info in METRICS.items() if n.startswith(_GAUGES) and not info.bins]
    of_processes = [f"{kind}/{name}" for kind in ("heartbeat", "memory") for name in PROCESSES]
    return [*gauges, *of_processes, "rewards/default/queue", "rewards/default/in_flight"]


def config(root: Path) -> RunConfig:
    """The configuration of a stream of windows with a critic."""
    return made_runs.stream(
        name="large",
        root=str(root),
        task={"max_prompt_length": 64, "max_response_length": MOST_TOKENS},
        schedule={
            "window": WINDOW,
            "batch_windows": BATCH,
            "num_generations": GROUP,
            "max_staleness": 4,
        },
    )


class Ledger:
    """Running counts of tokens, as the coordinator keeps them."""

    def __init__(self, known: dict[str, float | None]) -> None:
        self._counts = {name: float(known.get(name) or 0.0) for name in METRICS}

    def add(self, **tokens: int) -> None:
        """Count so many more under each name, `dropped/stale` written `dropped_stale`."""
        for name, count in tokens.items():
            self._counts[f"ledger/{name.replace('dropped_', 'dropped/')}"] += count

    def trained(self) -> int:
        """Tokens that the policy was trained on so far."""
        return int(self._counts["ledger/trained_policy"])

    def figures(self) -> dict[str, float]:
        """As metrics."""
        return {name: n for name, n in self._counts.items() if name.startswith("ledger/")}


class Made:
    """Records by update. Updates must be asked for in order."""

    def __init__(self, size: Size, ledger: Ledger) -> None:
        self.size, self.ledger = size, ledger
        self._names = update_names()
        self._gauges = gauge_names()

    def update(self, number: int) -> Iterator[r.Record]:
        """All that happened in an update, its own commit last."""
        rng = np.random.default_rng(number)
        began = STARTED + 60.0 + SECONDS * (number - 1)
        ids = np.arange((number - 1) * BATCH, number * BATCH)
        lengths = rng.integers(4, MOST_TOKENS + 1, BATCH)
        if number == 1:
            yield from self._beginning()
        yield from self._groups(number, began, rng)
        yield from self._answers(number, began, ids, lengths, rng)
        yield from self._trained(number, began, ids, lengths, rng)

    def sample(self, number: int, at: float) -> r.MetricsSampled:
        """Gauges between updates."""
        rng = np.random.default_rng([number, int(at)])
        figures = _figures(self._gauges, rng, number / self.size.updates) | self.ledger.figures()
        for name in self._gauges:
            if name.startswith("memory/"):
                figures[name] = 4e8 + 1e8 * float(rng.random())
        return r.MetricsSampled(at=at, update=number, metrics=figures)

    def _beginning(self) -> Iterator[r.Record]:
        yield r.RunPhase(at=STARTED, phase="starting")
        for pid, (name, role) in enumerate(PROCESSES.items(), 4000):
            yield r.ProcessChanged(
                at=STARTED + 1, name=name, role=role, pid=pid, host="node-a", state="up"
            )
        yield r.VersionPublished(at=STARTED + 2, version=0, lineage=0, update=0, num_bytes=1)
        yield _evaluation("before", 0, STARTED + 50.0, 0.2)
        yield r.RunPhase(at=STARTED + 55.0, phase="training")

    def _groups(self, number: int, began: float, rng: np.random.Generator) -> Iterator[r.Record]:
        groups = BATCH // GROUP
        for group in range((number - 1) * groups, number * groups):
            terms = rng.integers(1, 100, 3).tolist()
            ids = list(range(group * GROUP, (group + 1) * GROUP))
            yield r.GroupIssued(
                at=began, group_id=group, prompt_id=f"sum-{group}", position=group,
                purpose="train", prompt=f"{' + '.join(map(str, terms))} =",
                answer=str(sum(terms)), info=json.dumps({"terms": len(terms)}),
                prompt_ids=rng.integers(3, 17, 16).astype(np.int32), trajectory_ids=ids, seeds=ids,
            )  # fmt: skip

    def _answers(
        self, number: int, began: float, ids: Any, lengths: Any, rng: np.random.Generator
    ) -> Iterator[r.Record]:
        skill = number / self.size.updates
        firsts = began + rng.random(BATCH) * 2.0
        ends = firsts + lengths * SECONDS / (2.0 * MOST_TOKENS)
        tokens = rng.integers(3, 17, int(lengths.sum())).astype(np.int32)
        logprobs = -rng.exponential(0.4, len(tokens)).astype(np.float32)
        borders = np.concatenate([[0], np.cumsum(lengths)])
        for place, key in enumerate(ids.tolist()):
            here, length = slice(borders[place], borders[place + 1]), int(lengths[place])
            odd = rng.random()
            status: r.TrajectoryStatus = "truncated" if length == MOST_TOKENS else "finished"
            if odd < 0.004:
                status = "failed"
            yield r.ChunkArrived(
                at=float(firsts[place]), trajectory_id=key, lease_id=key, chunk_index=0,
                generator=GENERATORS[key % len(GENERATORS)], start=0, token_ids=tokens[here],
                logprobs=logprobs[here], spans=[Span(number - 1, 0, length)],
                finish="length" if status == "truncated" else "stop",
            )  # fmt: skip
            yield r.TrajectoryEnded(
                at=float(ends[place]), trajectory_id=key, status=status, length=length,
                error="the engine died" if status == "failed" else None,
            )  # fmt: skip
            right, is_lost = bool(rng.random() < 0.2 + 0.65 * skill), odd > 0.998
            yield r.RewardArrived(
                at=float(ends[place]) + 0.1, trajectory_id=key,
                status="timeout" if is_lost else "ok",
                reward=None if is_lost else float(right) + 0.1 * float(rng.random()),
                correct=None if is_lost else right,
                parts={} if is_lost else {"right": float(right), "form": 0.1},
                seconds=float(rng.exponential(0.004)),
                error="no score within 10 s" if is_lost else None,
            )  # fmt: skip

    def _trained(
        self, number: int, began: float, ids: Any, lengths: Any, rng: np.random.Generator
    ) -> Iterator[r.Record]:
        at, size = began + SECONDS / 2.0, self.size
        windows = [
            r.ClosedWindow(
                window_id=2 * key + index, trajectory_id=key, index=index, start=start,
                end=min(start + WINDOW, length), tokens=min(WINDOW, length - start),
                min_version=number - 1, max_version=number - 1, final=start + WINDOW >= length,
            )
            for key, length in zip(ids.tolist(), lengths.tolist(), strict=True)
            for index, start in enumerate(range(0, length, WINDOW))
        ]  # fmt: skip
        old = rng.random(len(windows)) < 0.02
        stale = [w for w, is_old in zip(windows, old, strict=True) if is_old]
        taken = [w for w, is_old in zip(windows, old, strict=True) if not is_old]
        yield r.WindowsClosed(at=at, windows=windows)
        yield r.WindowsReady(at=at, window_ids=[w.window_id for w in windows])
        if stale:
            dropped = [w.window_id for w in stale]
            yield r.WindowsDropped(at=at, window_ids=dropped, reason="stale")
        shared: dict[str, Any] = {
            "update": number, "lineage": 0, "version": number - 1,
            "value_trajectories": ids.tolist(), "batch_id": number,
        }  # fmt: skip
        batch = [r.TakenWindow(window_id=w.window_id) for w in taken]
        yield r.BatchTaken(at=at, windows=batch, **shared)
        lost = sum(w.tokens for w in stale)
        trained = sum(w.tokens for w in taken)
        self.ledger.add(
            generated=trained + lost, trained_policy=trained, dropped=lost, dropped_stale=lost,
            trained_value=int(lengths.sum()), value_finished=int(lengths.sum()),
        )  # fmt: skip
        end, every = began + SECONDS, SECONDS / size.samples
        for step in range(size.samples):
            yield self.sample(number, began + step * every)
        skill = number / size.updates
        figures: dict[str, Any] = _figures(self._names, rng, skill) | self.ledger.figures()
        arrays = {
            name: (rng.random(len(info.bins)) * 0.1).tolist()
            for name, info in METRICS.items()
            if info.bins
        }
        yield r.UpdateCommitted(
            at=end, train_time_s=end - STARTED - 60.0, trained_tokens=self.ledger.trained(),
            window_ids=[w.window_id for w in taken], metrics=figures | arrays,
            diagnostics=(
                [_seen(w, rng) for w in taken]
                if number > size.updates * (1.0 - size.figures)
                else []
            ),
            **shared,
        )  # fmt: skip
        yield r.VersionPublished(at=end, version=number, lineage=0, update=number, num_bytes=1)
        for name in GENERATORS:
            yield r.VersionLoaded(
                at=end + 0.2, generator=name, version=number, gap_s=0.1, load_s=0.2
            )
        if number % max(1, size.updates // LABELS["during"]) == 0:
            yield _evaluation("during", number, end + 0.5, 0.2 + 0.65 * skill)
            yield r.CheckpointWritten(
                at=end + 0.6, update=number, lineage=0, path=f"checkpoints/step_{number}"
            )


def _figures(names: list[str], rng: np.random.Generator, skill: float) -> dict[str, float]:
    noise = 1.0 + 0.08 * rng.standard_normal(len(names))
    found = {}
    for name, shake in zip(names, noise.tolist(), strict=True):
        is_share = METRICS[name].unit == "share" if name in METRICS else False
        first, last = TRENDS.get(name, (0.02, 0.02) if is_share else (1.0, 1.0))
        found[name] = (first + (last - first) * skill) * shake
    return found


def _seen(window: r.ClosedWindow, rng: np.random.Generator) -> TokenDiagnostics:
    size = window.end - window.start
    values = 0.5 + 0.2 * rng.standard_normal(size)
    got = np.full(size, 1.0 if window.final else np.nan)
    columns = {
        "learner_logprobs": -rng.exponential(0.4, size),
        "values": values,
        "advantages": 1.0 - values,
        "returns": got,
    }
    return TokenDiagnostics(
        window_id=window.window_id, trajectory_id=window.trajectory_id, start=window.start,
        lam=0.95, columns={name: column.astype(np.float32) for name, column in columns.items()},
    )  # fmt: skip


def _evaluation(label: Any, update: int, at: float, accuracy: float) -> r.EvaluationDone:
    return r.EvaluationDone(
        at=at, label=label, update=update, version=update, num_prompts=1024, accuracy=accuracy,
        response_length=50.0, max_response_length=MOST_TOKENS, truncated=0.01, failed=0,
        seconds=5.0, train_time_s=max(0.0, at - STARTED - 60.0),
    )  # fmt: skip


def make_run(root: Path, name: str, size: Size, *, say: Any = print) -> Path:
    """The run ROOT/NAME, made as far as it is missing; `latest` names it."""
    run_dir = root / name
    root.mkdir(parents=True, exist_ok=True)
    has_begun = (run_dir / "journal").exists()
    line = queries.run_line(run_dir) if has_begun else None
    if line is not None and line.status == "finished" and line.updates >= size.updates:
        return run_dir
    store = RunStore.open(run_dir) if has_begun else RunStore.create(run_dir, name, config(root))
    try:
        done = queries.run_line(run_dir).updates
        made = Made(size, Ledger(queries.latest_metrics(run_dir, "ledger/")))
        waiting: list[r.Record] = []
        said = time.monotonic()
        for number in range(done + 1, size.updates + 1):
            waiting += made.update(number)
            if len(waiting) >= RECORDS or number == size.updates:
                store.append(waiting)
                waiting = []
            if time.monotonic() - said > 10.0:
                say(f"{name}: update {number:,} of {size.updates:,} is made")
                said = time.monotonic()
        at = STARTED + 61.0 + SECONDS * size.updates
        store.append([r.RunPhase(at=at, phase="finished", detail="updates")])
    finally:
        store.close()
    name_latest(run_dir)
    return run_dir
