"""Where examples come from: files, runs, tasks, and what there is to say when they do not."""

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.config.loading.recipe import load_recipe
from headrace.config.sections.reward_model import (
    BradleyTerryConfig,
    FileDataConfig,
    LinesConfig,
    RewardModelConfig,
    RunDataConfig,
    SearchWorldConfig,
    SftConfig,
    TaskDataConfig,
)
from headrace.errors import UserError
from headrace.run_files import run_folder
from rewards.models.training.sources import read_examples
from storage import queries
from tests.rewards.models.small import ROOT

SCORES, LINES = BradleyTerryConfig(kind="bradley_terry"), LinesConfig(kind="lines")


def recipe(data: Any, objective: Any = SCORES, root: Path = Path("runs")) -> RewardModelConfig:
    model: Any = {"path": "nowhere"}
    return RewardModelConfig(root=str(root), model=model, objective=objective, data=data)


def written(path: Path, *rows: dict[str, Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def preference(number: int, rejected: str = "b") -> dict[str, str]:
    return {"prompt": f"prompt {number}", "chosen": "a", "rejected": rejected}


def test_a_file_is_split_by_prompt_and_ties_are_counted(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", *map(preference, range(80)), preference(3, "a"))
    found = read_examples(recipe(FileDataConfig(kind="file", path=path, eval_fraction=0.3)))
    assert found.ties == 1
    assert len(found.training) + len(found.held_out) == 80
    assert 8 < len(found.held_out) < 40


def test_a_file_of_held_out_examples_shares_no_prompt(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", *map(preference, range(5)))
    chat = {**preference(0), "prompt": [{"role": "user", "content": "prompt 0"}]}
    other = written(tmp_path / "b.jsonl", *map(preference, range(3, 9)), chat)
    found = read_examples(recipe(FileDataConfig(kind="file", path=path, eval_path=other)))
    assert [pair.prompt for pair in found.held_out] == [f"prompt {i}" for i in range(5, 9)]
    with pytest.raises(UserError, match="nothing is held out"):
        read_examples(recipe(FileDataConfig(kind="file", path=path, eval_path=path)))


def test_an_image_of_one_name_in_another_folder_is_held_out(tmp_path: Path) -> None:
    parts = [{"type": "image", "image": "1.png"}, {"type": "text", "text": "?"}]
    row = preference(0) | {"prompt": [{"role": "user", "content": parts}]}
    paths = []
    for name in ("train", "test"):
        (tmp_path / name).mkdir()
        paths.append(written(tmp_path / name / "pairs.jsonl", row))
    data = FileDataConfig(kind="file", path=paths[0], eval_path=paths[1])
    assert len(read_examples(recipe(data)).held_out) == 1


def test_an_export_makes_pairs(tmp_path: Path) -> None:
    rows = [
        {"group_id": i // 2, "prompt": f"p{i // 2}", "response": f"r{i}", "correct": i % 2 == 0}
        for i in range(60)
    ]
    path = written(tmp_path / "export.jsonl", *rows)
    found = read_examples(recipe(FileDataConfig(kind="file", path=path, eval_fraction=0.4)))
    assert len(found.training) + len(found.held_out) == 30
    path = written(tmp_path / "right.jsonl", *rows[::2])
    with pytest.raises(UserError, match="makes no pairs: no prompt in it has a right and a wrong"):
        read_examples(recipe(FileDataConfig(kind="file", path=path)))


def test_a_runs_own_groups_make_pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quickstart = load_recipe(ROOT / "recipes" / "quickstart.toml", [f'root="{tmp_path}/runs"'])
    run_dir = run_folder.make_run_folder(quickstart)
    answers = [
        queries.GroupAnswer(group, f"p{group}", f"{group}.{member}", member > 0)
        for group in range(40)
        for member in range(4)
    ]
    monkeypatch.setattr(queries, "group_answers", lambda folder: iter(answers))
    data = RunDataConfig(kind="run", run="latest", pairs_per_group=2, eval_fraction=0.3)
    found = read_examples(recipe(data, root=run_dir.parent))
    assert len(found.training) + len(found.held_out) == 80
    assert all(pair.rejected.endswith(".0") for pair in found.training)
    monkeypatch.setattr(queries, "group_answers", lambda folder: iter(answers[1:4]))
    with pytest.raises(UserError, match="none of its groups has right and wrong answers"):
        read_examples(recipe(data, root=run_dir.parent))
    with pytest.raises(UserError, match="needs labelled lines, which a run has not"):
        read_examples(recipe(data, LINES, root=run_dir.parent))


def test_lines_of_a_task_end_in_its_own_separator() -> None:
    data = TaskDataConfig(kind="task", examples=40)
    with pytest.raises(UserError, match=r"objective\.separator = '\\n'"):
        read_examples(recipe(data, LINES))


@pytest.mark.parametrize("objective", [SCORES, LINES, SftConfig(kind="sft")])
def test_sessions_are_for_rankers(objective: Any) -> None:
    with pytest.raises(UserError, match=r"data\.kind = '"):
        read_examples(recipe(SearchWorldConfig(kind="search_world"), objective))


def test_a_file_without_labels(tmp_path: Path) -> None:
    row = {"prompt": "p", "lines": ["a", "b"], "labels": [None, None]}
    path = written(tmp_path / "a.jsonl", row)
    with pytest.raises(UserError, match="has no labels: all of them are null"):
        read_examples(recipe(FileDataConfig(kind="file", path=path), LINES))
    with pytest.raises(UserError, match="has no rows"):
        read_examples(recipe(FileDataConfig(kind="file", path=written(tmp_path / "b.jsonl"))))


@pytest.mark.parametrize("purpose", ["eval", "along"])
def test_an_exports_evaluations_make_no_pairs(tmp_path: Path, purpose: str) -> None:
    """As a run's own do not: their prompts are held out."""
    rows = [
        {"purpose": purpose, "group_id": 1, "prompt": "p", "response": text, "correct": right}
        for text, right in (("a", True), ("b", False))
    ]
    path = written(tmp_path / "export.jsonl", *rows)
    with pytest.raises(UserError, match="makes no pairs"):
        read_examples(recipe(FileDataConfig(kind="file", path=path)))
