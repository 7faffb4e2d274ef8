"""Token colouring: scales, cuts, and responses that try to be markup."""

from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from dashboard import tokens
from dashboard.tokens import Scale, background, colour_scale, token_html
from storage.queries import TrajectoryDetail, trajectory_detail, trajectory_page
from tests.dashboard.scripted_run import MARKUP, MARKUP_ID


class Reader(HTMLParser):
    """Tags and text as a browser takes them, window marks left out of the text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""
        self._in_mark = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._in_mark = ("class", "cut") in attrs

    def handle_data(self, data: str) -> None:
        self.text += "" if self._in_mark else data


@pytest.fixture(scope="module")
def trained(run_dir: Path) -> TrajectoryDetail:
    """A response of several windows that were trained."""
    rows = trajectory_page(run_dir, where="length > 70 and reward = 1", sort="trajectory_id").rows
    return trajectory_detail(run_dir, int(rows["trajectory_id"].iloc[-1]))


@pytest.mark.parametrize("by", tokens.COLOURINGS)
def test_a_response_cannot_be_markup(run_dir: Path, by: str) -> None:
    reader = Reader(token_html(trajectory_detail(run_dir, MARKUP_ID), by))
    assert set(reader.tags) == {"div", "span"}
    assert reader.text == f"{MARKUP}<eos>"


def test_a_prompt_cannot_be_markup() -> None:
    assert Reader(tokens.prompt_html(MARKUP)).tags == ["div"]


def test_every_token_is_there_once_with_its_text(trained: TrajectoryDetail) -> None:
    html = token_html(trained, "value")
    assert html.count("title=") == len(trained.tokens.token_ids)
    assert trained.pieces is not None
    assert Reader(html).text == "".join(trained.pieces)


def test_windows_are_marked_where_they_begin(trained: TrajectoryDetail) -> None:
    cuts = tokens.window_cuts(trained)
    assert [cut.position for cut in cuts] == list(range(0, 30 * len(cuts), 30))
    assert len(cuts) > 2
    assert cuts[0].text.startswith("window 0: trained in update")
    assert token_html(trained, "version").count('class="cut"') == len(cuts)


def test_tokens_left_out_of_the_loss_are_dotted(run_dir: Path) -> None:
    rows = trajectory_page(run_dir, where="length > 70", limit=100).rows
    details = [trajectory_detail(run_dir, int(key)) for key in rows["trajectory_id"]]
    seen = 0
    for detail in details:
        masked = detail.tokens.mask_reasons >= 0
        assert token_html(detail, "logprob").count('class="out"') == masked.sum()
        seen += int(masked.sum())
    assert seen > 0


def test_advantages_are_blue_and_orange_around_zero() -> None:
    scale = colour_scale(np.array([-1.0, 0.5, np.nan]), "advantage")
    assert scale.low == -scale.high
    good, bad = background(0.5, "advantage", scale), background(-0.5, "advantage", scale)
    assert good is not None
    assert good != bad
    assert background(0.0, "advantage", scale) == good.rsplit(",", 1)[0] + ",0.00)"
    assert background(float("nan"), "advantage", scale) is None


def test_surprise_begins_at_zero_and_one_token_does_not_pale_the_others() -> None:
    values = np.array([*np.linspace(0.1, 1.0, 99), 1000.0])
    scale = colour_scale(values, "logprob")
    assert scale.low == 0.0
    assert scale.high < 30


def test_nothing_known_has_a_scale_too() -> None:
    assert colour_scale(np.array([np.nan]), "value") == Scale(0.0, 0.0, 1.0)


def test_a_response_nobody_trained_says_so(run_dir: Path) -> None:
    rows = trajectory_page(run_dir, filters={"status": "running"}).rows
    detail = trajectory_detail(run_dir, int(rows["trajectory_id"].iloc[0]))
    assert "no update has trained" in tokens.scale_html(detail, "advantage")
    assert "no update has trained" not in tokens.scale_html(detail, "logprob")


def test_long_responses_come_in_parts(
    trained: TrajectoryDetail, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "MAX_TOKENS", 32)
    parts = [token_html(trained, "logprob", first) for first in range(0, 97, 32)]
    assert sum(part.count("title=") for part in parts) == min(128, len(trained.tokens.token_ids))
