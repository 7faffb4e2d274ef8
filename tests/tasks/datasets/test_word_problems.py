"""The file of word problems: its answers are right, and a seed always gives the same file."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from headrace.config.sections.task import DatasetConfig
from tasks.datasets.source import build_source
from tasks.datasets.word_problems import KINDS, main


def write(path: Path, *more: str) -> bytes:
    main(["--out", str(path), *more])
    return path.read_bytes()


def test_answers_are_right_and_prompts_differ(tmp_path: Path) -> None:
    rows = [json.loads(line) for line in write(tmp_path / "p.jsonl").splitlines()]
    texts = [row["prompt"][0]["content"] for row in rows]
    assert len(set(texts)) == len(rows) == 3000
    assert min(Counter(row["kind"] for row in rows).values()) > 3000 / len(KINDS) * 0.9
    for text, row in zip(texts, rows, strict=True):
        first, *others = map(int, re.findall(r"\d+", text))
        if "boxes" in text:
            value = first * others[0]
        else:
            value = first - others[0] if "gives away" in text else first + others[0]
            value += sum(others[1:])
        assert str(value) == row["answer"]
        assert value >= 0


def test_a_seed_is_a_file_and_a_fifth_is_held_out(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "p.jsonl"
    assert write(path) == write(tmp_path / "again.jsonl")
    assert write(tmp_path / "other.jsonl", "--seed", "1") != path.read_bytes()
    task = DatasetConfig(kind="dataset", path=str(path), eval_fraction=0.2, max_response_length=96)
    source = build_source(task, seed=0)
    assert 512 <= len(source.eval_rows(10_000)) <= 700
    assert isinstance(source.row_at(0).prompt, list)


@pytest.mark.parametrize("wrong", [["--rows", "0"], ["--out", "/proc/no/file"]])
def test_a_mistake_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], wrong: list[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--out", str(tmp_path / "p.jsonl"), *wrong])
    assert ended.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1].count(wrong[0]) == 1
