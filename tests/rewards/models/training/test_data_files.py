"""Preferences and labels as files have them, and every mistake in one line with its row."""

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import UserError
from rewards.models.encoding import Prompt
from rewards.models.training.data_files import (
    pairs_of,
    read_answer,
    read_labelled,
    read_pair,
    rows,
)
from rewards.models.training.examples import PreferencePair, split
from rewards.models.training.objectives import BradleyTerryObjective
from storage.queries import GroupAnswer
from tasks.procedural.character_tokenizer import build_tokenizer
from tasks.rows import question_of

CHAT = [{"role": "user", "content": "What is 7 + 5?"}]


def said(text: str) -> list[dict[str, str]]:
    return [*CHAT, {"role": "assistant", "content": text}]


def test_preferences_as_texts_and_as_chats() -> None:
    plain = read_pair("f, row 1", {"prompt": "7+5=", "chosen": "12", "rejected": "13"})
    assert plain == PreferencePair("7+5=", "12", "13", where="f, row 1")
    full = {"prompt": CHAT, "chosen": said("12"), "rejected": said("13"), "margin": 2, "rule": "x"}
    assert read_pair("", full) == PreferencePair(CHAT, "12", "13", 2.0, "x")
    assert read_pair("", {"chosen": said("12"), "rejected": said("13")}).prompt == CHAT


def test_labels_of_lines() -> None:
    found = read_labelled("", {"prompt": "p", "lines": ["a", "b\n"], "labels": [1, None]}, "\n")
    assert found.lines == ("a\n", "b\n")
    assert found.labels == (1.0, None)
    steps = {"problem": "p", "steps": ["one", "two"], "labels": [True, False]}
    assert read_labelled("", steps, "\n").labels == (1.0, -1.0)
    split_up = read_labelled("", {"prompt": "p", "response": "a;b;#1", "labels": [1, 0, -1]}, ";")
    assert split_up.lines == ("a;", "b;", "#1")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": "p", "chosen": "a"}, "row 3: no 'rejected'"),
        ({"prompt": "p", "chosen": "a", "rejected": 3}, "row 3: rejected is neither"),
        ({"chosen": "a", "rejected": "b"}, "row 3: no prompt"),
        ({"prompt": "p", "chosen": "a", "rejected": "b", "margin": "x"}, "row 3: margin is 'x'"),
        (
            {"chosen": said("a"), "rejected": [*said("b"), *said("c")]},
            "row 3: chosen and rejected do not begin alike",
        ),
        (
            {"prompt": CHAT, "chosen": said("a")[1:], "rejected": [*said("b")[1:], *said("c")]},
            "do not begin alike: give each as one text",
        ),
    ],
)
def test_a_preference_that_is_none(row: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_pair("pairs.jsonl, row 3", row)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": "p", "lines": ["a"], "labels": [2]}, "row 3: label 1 is 2, and should be 1, 0"),
        ({"prompt": "p", "lines": ["a"], "labels": [0.5]}, "label 1 is 0.5"),
        ({"prompt": "p", "lines": ["a", "b"], "labels": [1]}, "row 3: 1 labels for 2 lines"),
        ({"prompt": "p", "lines": ["a"]}, "row 3: no labels"),
        ({"prompt": "p", "labels": [1]}, "row 3: no lines"),
        ({"lines": ["a"], "labels": [1]}, "row 3: no prompt"),
        ({"prompt": "p", "lines": [3], "labels": [1]}, "row 3: lines should be a list of texts"),
    ],
)
def test_labels_that_are_none(row: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_labelled("labels.jsonl, row 3", row, "\n")


def test_rows_say_where_they_are(tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text(json.dumps({"a": 1}) + "\n{\n")
    with pytest.raises(UserError, match=r"pairs\.jsonl, row 2: not JSON"):
        rows(str(path))
    assert rows(str(path), limit=1) == [(str(tmp_path), f"{path}, row 1", {"a": 1})]
    path.write_text(json.dumps({"prompt": "cut \ud83d"}) + "\n")
    with pytest.raises(UserError, match=r"pairs\.jsonl, row 1: half a character"):
        rows(str(path))


def test_answers_of_a_run_make_pairs_within_their_group() -> None:
    row = {"prompt": "p", "response": "r", "correct": True, "group_id": 4}
    assert read_answer("", row) == GroupAnswer("4", "p", "r", True)
    answers = [
        GroupAnswer("1", "p", "right", True), GroupAnswer("1", "p", "wrong", False),
        GroupAnswer("1", "p", "worse", False), GroupAnswer("1", "p", "unknown", None),
        GroupAnswer("2", "q", "right", True), GroupAnswer("2", "q", "right", True),
        GroupAnswer("3", "r", "same", True), GroupAnswer("3", "r", "same", False),
    ]  # fmt: skip
    found = pairs_of(answers, per_group=4)
    assert [(pair.chosen, pair.rejected) for pair in found] == [
        ("right", "wrong"),
        ("right", "worse"),
    ]
    assert len(pairs_of(answers, per_group=1)) == 1


def test_an_answer_that_met_the_length_limit_is_learned_without_an_end() -> None:
    """A run scores it as it is: with no end token."""
    row = {"prompt": "p", "response": "t", "correct": False, "group_id": 4, "status": "truncated"}
    (pair,) = pairs_of([read_answer("", row), GroupAnswer("4", "p", "right", True)], per_group=1)
    assert pair.cut == (False, True)
    tokenizer = build_tokenizer("right p")
    unit = BradleyTerryObjective(tokenizer, "never").unit(pair, training=True)
    assert [row.ids[-1] == tokenizer.eos_token_id for row in unit.rows] == [True, False]


def test_a_prompt_is_on_one_side() -> None:
    pairs = [PreferencePair(f"prompt {i % 40}", "a", "b", where=str(i)) for i in range(200)]
    found = split(pairs, fraction=0.2)
    assert len(found.training) + len(found.held_out) == 200
    assert not {p.prompt for p in found.training} & {p.prompt for p in found.held_out}
    chats: list[Prompt] = [[{"role": "user", "content": f"prompt {i}"}] for i in range(40)]
    both = split([*pairs, *(PreferencePair(chat, "a", "b") for chat in chats)], fraction=0.2)
    learned = {question_of(one.prompt) for one in both.training}
    assert learned.isdisjoint(question_of(one.prompt) for one in both.held_out), "text and chat"
    with pytest.raises(UserError, match="holds out 0 of 1"):
        split(pairs[:1], fraction=0.01)


def test_pairs_keep_the_images_of_their_prompts() -> None:
    text = {"type": "text", "text": CHAT[0]["content"]}
    chat = [{"role": "user", "content": [{"type": "image"}, text]}]
    image = {"bytes": b"\x89PNG", "path": None}
    answers = {"chosen": "12", "rejected": "13", "images": [image]}
    shown = [{"role": "user", "content": [{"type": "image", "image": image}, text]}]
    assert read_pair("", {"prompt": chat, **answers}).prompt == shown
    assert read_pair("", {"prompt": "<image>" + CHAT[0]["content"], **answers}).prompt == shown
    both = {"chosen": [*chat, *said("12")[1:]], "rejected": [*chat, *said("13")[1:]]}
    assert read_pair("", {**answers, **both}).prompt == shown
