"""The books balance: counted again from the journal, they are the coordinator's ledger."""

import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.state import State
from headrace.config.run import RunConfig
from headrace.protocol.records import (
    BatchReturned,
    BatchTaken,
    ChunkArrived,
    GroupIssued,
    LineageBegan,
    Record,
    RewardArrived,
    TokensDropped,
    TrajectoryEnded,
    UpdateCommitted,
    WindowTrained,
)
from headrace.protocol.streams import Span
from storage.ledger import recount_ledger
from storage.run_store import RunStore
from tests.storage.samples import run_config, write_run

LIMIT = 24


class Life:
    """A coordinator's life by chance: every record is one that its state allows."""

    def __init__(self, config: RunConfig, seed: int) -> None:
        self.random = random.Random(seed)
        self.state = State(config)
        self.records: list[Record] = []
        self.size = config.schedule.num_generations
        self.clock = 0.0
        self.committed: list[int] = []

    def write(self, kind: type[Record], **values: object) -> None:
        self.clock += 1.0
        record = kind(at=self.clock, **values)
        self.state.apply(record)
        self.records.append(record)

    def live(self, steps: int) -> None:
        acts = [self.issue, self.grow, self.grow, self.grow, self.score, self.take, self.settle,
                self.settle, self.drop, self.roll_back, self.fail]  # fmt: skip
        weights = [3, 6, 6, 6, 6, 4, 4, 4, 1, 1, 1]
        for act in self.random.choices(acts, weights, k=steps):
            act()

    def issue(self) -> None:
        first, group = self.state.next_trajectory, self.state.next_group
        ids = list(range(first, first + self.size))
        self.write(
            GroupIssued, group_id=group, prompt_id=f"p{group}", position=group,
            purpose=self.random.choice(["train", "train", "train", "eval"]), prompt="?", answer="!",
            info="{}", prompt_ids=np.zeros(3, np.int32), trajectory_ids=ids, seeds=ids,
        )  # fmt: skip

    def _running(self) -> int | None:
        running = [t.trajectory_id for t in self.state.trajectories.values() if not t.ended]
        return self.random.choice(running) if running else None

    def grow(self) -> None:
        key = self._running()
        if key is None:
            return
        trajectory = self.state.trajectories[key]
        start, window = trajectory.length, self.state.window_size
        border = (start // window + 1) * window
        end = min(start + self.random.randint(1, 6), border, LIMIT)
        finish = "length" if end == LIMIT else self.random.choice([None, None, None, "stop"])
        self.write(
            ChunkArrived, trajectory_id=key, lease_id=key, chunk_index=trajectory.next_chunk,
            generator="g", start=start, token_ids=np.zeros(end - start, np.int32),
            logprobs=np.zeros(end - start, np.float32), spans=[Span(0, start, end)], finish=finish,
        )  # fmt: skip
        if finish is not None:
            status = "finished" if finish == "stop" else "truncated"
            self.write(TrajectoryEnded, trajectory_id=key, status=status, length=end)

    def fail(self) -> None:
        key = self._running()
        if key is not None:
            length = self.state.trajectories[key].length
            self.write(TrajectoryEnded, trajectory_id=key, status="failed", length=length)

    def score(self) -> None:
        waiting = [
            t.trajectory_id
            for t in self.state.trajectories.values()
            if t.complete and t.reward_status is None
        ]
        if waiting:
            status = self.random.choice(["ok", "ok", "ok", "timeout"])
            reward = 1.0 if status == "ok" else None
            key = self.random.choice(waiting)
            self.write(RewardArrived, trajectory_id=key, status=status, reward=reward)

    def take(self) -> None:
        if self.state.taken is not None or not (self.state.ready or self.state.value_queue):
            return
        windows = []
        for window in list(self.state.ready.values())[: self.random.randint(0, 4)]:
            masked = self.random.randint(0, window.tokens)
            dropped = {"stale": masked} if masked else {}
            windows.append(
                WindowTrained(
                    window_id=window.window_id, trajectory_id=window.trajectory_id,
                    index=window.index, start=window.start, end=window.end,
                    trained=window.tokens - masked, dropped=dropped, min_version=0, max_version=0,
                )
            )  # fmt: skip
        values = list(self.state.value_queue)[: self.random.randint(0, 2)]
        self.write(
            BatchTaken, update=self.state.update + 1, lineage=self.state.lineage, version=0,
            windows=windows, value_trajectories=values,
        )  # fmt: skip

    def settle(self) -> None:
        """Commit, skip or give back what was taken."""
        if self.state.taken is None:
            return
        update, lineage = self.state.taken.update, self.state.lineage
        if self.random.random() < 0.2:
            self.write(BatchReturned, update=update, lineage=lineage, reason="died")
            return
        skipped = "NaN" if self.random.random() < 0.2 else None
        self.write(
            UpdateCommitted, update=update, lineage=lineage, version=0, train_time_s=self.clock,
            trained_tokens=0, metrics={}, diagnostics=[], skipped=skipped,
        )  # fmt: skip

    def drop(self) -> None:
        ready = list(self.state.ready.values())
        if ready:
            window = self.random.choice(ready)
            self.write(
                TokensDropped, trajectory_id=window.trajectory_id, start=window.start,
                end=window.end, reason="filtered", tokens=window.tokens,
            )  # fmt: skip

    def roll_back(self) -> None:
        update = self.random.randint(0, self.state.update)
        self.write(
            LineageBegan, lineage=self.state.lineage + 1, update=update, version=0, reason=""
        )


@settings(deadline=None, max_examples=30)
@given(
    seed=st.integers(0, 2**32),
    unit=st.sampled_from(["window", "trajectory", "group"]),
    size=st.integers(1, 3),
)
def test_recount_agrees_with_the_coordinator(
    tmp_path_factory: pytest.TempPathFactory, seed: int, unit: str, size: int
) -> None:
    config = run_config(schedule={"unit": unit, "num_generations": size})
    life = Life(config, seed)
    life.live(150)
    run_dir = tmp_path_factory.mktemp("life") / "run"
    store = RunStore.create(run_dir, "run", config)
    store.append(life.records)
    store.close()
    counted, ledger = recount_ledger(run_dir), life.state.ledger
    expected = {
        "generated": ledger.generated,
        **{name: ledger.accounts[name] for name in ("trained_policy", "ready", "in_flight")},
        "dropped": {name: n for name, n in sorted(ledger.dropped.items()) if n},
        "trained_value": ledger.value_accounts["trained"],
        "value_waiting": ledger.value_accounts["waiting"],
        "value_dropped": ledger.value_accounts["dropped"],
        "abandoned": ledger.abandoned,
        "evaluation": ledger.evaluation,
    }
    assert counted == expected
    accounts = counted["trained_policy"] + counted["ready"] + counted["in_flight"]
    assert counted["generated"] == accounts + sum(counted["dropped"].values())


def test_small_run_by_hand(tmp_path: Path) -> None:
    """10: 20 tokens, windows 0-8 (6 trained, 2 masked), 8-16 (5 trained, 3 stale), 16-20 ready.
    20: 24 tokens, 0-8 filtered, 8-16 ready, 16-24 lost with the reward. 30: 5 tokens in flight."""
    assert recount_ledger(write_run(tmp_path / "run")) == {
        "generated": 49,
        "trained_policy": 11,
        "ready": 12,
        "in_flight": 5,
        "dropped": {"boundary_mask": 2, "filtered": 8, "reward_failed": 8, "stale": 3},
        "trained_value": 20,
        "value_waiting": 0,
        "value_dropped": 0,
        "abandoned": 8,
        "evaluation": 4,
    }
