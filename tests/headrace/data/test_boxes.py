"""Boxes: the golden values of grounding, and boxes that are none."""

import math
from itertools import permutations
from random import Random

import pytest

from headrace.data.coordinates import Box, mean_iou, to_grid


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ((0, 0, 2, 2), (1, 1, 3, 3), 1 / 7),
        ((0, 0, 4, 4), (1, 1, 3, 3), 0.25),
        ((0, 0, 1, 1), (2, 2, 3, 3), 0.0),
        ((100, 200, 300, 400), (150, 200, 350, 400), 0.6),
        ((2, 2, 0, 0), (0, 0, 2, 2), 0.0),
        ((0, 0, 2, 2), (0, 0, 2, 2), 1.0),
        ((0, 0, 0, 2), (0, 0, 0, 2), 0.0),
        ((math.nan, 0, 2, 2), (0, 0, 2, 2), 0.0),
        ((0, 0, math.inf, 2), (0, 0, 2, 2), 0.0),
    ],
)
def test_iou(first: Box, second: Box, expected: float) -> None:
    assert mean_iou([first], [second]) == pytest.approx(expected)
    assert mean_iou([second], [first]) == pytest.approx(expected)


def test_places_on_the_grid() -> None:
    assert to_grid((320, 120), (640, 480)) == (500, 250)
    assert to_grid((0, 0, 640, 480), (640, 480)) == (0, 0, 999, 999)
    assert to_grid((100, 200, 101, 203), (4000, 4000)) == (24, 50, 26, 51)
    assert to_grid((160, 120, 320, 240), (640, 480), 1) == (0.25, 0.25, 0.5, 0.5)


def test_boxes_are_matched_as_well_as_they_can_be() -> None:
    rng = Random(0)
    for _ in range(50):
        given, wanted = ([_box(rng) for _ in range(4)] for _ in range(2))
        pairs = {(a, b): mean_iou([a], [b]) for a in given for b in wanted}
        orders = (
            sum(pairs[pair] for pair in zip(given, order, strict=True)) / 4
            for order in permutations(wanted)
        )
        assert mean_iou(given, wanted) == pytest.approx(max(orders))


def test_boxes_too_many_and_too_few_count() -> None:
    box, other = (0.0, 0.0, 2.0, 2.0), (5.0, 5.0, 6.0, 6.0)
    assert mean_iou([box], [box, other]) == 0.5
    assert mean_iou([other, box, (2, 2, 0, 0)], [box, other]) == pytest.approx(2 / 3)
    assert mean_iou([], [box]) == mean_iou([box], []) == 0.0


def _box(rng: Random) -> Box:
    x, y = rng.uniform(0, 3), rng.uniform(0, 3)
    return (x, y, x + rng.uniform(0.5, 3), y + rng.uniform(0.5, 3))
