"""What stands beside the weights of a reward model that was never trained."""

from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from rewards.models.card import Card, fingerprint, write_card


def finish_folder(policy: Path, folder: Path, objective: dict[str, Any]) -> Path:
    """The policy's tokenizer, and a card of this objective."""
    tokenizer = AutoTokenizer.from_pretrained(policy)
    tokenizer.save_pretrained(folder)
    card = {
        "format": 1,
        "objective": objective,
        "vocabulary": fingerprint(tokenizer),
        "chat_template": "auto",
        "max_tokens": 128,
        "run_id": "none",
    }
    write_card(folder, Card.model_validate(card))
    return folder
