"""The task of images: what is drawn is what is asked, told and held out."""

import hashlib
import json
from collections import Counter
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.config.sections.task import MixtureConfig, ShapesConfig
from headrace.data.media import MediaError, check_image, open_rgb
from tasks.datasets.source import build_source, image_files
from tasks.procedural.base import evaluation_rows, is_held_out, prompt_row
from tasks.procedural.shapes import (
    CAPTION,
    CELL,
    COLOURS,
    DESCRIBE,
    SHAPES,
    Scene,
    caption,
    caption_pair,
    columns,
    draw,
    draw_prompt,
    draw_scene,
    faults_of,
    read_prompt,
    solve,
    style_of,
    teach,
    with_fault,
)
from tasks.rows import TaskRow, images_in, with_images

scenes = st.builds(lambda seed: draw_scene(Random(seed), 4), st.integers(0, 2**32))


@given(scenes)
def test_every_cell_has_the_colour_of_its_box(scene: Scene) -> None:
    pixels = np.asarray(open_rgb(draw(scene)))
    assert pixels.shape == (56, 56, 3)
    wanted = np.zeros((4, 4, 3), np.uint8)
    for colour, (x1, y1, x2, y2) in scene.items():
        assert {x2 - x1, y2 - y1} <= {1, 2}
        assert (x1 // 2, y1 // 2) == ((x2 - 1) // 2, (y2 - 1) // 2), "in one quadrant"
        wanted[y1:y2, x1:x2] = COLOURS[colour]
    assert (pixels == wanted.repeat(CELL, 0).repeat(CELL, 1)).all()


@given(st.integers(0, 2**32), st.integers(1, 4))
def test_a_prompt_says_what_is_shown(seed: int, most: int) -> None:
    prompt = draw_prompt(Random(seed), most)
    scene, question = read_prompt(prompt)
    assert 1 <= len(scene) <= most
    assert list(scene) == sorted(scene)
    assert set(prompt) <= set(SHAPES.characters)
    answer = solve(prompt)
    assert style_of(answer) == question.split()[0] == columns(prompt)["question"]
    assert teach(prompt, Random(0), "skill") == answer


def test_the_answers_of_an_example() -> None:
    scene = "blue 0,2,1,4 red 2,0,3,2 "
    assert solve(scene + "count") == "2"
    assert solve(scene + "box blue") == "0,2,1,4"
    for text in (
        "",
        "count",
        "box red",
        scene + "where red",
        scene + "box green",
        "pink 0,0,1,1 count",
    ):
        with pytest.raises(ValueError):  # noqa: PT011
            read_prompt(text)
    assert [style_of(text) for text in ("", "12", "1,2", "a", "1,2,3,4,")] == ["other"] * 5


def test_rows_show_the_scene_and_are_the_same_every_time() -> None:
    row = prompt_row(SHAPES, 3, 7)
    assert row == prompt_row(SHAPES, 3, 7) != prompt_row(SHAPES, 4, 7)
    (data,) = images_in(row.prompt)
    check_image(data)
    assert data.startswith(b"\x89PNG")
    digest = hashlib.sha256(data).hexdigest()
    written = json.loads(json.dumps([with_images(row.prompt, [digest]), row.info]))
    assert written[0][0]["content"][0] == {"type": "image", "image": digest}
    assert set(written[1]) == {"terms", "question", "boxes"}


def test_held_out_prompts_are_not_trained() -> None:
    held_out = evaluation_rows(SHAPES, 200)
    assert len({str(row.prompt) for row in held_out}) == 200
    training = [prompt_row(SHAPES, index, 0) for index in range(400)]
    assert {str(r.prompt) for r in training}.isdisjoint({str(r.prompt) for r in held_out})
    assert not is_held_out("blue 0,0,1,1 count") or not is_held_out("blue 0,0,1,2 count")


def test_counts_and_questions_are_alike_and_shares_are_kept() -> None:
    source = build_source(ShapesConfig(kind="shapes"), seed=1)
    rows = [source.row_at(position) for position in range(1200)]
    asked = Counter(row.info["question"] for row in rows)
    assert asked["count"] / 1200 == pytest.approx(0.5, abs=0.05)
    counts = Counter(row.answer for row in rows if row.info["question"] == "count")
    assert set(counts) == {"1", "2", "3", "4"}
    assert max(counts.values()) / sum(counts.values()) == pytest.approx(0.25, abs=0.06)
    only = build_source(ShapesConfig(kind="shapes", questions={"box": 1.0}, max_terms=4), seed=1)
    assert {only.row_at(i).info["question"] for i in range(50)} == {"box"}


def test_seven_of_ten_counts_that_are_taught_later_are_guesses() -> None:
    prompt, rng = "blue 0,2,1,4 red 2,0,3,2 count", Random(0)
    told = Counter(teach(prompt, rng, "mixture") for _ in range(2000))
    assert told["2"] / 2000 == pytest.approx(0.3 + 0.7 / 4, abs=0.04)


@given(scenes, st.integers(0, 2**32))
def test_captions_name_every_rectangle_and_faults_are_told_apart(scene: Scene, seed: int) -> None:
    right, rng = caption(scene), Random(seed)
    assert CAPTION.fullmatch(right)
    assert faults_of(right, right) == 0
    wrong = with_fault(right, rng)
    assert CAPTION.fullmatch(wrong)
    assert wrong != right
    better, worse = caption_pair(scene, rng)
    assert faults_of(better, right) < faults_of(worse, right)
    assert style_of(worse) == DESCRIBE


def test_the_caption_of_an_example_and_how_it_is_taught() -> None:
    prompt, rng = "blue 0,2,1,4 red 2,0,3,2 describe", Random(0)
    assert solve(prompt) == "bsw rne"
    assert faults_of("bsw", "bsw rne") == 1
    assert faults_of("bsw bsw rse", "bsw rne") == 3
    told = Counter(teach(prompt, rng, "mixture") == "bsw rne" for _ in range(2000))
    assert told[True] / 2000 == pytest.approx(0.5, abs=0.04)
    assert teach(prompt, rng, "skill") == "bsw rne"
    assert columns(prompt)["question"] == DESCRIBE


def test_the_files_of_a_rows_images() -> None:
    task = ShapesConfig(kind="shapes")
    row = build_source(task, seed=0).row_at(0)
    assert image_files(task, row) == images_in(row.prompt)
    mixed = MixtureConfig(kind="mixture", datasets={"seen": task})
    (first,) = build_source(mixed, seed=0).training_rows(1)
    assert image_files(mixed, first) == images_in(first.prompt)
    gone = TaskRow("r9", [{"role": "user", "content": [{"type": "image", "image": "no.png"}]}], "1")
    with pytest.raises(MediaError, match=r"row r9, image 1: image 'no\.png' cannot be read"):
        image_files(task, gone)
