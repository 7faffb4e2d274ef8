"""Search sessions in files: JSON lines (also Parquet), and the lines of COCA's released data.

In: `{"history": [{"query", "clicked"}, ...]}` with `query`, `candidates` and `labels` (or
`clicked`, the right candidate's text or place) for a list; or lines of a label, queries and
documents in turn, with tabs between them (AOL, Tiangong-ST), of which those with one history and
query are a list. Out: sessions and lists. Promises: what cannot be read is a UserError that names
file and row; what is empty (no text, no relevant or a repeated candidate) is left out and counted.
"""

import os
from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from headrace.data import sessions
from headrace.errors import UserError
from tasks.datasets.records import SUFFIXES, Record, find_files, read_records


def read_sessions(
    path: str, lists: str, held_out: str, *, held_out_limit: int | None = None
) -> sessions.SessionData:
    """Sessions of one file, lists to learn from and lists that are held out."""
    every = list(_sessions(path))
    whole = [pairs for pairs in every if any(query.strip() for query, _ in pairs)]
    left_out: Counter[str] = Counter(empty_sessions=len(every) - len(whole))
    found = [list(read_lists(each, left_out)) for each in (lists, held_out)]
    for name, read in ((path, whole), (lists, found[0]), (held_out, found[1])):
        if not read:
            told = ", ".join(f"{n} {kind}" for kind, n in left_out.items() if n) or "it is empty"
            raise UserError(f"{name} has nothing to learn from ({told})")
    return sessions.SessionData(whole, found[0], found[1][:held_out_limit], dict(left_out))


def read_lists(path: str, left_out: Counter[str]) -> Iterator[sessions.RankedList]:
    """The lists of candidates in a file that have a relevant one."""
    for ranked in _lists(path):
        sound, lacks = sessions.clean_list(ranked)
        left_out["repeated_candidates"] += len(ranked.candidates) - len(set(ranked.candidates))
        if lacks:
            left_out[lacks] += 1
        else:
            yield sound


# -- rows -------------------------------------------------------------------------------------


def _sessions(path: str) -> Iterator[tuple[sessions.Pair, ...]]:
    for where, row in _rows(path):
        if isinstance(row, list):
            yield _pairs_of(row[1:], where)
        else:
            pairs = sessions.history_of(row, where)
            clicked = sessions.clicked_of(row)
            if isinstance(row.get("query"), str) and clicked is not None:
                pairs = (*pairs, (row["query"], clicked))
            yield pairs


def _lists(path: str) -> Iterator[sessions.RankedList]:
    for file in _files(path):
        if file.name.endswith(SUFFIXES):
            for number, row in read_records(file):
                yield sessions.ranked_list_of(row, f"{file}, row {number}")
        else:
            yield from _listed_lines(_lines(file))


def _rows(path: str) -> Iterator[tuple[str, Record | list[str]]]:
    for file in _files(path):
        if file.name.endswith(SUFFIXES):
            yield from ((f"{file}, row {number}", row) for number, row in read_records(file))
        else:
            yield from _lines(file)


def _files(path: str) -> list[Path]:
    """The files that a path names; one file may have any name."""
    direct = Path(os.path.expanduser(path))
    return [direct] if direct.is_file() else find_files(path)


def _lines(file: Path) -> Iterator[tuple[str, list[str]]]:
    try:
        with file.open(encoding="utf-8") as stream:
            for number, line in enumerate(stream, start=1):
                if line.strip():
                    yield f"{file}, row {number}", line.rstrip("\n").split("\t")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file} cannot be read: {error}") from error


def _listed_lines(rows: Iterator[tuple[str, list[str]]]) -> Iterator[sessions.RankedList]:
    """Lines of one history and query, each with a candidate."""

    def asked(each: tuple[str, list[str]]) -> list[str]:
        return each[1][1:-1]

    for _, group in groupby(rows, key=asked):
        lines = list(group)
        where, first = lines[0]
        *history, last = _pairs_of(first[1:], where)
        labels = tuple(sessions.label_of(line[0], place) for place, line in lines)
        candidates = tuple(line[-1] for _, line in lines)
        yield sessions.RankedList(tuple(history), last[0], candidates, labels, where)


def _pairs_of(parts: list[str], where: str) -> tuple[sessions.Pair, ...]:
    if not parts or len(parts) % 2:
        raise UserError(f"{where}: a label, then queries and documents in turn, each behind a tab")
    return tuple(
        (query, sessions.document_of(document))
        for query, document in zip(parts[::2], parts[1::2], strict=True)
    )
