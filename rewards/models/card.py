"""Card of a reward model: `reward_model.json` beside the Hugging Face files.

In: a folder. Out: a `Card`. Promise: a model is never asked in another form than it was trained in,
nor with another tokenizer; both are UserErrors that name the folder.
"""

import hashlib
import json
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import ValidationError

from headrace.config.sections.base import StrictModel
from headrace.config.sections.reward_model import ObjectiveConfig, RewardModelConfig
from headrace.errors import UserError, refused_key

FILE = "reward_model.json"
FORMAT: Final = 1
ChatMode = Literal["auto", "always", "never"]


class Card(StrictModel):
    """Form in which a model was trained, as far as scoring depends on it."""

    format: Literal[1]
    objective: ObjectiveConfig
    vocabulary: str
    """`fingerprint` of its tokenizer."""

    chat_template: ChatMode
    max_tokens: int
    run_id: str


def fingerprint(tokenizer: Any) -> str:
    """Return a hash that is equal for tokenizers that number all tokens alike."""
    entries = sorted(tokenizer.get_vocab().items(), key=lambda entry: (entry[1], entry[0]))
    return hashlib.sha256(json.dumps(entries).encode()).hexdigest()[:32]


def card_of(config: RewardModelConfig, tokenizer: Any, run_id: str, chat: ChatMode) -> Card:
    """Return the card of a model that a recipe trains."""
    return Card(
        format=FORMAT, objective=config.objective, vocabulary=fingerprint(tokenizer),
        chat_template=chat, max_tokens=config.data.max_tokens, run_id=run_id,
    )  # fmt: skip


def write_card(folder: Path, card: Card) -> None:
    """Write the card into the model's folder."""
    (folder / FILE).write_text(card.model_dump_json(indent=2) + "\n", encoding="utf-8")


def read_card(folder: Path) -> Card:
    """Read the card of a folder; UserError where it has none that this version reads."""
    if not folder.is_dir():
        raise UserError(f"no reward model at {folder}: name a folder that was trained by "
                        "`headrace reward train`")  # fmt: skip
    path = folder / FILE
    if not path.is_file():
        raise UserError(
            f"{folder} has no {FILE}, so it is not a reward model: train one with "
            "`headrace reward train`"
        )
    try:
        return Card.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        line = refused_key(error) if isinstance(error, ValidationError) else error
        raise UserError(f"{path} cannot be read by this version of Headrace: {line}") from error


def check_kind(folder: Path, card: Card, kind: str) -> None:
    """Raise UserError where the model was trained by another objective than `kind`."""
    if card.objective.kind != kind:
        raise UserError(
            f"{folder} was trained with objective.kind = {card.objective.kind!r}; {kind!r} is "
            "needed here"
        )


def check_tokenizer(folder: Path, card: Card, tokenizer: Any, whose: str) -> None:
    """Raise UserError where a tokenizer is not the one the model was trained with."""
    if fingerprint(tokenizer) != card.vocabulary:
        raise UserError(
            f"the tokenizer of {whose} is not the one that the reward model {folder} was trained "
            "with: the same text would be other tokens; train the reward model from this policy's "
            "model, or take a policy with its tokenizer"
        )
