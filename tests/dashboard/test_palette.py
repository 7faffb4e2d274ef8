"""Colours: legible on both backgrounds, told apart by everybody."""

import itertools
import re
import tomllib
from pathlib import Path

import pytest

import dashboard
from dashboard.palette import (
    ACCOUNTS,
    ACTIVITIES,
    DARK_BACKGROUND,
    LIGHT_BACKGROUND,
    SERIES,
    STYLE,
    tint,
)
from tests.dashboard.colour_science import DEFICIENCIES, blended, contrast, difference

THEME = tomllib.loads((Path(dashboard.__file__).parent / ".streamlit" / "config.toml").read_text())[
    "theme"
]
FADED = re.findall(r"^(\.hr-[^{]*?) \{(?:[^}]*;)?\s*opacity:(\.\d+)", STYLE, re.MULTILINE)
DECORATION = {".hr-sum .op"}
"""Signs between figures, which the figures' names say as well."""


def test_contrast_of_black_on_white_is_21() -> None:
    assert contrast("#000000", "#FFFFFF") == pytest.approx(21)


@pytest.mark.parametrize("background", [LIGHT_BACKGROUND, DARK_BACKGROUND])
@pytest.mark.parametrize("colour", sorted({*SERIES, *ACCOUNTS.values(), *ACTIVITIES.values()}))
def test_every_colour_is_legible_in_both_themes(colour: str, background: str) -> None:
    assert contrast(colour, background) >= 3


@pytest.mark.parametrize("deficiency", DEFICIENCIES)
def test_series_are_told_apart_by_colour_blind_readers(deficiency: str) -> None:
    closest = min(difference(a, b, deficiency) for a, b in itertools.combinations(SERIES, 2))
    assert closest > 20  # 2.3 is a just noticeable difference


def test_working_held_loading_and_waiting_are_different_colours() -> None:
    kinds = [ACTIVITIES[kind] for kind in ("working", "loading", "held", "waiting", "evaluation")]
    assert set(kinds) == set(SERIES)


@pytest.mark.parametrize("deficiency", DEFICIENCIES)
def test_activities_are_told_apart_in_a_legend(deficiency: str) -> None:
    pairs = itertools.combinations(ACTIVITIES.values(), 2)
    assert min(difference(a, b, deficiency) for a, b in pairs) > 15


def test_tint_keeps_the_colour() -> None:
    assert tint("#FF8000", 0.5) == "rgba(255,128,0,0.50)"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_backgrounds_are_those_of_the_theme(scheme: str) -> None:
    known = {"light": LIGHT_BACKGROUND, "dark": DARK_BACKGROUND}
    assert THEME[scheme]["backgroundColor"] == known[scheme]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("background", ["backgroundColor", "secondaryBackgroundColor"])
def test_text_is_legible_however_quiet(scheme: str, background: str) -> None:
    """Text has a contrast of 4.5 to 1 (WCAG 2, level AA), faded or a link."""
    theme = THEME[scheme]
    under = theme[background]
    quiet = {name: float(opacity) for name, opacity in FADED if name not in DECORATION}
    assert len(quiet) >= 5
    for name, opacity in quiet.items():
        assert contrast(blended(theme["textColor"], under, opacity), under) >= 4.5, name
    assert contrast(theme["linkColor"], under) >= 4.5


def test_no_text_has_a_colour_of_the_palette() -> None:
    """They are for marks: their contrast of 3 to 1 is too little for text."""
    assert not re.search(r"[{;]color:#", STYLE)
