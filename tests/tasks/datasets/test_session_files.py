"""Sessions and lists in both formats, and rows that say nothing or cannot be read."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from headrace.data.sessions import NO_CLICK, RankedList, label_of
from headrace.errors import UserError
from tasks.datasets.session_files import read_lists, read_sessions

LIST = {
    "history": [{"query": "a", "clicked": "b c"}],
    "query": "d",
    "candidates": ["e", "f g"],
    "labels": [0, 1],
}


def written(folder: Path, *rows: object, name: str = "lists.jsonl") -> str:
    file = folder / name
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


def test_both_formats_say_the_same(tmp_path: Path) -> None:
    lines = tmp_path / "log.txt"
    lines.write_text("0\ta\tb c\td\te\n1\ta\tb c\td\tf g\n1\tx\t[empty_d]\ty\tz\n")
    left_out: Counter[str] = Counter()
    first, second = read_lists(str(lines), left_out)
    (other,) = read_lists(written(tmp_path, LIST), left_out)
    assert (first.history, first.query, first.candidates, first.labels) == (
        other.history, other.query, other.candidates, other.labels,
    )  # fmt: skip
    assert first.history == (("a", "b c"),)
    assert second.history == (("x", NO_CLICK),)
    data = read_sessions(str(lines), str(lines), written(tmp_path, LIST))
    assert data.sessions[2] == (("x", NO_CLICK), ("y", "z"))
    (session,) = read_sessions(
        written(tmp_path, LIST), written(tmp_path, LIST), written(tmp_path, LIST)
    ).sessions
    assert session == (("a", "b c"), ("d", "f g")), "what was clicked is a part of the session"


def test_what_says_nothing_is_left_out_and_counted(tmp_path: Path) -> None:
    rows = [
        LIST,
        LIST | {"labels": [0, 0]},
        LIST | {"query": " "},
        LIST | {"candidates": ["e", "f", "e"], "labels": [1, 0, 0]},
        LIST | {"candidates": ["e", "f", "e"], "labels": [0, 0, 1]},
    ]
    left_out: Counter[str] = Counter()
    found = list(read_lists(written(tmp_path, *rows), left_out))
    assert [ranked.candidates for ranked in found] == [("e", "f g"), ("e", "f"), ("e", "f")]
    assert found[1].labels == found[2].labels == (1, 0)
    assert left_out == {"without_relevant": 1, "without_query": 1, "repeated_candidates": 2}
    empty = written(tmp_path, {"history": []}, {"history": [{"query": "", "clicked": ""}]})
    with pytest.raises(UserError, match="nothing to learn from"):
        read_sessions(empty, written(tmp_path, LIST, name="b.jsonl"), str(tmp_path / "b.jsonl"))


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"query": "a"}, "row 1: no query and candidates"),
        (LIST | {"labels": [1]}, "row 1: 2 candidates and other labels"),
        (LIST | {"labels": ["x", 1]}, "row 1: the label is 'x'"),
        (LIST | {"history": ["a"]}, "row 1: history is no list"),
    ],
)
def test_rows_that_cannot_be_read(tmp_path: Path, row: object, words: str) -> None:
    with pytest.raises(UserError, match=words) as found:
        list(read_lists(written(tmp_path, row), Counter()))
    assert "\n" not in str(found.value)


def test_lines_that_cannot_be_read(tmp_path: Path) -> None:
    lines = tmp_path / "log.txt"
    lines.write_text("1\ta\tb\tc\n")
    with pytest.raises(UserError, match="row 1: a label, then queries and documents"):
        list(read_lists(str(lines), Counter()))


def test_a_click_may_be_a_place_or_a_text(tmp_path: Path) -> None:
    rows = [
        {"query": "d", "candidates": ["e", "f"], "clicked": 1},
        {"query": "d", "candidates": ["e", "f"], "clicked": "f"},
    ]
    for ranked in read_lists(written(tmp_path, *rows), Counter()):
        assert ranked == RankedList((), "d", ("e", "f"), (0, 1), ranked.where)


@pytest.mark.parametrize("label", [0.5, float("inf"), float("nan"), "x", None])
def test_a_label_that_is_no_whole_number_is_refused(label: Any) -> None:
    with pytest.raises(UserError, match="not a whole number"):
        label_of(label, "here")
