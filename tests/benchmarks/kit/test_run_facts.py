"""What rows keep of a run's folder, and the two halves of a ceiling."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from sqlalchemy import select

from benchmarks.kit.ceiling import full_rate
from benchmarks.kit.learner_alone import recorded_batches
from benchmarks.kit.machine_state import Look, Watch
from benchmarks.kit.run_facts import cpu_at_evaluations, long_prompts, lost_by_tenth
from headrace.config.sections.run import RunConfig
from storage.database.reader import open_run
from storage.database.tables import Update
from tests.dashboard.scripted_run import write_run as write_scripted
from tests.storage.samples import write_run


def evaluation(at: float, seconds: float, train_time_s: float, version: int) -> dict[str, Any]:
    return {"at": at, "seconds": seconds, "train_time_s": train_time_s, "version": version}


def test_evaluations_and_start_up_are_in_no_cpu_seconds() -> None:
    """Two cores busy all the time: 30 s of start-up, then training 10 s, evaluation 5 s, training
    20 s, evaluation 5 s."""
    watch = Watch()
    watch.looks = [Look(float(at), 0.0, 0.0, 2.0 * at) for at in range(0, 101, 10)]
    found = [evaluation(45, 5, 10.0, 4), evaluation(70, 5, 30.0, 8)]
    assert cpu_at_evaluations(watch, found, [4, 8]) == pytest.approx([20.0, 60.0])
    # Two evaluations of one version: the later one counts, as it does for accuracy.
    warm = [evaluation(38, 2, 6.0, 0), evaluation(45, 3, 10.0, 0), *found[1:]]
    assert cpu_at_evaluations(watch, warm, [0, 8]) == pytest.approx([20.0, 60.0])
    # Before training nothing is used.
    first = [evaluation(30, 5, 0.0, 0), evaluation(45, 5, 10.0, 4)]
    assert cpu_at_evaluations(watch, first, [0, 4]) == pytest.approx([0.0, 20.0])


def test_tokens_lost_by_tenth_of_length(tmp_path: Path) -> None:
    found = lost_by_tenth(write_run(tmp_path / "run"))
    assert found == [
        {"longest": 20, "tokens": 20, "stale": 0.15, "other": 0.1},
        {"longest": 24, "tokens": 24, "stale": 0.0, "other": round(16 / 24, 5)},
    ]


@pytest.mark.parametrize("by", ["tokens", "terms"])
def test_accuracy_on_the_longest_prompts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """Of 20 prompts 17 have one token or term; the tenth that is longest has 8 and 9. Where a task
    names terms, all its prompts may have as many tokens."""
    sizes = [1] * 17 + [2, 8, 9]
    info = ["{}" if by == "tokens" else json.dumps({"terms": size}) for size in sizes]
    answers = pd.DataFrame(
        {
            "version": [0] * 20 + [4] * 20,
            "info": info * 2,
            "prompt_tokens": sizes * 2 if by == "tokens" else [10] * 40,
            "correct": [True] * 19 + [False] + [False] * 18 + [True] * 2,
        }
    )
    monkeypatch.setattr("benchmarks.kit.run_facts.evaluation_answers", lambda folder: answers)
    found = long_prompts(tmp_path, [0, 4])
    assert found == {"by": by, "least": 8, "share": 0.1, "accuracy": [0.5, 1.0]}


def test_rate_of_full_slots_leaves_out_the_tail() -> None:
    """Two slots at 10 tokens a second each: three answers of 10 tokens and one that takes 100 s."""
    answers = pd.DataFrame(
        [(10, 0.0, 1.0), (10, 1.0, 2.0), (10, 2.0, 3.0), (1000, 0.0, 100.0)],
        columns=["length", "first_token_at", "finished_at"],
    )
    assert full_rate(answers) == pytest.approx(20.0)


def committed(run_dir: Path) -> dict[tuple[int, int], int]:
    """Policy tokens of each update that was committed, abandoned lines included."""
    reader = open_run(run_dir)
    rows = reader.rows(
        select(Update.lineage, Update.update, Update.trained_tokens)
        .where(Update.run == reader.key, Update.state == "committed")
        .order_by(Update.offset)
    )
    totals: dict[int, int] = {}

    def each() -> Iterator[tuple[tuple[int, int], int]]:
        for lineage, update, total in rows:
            before = totals.get(update - 1, 0)
            totals[update] = total
            yield (lineage, update), total - before

    return dict(each())


def test_batches_made_again_hold_the_tokens_that_were_trained(tmp_path: Path) -> None:
    """Of a run with a restored learner."""
    run_dir = write_scripted(
        tmp_path, updates=8, roll_back_after=4, algorithm={"value": {"warmup_epochs": 2}}
    )
    config = RunConfig.model_validate_json((run_dir / "resolved.json").read_text())
    found: dict[tuple[int, int], int] = {}
    for batch, shard in recorded_batches(run_dir, config):
        tokens = sum(int((window.loss_weights > 0).sum()) for window in shard.windows)
        found[(batch.lineage, batch.update)] = tokens
        assert batch.value_epochs == (1 if shard.windows else 2)
        assert {w.sequence for w in shard.windows} <= set(range(len(shard.sequences)))
    expected = committed(run_dir)
    assert {key: found[key] for key in expected} == expected
    assert sum(expected.values()) > 300
