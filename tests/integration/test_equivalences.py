"""What must come to the same numbers, over whole runs from the command line.

Torch engine, prefix prefilled again with every window, float32, one thread a process. All runs go
side by side, so that each finds the machine busy in its own way: who arrives first must not matter.
Whatever is drawn in another way each time breaks the equalities, too: the same seed gives the same
numbers.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from headrace.protocol.records.record_types import BatchTaken, ChunkArrived, EvaluationDone
from storage.queries.metrics import metric_names, metric_series
from tests.integration.audit import assert_trained_once, records_of
from tests.integration.runs import Run

UPDATES = 4
COMMON = (
    "generator.engine=torch",
    "generator.kv_on_update=recompute",
    "schedule.max_staleness=0",
    "task.max_response_length=96",
    "reward.workers=2",
    "learner.precision=float32",
    "learner.threads=1",
    "learner.lockstep_threads=1",
    "evaluation.before=false",
    "evaluation.num_prompts=32",
    f"stop.updates={UPDATES}",
)
WINDOWED = ("schedule.mode=windowed", "schedule.window=8")
STREAMING = ("schedule.mode=streaming", "schedule.window=8")
RUNS = {
    "windowed": WINDOWED,
    "streaming": STREAMING,
    "synchronous": ("schedule.mode=synchronous",),
    "whole window": ("schedule.mode=windowed", "schedule.window=96"),
}
SAME = [
    pytest.param("windowed", "streaming", id="streaming with staleness 0 = windowed"),
    pytest.param("whole window", "synchronous", id="windowed with W >= L = synchronous"),
]
OF_THE_CLOCK = ("timing_s/", "idle/", "heartbeat/", "weights/")
"""How metrics begin that a clock measured, """
ENDS_OF_THE_CLOCK = ("_per_s", "/seconds", "/cpu_s", "/queue")
"""and how they end."""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Run]]:
    """All of them, ended."""
    root = tmp_path_factory.mktemp("runs")
    started = {
        name: Run(root / name.replace(" ", "-"), *COMMON, *overrides)
        for name, overrides in RUNS.items()
    }
    try:
        for run in started.values():
            assert run.wait(800) == 0, run.text()
        yield started
    finally:
        for run in started.values():
            run.end()


def _metrics(run: Run) -> dict[tuple[int, str], float]:
    """What SQL holds of the updates, but for what a clock measured."""
    names = [
        name
        for name in metric_names(run.run_dir)
        if not name.startswith(OF_THE_CLOCK) and not name.endswith(ENDS_OF_THE_CLOCK)
    ]
    rows = metric_series(run.run_dir, names)
    return {
        (int(update), str(name)): float(value)
        for update, name, value in rows.itertuples(index=False)
    }


def _tokens(run: Run) -> dict[int, list[Any]]:
    """Of every trajectory: tokens, behaviour logprobs and the versions that sampled them."""
    found: dict[int, list[Any]] = {}
    for record in records_of(run.run_dir):
        if isinstance(record, ChunkArrived):
            versions = [s.version for s in record.spans for _ in range(s.start, s.end)]
            columns = (record.token_ids.tolist(), record.logprobs.tolist(), versions)
            found.setdefault(record.trajectory_id, []).extend(zip(*columns, strict=True))
    return found


def _batches(run: Run) -> list[Any]:
    """What each update was made of, in the order in which the learner saw it."""
    taken = [r for r in records_of(run.run_dir) if isinstance(r, BatchTaken)]
    return [(batch.windows, batch.value_trajectories) for batch in taken]


def _weights(run: Run) -> dict[str, torch.Tensor]:
    """Policy, value model and both optimizers at the end."""
    folder = run.run_dir / "checkpoints" / f"step_{UPDATES}"
    return {
        f"{path.relative_to(folder)}/{name}": tensor
        for path in sorted(folder.rglob("*.safetensors"))
        for name, tensor in load_file(path).items()
    }


@pytest.mark.parametrize(("one", "other"), SAME)
def test_the_same_numbers_to_the_bit(runs: dict[str, Run], one: str, other: str) -> None:
    a, b = runs[one], runs[other]
    assert _tokens(a) == _tokens(b)
    assert _batches(a) == _batches(b)
    metrics = _metrics(a)
    assert {"reward/mean", "actor/grad_norm", "critic/vf_loss"} <= {name for _, name in metrics}
    assert metrics == _metrics(b)
    weights, twins = _weights(a), _weights(b)
    assert weights.keys() == twins.keys()
    assert {Path(name).parts[0] for name in weights} == {"policy", "critic", "state"}
    assert [name for name in weights if not torch.equal(weights[name], twins[name])] == []
    assert _accuracy(a) == _accuracy(b)


def _accuracy(run: Run) -> list[tuple[str, float, float]]:
    done = [r for r in records_of(run.run_dir) if isinstance(r, EvaluationDone)]
    assert [r.label for r in done] == ["after"]
    return [(r.label, r.accuracy, r.response_length) for r in done]


def test_windows_make_a_difference(runs: dict[str, Run]) -> None:
    """Else the equalities above would say little: responses are cut, and carried over updates."""
    windowed, whole = _tokens(runs["windowed"]), _tokens(runs["synchronous"])
    assert windowed != whole
    carried = [tokens for tokens in windowed.values() if len({v for *_, v in tokens}) > 1]
    assert carried
    assert not any(len({v for *_, v in tokens}) > 1 for tokens in whole.values())


def test_nothing_is_stale_in_lockstep(runs: dict[str, Run]) -> None:
    """Each window is of the weights that it trains, all of it."""
    for name in RUNS:
        for windows, _ in _batches(runs[name]):
            assert len(windows) <= 16
            masked = [run.reason for window in windows for run in window.masked]
            assert "stale" not in masked
        assert max(_named(_metrics(runs[name]), "staleness/max")) == 0.0


def _named(metrics: dict[tuple[int, str], float], name: str) -> list[float]:
    return [value for (_, key), value in metrics.items() if key == name]


@pytest.mark.parametrize("name", RUNS)
def test_nothing_is_trained_twice_nor_a_value_of_something_unfinished(
    runs: dict[str, Run], name: str
) -> None:
    assert_trained_once(runs[name].run_dir)
