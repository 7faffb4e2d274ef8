"""DeepSpeed on one to four ranks: the same updates, and no step where any rank has a NaN."""

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

from headrace.host.hardware import free_port
from tests.learner.forked import Forked
from tests.learner.rank_worker import ALL_STAGES, STAGES, run_rank
from tests.learner.recorded import numbers, save_tiny_model

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """What one rank wrote, and what two, three and four did."""
    model = save_tiny_model(tmp_path_factory.mktemp("model"))
    found = {}
    for world in (1, 2, 3, 4):
        out, port = tmp_path_factory.mktemp(f"world-{world}"), free_port()
        ranks = [
            Forked(run_rank, model, out, rank, world, port, log=out / f"rank-{rank}.log")
            for rank in range(world)
        ]
        for process in ranks:
            assert process.wait(240) == 0, process.text()[-4000:]
        found[world] = out
    return found


@pytest.mark.parametrize("stage", STAGES)
def test_two_ranks_give_the_update_of_one(outputs: dict[int, Path], stage: int) -> None:
    """Weights after ten updates of four policy and four critic steps, in float32; a rank's share
    comes in one part to three."""
    one = load_file(outputs[1] / f"weights-{stage}-0.safetensors")
    for rank in (0, 1):
        two = load_file(outputs[2] / f"weights-{stage}-{rank}.safetensors")
        for name, weight in one.items():
            assert (two[name] - weight).norm() <= 1e-5 * weight.norm(), name


@pytest.mark.parametrize("stage", ALL_STAGES)
@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_any_number_of_ranks_and_any_stage_give_one_update(
    outputs: dict[int, Path], world: int, stage: int
) -> None:
    """Weights after three updates, in float32."""
    one = load_file(outputs[1] / "early-0-0.safetensors")
    for rank in range(world):
        found = load_file(outputs[world] / f"early-{stage}-{rank}.safetensors")
        assert found.keys() == one.keys()
        for name, weight in one.items():
            assert (found[name] - weight).norm() <= 1e-5 * weight.norm(), name


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_what_comes_instead_of_a_part_is_heard_by_all(outputs: dict[int, Path], world: int) -> None:
    """Those that have all their parts already, too."""
    for rank in range(world):
        assert json.loads((outputs[world] / f"given-up-{rank}.json").read_text()) is True


def test_zero_stages_agree(outputs: dict[int, Path]) -> None:
    """ZeRO 2 is ZeRO 0 with the optimizer cut up."""
    zero, two = (load_file(outputs[1] / f"weights-{s}-0.safetensors") for s in STAGES)
    for name, weight in zero.items():
        assert (two[name] - weight).norm() <= 1e-5 * weight.norm(), name


def test_metrics_are_merged_over_ranks(outputs: dict[int, Path]) -> None:
    """The figures of an update are the same on every rank and for every number of ranks."""
    one, _ = json.loads((outputs[1] / "log-0-0.json").read_text())
    for rank in (0, 1):
        two, _ = json.loads((outputs[2] / f"log-0-{rank}.json").read_text())
        for ours, theirs in zip(two, one, strict=True):
            for name, value in theirs.items():
                if not name.startswith(("timing_s/", "perf/")):
                    wanted = pytest.approx(numbers(value), rel=1e-3, abs=1e-5, nan_ok=True)
                    assert numbers(ours[name]) == wanted, name


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("world", [1, 2])
def test_a_nan_is_skipped_by_all_ranks_together(
    outputs: dict[int, Path], stage: int, world: int
) -> None:
    """The second update has a NaN on the last rank; the third trains on."""
    logs = []
    for rank in range(world):
        _, log = json.loads((outputs[world] / f"log-{stage}-{rank}.json").read_text())
        logs.append(log)
    assert all(log == logs[0] for log in logs)
    first, second, third = logs[0]
    assert first[:4] == [None, True, True, True]
    reason, published, moved, finite, steps = second
    assert "generator's logprobs (1)" in reason
    assert (published, moved, finite) == (False, False, True)
    assert (first[4], steps, third[4]) == (4, 4, 8)
    assert third[:4] == [None, True, True, True]
