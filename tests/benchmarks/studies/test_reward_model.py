"""The reward model that VC-PPO's failure starts from: only the end of answers teaches it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForTokenClassification, AutoTokenizer

from benchmarks.studies import reward_model
from benchmarks.studies.reward_model import (
    LabelledAnswer,
    end_scores,
    labelled_answers,
    train,
    write_reward_model,
)
from headrace.config.sections.model import ModelConfig
from headrace.host.install import ROOT
from learner.models.loading import load_critic
from tasks.procedural.base import is_held_out

POLICY = ROOT / "recipes" / "models" / "chain-sums-cold"


@pytest.fixture(name="model")
def _model() -> Any:
    torch.manual_seed(0)
    return AutoModelForTokenClassification.from_pretrained(
        POLICY, num_labels=1, dtype=torch.float32
    )


def test_answers_are_judged_and_none_is_to_a_held_out_prompt() -> None:
    tokenizer = AutoTokenizer.from_pretrained(POLICY)
    judged = labelled_answers(POLICY, tokenizer, seed=0, count=64)
    assert {one.right for one in judged} == {True, False}
    for one in judged:
        assert one.ids[-1] == tokenizer.eos_token_id
        assert not is_held_out(tokenizer.decode(one.ids[: one.response_start]))


def test_scores_are_read_at_the_end_token_whatever_stands_beside(model: Any) -> None:
    short, long = (
        LabelledAnswer([5, 6, 7, 2], 2, True),
        LabelledAnswer([5, 6, 7, 8, 9, 10, 2], 2, False),
    )
    together = end_scores(model, [short, long])
    alone = torch.cat([end_scores(model, [one]) for one in (short, long)])
    assert torch.allclose(together, alone, atol=1e-5)


def test_training_tells_right_from_wrong(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers whose last step is 7 are right, those with 8 wrong."""
    monkeypatch.setattr(reward_model, "STEPS", 12)
    monkeypatch.setattr(reward_model, "BATCH", 16)
    judged = [
        LabelledAnswer([5, 6, digit, 2], 2, digit == 7) for digit in (7, 8) for _ in range(16)
    ]
    train(model, judged, seed=0)
    right, wrong = end_scores(model, [judged[0], judged[-1]]).tolist()
    assert right > wrong + 1


def test_the_folder_is_a_value_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the head that was trained, and made once."""
    monkeypatch.setattr(reward_model, "ANSWERS", 16)
    monkeypatch.setattr(reward_model, "STEPS", 1)
    monkeypatch.setattr(reward_model, "BATCH", 4)
    folder = tmp_path / "critic"
    write_reward_model(POLICY, folder)
    made = (folder / "config.json").stat().st_mtime_ns
    write_reward_model(POLICY, folder)
    assert (folder / "config.json").stat().st_mtime_ns == made
    config = ModelConfig(path=str(POLICY), critic_path=str(folder))
    critic = load_critic(config, dtype=torch.float32, device=torch.device("cpu"))
    assert critic.score.weight.abs().sum() > 0
