"""Loading: what a folder says beside its weights can be saved again."""

import json
from pathlib import Path
from shutil import copytree

import pytest
import torch
from transformers import AutoConfig, AutoProcessor, GenerationConfig

from headrace.config.sections.model import ModelConfig
from learner.models.loading import load_policy, load_processor

START = Path(__file__).resolve().parents[3] / "recipes" / "models" / "chain-sums-cold"


def saved_again(root: Path, **said: object) -> GenerationConfig:
    """The generation config of a policy that was loaded and saved."""
    copytree(START, root / "start")
    (root / "start" / "generation_config.json").write_text(json.dumps({"eos_token_id": 2, **said}))
    models = ModelConfig(path=str(root / "start"))
    model = load_policy(models, dtype=torch.float32, device=torch.device("cpu"))
    model.save_pretrained(root / "end")
    return GenerationConfig.from_pretrained(root / "end")


def test_a_temperature_without_sampling_does_not_prevent_a_checkpoint(tmp_path: Path) -> None:
    """Many folders have one, such as Vicuna's; transformers refuses to write it."""
    kept = saved_again(tmp_path, temperature=0.9, top_p=0.6)
    assert (kept.temperature, kept.top_p, kept.eos_token_id) == (0.9, 0.6, 2)
    assert kept.do_sample


def test_a_greedy_policy_stays_greedy(tmp_path: Path) -> None:
    assert not saved_again(tmp_path, do_sample=False).do_sample


@pytest.mark.parametrize(("family", "has_one"), [("gemma3", True), ("llama", False)])
def test_a_processor_goes_with_every_vision_tower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, has_one: bool
) -> None:
    """Gemma 3 is trained on text alone, and vLLM does not open a checkpoint of it without."""
    AutoConfig.for_model(family).save_pretrained(tmp_path)
    monkeypatch.setattr(AutoProcessor, "from_pretrained", lambda path, **_: path)
    found = load_processor(ModelConfig(path=str(tmp_path)))
    assert found == (str(tmp_path) if has_one else None)
