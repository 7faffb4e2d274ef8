"""How an update is cut is no part of it: ten updates of DeepSpeed in float32, weight by weight.

One rank and two are compared in test_ranks.py.
"""

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

from headrace.host.hardware import free_port
from tests.learner.equivalence_worker import ARMS, SETTINGS, TRAJECTORIES, work
from tests.learner.forked import finished
from tests.learner.rank_worker import UPDATES
from tests.learner.recorded import record, save_tiny_model

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def arms(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What every arm ended with."""
    model, out = save_tiny_model(tmp_path_factory.mktemp("model")), tmp_path_factory.mktemp("out")
    finished(work, str(model), out, free_port(), log=out / "log")
    return out


@pytest.mark.parametrize("arm", [name for name in ARMS if name != "whole"])
def test_the_cut_changes_nothing(arms: Path, arm: str) -> None:
    """Accumulation 1 = many micro-batches; everything packed = every trajectory alone = a padded
    batch through transformers' attention; the logits at once = in pieces."""
    whole, other = (load_file(arms / f"{name}.safetensors") for name in ("whole", arm))
    for name, weight in whole.items():
        assert (other[name] - weight).norm() <= 1e-5 * weight.norm(), name


def test_the_arms_are_cut_as_they_say(arms: Path) -> None:
    counts = json.loads((arms / "micro_batches.json").read_text())
    steps = UPDATES * SETTINGS.minibatches
    for name in ("whole", "padded", "chunks"):
        assert counts[name] == [[1] * steps] * 2
    policy, critic = counts["accumulated"]
    assert min(policy) >= 4
    assert min(critic) >= 3
    # Windows of one trajectory share a sequence.
    shards = [
        record(seed=u, trajectories=TRAJECTORIES, turns=u % 2 == 0) for u in range(1, UPDATES + 1)
    ]
    policy, critic = (
        [sum(pair) for pair in zip(steps[::2], steps[1::2], strict=True)]
        for steps in counts["alone"]
    )
    assert policy == [TRAJECTORIES] * UPDATES
    assert critic == [len(shard.values) for shard in shards]
