"""Dataset files to rows, as the field writes them.

In: a path (or a glob) and optionally the names of the columns. Out: `TaskRow`s in the files' order,
with every column but the prompt's and its images' in `info`. Files of TRL, verl, OpenRLHF, AReaL,
open-instruct, slime, SkyRL, verifiers and ORZ are read unchanged.

Promises: a missing file, a file that cannot be read, and a row without prompt or answer are
UserErrors that name the file and, counting from 1, the row.
"""

import json
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from headrace.errors import UserError
from tasks.datasets.conversations import read_prompt, wrap_last_user
from tasks.datasets.records import Record, find_files, lacking, read_records
from tasks.rows import Message, TaskRow, images_in, prompt_text

PROMPT_KEYS = (
    "prompt", "question", "problem", "messages", "context_messages", "conversations", "input",
)  # fmt: skip
ANSWER_KEYS = (
    "answer", "ground_truth", "reward_model.ground_truth", "reward_spec.ground_truth",
    "final_answer", "expected_answer", "solution", "solutions", "label",
)  # fmt: skip
MAX_ID = 500
"""Characters of an id that is kept; PostgreSQL indexes at most 2,700 bytes of a text."""
TURNS = "conversations"
"""Turns of a conversation; the last may hold the answer instead of a text (ORZ)."""
IMAGES, IMAGE = "images", "image"
"""Columns with a list of images, or one of them; the latter only as Hugging Face datasets store
it, since texts of that name are often something else."""


def named_keys(prompt: str | None, answer: str | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Keys of a row's prompt and answer, where these are named; "": rows have no answer."""
    given = (answer,) if answer else ()
    return (prompt,) if prompt else PROMPT_KEYS, ANSWER_KEYS if answer is None else given


def read_dataset(
    path: str,
    *,
    prompt_key: str | None = None,
    answer_key: str | None = None,
    prompt_template: str | None = None,
    limit: int | None = None,
) -> list[TaskRow]:
    """All rows of the file or files at `path`, at most `limit` of them.

    Keys may reach into nested columns with dots. Without them the first known alias present in a
    row counts. `prompt_template` is a format string with `{prompt}`; it wraps a plain prompt, or
    the last user message of a chat.
    """
    check_template(prompt_template)
    prompt_keys, answer_keys = named_keys(prompt_key, answer_key)
    rows: list[TaskRow] = []
    for file in find_files(path):
        left = None if limit is None else limit - len(rows)
        for number, record in islice(read_records(file), left):
            row = make_row(record, prompt_keys, answer_keys, file=file, number=number)
            rows.append(apply_template(row, prompt_template))
    if not rows:
        raise UserError(f"{path} has no rows: name a file with at least one")
    return rows


def look_up(record: Record, key: str) -> Any:
    """The value at a plain or dotted key; None when it is absent."""
    if key in record:
        return record[key]
    value: Any = record
    for part in key.split("."):
        if not isinstance(value, dict):
            return None
        value = value.get(part)
    return value


def make_row(
    record: Record,
    prompt_keys: tuple[str, ...],
    answer_keys: tuple[str, ...],
    *,
    file: Path,
    number: int,
) -> TaskRow:
    """One record as a `TaskRow`. Without `answer_keys` its answer is empty; an id is made of file
    and number where the record has none of at most MAX_ID characters."""
    where = f"{file}, row {number}"
    record = _with_answer(record)
    prompt_key, prompt = _first(record, prompt_keys, "prompt", where)
    answer = _first(record, answer_keys, "answer", where)[1] if answer_keys else ""
    identity = record.get("id")
    keeps = identity is not None and len(str(identity)) <= MAX_ID
    read = read_prompt(prompt, images_of(record), where)
    check_characters(f"{prompt_text(read)}{as_text(answer)}{identity}", where)
    hidden = (prompt_key, "id", *image_columns(read))
    return TaskRow(
        id=str(identity) if keeps else f"{file.name}:{number}",
        prompt=read,
        answer=as_text(answer),
        info={key: value for key, value in record.items() if key not in hidden},
        folder=str(file.parent),
    )


def check_characters(text: str, where: str) -> None:
    """UserError where a text has what UTF-8 cannot say."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserError(f"{where}: half a character (a surrogate) in its text") from error


def image_columns(prompt: str | list[Message]) -> tuple[str, ...]:
    """Columns that reward functions do not get: files would travel with every answer."""
    return (IMAGES, IMAGE) if images_in(prompt) else ()


def images_of(record: Record) -> list[Any]:
    """The row's images."""
    found = record.get(IMAGES)
    if found is None and isinstance(record.get(IMAGE), dict):
        found = record[IMAGE]
    if found is None or isinstance(found, list):
        return found or []
    return [found]


def _with_answer(record: Record) -> Record:
    """The record with a column for the right answer that its last turn may hold."""
    turns = record.get(TURNS)
    last = turns[-1] if isinstance(turns, list) and turns else None
    truth = last.get("ground_truth") if isinstance(last, dict) else None
    if truth is None or not isinstance(turns, list):
        return record
    value = truth.get("value") if isinstance(truth, dict) else truth
    return {**record, TURNS: turns[:-1], "ground_truth": value}


def as_text(answer: Any) -> str:
    """Text as it is, the only entry of a list (AReaL's `solutions`), all else as JSON."""
    if isinstance(answer, list) and len(answer) == 1:
        return as_text(answer[0])
    if isinstance(answer, str):
        return answer
    return json.dumps(answer, ensure_ascii=False, default=str)


def _first(record: Record, keys: tuple[str, ...], what: str, where: str) -> tuple[str, Any]:
    for key in keys:
        value = look_up(record, key)
        if value is not None and value not in ("", []):
            if key == "input" and len(keys) > 1 and record.get("instruction"):
                raise UserError(f"{where}: write instruction and input into one column, `prompt`")
            return key, value
    key = "task.prompt_key" if what == "prompt" else 'task.answer_key ("": rows have none)'
    raise UserError(f"{lacking(record, what, where, keys)}: fill it in or set {key}")


def check_template(template: str | None) -> None:
    """UserError unless the template is a format string whose only field is `{prompt}`."""
    if template is None:
        return
    try:
        wrapped = template.format(prompt="\0\0")
    except (LookupError, ValueError, AttributeError, TypeError) as error:
        raise UserError(
            f"task.prompt_template {template!r}: only {{prompt}} may stand in braces; write other "
            f"braces twice, as in \\boxed{{{{}}}}"
        ) from error
    if "\0\0" not in wrapped:
        raise UserError(f"task.prompt_template {template!r} does not contain {{prompt}}")


def apply_template(row: TaskRow, template: str | None) -> TaskRow:
    """The row with its prompt, or the last user message, in the template."""
    if template is None:
        return row
    prompt = (
        template.format(prompt=row.prompt)
        if isinstance(row.prompt, str)
        else wrap_last_user(row.prompt, template)
    )
    return replace(row, prompt=prompt, plain=row.prompt)
