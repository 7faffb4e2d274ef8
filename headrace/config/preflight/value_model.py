"""Check of the folder that a policy's value model starts from.

In: the folders of a value model (a critic of another run, a reward model, a line reward model) and
of a policy. Out: nothing, or a UserError of one line. Only headers and JSON files are read, no
weights. A value model reads the policy's token ids and starts with all of its own weights: with a
tokenizer that numbers tokens otherwise, too few embeddings, or no head of one number, it would know
nothing, and no error would say so.
"""

import json
from pathlib import Path
from typing import Any

from headrace.config.estimates.model_shape import model_shape, tensor_sizes
from headrace.errors import UserError

HEAD_WEIGHT = "score.weight"
"""The head's name in models for token classification."""


def check_value_model(folder: Path, policy: Path) -> None:
    """UserError where the folder has no head of one number, or does not read the policy's tokens. A
    folder without a tokenizer, such as a checkpoint, passes."""
    named = f"model.critic_path = {str(folder)!r}"
    try:
        sizes: dict[str, int] = {}
        for file in sorted(folder.glob("*.safetensors")):
            sizes |= tensor_sizes(file)
        shape, other = model_shape(folder), model_shape(policy)
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{named}: cannot read it: {error}") from error
    if HEAD_WEIGHT not in sizes:
        raise UserError(
            f"{named}: it has no {HEAD_WEIGHT}, so it is no value model; name a critic of another "
            "run, or a reward model with a scalar head"
        )
    if sizes[HEAD_WEIGHT] != shape.hidden:
        raise UserError(
            f"{named}: its head says {sizes[HEAD_WEIGHT] // shape.hidden} numbers for each token, "
            "and a value is one"
        )
    if shape.vocabulary < other.vocabulary:
        raise UserError(
            f"{named}: it knows {shape.vocabulary} tokens and the policy {other.vocabulary}; take "
            "a value model with the policy's tokenizer"
        )
    check_tokens("model.critic_path", folder, policy)


def check_tokens(key: str, folder: Path, policy: Path) -> None:
    """UserError, naming the key, where the tokenizers of a folder and of the policy number tokens
    otherwise; a folder without one passes."""
    named = f"{key} = {str(folder)!r}"
    try:
        ours, theirs = _vocabulary(folder), _vocabulary(policy)
    except (OSError, ValueError) as error:
        raise UserError(f"{named}: cannot read it: {error}") from error
    if ours is not None and theirs is not None and ours != theirs:
        raise UserError(
            f"{named}: its tokenizer is not that of model.path = {str(policy)!r}, so the same ids "
            "would be other texts; take one with the policy's tokenizer"
        )


def _vocabulary(folder: Path) -> dict[str, int] | None:
    """Return the ids of all tokens; None without a `tokenizer.json` that has them."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        return None
    table: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    entries = table.get("model", {}).get("vocab")
    if entries is None:
        return None
    if isinstance(entries, list):  # pairs of a token and its score, in the order of the ids
        known = {token: number for number, (token, _) in enumerate(entries)}
    else:
        known = dict(entries)
    return known | {token["content"]: token["id"] for token in table.get("added_tokens", ())}
