"""Tokenizer, vocabulary and chat template of a model, without loading the model.

In: a model's folder or hub name. Out: the tokenizer that `AutoTokenizer` of transformers gives, and
the size of the vocabulary that `AutoConfig` says, whether there is a chat template. Promises: where
the folder's own files say all of it, nothing but the tokenizer is imported. The Auto classes bring
torch and those of all models, five to nine seconds of a core, which every coordinator would spend
before it can answer anybody.
"""

import json
from pathlib import Path
from typing import Any

GENERIC_CLASS = "TokenizersBackend"
"""The class of a tokenizer that its `tokenizer.json` describes completely."""
TAKEN_AT_ITS_WORD = ("llama",)
"""Model types whose folder's class transformers uses. Others, such as `qwen2`, it may replace;
those go by `AutoTokenizer`."""


def load_tokenizer(path: str, *, trust_remote_code: bool = False) -> Any:
    """The tokenizer of a folder or hub name. OSError or ValueError where there is none."""
    if describes_itself(Path(path)):
        from transformers import PreTrainedTokenizerFast

        return PreTrainedTokenizerFast.from_pretrained(path)
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(path, trust_remote_code=trust_remote_code)


def vocabulary_size(path: str, *, trust_remote_code: bool = False) -> int:
    """Return a model's number of token ids; 0 where its configuration does not say. OSError or
    ValueError where there is no model."""
    said = _read(Path(path) / "config.json")
    parts = [part for part in said.values() if isinstance(part, dict)]
    if isinstance(size := said.get("vocab_size"), int) and not any(
        "vocab_size" in p for p in parts
    ):
        return size
    from transformers import AutoConfig

    model: Any = AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)
    return int(getattr(model.get_text_config(), "vocab_size", 0))


def describes_itself(folder: Path) -> bool:
    """Return whether the folder's `tokenizer.json` alone says how text becomes ids."""
    said, model = (_read(folder / name) for name in ("tokenizer_config.json", "config.json"))
    return (
        said.get("tokenizer_class") == GENERIC_CLASS
        and "auto_map" not in said
        and model.get("model_type") in TAKEN_AT_ITS_WORD
        and (folder / "tokenizer.json").is_file()
    )


def has_chat_template(folder: Path) -> bool:
    """Return whether a model folder has a chat template, in any file that transformers reads."""
    if any((folder / name).exists() for name in ("chat_template.jinja", "chat_template.json")):
        return True
    return bool(_read(folder / "tokenizer_config.json").get("chat_template"))


def _read(path: Path) -> dict[str, Any]:
    """An object of a JSON file; empty where there is none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
