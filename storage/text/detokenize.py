"""Token ids to text with the tokenizer of a run's model, without torch or transformers.

The `tokenizer.json` of the newest checkpoint, of the model's folder, or of the hub's local cache is
read by the tokenizers library; nothing is downloaded. No such file: no text.
"""

from functools import cache, lru_cache
from itertools import pairwise
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from headrace.data.tokenizer import silent_tokens
from headrace.errors import UserError
from headrace.protocol.token_spans import Int32
from storage.database.reader import read_config
from storage.journal.responses import Int64

_FILE = "tokenizer.json"
BLANK = "\u2581"
"""A blank in the names of sentencepiece's tokens."""


class TextDecoder:
    """Decodes responses of one run."""

    def __init__(self, path: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(path))
        self._silent = silent_tokens(self._tokenizer)

    def text(self, token_ids: Int32) -> str:
        """The response as text, without silent tokens."""
        return self.texts(token_ids, np.array([0, token_ids.size]))[0]

    def texts(self, token_ids: Int32, borders: Int64, *, special: bool = False) -> list[str]:
        """Texts of the tokens from borders[i] to borders[i + 1], with silent ones if `special`."""
        ids, silent = token_ids.tolist(), frozenset[int]() if special else self._silent
        parts = (ids[first:end] for first, end in pairwise(borders.tolist()))
        said = [[token for token in part if token not in silent] for part in parts]
        return self._tokenizer.decode_batch(said, skip_special_tokens=False)

    def pieces(self, token_ids: Int32) -> list[str]:
        """Each token as text of its own, special tokens included."""
        return list(map(cache(self._piece), token_ids.tolist()))

    def _piece(self, token: int) -> str:
        text = self._tokenizer.decode([token], skip_special_tokens=False)
        name = self._tokenizer.id_to_token(token) or ""
        # Decoders take a blank from where a text begins, and a token seldom stands there.
        blanks = len(name) - len(name.lstrip(BLANK))
        return " " * blanks + text.lstrip(" ") if blanks else text


def text_decoder(run_dir: Path) -> TextDecoder | None:
    """The decoder of a run's model, or None where its tokenizer cannot be found."""
    model = str(read_config(run_dir)["model"]["path"])
    newest_first = sorted((run_dir / "checkpoints").glob(f"step_*/policy/{_FILE}"), reverse=True)
    for path in (*newest_first, Path(model) / _FILE):
        if path.is_file():
            return _decoder(path.resolve())
    if model.count("/") <= 1 and not Path(model).is_absolute():
        from huggingface_hub import try_to_load_from_cache  # a tenth of a second

        cached = try_to_load_from_cache(model, _FILE)
        if isinstance(cached, str):
            return _decoder(Path(cached))
    return None


def required_decoder(run_dir: Path) -> TextDecoder:
    """The decoder of a run's model; UserError where its tokenizer cannot be found."""
    if (decoder := text_decoder(run_dir)) is None:
        raise UserError(
            f"{run_dir.name} has no tokenizer beside its checkpoints or its model: its answers "
            "cannot be read as text"
        )
    return decoder


@lru_cache(maxsize=8)
def _decoder(path: Path) -> TextDecoder:
    return TextDecoder(path)
