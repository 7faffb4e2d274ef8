"""Checks of a judge before a run: of its server, or of its tokenizer.

In: options and the judge. Out: nothing, or a UserError of one line: the server does not answer,
lacks the model, refuses key or request, or splits its words for yes and no. Unknowns are no error.
"""

from collections.abc import Sequence

import msgspec

from headrace.config.sections.model import JudgeConfig
from headrace.data.tokenizer import load_tokenizer
from headrace.errors import UserError
from rewards.judging.options import Options
from rewards.judging.prompts import fill, template_of
from rewards.judging.readings import JudgeReply, spelled
from rewards.judging.server import JudgeAddress, JudgeError, JudgeServer
from rewards.judging.wire import body_of, path_of, read_reply

_EXAMPLE = {
    "question": "What is 3 + 4?", "response": "7", "reference": "7", "first": "7", "second": "8",
    "rule": "",
}  # fmt: skip
_MOST_NAMES = 8
_IMAGE = (
    "data:image/png;base64,"
    "iVBORw0KGgoAAAANSUhEUgAAAEAAAABAAQAAAACCEkxzAAAAD0lEQVR42mNgGAWjgHwAAAJAAAHgTR1EAAAAAElF"
    "TkSuQmCC"
)
"""A black image of 64 x 64 pixels."""


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


class _Tokens(msgspec.Struct):
    tokens: list[int]


async def check_server(server: JudgeServer, address: JudgeAddress, options: Options) -> None:
    """UserError where the judge cannot do what the options ask of it."""
    await _check_model(server, address)
    if options.reads_words and options.logprobs:
        await _check_words(server, address, options)
    await _check_question(server, address, options)


async def _check_model(server: JudgeServer, address: JudgeAddress) -> None:
    """The server's list of models, where it has one; the first request says the rest."""
    try:
        known = msgspec.json.decode(await server.request(address, "/models"), type=_Models)
    except JudgeError as error:
        if "does not answer" in str(error):
            raise UserError(f"the judge: {error}") from None
        return
    except msgspec.MsgspecError:
        return
    names = [model.id for model in known.data]
    if names and address.model not in names:
        listed = ", ".join(names[:_MOST_NAMES]) + (", ..." if len(names) > _MOST_NAMES else "")
        raise UserError(
            f"the judge at {address.base} has no model {address.model!r} (it has {listed})"
        )


async def _check_words(server: JudgeServer, address: JudgeAddress, options: Options) -> None:
    """vLLM reports how many tokens a text has."""
    root = address._replace(base=address.base.removesuffix("/v1"))
    for word in (options.yes, options.no):
        lengths: list[int] = []
        for text in dict.fromkeys((word, f" {word.strip()}")):
            body = {"model": address.model, "prompt": text, "add_special_tokens": False}
            try:
                answer = await server.request(root, "/tokenize", msgspec.json.encode(body))
                lengths.append(len(msgspec.json.decode(answer, type=_Tokens).tokens))
            except (JudgeError, msgspec.MsgspecError):
                return
        refuse_long(word, lengths, address.model)


def refuse_long(word: str, lengths: Sequence[int], model: str) -> None:
    """UserError where no spelling of a word is one token. `lengths`: tokens of each."""
    if min(lengths) > 1:
        raise UserError(
            f"{word.strip()!r} is {min(lengths)} tokens for the judge {model!r}, and its "
            "log-probability needs one: choose other words with the options yes and no, or set "
            "logprobs = false"
        )


async def _check_question(server: JudgeServer, address: JudgeAddress, options: Options) -> None:
    """A question as the run will ask it."""
    more = {"yes": options.yes.strip(), "no": options.no.strip(), "min": "0", "max": "1"}
    prompt = fill(template_of(options), _EXAMPLE | more)
    body = body_of(prompt, address.model, options, (_IMAGE,) if options.images else ())
    try:
        answer = await server.request(address, path_of(options), body)
    except JudgeError as error:
        hint = ""
        if "logprob" in str(error):
            hint = "; set logprobs = false, or a smaller top_logprobs, where it gives none"
        raise UserError(f"the judge: {error}{hint}") from None
    try:
        reply = read_reply(answer, options)
    except (msgspec.MsgspecError, ValueError) as error:
        raise UserError(f"the judge: {address.base} sent no answer: {error}") from None
    if options.reads_words and options.logprobs:
        _refuse_pieces(reply, options, address.model)


def _refuse_pieces(reply: JudgeReply, options: Options, model: str) -> None:
    """Raise UserError where the judge begins a word with a piece, whose logprob it gives."""
    if not reply.alternatives:
        return
    tokens = [spelled(token) for token in reply.alternatives[0]]
    for word in (spelled(options.yes), spelled(options.no)):
        piece = tokens[0]
        if piece and piece != word and word.startswith(piece) and word not in tokens:
            raise UserError(
                f"{word!r} is several tokens for the judge {model!r} (it begins with {piece!r}), "
                "and its log-probability needs one: choose other words with the options yes and "
                "no, or set logprobs = false"
            )


def check_tokenizer(options: Options, judge: JudgeConfig) -> None:
    """Check a judge of the run, which does not serve yet, by its tokenizer.

    UserError where its words for yes and no are several tokens, or it cannot be asked by chat."""
    name = str(options.judge)
    trust, key = judge.trust_remote_code, f"reward.judges.{name}.path"
    tokenizer = load_tokenizer(judge.path, trust_remote_code=trust, key=key)
    if options.api == "chat" and not (tokenizer.chat_template or judge.chat_template):
        raise UserError(
            f"the judge {name!r} has no chat template: ask it with the option "
            f'api = "completions", or name a file in reward.judges.{name}.chat_template'
        )
    if options.reads_words and options.logprobs:
        for word in (options.yes, options.no):
            spellings = dict.fromkeys((word, f" {word.strip()}"))
            lengths = [len(tokenizer.encode(s, add_special_tokens=False)) for s in spellings]
            refuse_long(word, lengths, name)
