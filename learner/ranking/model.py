"""Session ranker: a bidirectional encoder with pooler and scalar head.

In: rows of tokens. Out: representations of sessions, scores of candidates. Promise: what is saved
is a Hugging Face folder that `AutoModelForSequenceClassification` loads as it is.
"""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from headrace.data.sessions import RankedList
from headrace.errors import UserError, first_line
from learner.ranking.encoding import SessionEncoder, TokenRow, pad_rows

WEIGHTS, CARD = "model.safetensors", "reward_model.json"
BATCH = 64
"""Candidates of one forward pass without gradients."""


class SessionRanker:
    """Model, tokenizer and encoder of one folder."""

    def __init__(self, model: Any, tokenizer: Any, device: torch.device, *, longest: int) -> None:
        self.model, self.tokenizer, self.device = model.to(device), tokenizer, device
        self.card: bytes | None = None
        """The file that says how the model was made, if there is one; saved along."""
        most = int(getattr(model.config, "max_position_embeddings", longest))
        self.encoder = SessionEncoder(tokenizer, min(longest, most))
        if len(tokenizer) > model.get_input_embeddings().num_embeddings:
            model.resize_token_embeddings(len(tokenizer))

    @classmethod
    def load(cls, folder: Path, device: torch.device, *, longest: int) -> "SessionRanker":
        """Load a folder's ranker; UserError where it has none."""
        try:
            tokenizer = AutoTokenizer.from_pretrained(folder)
            model = AutoModelForSequenceClassification.from_pretrained(
                folder, num_labels=1, use_safetensors=True
            )
        except (OSError, ValueError) as error:
            line = first_line(error)
            raise UserError(f"{folder} has no encoder that a ranker can be: {line}") from error
        if getattr(model.base_model, "pooler", None) is None:
            raise UserError(
                f"{folder}: a {type(model).__name__} has no pooler, which a session ranker reads; "
                "take a BERT"
            )
        if tokenizer.cls_token_id is None or tokenizer.sep_token_id is None:
            raise UserError(f"{folder}: its tokenizer has no [CLS] or no [SEP]")
        ranker = cls(model.float(), tokenizer, device, longest=longest)
        card = folder / CARD
        ranker.card = card.read_bytes() if card.is_file() else None
        return ranker

    def represent(self, rows: Sequence[TokenRow]) -> Tensor:
        """[B, D] the pooler's output of each row."""
        return self.model.base_model(**self.batch(rows)).pooler_output

    def score(self, rows: Sequence[TokenRow]) -> Tensor:
        """[B] a score for each row's candidate."""
        return self.model(**self.batch(rows)).logits[:, 0]

    def row(self, ranked: RankedList, place: int, *, reads_history: bool) -> TokenRow:
        """Encode a candidate behind its session, or behind the last query alone."""
        history = ranked.history if reads_history else ()
        return self.encoder.candidate(history, ranked.query, ranked.candidates[place])

    @torch.no_grad()
    def scores_of(
        self, lists: Sequence[RankedList], *, reads_history: bool = True
    ) -> list[list[float]]:
        """Score every candidate of each list."""
        self.model.eval()
        rows = [
            self.row(ranked, place, reads_history=reads_history)
            for ranked in lists
            for place in range(len(ranked.candidates))
        ]
        parts = [rows[first : first + BATCH] for first in range(0, len(rows), BATCH)]
        found = iter([score for part in parts for score in self.score(part).tolist()])
        return [[next(found) for _ in ranked.candidates] for ranked in lists]

    def batch(self, rows: Sequence[TokenRow]) -> dict[str, Tensor]:
        """[B, T] the model's inputs."""
        batch = pad_rows(rows, int(self.tokenizer.pad_token_id or 0))
        return {name: value.to(self.device) for name, value in batch.items()}

    def save(self, folder: Path, weights: Mapping[str, Tensor] | None = None) -> None:
        """Write the Hugging Face folder, with other weights where they are given."""
        self.model.save_pretrained(folder, state_dict=None if weights is None else dict(weights))
        self.tokenizer.save_pretrained(folder)
        if self.card is not None:
            (folder / CARD).write_bytes(self.card)


def digest_of(folder: Path) -> str:
    """Return 16 hex digits of a folder's weights' SHA-256; UserError: it has none."""
    try:
        with (folder / WEIGHTS).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:16]
    except OSError as error:
        raise UserError(f"{folder} has no {WEIGHTS}: {error.strerror}") from error
