"""Finished answers in a file, to be scored without a run.

In: a file of rows with a prompt, a completion and an answer, such as a run's exported trajectories.
Out: `FinishedAnswer` rows. Prompt and answer may be absent, because not every reward needs them; a
row without a completion is a UserError that names the file and the row.
"""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from headrace.errors import UserError
from tasks.datasets.conversations import read_prompt
from tasks.datasets.dataset_files import (
    as_text,
    check_characters,
    image_columns,
    images_of,
    look_up,
    named_keys,
)
from tasks.datasets.records import Record, find_files, lacking, read_records
from tasks.rows import Message, prompt_text

COMPLETION_KEYS = ("completion", "response", "output")
OWN_KEYS = ("finished", "prompt_ids", "completion_ids", "id")
"""Columns with a meaning of their own."""
UNFINISHED = ("running", "truncated", "aborted", "failed")  # of the column `status` of an export


@dataclass(frozen=True)
class FinishedAnswer:
    """One finished answer. Paths of images in its prompt are relative to `folder`."""

    prompt: str | list[Message]
    completion: str
    answer: str
    info: dict[str, Any]
    finished: bool = True
    prompt_ids: list[int] | None = None
    completion_ids: list[int] | None = None
    folder: str = ""


def read_answers(
    path: str, *, prompt_key: str | None = None, answer_key: str | None = None
) -> list[FinishedAnswer]:
    """All rows of a file, in order; keys as for a dataset, then `prompt` and `answer`, as exports
    name them. The completion (`completion`, `response` or `output`) is a text or chat messages, of
    which the last counts."""
    prompt_keys, answer_keys = named_keys(prompt_key, answer_key)
    prompt_keys += ("prompt",)
    answer_keys += ("answer",) if answer_keys else ()
    rows = [
        replace(
            _answered(record, prompt_keys, answer_keys, f"{file}, row {number}"),
            folder=str(file.parent),
        )
        for file in find_files(path)
        for number, record in read_records(file)
    ]
    if not rows:
        raise UserError(f"{path} has no rows: name a file with at least one")
    return rows


def _answered(
    record: Record, prompt_keys: Sequence[str], answer_keys: Sequence[str], where: str
) -> FinishedAnswer:
    record = _unfolded(record)
    key = next((name for name in COMPLETION_KEYS if record.get(name) is not None), None)
    if key is None:
        raise lacking(record, "completion", where, COMPLETION_KEYS)
    if (text := text_of(record[key])) is None:
        raise UserError(f"{where}: the completion is neither text nor a list of messages")
    prompt_key = next((k for k in prompt_keys if look_up(record, k) is not None), None)
    truth = next((v for k in answer_keys if (v := look_up(record, k)) is not None), "")
    prompt: str | list[Message] = ""
    if prompt_key:
        prompt = read_prompt(look_up(record, prompt_key), images_of(record), where)
    check_characters(f"{prompt_text(prompt)}{text}{as_text(truth)}", where)
    hidden = (prompt_key, key, *OWN_KEYS, *image_columns(prompt))
    return FinishedAnswer(
        prompt,
        text,
        as_text(truth),
        {k: v for k, v in record.items() if k not in hidden},
        bool(record.get("finished", record.get("status") not in UNFINISHED)),
        _ids(record.get("prompt_ids"), where),
        _ids(record.get("completion_ids"), where),
    )


def _unfolded(record: Record) -> Record:
    """The record with the columns of an export's `info`, which is JSON as text."""
    columns = folded = record.get("info")
    with suppress(ValueError):
        columns = json.loads(folded) if isinstance(folded, str) else None
    rest = {key: value for key, value in record.items() if key != "info"}
    return {**columns, **rest} if isinstance(columns, dict) else record


def text_of(value: Any) -> str | None:
    """Return an answer's text: itself, or what the last message of a chat says."""
    last = value[-1] if isinstance(value, list) and value else value
    text = last.get("content") if isinstance(last, dict) else last
    return text if isinstance(text, str) else None


def _ids(value: Any, where: str) -> list[int] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not all(type(token) is int for token in value):
        raise UserError(f"{where}: token ids are a list of integers")
    return value
