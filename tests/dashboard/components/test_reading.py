"""Roles, thoughts and code are found; nothing of Markdown that fetches or leads away is left."""

import re
import time
from html import unescape

import pytest

from dashboard.components.reading import (
    AnswerPart,
    html_of,
    inert_markdown,
    literal_markdown,
    prompt_parts,
)

CHATS = (
    "<|im_start|>system\nBe good<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
    "<|im_start|>assistant\n",
    "<s><|system|>\nBe good</s>\n<|user|>\nHi</s>\n<|assistant|>\n",
    "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe good<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>",
)


@pytest.mark.parametrize("chat", CHATS)
def test_a_conversation_is_read_by_its_roles(chat: str) -> None:
    assert prompt_parts(chat) == [
        AnswerPart("system", "text", "Be good"),
        AnswerPart("user", "text", "Hi"),
    ]


def test_a_prompt_that_is_no_conversation_stays_as_it_is() -> None:
    assert prompt_parts("1 + 1 = <b>") == [AnswerPart("prompt", "text", "1 + 1 = <b>")]


def test_thoughts_and_code_are_parts() -> None:
    text = "<think>a ```x``` b</think>\nSo:\n```python\nif x < 1:\n    y\n```\ndone"
    assert prompt_parts(text) == [
        AnswerPart("prompt", "thoughts", "a ```x``` b"),
        AnswerPart("prompt", "text", "So:"),
        AnswerPart("prompt", "code", "if x < 1:\n    y"),
        AnswerPart("prompt", "text", "done"),
    ]
    assert [part.kind for part in prompt_parts("opened before</think>yes")] == ["thoughts", "text"]
    assert [part.kind for part in prompt_parts("<think>not closed")] == ["thoughts"]
    assert [part.kind for part in prompt_parts("```\nnot closed")] == ["code"]


@pytest.mark.parametrize("kind", ["text", "thoughts", "code"])
def test_every_part_is_escaped(kind: str) -> None:
    part = AnswerPart("answer", kind, "<img src=x>&")  # type: ignore[arg-type]
    assert "&lt;img src=x&gt;&amp;" in html_of(part)
    assert "<img" not in html_of(part)


def test_latex_gets_the_dollars_of_the_renderer() -> None:
    assert inert_markdown(r"\(x\) and \[y\]") == "$x$ and $$y$$"


def test_a_text_is_shown_as_it_is() -> None:
    assert literal_markdown("a*b* $x$") == r"a\*b\* \$x\$"
    assert "://" not in literal_markdown("http://e.test")


@pytest.mark.parametrize(
    "text",
    [
        "https://e.test", r"https\://e.test", r"https:\//e.test", "https&#58;//e.test",
        "https&colon;//e.test", "www.e.test", r"www\.e.test", "www&#x2E;e.test", "me@e.test",
        r"me\@e.test", "me&commat;e.test", "<https:/e.test>", "<https:e.test>", "<tel:1>",
        "![a](b)", "[a](b)", "[a]: b",
    ],
)  # fmt: skip
def test_what_a_renderer_reads_as_a_link_is_broken(text: str) -> None:
    """It reads addresses in texts once entities and backslashes are resolved."""
    drawn = unescape(re.sub(r"\\([!-/:-@\[-`{-~])", r"\1", inert_markdown(text)))
    assert drawn.replace("\u2060", "") != drawn
    assert not re.search(r"https?://|www\.|\w@\w|<[a-z][\w+.-]+:|!\[|\][(:]", drawn)


@pytest.mark.parametrize("text", ["```" + "a" * 60_000, "~" * 60_000, r"\(" * 30_000])
def test_answers_without_end_are_drawn_at_once(text: str) -> None:
    began = time.monotonic()
    prompt_parts(text)
    inert_markdown(text)
    assert time.monotonic() - began < 5.0
