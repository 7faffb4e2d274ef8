"""The kind `judge`: another language model says how good a response is.

The judge is a server that speaks the protocol of OpenAI, or a judge of the run. A child asks it for
many responses at a time. The score is the probability of its yes, or the number that it names. No
answer, or one that cannot be read (InvalidRewardError), is that scoring's error and never a score;
a row that lacks what the judge has to see is a ValueError.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

from headrace.config.sections.reward import JUDGES_CONCURRENCY
from headrace.data.answer_text import without_control_tokens, without_thought
from headrace.data.media import MediaError, MediaStore, data_url
from headrace.errors import RunFailedError, UserError
from headrace.protocol.messages.control import ScoreItem
from rewards.answers.final_answer import wanted_answer
from rewards.answers.row import column
from rewards.functions import coroutines
from rewards.functions.arguments import InvalidRewardError, ScoringError
from rewards.functions.results import Verdict
from rewards.judging.options import Options, check_options
from rewards.judging.prompts import fill, names_in, rule_of, template_of
from rewards.judging.readings import JudgeReply, both_orders, number, yes_probability
from rewards.judging.selftest import check_server
from rewards.judging.server import JudgeServer, JudgeUsage, address_lookup
from rewards.verifier import Verifier
from tasks.rows import chat_of, images_in, text_of

LOOK_EVERY_S = 1.0


def build(options: Options) -> Verifier:
    """The verifier; UserError where the options do not go together, or the key is not there."""
    check_options(options)
    shown = {"first", "second"} if options.mode == "pairwise" else {"response"}
    if lacks := sorted(shown - names_in(template_of(options))):
        raise UserError(f"option prompt of kind 'judge': it shows no {{{lacks[0]}}} to judge")
    where = address_lookup(options)
    server = JudgeServer(options, where)

    async def judge(item: ScoreItem) -> Verdict:
        usage = JudgeUsage()
        images = prompt_images(item) if options.images else ()
        try:
            value, parts = await score(item, options, lambda text: server.ask(text, usage, images))
        except (ScoringError, asyncio.CancelledError) as error:
            vars(error)["parts"] = usage.parts(options)
            if usage.problem:
                error.add_note(usage.problem)
            raise
        return Verdict(value, False, {"judge": value, **parts, **usage.parts(options)})

    def prepare(check: bool) -> Iterable[None]:
        if options.url is not None:
            address = where()
            assert address is not None
            if check:
                coroutines.run(check_server(server, address, options))
        elif not check:
            yield from _wait_for(options, lambda: where() is not None)

    return Verifier(
        lambda item: coroutines.run(judge(item)),
        columns_of(options),
        judge_later=judge,
        concurrency=JUDGES_CONCURRENCY,
        graded=True,
        prepare=prepare,
    )


def _wait_for(options: Options, there: Callable[[], bool]) -> Iterable[None]:
    """Yield until the judge of the run serves."""
    until = time.monotonic() + options.wait_s
    while not there():
        if time.monotonic() > until:
            raise RunFailedError(
                f"the run's judge {options.judge!r} does not serve after {options.wait_s:g} s"
            )
        yield
        time.sleep(LOOK_EVERY_S)


Ask = Callable[[str], Awaitable[JudgeReply]]
Scored = tuple[float, dict[str, float]]


async def score(item: ScoreItem, options: Options, ask: Ask) -> Scored:
    """The judge's score of a response, and parts."""
    template = template_of(options)
    values = values_of(item, options, template)
    if not values["response"].strip():
        return 0.0, {}  # Whatever a judge says of nothing.
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
        # Else texts end the question, and answer it, in the judge's control tokens.
        "question": without_control_tokens(_question(item, options)),
        "response": without_control_tokens(response),
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
    messages = chat_of(json.loads(item.messages)) if item.messages else []
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
        return wanted_answer(item.answer, None)
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
