"""Lines in the journal, in SQL, in exports, and under the audit's eyes."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import create_engine, text

from headrace.config.sections.run import RunConfig
from headrace.protocol.records.record_types import (
    BatchTaken,
    LineScore,
    LinesScored,
    Record,
    RunPhase,
    WindowsReady,
)
from headrace.protocol.token_spans import Reward
from storage.audit import audit_run
from storage.exports import export
from storage.run_store import RunStore
from tests.coordinator.line_stage import DEADLINE_S, LineStage
from tests.storage.lives import write_journal

Change = Callable[[list[Record]], Any]


def plain(config: RunConfig) -> RunConfig:
    """Without diagnostics, which nobody played here writes."""
    storage = config.storage.model_copy(update={"token_diagnostics": False})
    return config.model_copy(update={"storage": storage})


def write(run_dir: Path, stage: LineStage) -> Path:
    store = RunStore.create(run_dir, run_dir.name, plain(stage.config))
    left = [*stage.world.records, RunPhase(at=1e9, phase="finished")]
    while left:
        store.append(left[:5])
        left = left[5:]
    store.close()
    (run_dir / "diagnostics").mkdir(exist_ok=True)
    return run_dir


def rows(run_dir: Path, query: str) -> list[tuple[Any, ...]]:
    engine = create_engine(f"sqlite:///{run_dir / 'headrace.sqlite'}")
    with engine.connect() as connection:
        found = [tuple(row) for row in connection.execute(text(query))]
    engine.dispose()
    return found


def told() -> LineStage:
    """Three windows, scored, failed and late, and a last one; the answer is right."""
    stage = LineStage((1, 3, 6, 9, 14))
    trajectory = stage.begin()
    stage.grow(trajectory, 4)
    stage.answer(stage.ask()[0], 1.0, None)
    assert stage.world.take() is not None
    stage.world.commit()
    stage.grow(trajectory, 4)
    stage.answer(stage.ask()[0], status="timeout", error="slow")
    stage.grow(trajectory, 4)
    stage.wait(DEADLINE_S)
    stage.grow(trajectory, 3, "stop")
    outcome, lines = sorted(stage.ask(), key=lambda item: item.source, reverse=True)
    stage.answer(lines, 0.5, -1.0)
    stage.answer(outcome, reward=1.0, correct=True)
    return stage


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return write(tmp_path / "run", told())


def test_rows_say_what_was_earned_and_what_became_of_lines(run_dir: Path) -> None:
    assert rows(run_dir, 'select "index", lines from windows order by 1') == [
        (0, "scored"), (1, "failed"), (2, "late"), (3, "scored"),
    ]  # fmt: skip
    query = "select source, status, through, lines, rewards, seconds, error from line_scores"
    first, second, third = rows(run_dir, f'{query} order by "offset"')
    assert first[:3] == ("lines", "ok", 4)
    assert json.loads(first[3]) == [[1, 1.0], [3, None]]
    assert json.loads(first[4]) == [[0.125, 1]]
    assert second == ("lines", "timeout", 7, "[]", "[]", 0.25, "slow")
    assert json.loads(third[3]) == [[9, 0.5], [14, -1.0]]
    ((rewards, reward, source),) = rows(
        run_dir, "select rewards, reward, reward_source from trajectories"
    )
    earned = json.loads(rewards)
    assert earned[0] == [0.125, 1], "what was paid on account stays"
    assert earned[-1] == [1.0, 14]
    # M = 3 lines that are not neutral, lambda = 0.025.
    assert sum(value for value, _ in earned) == pytest.approx(1.0 + 0.025 * (1.0 + 0.5 - 1.0) / 3)
    assert (reward, source) == (1.0, "outcome")


def test_rows_are_the_same_when_they_are_made_anew(run_dir: Path) -> None:
    names = ("trajectories", "windows", "line_scores")
    before = [rows(run_dir, f"select * from {name}") for name in names]
    (run_dir / "headrace.sqlite").unlink()
    RunStore.open(run_dir).close()
    assert [rows(run_dir, f"select * from {name}") for name in names] == before


def test_exports_have_all_rewards(run_dir: Path, tmp_path: Path) -> None:
    out = tmp_path / "t.jsonl"
    export(run_dir, "trajectories", "jsonl", out)
    (row,) = [json.loads(line) for line in out.read_text().splitlines()]
    assert [0.125, 1] in json.loads(row["rewards"])
    assert row["reward"] == 1.0


@settings(deadline=None, max_examples=10)
@given(st.integers(0, 1 << 30), st.sampled_from(["window", "trajectory"]))
def test_the_audit_finds_nothing_in_any_sound_run(
    tmp_path_factory: pytest.TempPathFactory, seed: int, unit: str
) -> None:
    rng = random.Random(seed)
    ends = [token for token in range(60) if rng.random() < 0.3]
    stage = LineStage(ends, schedule={"unit": unit, "batch_windows": 2})
    stage.play(rng, 120)
    report = audit_run(write(tmp_path_factory.mktemp("lines") / "run", stage))
    assert report.findings == []
    assert report.balanced


def change(kind: type[Record], number: int, **values: Any) -> Change:
    def apply(records: list[Record]) -> None:
        place = [i for i, record in enumerate(records) if isinstance(record, kind)][number]
        records[place] = msgspec.structs.replace(records[place], **values)

    return apply


BREACHES: dict[str, Change] = {
    "scored twice": change(LinesScored, 1, through=4),
    "beyond what there is": change(LinesScored, 0, through=5),
    "out of order": change(LinesScored, 0, lines=[LineScore(3, 1.0), LineScore(1, 1.0)]),
    "behind what was asked for": change(LinesScored, 0, lines=[LineScore(4, 1.0)]),
    "scores of a failure": change(LinesScored, 1, lines=[LineScore(6, 1.0)]),
    "paid where no line ends": change(LinesScored, 0, rewards=[Reward(0.125, 2)]),
    "of a trajectory that is not there": change(LinesScored, 0, trajectory_id=7),
    "said to be scored without lines": change(LinesScored, 0, lines=[], rewards=[]),
}  # fmt: skip


def paid_late(records: list[Record]) -> None:
    """Lines are paid after their window has gone to the learner."""
    paid = next(r for r in records if isinstance(r, LinesScored))
    records.remove(paid)
    taken = next(i for i, r in enumerate(records) if isinstance(r, BatchTaken))
    records.insert(taken + 1, paid)


def test_pay_for_a_token_that_an_update_has_had_is_found(run_dir: Path) -> None:
    store = RunStore.open(run_dir)
    records = list(store.replay())
    store.close()
    paid_late(records)
    write_journal(run_dir, records)
    found = [f.text for f in audit_run(run_dir).findings if f.kind == "lines"]
    assert any("earn something at 1, which an update has had" in line for line in found)


@pytest.mark.parametrize("breach", BREACHES.values(), ids=BREACHES.keys())
def test_breaches(run_dir: Path, breach: Change) -> None:
    store = RunStore.open(run_dir)
    records = list(store.replay())
    store.close()
    breach(records)
    write_journal(run_dir, records)
    assert "lines" in {finding.kind for finding in audit_run(run_dir).findings}


def test_another_fate_of_lines_in_sql_is_found(run_dir: Path) -> None:
    store = RunStore.open(run_dir)
    records = list(store.replay())
    store.close()
    late = [r for r in records if isinstance(r, WindowsReady) and "late" in r.lines.values()]
    assert late
    engine = create_engine(f"sqlite:///{run_dir / 'headrace.sqlite'}")
    with engine.begin() as connection:
        connection.execute(text("update windows set lines = 'scored' where lines = 'late'"))
        connection.execute(text("update trajectories set rewards = '[]'"))
    engine.dispose()
    found = [f.text for f in audit_run(run_dir).findings if f.kind == "sql"]
    assert any("lines is 'scored' and the journal says 'late'" in line for line in found)
    assert any(line.startswith("rewards is []") for line in found)
