"""Scores between 0 and 1 by a judge's reply.

In: an item, and a way to ask the judge. Out: the score and parts. A row that lacks what the judge
has to see raises ValueError, an answer that cannot be read InvalidRewardError.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from headrace.data.answer_text import without_thought
from headrace.data.media import MediaError, MediaStore, data_url
from headrace.protocol.messages.control import ScoreItem
from rewards.answers.row import column, right_answer
from rewards.functions.arguments import InvalidRewardError
from rewards.judging.options import Options
from rewards.judging.prompts import fill, names_in, rule_of, template_of
from rewards.judging.readings import JudgeReply, both_orders, number, yes_probability
from tasks.rows import images_in, text_of

Ask = Callable[[str], Awaitable[JudgeReply]]
Scored = tuple[float, dict[str, float]]


async def score(item: ScoreItem, options: Options, ask: Ask) -> Scored:
    """The judge's score of a response, and parts."""
    template = template_of(options)
    values = values_of(item, options, template)
    if options.mode == "pairwise":
        return await _pairwise(template, values, options, ask)
    reply = await ask(fill(template, values))
    if options.reads_words:
        return yes_probability(reply, options.yes, options.no), {}
    return number(reply, options.pattern, options.scale_min, options.scale_max), {}


async def _pairwise(template: str, values: dict[str, str], options: Options, ask: Ask) -> Scored:
    response, reference = values["response"], values["reference"]
    orders = ((response, reference), (reference, response))
    asked = [
        asyncio.ensure_future(ask(fill(template, values | {"first": a, "second": b})))
        for a, b in orders
    ]
    try:
        replies = await asyncio.gather(*asked)
    finally:
        for each in asked:
            each.cancel()
    front, back = (yes_probability(reply, options.yes, options.no) for reply in replies)
    parts = {"p_first": front, "p_second": 1.0 - back, "position_bias": front + back - 1.0}
    return both_orders(front, back), parts


def values_of(item: ScoreItem, options: Options, template: str) -> dict[str, str]:
    """Values of a template's names."""
    domain = options.domain
    if options.domain_column is not None:
        domain = str(column(item, options.domain_column))
    response = item.text
    if options.thought is not None:
        response = without_thought(response, options.thought)
    values = {
        "question": _question(item, options),
        "response": response,
        "rule": rule_of(options, domain),
        "yes": options.yes.strip(),
        "no": options.no.strip(),
        "min": f"{options.scale_min:g}",
        "max": f"{options.scale_max:g}",
    }
    if needs_reference(options, template):
        values["reference"] = _reference(item, options)
    return values


def needs_reference(options: Options, template: str) -> bool:
    """Return whether the judge sees a reference."""
    return options.mode == "pairwise" or "reference" in names_in(template)


def _question(item: ScoreItem, options: Options) -> str:
    if options.question_column is not None:
        return _text(column(item, options.question_column), options.question_column)
    messages = json.loads(item.messages) if item.messages else []
    of_user = [m for m in messages if isinstance(m, dict) and m.get("role") == "user"]
    return text_of(of_user[-1].get("content", "")) if of_user else item.prompt


def prompt_images(item: ScoreItem) -> tuple[str, ...]:
    """Images of a prompt as data URLs; InvalidRewardError where one cannot be had."""
    store = MediaStore(Path(item.media))
    try:
        digests = images_in(json.loads(item.messages) if item.messages else "")
        return tuple(data_url(store.read(digest)) for digest in digests)
    except MediaError as error:
        raise InvalidRewardError(str(error)) from error


def _reference(item: ScoreItem, options: Options) -> str:
    if options.reference_column is None:
        return right_answer(item)
    return _text(column(item, options.reference_column), options.reference_column)


def _text(value: Any, name: str) -> str:
    """A column as text: of a list the first entry, of a message what it says."""
    if isinstance(value, list) and value:
        value = value[0]
    if isinstance(value, dict) and isinstance(value.get("text", value.get("content")), str):
        value = value.get("text", value.get("content"))
    if isinstance(value, bool) or not isinstance(value, str | int | float) or value == "":
        raise ValueError(f"the row's column {name!r} is no text")
    return str(value)


def columns_of(options: Options) -> tuple[str, ...]:
    """Columns that the judge cannot do without."""
    wanted = [options.question_column, options.domain_column]
    if needs_reference(options, template_of(options)):
        wanted.append(options.reference_column)
    return tuple(dict.fromkeys(name for name in wanted if name is not None))
