"""Prompt of a pairwise model, and the two tokens of its answers.

In: a question, a rule and two answers as texts. Out: the text that ends right before the answer,
and the ids of `yes` and `no` in that place. Words of several tokens are a UserError. No model.
"""

import re
from typing import Any, NamedTuple

from headrace.config.sections.reward_model import SLOTS, PairwiseConfig
from headrace.data.answer_text import without_control_tokens
from headrace.data.tokenizer import chat_text, text_ids
from headrace.errors import UserError
from headrace.protocol.token_spans import MediaRun
from rewards.models.encoding import Prompt, PromptImages, check_text
from tasks.rows import images_in

_SLOT = re.compile("{(" + "|".join(SLOTS) + ")}")


class YesNoTokens(NamedTuple):
    """Token ids of the two answers."""

    yes: int
    no: int


def fill_template(template: str, *, question: str, rule: str, first: str, second: str) -> str:
    """The template with its slots filled in; braces and control tokens in answers mean nothing."""
    first, second = without_control_tokens(first), without_control_tokens(second)
    values = {"question": question, "rule": rule, "first": first, "second": second}
    return _SLOT.sub(lambda slot: values[slot[1]], template)


def question_ids(
    tokenizer: Any, prompt: Prompt, text: str, *, chat: bool, images: PromptImages | None = None
) -> tuple[list[int], tuple[MediaRun, ...]]:
    """Return a question's ids, as a user's message if `chat`, and its prompt's images.

    Images stand before the text. UserError for more than text where `images` is None."""
    if images is None:
        check_text(prompt)
    shown = images_in(prompt)
    if shown and not chat:
        raise UserError("questions about images need model.chat_template = 'always'")
    if not chat:
        return text_ids(tokenizer, text), ()
    parts = [{"type": "image", "image": image} for image in shown]
    asked = _shown(tokenizer, [*parts, {"type": "text", "text": text}] if parts else text)
    ids = list(tokenizer(asked, add_special_tokens=False)["input_ids"])
    return (ids, ()) if images is None else images.expand(ids, prompt)


def yes_no_tokens(tokenizer: Any, config: PairwiseConfig, *, chat: bool) -> YesNoTokens:
    """Return the ids of yes and no behind the template; UserError unless two single tokens."""
    text = fill_template(config.template, question="q", rule=config.rule, first="a", second="b")
    shown = _shown(tokenizer, text) if chat else text
    words = YesNoTokens(
        _id_of(tokenizer, shown, "yes", config.yes), _id_of(tokenizer, shown, "no", config.no)
    )
    if words.yes == words.no:
        raise UserError(
            f"objective.yes = {config.yes!r} and objective.no = {config.no!r} are the same token "
            "for this tokenizer; choose words that it can tell apart"
        )
    return words


def _shown(tokenizer: Any, content: str | list[dict[str, Any]]) -> str:
    return chat_text(tokenizer, [{"role": "user", "content": content}], begins_answer=True)


def _id_of(tokenizer: Any, shown: str, name: str, word: str) -> int:
    """Return the one token by which the text goes on with a word."""
    before, after = (
        list(tokenizer(text, add_special_tokens=False)["input_ids"])
        for text in (shown, shown + word)
    )
    added = after[len(before) :]
    if after[: len(before)] != before:
        raise UserError(
            f"objective.{name} = {word!r} melts into the token before it; end objective.template "
            "with a line break, or write the word with the space before it"
        )
    if len(added) != 1:
        pieces = " ".join(map(repr, tokenizer.convert_ids_to_tokens(added)[:6]))
        raise UserError(
            f"objective.{name} = {word!r} is {len(added)} tokens behind the template ({pieces}); "
            "choose a word that is one token there"
        )
    if added[0] == tokenizer.unk_token_id:
        raise UserError(f"objective.{name} = {word!r} is not in the tokenizer's vocabulary")
    return int(added[0])
