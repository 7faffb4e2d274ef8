"""Line reward models as reward training leaves them, without the training."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForTokenClassification, AutoTokenizer

from reward_models.card import Card, fingerprint, write_card


def write_line_model(policy: Path, folder: Path, *, seed: int = 0) -> Path:
    """The backbone of a policy, a head of random weights, the policy's tokenizer, a card."""
    torch.manual_seed(seed)
    model: Any = AutoModelForTokenClassification.from_pretrained(
        policy, num_labels=1, dtype=torch.float32
    )
    torch.nn.init.normal_(model.score.weight)
    model.save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(policy)
    tokenizer.save_pretrained(folder)
    card = {
        "format": 1,
        "objective": {"kind": "lines"},
        "vocabulary": fingerprint(tokenizer),
        "chat_template": "auto",
        "max_tokens": 128,
        "run_id": "none",
    }
    write_card(folder, Card.model_validate(card))
    return folder
