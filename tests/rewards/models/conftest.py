"""Models trained once for all tests that look at them."""

from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from headrace.config.sections.reward_model import RewardModelConfig
from tests.rewards.models.small import Silence, run, small


class Trained(NamedTuple):
    """What a small training left."""

    config: RewardModelConfig
    run_dir: Path
    model: Path
    watch: Silence


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def trained(name: str, root: Path) -> Trained:
    config, watch = small(name, root), Silence()
    run_dir, outcome = run(config, watch=watch)
    assert outcome.model is not None
    return Trained(config, run_dir, outcome.model, watch)


@pytest.fixture(scope="session")
def bradley_terry(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return trained("bradley-terry", tmp_path_factory.mktemp("scores"))


@pytest.fixture(scope="session")
def pairwise(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return trained("pairwise", tmp_path_factory.mktemp("pairs"))


@pytest.fixture(scope="session")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return trained("lines", tmp_path_factory.mktemp("lines"))
