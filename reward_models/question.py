"""What a pairwise model is asked, and which two tokens are its answers.

In: a question, a rule and two answers as texts. Out: the text that ends right before the answer,
and the ids of `yes` and `no` in that place. Promise: each is one token there; words that are
several are a UserError. No model.
"""

import re
from typing import Any, NamedTuple

from headrace.config.reward_model import SLOTS, PairwiseConfig
from headrace.errors import UserError

_SLOT = re.compile("{(" + "|".join(SLOTS) + ")}")


class Words(NamedTuple):
    """Token ids of the two answers."""

    yes: int
    no: int


def ask(template: str, *, question: str, rule: str, first: str, second: str) -> str:
    """The template with its slots filled in; braces in the texts mean nothing."""
    values = {"question": question, "rule": rule, "first": first, "second": second}
    return _SLOT.sub(lambda slot: values[slot[1]], template)


def words_in_context(tokenizer: Any, config: PairwiseConfig, *, chat: bool) -> Words:
    """Ids of yes and no behind the template; UserError where one of them is not a single token
    there, or where both are the same one."""
    text = ask(config.template, question="q", rule=config.rule, first="a", second="b")
    found = [_word(tokenizer, text, name, word, chat=chat) for name, word in _words(config)]
    if found[0] == found[1]:
        raise UserError(
            f"objective.yes = {config.yes!r} and objective.no = {config.no!r} are the same token "
            "for this tokenizer; choose words that it can tell apart"
        )
    return Words(*found)


def question_ids(tokenizer: Any, text: str, *, chat: bool) -> list[int]:
    """Token ids of what is asked, as a user's message where `chat`."""
    if not chat:
        return list(tokenizer(text)["input_ids"])
    shown = tokenizer.apply_chat_template(
        [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True
    )
    return list(tokenizer(shown, add_special_tokens=False)["input_ids"])


def _words(config: PairwiseConfig) -> tuple[tuple[str, str], tuple[str, str]]:
    return ("yes", config.yes), ("no", config.no)


def _word(tokenizer: Any, text: str, name: str, word: str, *, chat: bool) -> int:
    """The one token by which the text goes on with a word."""
    shown = text
    if chat:
        shown = tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True
        )
    before, after = (
        list(tokenizer(each, add_special_tokens=False)["input_ids"]) for each in (shown, shown + word)
    )
    added = after[len(before) :]
    if after[: len(before)] != before:
        raise UserError(
            f"objective.{name} = {word!r} melts into the token before it; end objective.template "
            "with a line break, or write the word with the space before it"
        )
    if len(added) != 1:
        pieces = tokenizer.convert_ids_to_tokens(added)
        raise UserError(
            f"objective.{name} = {word!r} is {len(added)} tokens behind the template "
            f"({' '.join(map(repr, pieces[:6]))}); choose a word that is one token there"
        )
    unknown = getattr(tokenizer, "unk_token_id", None)
    if added[0] == unknown:
        raise UserError(f"objective.{name} = {word!r} is not in the tokenizer's vocabulary")
    return int(added[0])
