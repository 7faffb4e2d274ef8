"""Line reward models as reward training leaves them, without the training."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForTokenClassification

from tests.model_card import finish_folder


def write_line_model(policy: Path, folder: Path, *, seed: int = 0) -> Path:
    """The backbone of a policy, a head of random weights, the policy's tokenizer, a card."""
    torch.manual_seed(seed)
    model: Any = AutoModelForTokenClassification.from_pretrained(
        policy, num_labels=1, dtype=torch.float32
    )
    torch.nn.init.normal_(model.score.weight)
    model.save_pretrained(folder)
    return finish_folder(policy, folder, {"kind": "lines"})
