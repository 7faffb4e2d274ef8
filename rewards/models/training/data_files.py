"""Examples in files, as the field writes them.

In: JSON lines, JSON or Parquet. Out: pairs from rows with `chosen` and `rejected`, or from answers
of which it is known whether they are right; labelled answers from rows with `labels`; answers to
learn. Promises: what cannot be read, lacks a column or is out of range is a UserError that names
file and row; of a group every right and every wrong answer is used in a pair before any is used
again, and two equal answers make none.
"""

import json
import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import cycle, islice
from typing import Any

from headrace.errors import UserError
from rewards.models.encoding import Prompt, Tools, split_lines
from rewards.models.training.examples import Demonstration, LabelledAnswer, PreferencePair
from storage.queries import GroupAnswer
from tasks.datasets.answers import COMPLETION_KEYS as RESPONSES
from tasks.datasets.answers import text_of
from tasks.datasets.conversations import read_prompt
from tasks.datasets.dataset_files import PROMPT_KEYS, check_characters, images_of, look_up
from tasks.datasets.records import Record, find_files, lacking, read_records
from tasks.rows import prompt_text

LINES = ("lines", "steps", "completions")
CHATS = ("messages", "conversations")
LABELS = (1.0, 0.0, -1.0)


def rows(path: str, limit: int | None = None) -> list[tuple[str, str, Record]]:
    """(the file's folder, file and row, record) of at most `limit` rows; UserError without any."""
    found = (
        (str(file.parent), f"{file}, row {number}", record)
        for file in find_files(path)
        for number, record in read_records(file)
    )
    if not (chosen := list(islice(found, limit))):
        raise UserError(f"{path} has no rows: name a file with at least one")
    for _, where, record in chosen:
        check_characters(json.dumps(record, ensure_ascii=False, default=lambda _: ""), where)
    return chosen


def read_pair(where: str, record: Record, folder: str = "") -> PreferencePair:
    """Read a row `prompt, chosen, rejected[, margin, rule, images]`.

    The answers are texts or chat messages; without a prompt it is what both chats begin with."""
    texts = [_answer(record, name, where) for name in ("chosen", "rejected")]
    begins = [x[:-1] for name in ("chosen", "rejected") if isinstance(x := record[name], list)]
    if begins[1:] and begins[0] != begins[1]:
        raise UserError(f"{where}: chosen and rejected do not begin alike: give each as one text")
    margin, rule = record.get("margin"), record.get("rule")
    if margin is not None and not _is_number(margin):
        raise UserError(f"{where}: margin is {str(margin)[:40]!r}, and should be a number")
    if rule is not None and not isinstance(rule, str):
        raise UserError(f"{where}: rule is {str(rule)[:40]!r}, and should be a text")
    prompt = _prompt(record, where) or _common(record, where)
    return PreferencePair(prompt, texts[0], texts[1], float(margin or 0.0), rule, where, folder)


def read_demonstration(where: str, record: Record, folder: str = "") -> Demonstration:
    """Read a row `prompt` and `response`, `completion` or `output` (a text, or a chat that ends
    with the answer), or `messages` or `conversations` that end with it; of a response of several
    turns the last one. `tools`: a list of schemas, or JSON of one."""
    key = next((key for key in RESPONSES if record.get(key)), None)
    chat: list[Any] = next((x for name in CHATS if isinstance(x := record.get(name), list)), [])
    given, asked, tools = record.get(key or ""), record.get("prompt"), _tools(record, where)
    if isinstance(given, list) and len(given) > 1 and isinstance(asked, list):
        key, chat = None, [*asked, *given]  # earlier turns are what the last one answers
    roles = [message.get("role") for message in chat if isinstance(message, dict)]
    is_turn = "turn" in record or roles.count("assistant") > 1
    task = str(record.get("prompt_id") or "") if is_turn else ""
    if key is not None and not _says_more(chat, answer := _answer(record, key, where), asked):
        return Demonstration(_given_prompt(record, where), answer, where, folder, tools, task)
    if len(chat) < 2:
        raise lacking(record, "answer", where, (*RESPONSES, *CHATS))
    said = read_prompt(chat, images_of(record), where)
    assert isinstance(said, list), "messages stay messages"
    if said[-1]["role"] != "assistant" or not text_of(said[-1]):
        raise UserError(f"{where}: the last message is not a text of the assistant")
    return Demonstration(said[:-1], said[-1]["content"], where, folder, tools, task)


def _says_more(chat: list[Any], answer: str, asked: Any) -> bool:
    """Return whether a chat has messages of what the texts have framed: prompt, earlier turns."""
    if not chat or not isinstance(chat[-1], dict) or chat[-1].get("role") != "assistant":
        return False
    # Templates strip what they put into the frame, and a message of the system may be empty.
    *before, last = ((text_of(message) or "").strip() for message in chat)
    if answer.strip() != last:
        return any(text and text in answer for text in before)
    framed = any(before) and isinstance(asked, str) and asked.strip() not in before
    return framed and all(text in asked for text in before)


def _tools(record: Record, where: str) -> Tools:
    found: Any = record.get("tools") or []
    with suppress(ValueError):
        found = json.loads(found) if isinstance(found, str) else found
    if not isinstance(found, list) or not all(isinstance(tool, dict) for tool in found):
        raise UserError(f"{where}: tools should be a list of schemas, or JSON of one")
    return tuple(found)


def read_answer(where: str, record: Record) -> GroupAnswer:
    """Read a row of exported trajectories: `prompt, response, correct[, group_id]`."""
    text = next((record[key] for key in RESPONSES if isinstance(record.get(key), str)), None)
    if text is None:
        raise lacking(record, "chosen and rejected, and no response", where)
    correct = record.get("correct")
    if correct is not None and not isinstance(correct, bool):
        raise UserError(f"{where}: correct is {str(correct)[:40]!r}, and should be true or false")
    group, cut = str(record.get("group_id", "")), record.get("status") == "truncated"
    return GroupAnswer(group, _given_prompt(record, where), text, correct, not cut)


def read_labelled(where: str, record: Record, separator: str) -> LabelledAnswer:
    """Read a row `prompt, labels` with `lines`, `steps`, `completions` or `response`.

    A response is split; labels are 1, 0, -1, null, or true and false for 1 and -1."""
    key = next((key for key in LINES if isinstance(record.get(key), list)), None)
    text = next((record[key] for key in RESPONSES if isinstance(record.get(key), str)), None)
    if key is not None:
        lines = _lines(record[key], key, where, separator)
    elif text is not None:
        lines = split_lines(text, separator)
    else:
        raise lacking(record, "lines", where, (*LINES, *RESPONSES))
    labels = record.get("labels")
    if not isinstance(labels, list):
        raise UserError(f"{where}: no labels; a list of 1, 0, -1 or null, one a line")
    if len(labels) != len(lines):
        raise UserError(f"{where}: {len(labels)} labels for {len(lines)} lines")
    if not lines:
        raise UserError(f"{where}: an answer without lines")
    prompt = _given_prompt(record, where)
    found = tuple(_label(label, index, where) for index, label in enumerate(labels))
    return LabelledAnswer(prompt, tuple(lines), found, where)


def _prompt(record: Record, where: str) -> Prompt | None:
    names = ("prompt_messages", *PROMPT_KEYS)  # the former of a run's preferences
    found = next(filter(None, (look_up(record, name) for name in names)), None)
    if found and found == record.get("input") and record.get("instruction"):
        raise UserError(f"{where}: write instruction and input into one column, `prompt`")
    return None if found is None else read_prompt(found, images_of(record), where)


def _given_prompt(record: Record, where: str) -> Prompt:
    if not (prompt := _prompt(record, where)):
        raise UserError(f"{where}: no prompt (looked for {', '.join(PROMPT_KEYS)})")
    return prompt


def _answer(record: Record, name: str, where: str) -> str:
    """An answer: a text, or the last message of a chat."""
    value: Any = record.get(name)
    if value is None:
        raise lacking(record, repr(name), where)
    if text := text_of(value):
        return text
    raise UserError(f"{where}: {name} is neither a text nor a chat that ends with one")


def _common(record: Record, where: str) -> Prompt:
    """Return the common beginning of two chats, up to their answers."""
    chosen, rejected = record["chosen"], record["rejected"]
    if not isinstance(chosen, list) or not isinstance(rejected, list) or len(chosen) < 2:
        raise UserError(f"{where}: no prompt (looked for {', '.join(PROMPT_KEYS)})")
    return read_prompt(chosen[:-1], images_of(record), where)


def _lines(steps: Sequence[Any], key: str, where: str, separator: str) -> list[str]:
    if not all(isinstance(step, str) for step in steps):
        raise UserError(f"{where}: {key} should be a list of texts")
    return [*(step.removesuffix(separator) + separator for step in steps[:-1]), *steps[-1:]]


def _label(label: Any, index: int, where: str) -> float | None:
    if label is None:
        return None
    if isinstance(label, bool):
        return 1.0 if label else -1.0
    if not _is_number(label) or float(label) not in LABELS:
        raise UserError(
            f"{where}: label {index + 1} is {str(label)[:40]}, and should be 1, 0, -1 or null"
        )
    return float(label)


def _is_number(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value)


def pairs_of(answers: Iterable[GroupAnswer], *, per_group: int) -> list[PreferencePair]:
    """At most `per_group` pairs of each group that has right and wrong answers, in order."""
    groups: dict[tuple[int | str, str], list[GroupAnswer]] = {}
    for answer in answers:
        groups.setdefault((answer.group_id, prompt_text(answer.prompt)), []).append(answer)
    return [pair for members in groups.values() for pair in _pairs(members, per_group)]


def _pairs(members: Sequence[GroupAnswer], per_group: int) -> list[PreferencePair]:
    right = _texts(members, correct=True)
    wrong = [text for text in _texts(members, correct=False) if text not in right]
    if not right or not wrong:
        return []
    count = max(len(right), len(wrong))
    matched = zip(islice(cycle(right), count), islice(cycle(wrong), count), strict=True)
    prompt, group = members[0].prompt, members[0].group_id
    where = f"group {group}" if group != "" else ""
    cut = {member.text for member in members if not member.finished}
    return [
        PreferencePair(prompt, *pair, where=where, cut=(pair[0] in cut, pair[1] in cut))
        for pair in islice(matched, per_group)
    ]


def _texts(members: Sequence[GroupAnswer], *, correct: bool) -> list[str]:
    return list(dict.fromkeys(m.text for m in members if m.correct is correct and m.text))
