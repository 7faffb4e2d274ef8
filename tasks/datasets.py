"""Dataset files to rows: JSONL (also .gz) and Parquet, as the field writes them.

In: a path (or a glob such as `data/train-*.parquet`) and optionally the names of the columns.
Out: `Row`s in the file's order, with every column that is neither prompt nor answer in `info`.
verl's Parquet (chat messages, `reward_model.ground_truth`) is read unchanged.

Promises: a missing file, a file that cannot be read, and a row without prompt or answer are
UserErrors that name the file and, counting from 1, the row.
"""

from __future__ import annotations

import glob
import gzip
import json
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any, TextIO

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.errors import UserError
from tasks.rows import Message, Row

PROMPT_KEYS = ("prompt", "question", "problem")
ANSWER_KEYS = ("answer", "ground_truth", "reward_model.ground_truth", "solution", "label")
SUFFIXES = (".jsonl", ".jsonl.gz", ".parquet")

Record = dict[str, Any]


def read_dataset(
    path: str,
    *,
    prompt_key: str | None = None,
    answer_key: str | None = None,
    prompt_template: str | None = None,
    limit: int | None = None,
) -> list[Row]:
    """All rows of the file or files at `path`, at most `limit` of them.

    Keys may reach into nested columns with dots. Without them the first known alias present in a
    row counts. `prompt_template` is a format string with `{prompt}`; it wraps a plain prompt, or
    the last user message of a chat.
    """
    check_template(prompt_template)
    prompt_keys = (prompt_key,) if prompt_key else PROMPT_KEYS
    answer_keys = (answer_key,) if answer_key else ANSWER_KEYS
    rows: list[Row] = []
    for file in find_files(path):
        left = None if limit is None else limit - len(rows)
        for number, record in islice(read_records(file), left):
            row = make_row(record, prompt_keys, answer_keys, file=file, number=number)
            rows.append(apply_template(row, prompt_template))
    if not rows:
        raise UserError(f"{path} has no rows: point task.path at a file with at least one")
    return rows


def find_files(path: str) -> list[Path]:
    """The files that `path` names, sorted; a glob may name several."""
    direct = Path(path).expanduser()
    if direct.is_file():
        files = [direct]
    elif direct.is_dir():
        inside = sorted(str(file) for file in direct.rglob("*") if file.name.endswith(SUFFIXES))
        hint = f"such as {inside[0]}" if inside else "(it holds no .jsonl, .jsonl.gz or .parquet)"
        raise UserError(f"dataset {path} is a folder: name one of its files {hint}, or a glob")
    else:
        files = [Path(file) for file in sorted(glob.glob(str(direct)))]
    if not files:
        raise UserError(f"dataset {path} does not exist: check the path, relative to {Path.cwd()}")
    for file in files:
        if not file.name.endswith(SUFFIXES):
            raise UserError(f"dataset {file}: expected a name ending in {', '.join(SUFFIXES)}")
    return files


def read_records(file: Path) -> Iterator[tuple[int, Record]]:
    """(number, record) in the file's order, from 1. JSONL counts lines and skips blank ones."""
    if file.suffix == ".parquet":
        yield from _read_parquet(file)
    elif file.suffix == ".gz":
        with gzip.open(file, "rt", encoding="utf-8") as stream:
            yield from _read_jsonl(file, stream)
    else:
        with file.open(encoding="utf-8") as stream:
            yield from _read_jsonl(file, stream)


def _read_jsonl(file: Path, stream: TextIO) -> Iterator[tuple[int, Record]]:
    line = 0
    try:
        for line, text in enumerate(stream, start=1):
            if not text.strip():
                continue
            record = json.loads(text)
            if not isinstance(record, dict):
                raise UserError(f"{file}, row {line}: expected a JSON object")
            yield line, record
    except json.JSONDecodeError as error:
        raise UserError(f"{file}, row {line}: not JSON ({error.msg})") from error
    except (UnicodeDecodeError, gzip.BadGzipFile, EOFError) as error:
        raise UserError(f"{file}, after row {line}: cannot be read ({error})") from error


def _read_parquet(file: Path) -> Iterator[tuple[int, Record]]:
    try:
        with pq.ParquetFile(file) as table:
            batches = table.iter_batches(batch_size=1024)
            records = chain.from_iterable(batch.to_pylist() for batch in batches)
            yield from enumerate(records, start=1)
    except pa.ArrowInvalid as error:
        raise UserError(f"{file}: not a Parquet file ({error})") from error


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
) -> Row:
    """One record as a `Row`. An id is made of file and number where the record has none."""
    where = f"{file}, row {number}"
    prompt_key, prompt = _first(record, prompt_keys, "prompt", where)
    answer_key, answer = _first(record, answer_keys, "answer", where)
    taken = {prompt_key, answer_key, "id"}
    info = {key: value for key, value in record.items() if key not in taken}
    identity = record.get("id")
    return Row(
        id=f"{file.name}:{number}" if identity is None else str(identity),
        prompt=_as_prompt(prompt, where),
        answer=answer
        if isinstance(answer, str)
        else json.dumps(answer, ensure_ascii=False, default=str),
        info=info,
    )


def _first(record: Record, keys: tuple[str, ...], what: str, where: str) -> tuple[str, Any]:
    for key in keys:
        value = look_up(record, key)
        if value is not None and value not in ("", []):
            return key, value
    raise UserError(
        f"{where}: no {what} (looked for {', '.join(keys)}; the row has "
        f"{', '.join(sorted(record)) or 'nothing'}): fill it in or set task.{what}_key"
    )


def _as_prompt(prompt: Any, where: str) -> str | list[Message]:
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, list) and all(_is_message(message) for message in prompt):
        return [{"role": m["role"], "content": m["content"]} for m in prompt]
    raise UserError(
        f"{where}: the prompt is neither text nor a list of messages with role and content as text"
    )


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(value.get(key), str) for key in ("role", "content")
    )


def check_template(template: str | None) -> None:
    """UserError unless the template is a format string whose only field is `{prompt}`."""
    if template is None:
        return
    try:
        wrapped = template.format(prompt="\0")
    except (KeyError, IndexError, ValueError) as error:
        raise UserError(
            f"task.prompt_template {template!r}: only {{prompt}} may stand in braces; write other "
            f"braces twice, as in \\boxed{{{{}}}}"
        ) from error
    if "\0" not in wrapped:
        raise UserError(f"task.prompt_template {template!r} does not contain {{prompt}}")


def apply_template(row: Row, template: str | None) -> Row:
    """The row with its prompt, or the last user message of it, wrapped in the template."""
    if template is None:
        return row
    if isinstance(row.prompt, str):
        prompt: str | list[Message] = template.format(prompt=row.prompt)
    else:
        prompt = [dict(message) for message in row.prompt]
        for message in reversed(prompt):
            if message["role"] == "user":
                message["content"] = template.format(prompt=message["content"])
                break
    return Row(row.id, prompt, row.answer, row.info)
