"""The reader that compares what learners wrote down with the journal: it must find every kind of
difference, and none where there is none."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator.training.batches import PreparedBatch
from headrace.run_files.checked_lines import checked_line, whole_lines
from headrace.run_files.update_log import compare
from learner.batching.shards import merge_shards
from learner.process.update_log import UpdateLog
from storage.journal.store import Journal
from tests.coordinator.world import World, make_config

RANKS = 2


class Written(World):
    """A world whose learner ranks write down what is in their weights."""

    def __init__(self, run_dir: Path) -> None:
        super().__init__(
            make_config(
                schedule={"mode": "streaming", "max_staleness": 2, "batch_windows": 3},
                algorithm={"advantages": {"kind": "egae", "boundary_mask": 1}},
            )
        )
        self.run_dir = run_dir
        self._logs = [UpdateLog(run_dir, rank=rank) for rank in range(RANKS)]
        self._out: PreparedBatch | None = None

    def take(self, **_: Any) -> PreparedBatch | None:
        self._out = super().take(ranks=RANKS)
        return self._out

    def commit(self, **how: Any) -> None:
        assert self._out is not None
        after = self.state.line[self.state.committed]
        taken = self.taken()
        for log, shards in zip(self._logs, self._out.parts, strict=True):
            log.write(taken, merge_shards(shards), after=after, skipped=how.get("skipped"))  # type: ignore[arg-type]
        super().commit(**how)

    def live(self, seed: int, steps: int = 60) -> "Written":
        """Updates, skipped ones, batches that come back, rollbacks, coordinators that die."""
        rng = random.Random(seed)
        for _ in range(steps):
            for trajectory in self.fill(6):
                self.chunk(trajectory, rng.randint(1, 4), "stop")
                self.reward(trajectory)
            if self.account.taken is None:
                self.take()
            elif rng.random() < 0.7:
                self.commit(skipped="nan" if rng.random() < 0.1 else None)
            elif rng.random() < 0.5:
                self.give_back()
            if rng.random() < 0.1:
                self.roll_back(rng.randint(0, self.state.committed))
            if rng.random() < 0.1:
                self.restart()
        if self.account.taken is not None:
            self.commit()
        journal = Journal(self.run_dir / "journal", run_id="run", segment_mib=0.01)
        for first in range(0, len(self.records), 50):
            journal.append(self.records[first : first + 50])
        journal.close()
        return self


@pytest.mark.parametrize("seed", range(8))
def test_an_honest_learner_is_believed(tmp_path: Path, seed: int) -> None:
    world = Written(tmp_path).live(seed)
    found = compare(tmp_path)
    assert found.problems == []
    assert found.doubled == found.doubled_values == []
    assert found.updates == world.state.committed > 0
    assert found.windows > 0


def lines_of(run_dir: Path) -> dict[Path, list[dict[str, Any]]]:
    paths = sorted((run_dir / "applied").iterdir())
    return {path: list(whole_lines(path)) for path in paths}


def last(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """The last line that has windows."""
    return [line for line in lines if line["windows"]][-1]


def trained_again(lines: list[dict[str, Any]]) -> None:
    """Two windows' worth of one update."""
    last(lines)["windows"].append(last(lines[:-1])["windows"][0])


BREACHES: dict[str, tuple[Callable[[list[dict[str, Any]]], Any], str]] = {
    "nothing was written": (lambda lines: lines.clear(), "no learner wrote|are not in the weights"),
    "applied twice": (lambda lines: lines.append(lines[-1]), "was applied twice"),
    "a window is missing": (lambda lines: last(lines)["windows"].pop(), "are not in the weights"),
    "a window more": (lambda lines: last(lines)["windows"].append(1), "and not in the journal"),
    "a window twice": (trained_again, "are in the weights twice"),
    "to other weights": (lambda lines: last(lines).update(after=5), "should follow"),
    "as another update": (lambda lines: last(lines).update(update=10**6), "as update 1000000"),
    "broken off": (lambda lines: last(lines).update(skipped="nan"), "was broken off"),
}


@pytest.mark.parametrize("name", BREACHES)
def test_every_kind_of_difference_is_found(tmp_path: Path, name: str) -> None:
    Written(tmp_path).live(1, steps=20)
    change, says = BREACHES[name]
    (path, lines), *_ = lines_of(tmp_path).items()
    change(lines)
    path.write_bytes(b"".join(map(checked_line, lines)))
    problems = compare(tmp_path).problems
    assert any(part in problem for problem in problems for part in says.split("|")), problems


def test_a_torn_line_is_none_and_the_next_one_stands_by_itself(tmp_path: Path) -> None:
    log = tmp_path / "applied" / "rank-0.jsonl"
    Written(tmp_path).live(2)
    whole = log.read_bytes()
    log.write_bytes(whole + b'{"at": 1.0, "batch')
    assert compare(tmp_path).problems == []
    UpdateLog(tmp_path, rank=0)
    assert log.read_bytes() == whole
    assert compare(tmp_path).problems == []


def test_what_is_written_down_is_on_the_disk(tmp_path: Path, synced: dict[int, int]) -> None:
    """`write` returns behind the fsync of the whole line; then the update is reported."""
    Written(tmp_path).live(1, steps=20)
    for path in lines_of(tmp_path):
        assert synced.get(path.stat().st_ino) == path.stat().st_size > 0


def test_a_run_whose_learner_wrote_nothing_is_passed_over(tmp_path: Path) -> None:
    assert compare(tmp_path).updates == 0


def test_a_window_whose_tokens_are_all_masked_is_not_looked_for_in_the_weights(
    tmp_path: Path,
) -> None:
    """It is in the batch that was taken, and no rank gets it."""
    world = Written(tmp_path)
    answers = world.fill(3)
    for trajectory in answers:
        world.chunk(trajectory, 2, "stop")
        world.reward(trajectory)
    answers[0].logprobs[:] = np.nan
    assert world.take() is not None
    world.commit()
    found = compare(world.live(0, steps=0).run_dir)
    assert (found.problems, found.updates, found.windows) == ([], 1, 2)
