"""The protocol of OpenAI, as far as a judge needs it.

In: a prompt, images as URLs, and options. Out: the body of a request; from the body of an answer a
JudgeReply. Pure. An answer that is none raises msgspec.MsgspecError, or ValueError.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from rewards.judging.options import Options
from rewards.judging.readings import JudgeReply


class _Token(msgspec.Struct):
    token: str
    logprob: float
    top_logprobs: list["_Token"] = []


class _ChatLogprobs(msgspec.Struct):
    content: list[_Token] | None = None


class _Message(msgspec.Struct):
    content: str | None = None
    reasoning: Any = None
    reasoning_content: Any = None


class _ChatChoice(msgspec.Struct):
    message: _Message
    logprobs: _ChatLogprobs | None = None


class _Logprobs(msgspec.Struct):
    tokens: list[str] = []
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] | None = None


class _Choice(msgspec.Struct):
    text: str
    logprobs: _Logprobs | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Chat(msgspec.Struct):
    choices: list[_ChatChoice]
    usage: _Usage | None = None


class _Completion(msgspec.Struct):
    choices: list[_Choice]
    usage: _Usage | None = None


def path_of(options: Options) -> str:
    """Path of the API."""
    return "/chat/completions" if options.api == "chat" else "/completions"


def body_of(prompt: str, model: str, options: Options, images: Sequence[str] = ()) -> bytes:
    """The body of a request; equal for equal questions."""
    words = options.reads_words and options.logprobs
    fields: dict[str, Any] = {
        "model": model,
        "max_tokens": options.max_tokens or _longest(options),
        "temperature": options.temperature,
    }
    if options.api == "chat":
        system = [{"role": "system", "content": options.system}] if options.system else []
        fields["messages"] = [*system, {"role": "user", "content": _content(prompt, images)}]
        if words:
            fields |= {"logprobs": True, "top_logprobs": options.top_logprobs}
    else:
        fields["prompt"] = f"{options.system}\n\n{prompt}" if options.system else prompt
        if words:
            fields["logprobs"] = options.top_logprobs
    if "max_completion_tokens" in options.extra:
        del fields["max_tokens"]  # OpenAI's reasoning models take the other alone.
    return msgspec.json.encode(fields | options.extra)


def _content(prompt: str, images: Sequence[str]) -> str | list[dict[str, Any]]:
    """Images before the words."""
    if not images:
        return prompt
    shown: list[dict[str, Any]] = [{"type": "image_url", "image_url": {"url": i}} for i in images]
    return [*shown, {"type": "text", "text": prompt}]


def _longest(options: Options) -> int:
    if options.reads_words:
        return 1 if options.logprobs else 8
    return 1024 if options.mode == "free" else 16


def read_reply(body: bytes, options: Options) -> JudgeReply:
    """The answer in a body."""
    if options.api == "chat":
        chat = msgspec.json.decode(body, type=_Chat)
        choice = _only(chat.choices)
        said = choice.message
        # Its tokens are a thought that was cut, and no answer.
        is_cut = not said.content and (said.reasoning or said.reasoning_content)
        content = [] if is_cut else (choice.logprobs and choice.logprobs.content) or []
        places = tuple(
            {token.token: token.logprob} | {a.token: a.logprob for a in token.top_logprobs}
            for token in content
        )
        return _reply(said.content or "", places, chat.usage)
    completion = msgspec.json.decode(body, type=_Completion)
    first = _only(completion.choices)
    return _reply(first.text, _places(first.logprobs), completion.usage)


def _places(logprobs: _Logprobs | None) -> tuple[Mapping[str, float], ...]:
    if logprobs is None or logprobs.top_logprobs is None:
        return ()
    own = zip(logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, strict=True)
    return tuple(
        ({token: value} if value is not None else {}) | (top or {}) for token, value, top in own
    )


def _reply(text: str, places: tuple[Mapping[str, float], ...], usage: _Usage | None) -> JudgeReply:
    used = usage or _Usage()
    return JudgeReply(text, places, used.prompt_tokens, used.completion_tokens)


def _only(choices: list[Any]) -> Any:
    if not choices:
        raise ValueError("no choices")
    return choices[0]
