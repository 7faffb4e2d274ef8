"""An answer as people read it: roles, folded thoughts, code in monospace, Markdown on demand.

In: a trajectory's detail. Out: parts, HTML of them, and Markdown in which nothing can be fetched or
followed. Prompts and responses are untrusted: HTML has them escaped, and Markdown goes to a
renderer that shows tags as text, after what makes images, links and addresses was broken.
"""

import re
from collections.abc import Iterator
from html import escape
from typing import Literal, NamedTuple

import numpy as np

from dashboard.formatting import number
from storage.queries import SOURCES, TrajectoryDetail

Kind = Literal["text", "thoughts", "code"]


class AnswerPart(NamedTuple):
    """A piece of what `role` said."""

    role: str
    kind: Kind
    text: str


_TURN = re.compile(
    r"<\|im_start\|>(?P<im>\w+)\n?|<\|start_header_id\|>(?P<header>\w+)<\|end_header_id\|>\n*"
    r"|<start_of_turn>(?P<start>\w+)\n?|<\|(?P<plain>system|user|assistant|tool)\|>\n?"
)
"""What begins a turn in the chat templates of Qwen, Llama, Gemma and Zephyr."""
_END = re.compile(
    r"<\|im_end\|>|<\|eot_id\|>|<\|begin_of_text\|>|<end_of_turn>|<\|endoftext\|>|<\|end\|>|</?s>"
)
_THOUGHTS = re.compile(r"(?s)<(think|thinking|reasoning)>(.*?)(?:</\1>|\Z)")
_OPENED = re.compile(r"(?s)\A((?:(?!<think).)*?)</think(?:ing)?>")
"""Thoughts that the prompt has opened."""
_FENCE = re.compile(r"(?ms)^ {0,3}(```++|~~~++)[^\n`]*+\n(.*?)(?:^ {0,3}\1[`~]*[ \t]*$|\Z)")
_LATEX = (
    (r"\)", r"(?s)\\\((.+?)\\\)", r"$\1$"),
    (r"\]", r"(?s)\\\[(.+?)\\\]", r"$$\1$$"),
)
_BROKEN = "\\g<0>\u2060"
"""A word joiner behind it: it has no width, and Markdown reads no image, link or address across."""
_LIVE = re.compile(
    r"(?i)!(?=\[)|:(?=[a-z])|\](?=[(\[:])|[a-z](?=\\?:\\?/)|www(?=\\?\.)|mailto(?=:)|@"
    r"|&(?=#?\w+;)|<(?=[a-z][\w+.-]{1,31}:)"
)
"""What makes them, also as an entity or behind a backslash, and an address in angle brackets."""


def prompt_parts(text: str, role: str = "prompt") -> list[AnswerPart]:
    """A prompt by its roles, where it is a conversation of a known template; before its first turn
    `role` speaks."""
    turns = list(_TURN.finditer(text))
    ends = [turn.start() for turn in turns] + [len(text)]
    found = [(role, text[: ends[0]])]
    for turn, end in zip(turns, ends[1:], strict=True):
        found.append((turn[turn.lastgroup or 0], text[turn.end() : end]))
    return [part for role, said in found for part in _parts(role, _END.sub("", said))]


def answer_parts(
    detail: TrajectoryDetail, tokens: slice = slice(None), *, is_code: bool = False
) -> list[AnswerPart]:
    """A response, or these tokens of it, by who wrote it. What the policy wrote stands as it is,
    what looks like turns of others included; `is_code`: an answer without a fence is a program."""
    found: list[AnswerPart] = []
    sources = detail.tokens.sources
    wanted = range(len(sources))[tokens]
    for first, said in detail.said.items():
        if first not in wanted:
            continue
        role = SOURCES[sources[first]]
        if role == "policy":
            found += _parts("answer", _END.sub("", said))
        else:
            found += prompt_parts(said, role)
    if is_code and not any(part.kind == "code" for part in found):
        return [p._replace(kind="code") if p[:2] == ("answer", "text") else p for p in found]
    return found


def replies(detail: TrajectoryDetail) -> list[slice]:
    """Tokens of each of the policy's turns, in their order."""
    written = np.flatnonzero(detail.tokens.sources == SOURCES.index("policy"))
    starts = np.flatnonzero(np.diff(detail.tokens.turns[written])) + 1
    return [slice(at[0], at[-1] + 1) for at in np.split(written, starts) if len(at)]


def _parts(role: str, said: str) -> Iterator[AnswerPart]:
    said = _OPENED.sub(r"<think>\1</think>", said, count=1)
    at = 0
    for thoughts in _THOUGHTS.finditer(said):
        yield from _fenced(role, said[at : thoughts.start()])
        yield AnswerPart(role, "thoughts", thoughts[2].strip("\n"))
        at = thoughts.end()
    yield from _fenced(role, said[at:])


def _fenced(role: str, said: str) -> Iterator[AnswerPart]:
    at = 0
    for fence in _FENCE.finditer(said):
        if said[at : fence.start()].strip():
            yield AnswerPart(role, "text", said[at : fence.start()].strip("\n"))
        yield AnswerPart(role, "code", fence[2].rstrip("\n"))
        at = fence.end()
    if said[at:].strip():
        yield AnswerPart(role, "text", said[at:].strip("\n"))


def html_of(part: AnswerPart, results: str = "") -> str:
    """A part, escaped; beside code stand `results`, which are HTML."""
    said = escape(part.text)
    if part.kind == "thoughts":
        words = len(part.text.split())
        return f"<details><summary>thoughts, {words:,} words</summary><p>{said}</p></details>"
    if part.kind == "code":
        return f'<div class="hr-code"><pre>{said}</pre>{results}</div>'
    return f"<p>{said}</p>"


def results_html(detail: TrajectoryDetail) -> str:
    """Parts of the answer's score by its reward source, tests among them, as HTML."""
    rows = "".join(
        f"<dt>{escape(name.replace('_', ' '))}</dt><dd>{number(value)}</dd>"
        for name, value in detail.reward_parts.items()
    )
    return f"<dl>{rows}</dl>" if rows else ""


def inert_markdown(text: str) -> str:
    r"""Markdown without images, links and addresses: what makes them is broken by a character of
    no width. LaTeX in \( \) and \[ \] gets the dollars that the renderer knows."""
    for closing, pattern, dollars in _LATEX:
        end = text.rfind(closing) + 2  # behind it each opening would look to the text's end
        text = re.sub(pattern, dollars, text[:end]) + text[end:]
    return _LIVE.sub(_BROKEN, text)


def literal_markdown(text: str) -> str:
    """Markdown that shows a text as it is."""
    return re.sub(r"([!-/:-@\[-`{-~])", r"\\\1", _LIVE.sub(_BROKEN, text))
