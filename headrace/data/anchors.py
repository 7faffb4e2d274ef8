"""Anchors: the answer per prompt that all others are compared with (Pairwise-RL).

In: a file of JSON lines, written by `headrace reward anchors` or by hand. Out: `Anchor`s by the
prompt as the policy sees it. Promise: a file that cannot be used is a UserError that names the row.

A row has `prompt` (a text, or chat messages) and `anchor`, and `policy_prompt` where the policy
sees the prompt through a chat template. All other columns are left alone.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

from headrace.errors import UserError

Prompt = str | list[dict[str, Any]]


class Anchor(NamedTuple):
    """An answer, and the prompt that it answers as a judge reads it."""

    prompt: Prompt
    text: str


def read_anchors(path: Path) -> dict[str, Anchor]:
    """All anchors of a file, by the prompt as the policy sees it and, where that is another text,
    by the prompt itself. UserError where two rows give one prompt different anchors."""
    if not path.is_file():
        raise UserError(
            f"no anchors at {path}: `headrace reward anchors RECIPE --out {path.name}` makes them"
        )
    found: dict[str, Anchor] = {}
    with path.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            if not line.strip():
                continue
            seen, anchor = _anchor(line, f"{path}, row {number}")
            plain = [anchor.prompt] if isinstance(anchor.prompt, str) else []
            for key in dict.fromkeys([seen, *plain]):
                if found.setdefault(key, anchor).text != anchor.text:
                    raise UserError(
                        f"{path}, row {number}: a second anchor for the prompt {key[:60]!r}; "
                        "leave one of them"
                    )
    if not found:
        raise UserError(f"{path} has no rows: an anchor for each prompt belongs there")
    return found


def _anchor(line: bytes, where: str) -> tuple[str, Anchor]:
    """(the prompt as the policy sees it, its anchor) of a row."""
    try:
        row = json.loads(line)
    except ValueError as error:
        raise UserError(f"{where}: not JSON: {error}") from error
    prompt = row.get("prompt") if isinstance(row, dict) else None
    if not isinstance(prompt, str | list) or not isinstance(row.get("anchor"), str):
        raise UserError(
            f"{where}: an anchor's row is an object with `prompt` (a text or chat messages) and "
            "`anchor` (a text)"
        )
    seen = row.get("policy_prompt", prompt)
    if not isinstance(seen, str):
        raise UserError(
            f"{where}: its prompt is a chat, so it needs `policy_prompt`, the text that the policy "
            "sees; `headrace reward anchors` writes it"
        )
    return seen, Anchor(prompt, row["anchor"])
