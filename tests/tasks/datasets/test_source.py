"""Sources: addressed by position, resumable from one integer, nothing held out is trained on."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.config.sections.task import (
    ChainSumsConfig,
    DatasetConfig,
    GraphWalkConfig,
    MixtureConfig,
    ShiftRegisterConfig,
    StraightLineConfig,
    TrackingConfig,
)
from headrace.errors import UserError
from tasks.datasets.source import (
    DatasetSource,
    _with_own_ids,
    build_source,
    every_row,
    info_columns,
    split_by_hash,
)
from tasks.procedural.graph_walk import score
from tasks.procedural.shift_register import SHIFT_REGISTER
from tasks.procedural.straight_line import STRAIGHT_LINE
from tasks.procedural.tracking import solve
from tasks.rows import Message, TaskRow, question_of


def rows(count: int) -> list[TaskRow]:
    return [TaskRow(f"r{i}", f"prompt {i}", "1") for i in range(count)]


def test_rows_of_one_id_are_told_apart() -> None:
    """Files of one name in two folders, or rows that say so."""
    twice = DatasetSource([*rows(2), TaskRow("r0", "another", "2")], [*rows(1)], seed=1)
    assert [row.id for row in twice.training] == ["r0", "r1", "r0#2"]
    assert [row.id for row in twice.evaluation] == ["r0#3"]


def write_file(path: Path, prompts: Sequence[str | list[Message]]) -> str:
    path.write_text("".join(json.dumps({"prompt": p, "answer": "1"}) + "\n" for p in prompts))
    return str(path)


def test_chain_sums_from_the_configuration() -> None:
    source = build_source(ChainSumsConfig(kind="chain_sums", min_terms=4, max_terms=9), seed=5)
    training = [source.row_at(position) for position in range(200)]
    assert {row.info["terms"] for row in training} == {4, 5, 6, 7, 8, 9}
    assert source.row_at(17) == training[17]
    other = build_source(ChainSumsConfig(kind="chain_sums", min_terms=4, max_terms=9), seed=6)
    assert other.row_at(17) != training[17]
    assert other.eval_rows(64) == source.eval_rows(64)


def test_made_prompts_have_no_end() -> None:
    source = build_source(ChainSumsConfig(kind="chain_sums"), seed=0)
    assert source.training_rows(3) == [source.row_at(position) for position in range(3)]
    with pytest.raises(UserError, match="say how many with --prompts N"):
        source.training_rows(10**9)


def test_rows_of_a_dataset_with_certain_values(tmp_path: Path) -> None:
    lines = [{"prompt": f"p{n}", "answer": "1", "level": n % 3} for n in range(60)]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    task = DatasetConfig(kind="dataset", path=str(path), only={"level": "2"}, limit=10)
    assert [row.info["level"] for row in every_row(task)] == [2] * 10
    other = task.model_copy(update={"only": {"level": "3"}})
    with pytest.raises(UserError, match=r"no row of .* has level = 3"):
        build_source(other, seed=0)


def test_values_are_of_the_files_own_column_in_a_mixture(tmp_path: Path) -> None:
    """A domain's name takes the place of the column `domain` of its rows."""
    lines = [{"prompt": f"p{n}", "answer": "1", "domain": "ab"[n % 2]} for n in range(4)]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    some = DatasetConfig(kind="dataset", path=str(path), only={"domain": "b"}, eval_fraction=1e-9)
    source = build_source(MixtureConfig(kind="mixture", datasets={"some": some}), seed=0)
    found = [(row.id, row.domain, row.info["domain"]) for row in source.training_rows(9)]
    assert found == [(f"some/rows.jsonl:{n}", "some", "some") for n in (2, 4)]


def test_tracking_from_the_configuration() -> None:
    source = build_source(TrackingConfig(kind="tracking", max_terms=5), seed=5)
    row = source.row_at(0)
    assert row.answer == solve(str(row.prompt))
    assert {source.row_at(position).info["terms"] for position in range(100)} == {3, 4, 5}


def test_graph_walk_from_the_configuration() -> None:
    source = build_source(GraphWalkConfig(kind="graph_walk", max_terms=7), seed=5)
    row = source.row_at(0)
    assert score(str(row.prompt), row.answer)["score"] == 1.0
    assert {source.row_at(position).info["terms"] for position in range(100)} == {5, 6, 7}
    with pytest.raises(UserError, match="max_terms from 2 to 16"):
        build_source(GraphWalkConfig(kind="graph_walk", max_terms=17), seed=0)


def test_the_shift_register_from_the_configuration() -> None:
    settings = ShiftRegisterConfig(kind="shift_register")
    task = SHIFT_REGISTER
    assert (settings.min_terms, settings.max_terms) == (task.min_terms, task.max_terms)
    assert settings.tail_exponent == task.tail_exponent
    source = build_source(ShiftRegisterConfig(kind="shift_register", max_terms=6), seed=5)
    row = source.row_at(0)
    assert row.answer == task.solve(str(row.prompt))
    assert {source.row_at(position).info["terms"] for position in range(100)} == {3, 4, 5, 6}


def test_straight_lines_from_the_configuration() -> None:
    settings = StraightLineConfig(kind="straight_line")
    task = STRAIGHT_LINE
    assert (settings.min_terms, settings.max_terms) == (task.min_terms, task.max_terms)
    assert settings.tail_exponent == task.tail_exponent
    assert StraightLineConfig(kind="straight_line", max_terms=task.most_terms)
    with pytest.raises(ValueError, match="less than or equal to 9"):
        StraightLineConfig(kind="straight_line", max_terms=task.most_terms + 1)
    source = build_source(StraightLineConfig(kind="straight_line", max_terms=3), seed=5)
    assert {source.row_at(position).info["terms"] for position in range(100)} == {2, 3}


@pytest.mark.parametrize(("low", "high"), [(5, 4), (3, 53), (1, 1)])
def test_impossible_numbers_of_terms_are_refused(low: int, high: int) -> None:
    task = ChainSumsConfig(kind="chain_sums", min_terms=low, max_terms=high)
    with pytest.raises(UserError, match="min_terms"):
        build_source(task, seed=0)


def test_each_epoch_visits_every_row_once_in_its_own_order() -> None:
    source = DatasetSource(rows(50), [], seed=1)
    first = [source.row_at(position).id for position in range(50)]
    second = [source.row_at(position).id for position in range(50, 100)]
    assert sorted(first) == sorted(second) == sorted(row.id for row in rows(50))
    assert first != second


def test_a_position_alone_resumes_the_stream() -> None:
    source = DatasetSource(rows(50), [], seed=1)
    stream = [source.row_at(position).id for position in range(180)]
    resumed = DatasetSource(rows(50), [], seed=1)
    assert [resumed.row_at(position).id for position in range(130, 180)] == stream[130:]
    reseeded = DatasetSource(rows(50), [], seed=2)
    assert [reseeded.row_at(position).id for position in range(180)] != stream


def test_the_hash_split_keeps_equal_prompts_together() -> None:
    doubled = rows(2000) + rows(2000)
    training, held_out = split_by_hash(doubled, 0.1)
    assert len(training) + len(held_out) == 4000
    assert len(held_out) / 4000 == pytest.approx(0.1, abs=0.03)
    assert {row.prompt for row in training}.isdisjoint({row.prompt for row in held_out})
    # A larger fraction only adds to what is held out.
    assert {r.id for r in held_out} <= {r.id for r in split_by_hash(doubled, 0.2)[1]}


def test_each_held_out_prompt_comes_once_before_one_comes_again() -> None:
    """As DAPO-Math-17k has its prompts a hundred times, and AIME files theirs 32 times."""
    held_out = [replace(row, id=f"{row.id}-{copy}") for copy in range(4) for row in rows(9)]
    source = DatasetSource([TaskRow("t", "other", "1")], held_out, seed=0)
    asked = [row.prompt for row in source.eval_rows(36)]
    assert len(set(asked[:9])) == 9
    assert asked == asked[:9] * 4
    assert len({row.id for row in source.eval_rows(99)}) == 36


def test_a_dataset_with_its_own_evaluation_file(tmp_path: Path) -> None:
    train = write_file(tmp_path / "train.jsonl", [f"p{i}" for i in range(10)])
    evaluation = write_file(tmp_path / "eval.jsonl", ["p3", "q1", "q2"])
    source = build_source(DatasetConfig(kind="dataset", path=train, eval_path=evaluation), seed=0)
    assert {row.prompt for row in source.eval_rows(99)} == {"p3", "q1", "q2"}
    assert len(source.eval_rows(2)) == 2
    seen = {str(source.row_at(position).prompt) for position in range(9)}
    assert seen == {f"p{i}" for i in range(10)} - {"p3"}


def test_a_text_and_a_message_of_it_are_one_prompt(tmp_path: Path) -> None:
    train, held_out = write_file(tmp_path / "train.jsonl", ["p1", "p2"]), tmp_path / "eval.jsonl"
    chat = {"prompt": [{"role": "user", "content": "p1"}], "answer": "1"}
    held_out.write_text(json.dumps(chat))
    task = DatasetConfig(kind="dataset", path=train, eval_path=str(held_out))
    assert [row.prompt for row in build_source(task, seed=0).training_rows(9)] == ["p2"]


def test_a_dataset_split_by_hash(tmp_path: Path) -> None:
    train = write_file(tmp_path / "train.jsonl", [f"p{i}" for i in range(300)])
    source = build_source(DatasetConfig(kind="dataset", path=train, limit=200), seed=0)
    held_out = {str(row.prompt) for row in source.eval_rows(1000)}
    seen = {str(source.row_at(position).prompt) for position in range(400)}
    assert held_out
    assert seen.isdisjoint(held_out)
    assert seen | held_out == {f"p{i}" for i in range(200)}


def test_a_prompt_in_both_forms_stands_on_one_side(tmp_path: Path) -> None:
    texts = [f"p{i}" for i in range(200)]
    chats = [[{"role": "user", "content": text}] for text in texts]
    path = write_file(tmp_path / "both.jsonl", [*texts, *chats])
    source = build_source(DatasetConfig(kind="dataset", path=path, eval_fraction=0.3), seed=0)
    held_out = {question_of(row.prompt) for row in source.eval_rows(999)}
    seen = {question_of(row.prompt) for row in source.training_rows(999)}
    assert held_out
    assert seen == set(texts) - held_out


def test_a_member_trains_no_prompt_that_another_one_holds_out(tmp_path: Path) -> None:
    def member(name: str, train: list[Any], held_out: list[Any], **keys: Any) -> DatasetConfig:
        (tmp_path / name).mkdir()
        files = [
            write_file(tmp_path / name / f"{side}.jsonl", prompts)
            for side, prompts in (("train", train), ("eval", held_out))
        ]
        return DatasetConfig(kind="dataset", path=files[0], eval_path=files[1], **keys)

    image = {"type": "image", "image": "1.png"}
    drawn = [{"role": "user", "content": [image, {"type": "text", "text": "how many?"}]}]
    task = MixtureConfig(
        kind="mixture",
        datasets={
            "one": member("one", ["p1", "p2", "p3", drawn], ["q1"]),
            "two": member("two", ["p2", "q1"], ["p1", drawn], prompt_template="{prompt}!"),
        },
    )
    source = build_source(task, seed=0)
    asked = [row.prompt for row in source.training_rows(9)]
    # An image of that name is another one in another folder.
    assert sorted(map(str, asked)) == sorted(map(str, ["p2", "p3", drawn, "p2!"]))
    assert len(source.eval_rows(9)) == 3


def test_an_image_of_one_name_in_two_folders_is_two_images(tmp_path: Path) -> None:
    """Training and test sets number their images alike; two members may read one folder."""
    image = {"type": "image", "image": "1.png"}
    drawn: list[Message] = [{"role": "user", "content": [image, {"type": "text", "text": "?"}]}]
    paths = []
    for name in ("train", "test"):
        (tmp_path / name).mkdir()
        paths.append(write_file(tmp_path / name / "rows.jsonl", [drawn, "p", f"of {name}"]))
    one = DatasetConfig(kind="dataset", path=paths[0], eval_path=paths[1])
    assert [row.prompt for row in build_source(one, seed=0).training_rows(9)] == [drawn, "of train"]
    other = DatasetConfig(kind="dataset", path=paths[0], eval_fraction=1e-9)
    more = write_file(tmp_path / "train" / "more.jsonl", ["m"])
    held = DatasetConfig(kind="dataset", path=more, eval_path=paths[0])
    task = MixtureConfig(kind="mixture", datasets={"other": other, "held": held})
    with pytest.raises(UserError, match="no training rows"):
        build_source(task, seed=0)


def test_nothing_left_to_train_on(tmp_path: Path) -> None:
    train = write_file(tmp_path / "train.jsonl", ["p"])
    with pytest.raises(UserError, match="no training rows"):
        build_source(DatasetConfig(kind="dataset", path=train, eval_path=train), seed=0)


def test_sources_do_not_load_torch() -> None:
    code = "import sys, tasks.datasets.source; print({'torch', 'transformers'} & set(sys.modules))"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "set()"


def test_columns_for_reward_functions_are_those_of_the_first_row_of_every_file(
    tmp_path: Path,
) -> None:
    training, held_out = tmp_path / "train.jsonl", tmp_path / "test.jsonl"
    row = {"id": 1, "prompt": "p", "answer": "1", "level": 2, "source": "s"}
    training.write_text(json.dumps(row) + "\n" + json.dumps({"prompt": "q", "answer": "2"}) + "\n")
    del row["source"]
    held_out.write_text(json.dumps(row) + "\n")
    task = DatasetConfig(kind="dataset", path=str(training))
    assert info_columns(task) == {"level", "source", "answer"}
    assert info_columns(task.model_copy(update={"eval_path": str(held_out)})) == {"level", "answer"}
    assert info_columns(ChainSumsConfig(kind="chain_sums")) == {"terms"}


def test_every_row_has_an_id_of_its_own() -> None:
    rows = [TaskRow(name, name, "") for name in ("a", "a", "a#2", "a")]
    assert len({row.id for row in _with_own_ids(rows, Counter())}) == 4
