"""A pretrained value model is begun with: `model.critic_path` of a later run (VC-PPO)."""

from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from transformers import AutoModelForTokenClassification

from headrace.config.sections.run import RunConfig
from headrace.protocol.messages.control import Goodbye, Shutdown, UpdateDone
from tests.learner.recorded import batch_of, record, run_config, save_tiny_model
from tests.learner.scripted_coordinator import ScriptedCoordinator
from tests.learner.test_run import greet
from tests.metric_values import number

EXPLAINED = "critic/vf_explained_var"


@pytest.mark.slow
def test_a_run_begins_with_the_critic_of_another(tmp_path: Path) -> None:
    """Two warm-up updates, a checkpoint, and a second run from its critic: the values that its
    first update starts from are those of the file, and explain as much as in the first run."""
    config = run_config(save_tiny_model(tmp_path / "model"))
    shard = record(seed=1)
    with ScriptedCoordinator(config, tmp_path / "run-1") as coordinator:
        coordinator.start_learner()
        greet(coordinator, 0)
        for update in (1, 2):
            checkpoint = update == 2
            warm_up = replace(shard, windows=[])
            coordinator.send_batch(
                batch_of(warm_up, update=update, value_epochs=8, checkpoint=checkpoint)
            )
            pretrained = coordinator.expect(UpdateDone)
        assert pretrained.checkpoint is not None
        coordinator.send_batch(batch_of(shard, update=3))
        went_on = coordinator.expect(UpdateDone)
        coordinator.send(Shutdown(reason="done"))
        coordinator.expect(Goodbye)
        assert coordinator.wait() == [0]

    path = Path(pretrained.checkpoint) / "critic"
    table = config.model_dump(mode="json")
    table["model"]["critic_path"] = str(path)
    later = RunConfig.model_validate(table)
    with ScriptedCoordinator(later, tmp_path / "run-2") as coordinator:
        coordinator.start_learner()
        greet(coordinator, 0)
        coordinator.send_batch(batch_of(shard, update=1))
        begun = coordinator.expect(UpdateDone)
        coordinator.send(Shutdown(reason="done"))
        coordinator.expect(Goodbye)
        assert coordinator.wait() == [0]

    critic = AutoModelForTokenClassification.from_pretrained(path)
    assert critic.score.weight.abs().sum() > 0
    for window, diagnostics in zip(shard.windows, begun.diagnostics, strict=True):
        sequence = shard.sequences[window.sequence]
        with torch.no_grad():
            ids = torch.from_numpy(sequence.token_ids.astype(np.int64))
            said = critic(ids[None]).logits[0, sequence.opening - 1 :, 0]
        found = diagnostics.columns["values"]
        np.testing.assert_allclose(found, said[window.start : window.end], rtol=1e-4, atol=1e-5)
    assert begun.metrics[EXPLAINED] == pytest.approx(went_on.metrics[EXPLAINED], rel=1e-4)
    assert number(begun.metrics[EXPLAINED]) > 0.1
