"""Tokenizer, vocabulary and chat template of a model, without loading the model.

In: a model's folder or hub name. Out: the tokenizer that `AutoTokenizer` of transformers gives, the
size of the vocabulary that `AutoConfig` says, whether there is a chat template, and a chat in it.
Promises: where the folder's own files say all of it, nothing but the tokenizer is imported. The
Auto classes bring torch and those of all models, five to nine seconds of a core, which every
coordinator would spend before it can answer anybody.
"""

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from headrace.errors import UserError, first_line

GENERIC_CLASS = "TokenizersBackend"
"""The class of a tokenizer that its `tokenizer.json` describes completely."""
TAKEN_AT_ITS_WORD = ("llama",)
"""Model types whose folder's class transformers uses. Others, such as `qwen2`, it may replace;
those go by `AutoTokenizer`."""
_TOOLS = """You may call functions, whose signatures are here:
{}
To call one, write its name and arguments as JSON:
<tool_call>
{{"name": "NAME", "arguments": {{"ARGUMENT": "VALUE"}}}}
</tool_call>
The results follow, and then you go on."""


def load_tokenizer(path: str, *, trust_remote_code: bool = False, key: str = "model.path") -> Any:
    """The tokenizer of a folder or hub name; UserError, which names the `key`, without one."""
    import transformers

    try:
        if describes_itself(Path(path)):
            return transformers.PreTrainedTokenizerFast.from_pretrained(path)
        return transformers.AutoTokenizer.from_pretrained(path, trust_remote_code=trust_remote_code)
    except (ImportError, OSError, ValueError) as error:
        raise UserError(f"{key} = {path!r}: no tokenizer: {first_line(error)}") from error


def vocabulary_size(path: str, *, trust_remote_code: bool = False) -> int:
    """Return a model's number of token ids; 0 where its configuration does not say. OSError or
    ValueError where there is no model."""
    said = json_object(Path(path) / "config.json")
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
    said, model = (json_object(folder / n) for n in ("tokenizer_config.json", "config.json"))
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
    return bool(json_object(folder / "tokenizer_config.json").get("chat_template"))


def text_ids(tokenizer: Any, text: str) -> list[int]:
    """Return ids of a text that opens a sequence, whose opening token is never doubled."""
    opening = tokenizer.bos_token
    special = not (opening and text.startswith(opening))
    return list(tokenizer(text, add_special_tokens=special)["input_ids"])


@lru_cache(maxsize=8)
def silent_tokens(tokenizer: Any) -> frozenset[int]:
    """Return a tokenizer's special tokens, other than pairs of tags such as `[THINK]`.

    A text has none of them; tags are what rewards look for."""
    try:
        added = getattr(tokenizer, "added_tokens_decoder", None)  # as transformers has it
        added = tokenizer.get_added_tokens_decoder() if added is None else added
        special = {one.content: token for token, one in added.items() if one.special}
    except NotImplementedError:  # mistral-common adds none: they are of its vocabulary
        special = dict(zip(tokenizer.all_special_tokens, tokenizer.all_special_ids, strict=True))
    closed = {name.replace("/", "", 1): name for name in special if "/" in name and name != "</s>"}
    tags = {tag for pair in closed.items() if pair[0] in special for tag in pair}
    return frozenset(token for name, token in special.items() if name not in tags)


def decoded(tokenizer: Any, ids: Sequence[int]) -> str:
    """Decode a response without its silent tokens."""
    silent = silent_tokens(tokenizer)
    return str(tokenizer.decode([token for token in ids if token not in silent]))


def chat_text(
    tokenizer: Any,
    messages: Sequence[Mapping[str, Any]],
    *,
    begins_answer: bool,
    tools: Sequence[Mapping[str, Any]] = (),
) -> str:
    """Render a conversation by the tokenizer's template.

    Where that shows no tools, a system message lists them and says how Hermes calls them."""
    from jinja2 import TemplateError

    if not tokenizer.chat_template:
        raise UserError("the tokenizer has no chat template, which chat messages need")

    def by_template(**more: Any) -> str:
        try:
            text = tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=begins_answer, **more
            )
        except (TemplateError, TypeError) as error:  # the latter: it adds text to a list
            raise UserError(f"the model's chat template takes no such chat: {error}") from error
        return str(text)

    plain = by_template()
    shown = by_template(tools=list(tools)) if tools else ""
    if not tools or shown != plain:
        return shown or plain
    text, rest = _TOOLS.format("\n".join(map(json.dumps, tools))), list(messages)
    if rest and rest[0]["role"] == "system":
        text = f"{rest.pop(0)['content']}\n\n{text}"
    told = [{"role": "system", "content": text}, *rest]
    return chat_text(tokenizer, told, begins_answer=begins_answer)


def json_object(path: Path) -> dict[str, Any]:
    """An object of a JSON file; empty where there is none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
