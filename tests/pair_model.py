"""A pairwise reward model as reward training leaves one, without the training."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from tests.model_card import finish_folder


def write_pair_model(policy: Path, folder: Path, *, seed: int = 0, **objective: Any) -> Path:
    """The policy with its output weights shaken, its tokenizer, and a card that says S and T."""
    torch.manual_seed(seed)
    model: Any = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    words = {"template": "{question}P{first}Q{second}=", "rule": "", "yes": "S", "no": "T"}
    return finish_folder(policy, folder, {"kind": "pairwise", **words, **objective})
