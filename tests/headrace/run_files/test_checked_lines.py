"""Lines with checksums: no changed bit makes another object, and what a crash tore is told."""

from pathlib import Path
from typing import Any

from headrace.run_files.checked_lines import checked_line, cut_torn, whole_lines

OBJECTS: list[dict[str, Any]] = [
    {"at": 1.5, "pid": 7},
    {"ids": [1, 2], "why": "\xe9\n"},
    {"a": 0},
]


def test_no_bit_can_change(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    whole = b"".join(map(checked_line, OBJECTS))
    path.write_bytes(whole)
    assert list(whole_lines(path)) == OBJECTS
    for at in range(len(whole)):
        for bit in (0, at % 8):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :])
            damaged: list[str] = []
            left = list(whole_lines(path, damaged))
            assert len(left) < len(OBJECTS)
            assert all(each in OBJECTS for each in left)
            assert damaged or not path.read_bytes().endswith(b"\n")


def test_what_a_crash_tore_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    assert cut_torn(path) == 0
    whole = checked_line(OBJECTS[0])
    path.write_bytes(whole + checked_line(OBJECTS[1])[:-1])
    damaged: list[str] = []
    assert (list(whole_lines(path, damaged)), damaged) == (OBJECTS[:1], [])
    assert cut_torn(path) == len(whole)
    assert path.read_bytes() == whole


def test_lines_are_read_one_by_one(tmp_path: Path) -> None:
    """A learner's file of a month has half a gigabyte."""
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b"".join(map(checked_line, OBJECTS[:2])))
    lines = whole_lines(path)
    assert next(lines) == OBJECTS[0]
    with path.open("ab") as file:
        file.write(checked_line(OBJECTS[2]))
    assert list(lines) == OBJECTS[1:]
