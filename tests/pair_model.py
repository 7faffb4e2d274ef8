"""A pairwise reward model as reward training leaves one, without the training."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from reward_models.card import Card, fingerprint, write_card


def write_pair_model(policy: Path, folder: Path, *, seed: int = 0, **objective: Any) -> Path:
    """The policy with its output weights shaken, its tokenizer, and a card that says S and T."""
    torch.manual_seed(seed)
    model: Any = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(policy)
    tokenizer.save_pretrained(folder)
    words = {"template": "{question}P{first}Q{second}=", "rule": "", "yes": "S", "no": "T"}
    card = {
        "format": 1,
        "objective": {"kind": "pairwise", **words, **objective},
        "vocabulary": fingerprint(tokenizer),
        "chat_template": "auto",
        "max_tokens": 128,
        "run_id": "none",
    }
    write_card(folder, Card.model_validate(card))
    return folder
