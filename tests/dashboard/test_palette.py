"""Colours: legible on both backgrounds, told apart by everybody."""

import itertools

import pytest

from dashboard.palette import (
    ACCOUNTS,
    ACTIVITIES,
    DARK_BACKGROUND,
    FAINT,
    LIGHT_BACKGROUND,
    SERIES,
    tint,
)
from tests.dashboard.colour_science import DEFICIENCIES, contrast, difference


def test_contrast_of_black_on_white_is_21() -> None:
    assert contrast("#000000", "#FFFFFF") == pytest.approx(21)


@pytest.mark.parametrize("background", [LIGHT_BACKGROUND, DARK_BACKGROUND])
@pytest.mark.parametrize(
    "colour", sorted({*SERIES, *ACCOUNTS.values(), *ACTIVITIES.values()} - {FAINT})
)
def test_every_colour_is_legible_in_both_themes(colour: str, background: str) -> None:
    assert contrast(colour, background) >= 3


@pytest.mark.parametrize("deficiency", DEFICIENCIES)
def test_series_are_told_apart_by_colour_blind_readers(deficiency: str) -> None:
    closest = min(difference(a, b, deficiency) for a, b in itertools.combinations(SERIES, 2))
    assert closest > 20  # 2.3 is a just noticeable difference


def test_working_held_loading_and_waiting_are_different_colours() -> None:
    kinds = [ACTIVITIES[kind] for kind in ("working", "loading", "held", "waiting", "evaluation")]
    assert set(kinds) == set(SERIES)


def test_tint_keeps_the_colour() -> None:
    assert tint("#FF8000", 0.5) == "rgba(255,128,0,0.50)"
