"""Boxes, points and texts read from images: golden values, and answers that are none."""

import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.config.sections.task import BandsConfig
from headrace.data.coordinates import read_groups
from headrace.data.edit_distance import edit_distance
from rewards.functions.results import Verdict
from tests.rewards.kinds.rows import judged, verifier

TRUE = "[100, 200, 300, 400]"


@pytest.mark.parametrize(
    "text",
    [
        "150,200,350,400",
        "<bbox>150 200 350 400</bbox>",
        "(150,200),(350,400)",
        'Two: ```json\n[{"bbox_2d": [150, 200, 350, 400], "label": "cup 1"}]\n```',
        "It is at [150.0, 200, 350,\n400].",
    ],
)
def test_boxes_however_they_are_written(text: str) -> None:
    verdict = judged(verifier("box"), text, TRUE)
    assert verdict.reward == pytest.approx(0.6)
    assert verdict.correct
    assert verdict.parts == {"correct": 1.0, "iou": verdict.reward, "boxes": 1.0}


@pytest.mark.parametrize(
    ("text", "answer", "expected"),
    [
        ("0,0,2,2", "1,1,3,3", 1 / 7),
        ("0,0,4,4", "1,1,3,3", 0.25),
        ("0,0,1,1", "2,2,3,3", 0.0),
        ("2,2,0,0", "0,0,2,2", 0.0),
        ("nan,nan,nan,nan", "0,0,2,2", 0.0),
        ("0,0,inf,2", "0,0,2,2", 0.0),
        ("-1,0,2,2", "0,0,2,2", 0.0),
        ("0,0,1000,2", "0,0,999,2", 0.0),
        ("", "0,0,2,2", 0.0),
        ("0,0,2", "0,0,2,2", 0.0),
        ("no box 2d", "0,0,2,2", 0.0),
        # Half of a box more, and a box too few.
        ("0,0,2,2 5,5", "0,0,2,2", 0.5),
        ("0,0,2,2", "[[0,0,2,2], [5,5,6,6]]", 0.5),
        ("5,5,6,6 and 0,0,2,2", "[[0,0,2,2], [5,5,6,6]]", 1.0),
    ],
)
def test_the_score_of_boxes(text: str, answer: str, expected: float) -> None:
    verdict = judged(verifier("box"), text, answer)
    assert verdict.reward == pytest.approx(expected)
    assert verdict.correct == (expected >= 0.5)


def test_many_boxes_and_long_texts_are_quick() -> None:
    began = time.process_time()
    thousand = "0,0,2,2 " * 1000
    assert judged(verifier("box"), thousand, "0,0,2,2").reward == pytest.approx(0.001)
    assert judged(verifier("box"), thousand, thousand).reward == 1.0
    for text in ("0,0,2,2 " * 100_000, "1 x " * 200_000, "9" * 10**6, "1," * 500_000, "((" * 10**6):
        assert judged(verifier("box"), text, "0,0,2,2").reward < 0.01
    assert time.process_time() - began < 20, "linear"


def test_a_small_grid_a_column_and_pixels() -> None:
    grid = verifier("box", largest=4, column="boxes", correct_from=1.0)
    assert judged(grid, "0,2,1,4", "", boxes={"red": [0, 2, 1, 4]}).correct
    assert judged(grid, "0,2,1,5", "", boxes=[0, 2, 1, 4]).reward == 0.0
    pixels = verifier("box", size_column="size")
    assert judged(pixels, "0,0,500,250", "[0, 0, 320, 120]", size=[640, 480]).reward == 1.0
    # A box that is smaller than a step of the grid can be named.
    small, large = "[100, 200, 101, 203]", [4000, 4000]
    assert judged(pixels, "24,50,26,51", small, size=large).reward == 1.0
    assert judged(pixels, "25,50,26,51", small, size=large).reward == pytest.approx(0.5)
    shares = verifier("box", size_column="size", largest=1)
    quarter = "[160, 120, 320, 240]"
    assert judged(shares, "0.25,0.25,0.5,0.5", quarter, size=[640, 480]).reward == 1.0
    assert judged(shares, "0,0,1,1", quarter, size=[640, 480]).reward == pytest.approx(1 / 16)
    with pytest.raises(ValueError, match=r"\[width, height\]"):
        judged(pixels, "0,0,1,1", "[0, 0, 320, 120]", size=[640, 0])


def test_thoughts_and_markers_are_left_out() -> None:
    verify = verifier("box", thought="think", answer_marker="#")
    text = "<think>#9,9,10,10</think> perhaps 5,5,6,6\n#0,0,2,2"
    assert judged(verify, text, "0,0,2,2").reward == 1.0
    assert judged(verify, "<think>#0,0,2,2", "0,0,2,2").reward == 0.0


@pytest.mark.parametrize("kind", ["box", "point"])
@pytest.mark.parametrize("answer", ["2,2,0,0", "red", "1,2,3", "nan,0,1,1", "0,0,1300,2", " "])
def test_rows_without_a_true_box_are_errors(kind: str, answer: str) -> None:
    with pytest.raises(ValueError, match=r"true box|is empty"):
        judged(verifier(kind), "0,0,1,1", answer)


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("<point>150 300</point>", True),
        ("100,200", True),
        ("99,300", False),
        ("150,300 150,300", False),
        ("nan,300", False),
        ("150", False),
        ("Here: (610, 640)", True),
    ],
)
def test_a_point_in_one_of_the_boxes(text: str, right: bool) -> None:
    verdict = judged(verifier("point"), text, "[[100,200,300,400],[600,600,650,650]]")
    assert verdict.correct is right
    assert verdict.reward == float(right)


def test_groups_of_numbers() -> None:
    assert read_groups("at 3 cups: 1,2,3,4 and v2.5", 4) == [(1, 2, 3, 4)]
    assert math.isnan(read_groups("1,2,3,4,5", 4)[1][0])
    assert read_groups("12px 1.5.2 a1,2", 2) == []


@pytest.mark.parametrize(
    ("text", "answer", "expected"),
    [
        ("STOP", "STOP", 1.0),
        ("  STOP\n sign ", "STOP sign", 1.0),
        ("ST0P", "STOP", 0.75),
        ("", "STOP", 0.0),
        ("STOPS", "STOP", 0.8),
        ("\uff33TOP", "STOP", 1.0),
        ("stop", "STOP", 0.0),
    ],
)
def test_the_score_of_a_text(text: str, answer: str, expected: float) -> None:
    verdict = judged(verifier("ocr", correct_from=0.8), text, answer)
    assert verdict.reward == pytest.approx(expected)
    assert verdict.correct == (expected >= 0.8)
    if text == "stop":
        assert judged(verifier("ocr", ignore_case=True), text, answer).reward == 1.0


@given(st.text("abc", max_size=12), st.text("abc", max_size=12))
def test_edits_are_those_of_the_table(first: str, second: str) -> None:
    row = list(range(len(second) + 1))
    for i, a in enumerate(first, start=1):
        before, row = row, [i]
        for j, b in enumerate(second, start=1):
            row.append(min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (a != b)))
    assert edit_distance(first, second) == edit_distance(second, first) == row[-1]


def test_counts_need_no_kind_of_their_own() -> None:
    exact = verifier("number", relative=0.0)
    assert judged(exact, "There are 3 rectangles.", "3") == Verdict(
        1.0, True, {"correct": 1.0, "error": 0.0}
    )
    assert not judged(exact, "4", "3").correct
    assert judged(verifier("number", relative=0.0, absolute=1.0), "4", "3").correct


def test_a_filter_by_pass_rate() -> None:
    """0 < c / 16 <= 0.75 keeps c from 1 to 12 (Seed1.5-VL)."""
    bands = BandsConfig(edges=(1 / 16, 0.76), ask=(0.0, 1.0, 0.0))
    assert [c for c in range(17) if bands.asked(c / 16)] == list(range(1, 13))
