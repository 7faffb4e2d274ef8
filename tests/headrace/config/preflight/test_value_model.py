"""What may be a value model's start: a head of one number, and the policy's tokens."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForTokenClassification

from headrace.config.loading.recipe import load_recipe
from headrace.config.preflight.checks import check_model, check_value_model
from headrace.config.sections.model import ModelConfig
from headrace.errors import UserError
from headrace.host.install import ROOT
from learner.models.loading import load_critic
from tasks.procedural.character_tokenizer import build_tokenizer
from tests.headrace.conftest import write_model

POLICY = ROOT / "recipes" / "models" / "tracking-cold"


def line_reward_model(folder: Path, *, labels: int = 1) -> Path:
    """As reward training leaves one: the policy's backbone, a head, the policy's tokenizer."""
    torch.manual_seed(1)
    model: Any = AutoModelForTokenClassification.from_pretrained(
        POLICY, num_labels=labels, dtype=torch.float32
    )
    torch.nn.init.normal_(model.score.weight)
    torch.nn.init.constant_(model.score.bias, 0.25)
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((POLICY / name).read_bytes())
    return folder


def test_a_critic_starts_with_all_weights_of_a_line_reward_model(tmp_path: Path) -> None:
    folder = line_reward_model(tmp_path / "prm")
    check_value_model(folder, POLICY)
    config = ModelConfig(path=str(POLICY), critic_path=str(folder))
    critic = load_critic(config, dtype=torch.float32, device=torch.device("cpu"))
    found = critic.state_dict()
    expected = AutoModelForTokenClassification.from_pretrained(folder).state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert found["score.bias"].item() == 0.25


def test_a_policy_is_no_value_model() -> None:
    with pytest.raises(UserError, match=r"model\.critic_path = .* no score\.weight"):
        check_value_model(POLICY, POLICY)


def test_a_head_of_two_numbers_is_none(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="its head says 2 numbers"):
        check_value_model(line_reward_model(tmp_path / "prm", labels=2), POLICY)


def test_another_tokenizer_is_refused_and_none_is_taken(tmp_path: Path) -> None:
    folder = line_reward_model(tmp_path / "prm")
    table = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = table["model"]["vocab"]
    vocabulary["1"], vocabulary["2"] = vocabulary["2"], vocabulary["1"]
    (folder / "tokenizer.json").write_text(json.dumps(table))
    with pytest.raises(UserError, match="its tokenizer is not that of"):
        check_value_model(folder, POLICY)
    (folder / "tokenizer.json").unlink()
    check_value_model(folder, POLICY)


def test_fewer_tokens_than_the_policy_has_are_refused(tmp_path: Path) -> None:
    folder = line_reward_model(tmp_path / "prm")
    other = tmp_path / "policy"
    other.mkdir()
    for path in POLICY.iterdir():
        (other / path.name).write_bytes(path.read_bytes())
    table = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(table | {"vocab_size": 65}))
    with pytest.raises(UserError, match="it knows 64 tokens and the policy 65"):
        check_value_model(folder, other)


def test_a_run_is_refused_before_it_starts(recipe: Path, tmp_path: Path) -> None:
    critic = write_model(tmp_path / "critic", parameters=8, tensor="score.weight")
    build_tokenizer("ab").save_pretrained(critic)
    config = load_recipe(recipe, [f"model.critic_path={critic}"])
    check_model(config)
    build_tokenizer("ba").save_pretrained(config.model.path)
    with pytest.raises(UserError, match="its tokenizer is not that of"):
        check_model(config)
