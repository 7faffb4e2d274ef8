"""End tokens and weight layout of a Hugging Face model.

In: ModelConfig.path, a folder or hub name; UserError when it is no model."""

import json
from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoTokenizer, GenerationConfig
from transformers.utils import cached_file

from generators.engines.weights import WeightLayout, read_shapes
from headrace.errors import UserError, first_line

_INDEX, _SINGLE = "model.safetensors.index.json", "model.safetensors"


def read_config(path: str, *, trust_remote_code: bool = False) -> Any:
    """Read the model's transformers configuration."""
    try:
        return AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)
    except (OSError, ValueError) as error:
        reason = first_line(error)
        raise UserError(
            f"model.path={path} is no Hugging Face model ({reason}); give a folder with a "
            "config.json or a hub name"
        ) from error


def end_token_ids(path: str, config: Any) -> tuple[int, ...]:
    """Return all end tokens of the generation (or model) configuration and tokenizer."""
    found: set[int] = set()
    try:
        found |= _ids(GenerationConfig.from_pretrained(path).eos_token_id)
    except OSError:
        found |= _ids(config.get_text_config().eos_token_id)
    try:
        found |= _ids(AutoTokenizer.from_pretrained(path).eos_token_id)
    except (OSError, ValueError, KeyError):
        # A folder without a tokenizer: tests and weights made by a script.
        found |= _ids(config.get_text_config().eos_token_id)
    return tuple(sorted(found))


def _ids(value: int | list[int] | None) -> set[int]:
    if value is None:
        return set()
    return {value} if isinstance(value, int) else set(value)


def weight_layout(path: str, config: Any) -> WeightLayout:
    """Read the names and shapes of the model's own safetensors files."""
    index = cached_file(path, _INDEX, _raise_exceptions_for_missing_entries=False)
    names = [_SINGLE]
    if index is not None:
        names = sorted(set(json.loads(Path(index).read_text())["weight_map"].values()))
    files = [cached_file(path, name, _raise_exceptions_for_missing_entries=False) for name in names]
    if None in files:
        raise UserError(f"model.path={path} has no safetensors weights; save it as safetensors")
    shapes: dict[str, tuple[int, ...]] = {}
    for file in files:
        shapes.update(read_shapes(Path(file)))
    tied = {"lm_head.weight"} if config.get_text_config().tie_word_embeddings else set()
    return WeightLayout(shapes, frozenset(tied))
