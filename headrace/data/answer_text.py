"""Extraction of a response's answer: behind its thought, behind its marker. Pure."""

import re

_CONTROL = re.compile(
    r"(?<=<)(?=[|\uff5c]|/?(s|[be]os|(start|end)_of_[a-z]+)>)|(?<=\[)(?=\||/?(INST|[A-Z]+_[A-Z]+)])"
)
"""The second place in what may be a control token of a family: `<|im_end|>`, `[/INST]`, `</s>`."""


def without_control_tokens(text: str) -> str:
    """Return the text with a space inside what a model would read as the end of a turn."""
    return _CONTROL.sub(" ", text)


def without_thought(text: str, tag: str) -> str:
    """Return the text behind its thought: nothing if that is not closed; the prompt may open it."""
    closing, opening = f"</{tag}>", f"<{tag}>"
    if closing in text:
        before, _, after = text.rpartition(closing)
        head = before.partition(opening)[0] if opening in before else ""
        text = f"{head}{after}"
    return text.partition(opening)[0].strip()


def answer_after(text: str, marker: str) -> str | None:
    """Return the text after the last `marker` on its line; None where it does not occur."""
    _, found, rest = text.rpartition(marker)
    if not found:
        return None
    lines = rest.strip().splitlines()
    return lines[0].strip() if lines else ""


def marked_part(text: str, marker: str | None) -> str:
    """Return the text after the last marker on its line, else ""; all without a marker."""
    return text if marker is None else (answer_after(text, marker) or "")


def said_part(text: str, thought: str | None, marker: str | None) -> str:
    """Return a response's answer: behind its thought, where that has a tag, and its marker."""
    return marked_part(text if thought is None else without_thought(text, thought), marker)
