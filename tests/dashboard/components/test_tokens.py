"""Tokens: colours, numbers, fates and borders, and responses that try to be markup."""

import json
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dashboard
from dashboard.components import token_facts, tokens
from dashboard.components.reading import AnswerPart, answer_parts, replies
from dashboard.components.token_facts import answer_data, answer_json, borders, columns, fates
from dashboard.components.tokens import (
    Scale,
    background,
    colour_scale,
    colour_values,
    difference,
    difference_text,
)
from headrace.protocol.messages.diagnostics import COLUMN_NAMES
from storage.queries import REASONS, SOURCES, TrajectoryDetail, trajectory_detail, trajectory_page
from storage.text.token_table import TokenTable
from tests.dashboard.scripted_run import MARKUP, MARKUP_ID


class Reader(HTMLParser):
    """Tags and text as a browser takes them."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def trained(run_dir: Path) -> TrajectoryDetail:
    """A response of several windows that were trained."""
    rows = trajectory_page(run_dir, where="length > 70 and reward = 1", sort="trajectory_id").rows
    return trajectory_detail(run_dir, int(rows["trajectory_id"].iloc[-1]))


@pytest.mark.parametrize("by", tokens.COLOURINGS)
def test_a_response_goes_to_the_browser_as_text(run_dir: Path, by: str) -> None:
    """It is data of a component, which JSON carries, and no part of any HTML."""
    detail = trajectory_detail(run_dir, MARKUP_ID)
    data = json.loads(json.dumps(answer_data(detail, by), allow_nan=False))
    assert "".join(data["texts"]) == f"{MARKUP}<eos>"
    assert all(colour == "" or colour.startswith("rgba(") for colour in data["palette"])
    assert set(Reader(tokens.scale_html(detail, by)).tags) <= {"div", "span", "i"}


def test_the_component_makes_no_html_of_strings() -> None:
    """Whatever it is given, it sets as text."""
    script = (Path(dashboard.__file__).parent / "static" / "tokens.js").read_text()
    for way in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "Function(",
    ):
        assert way not in script
    assert "http" not in script


def test_a_prompt_cannot_be_markup() -> None:
    assert Reader(tokens.prompt_html(MARKUP)).tags == ["div"]


def test_every_token_is_there_once_with_its_numbers(trained: TrajectoryDetail) -> None:
    data = answer_data(trained, "value")
    size = len(trained.tokens.token_ids)
    assert data["texts"] == trained.pieces
    assert len(data["colours"]) == len(data["fates"]) == data["size"] == size
    assert all(len(values) == size for values in data["columns"].values())
    assert data["columns"]["id"] == trained.tokens.token_ids.tolist()
    values = trained.tokens.figures["values"]
    assert data["columns"]["value"][0] == pytest.approx(float(values[0]), rel=1e-5)
    assert [data["why"][fate] for fate in data["fates"]] == fates(trained)


def test_windows_are_marked_where_they_begin(trained: TrajectoryDetail) -> None:
    cuts = tokens.window_cuts(trained)
    assert [at for at, _ in cuts] == list(range(0, 30 * len(cuts), 30))
    assert len(cuts) > 2
    assert cuts[0][1].startswith("window 0: trained in update")
    marks = borders(trained)
    assert [at for at, kind, _ in marks if kind == "cut"] == [at for at, _ in cuts]
    versions = trained.tokens.versions
    changes = (np.flatnonzero(np.diff(versions)) + 1).tolist()
    assert [at for at, kind, _ in marks if kind == "weights"] == changes != []
    assert f"weights {versions[changes[0]]}" in [text for _, _, text in marks]


def test_tokens_left_out_of_the_loss_are_dotted_and_say_why(run_dir: Path) -> None:
    rows = trajectory_page(run_dir, where="length > 70", limit=100).rows
    details = [trajectory_detail(run_dir, int(key)) for key in rows["trajectory_id"]]
    seen = 0
    for detail in details:
        masked = detail.tokens.mask_reasons >= 0
        assert answer_data(detail, "logprob")["left_out"] == np.flatnonzero(masked).tolist()
        said = fates(detail)
        assert [text.startswith("not in the loss: ") for text in said] == masked.tolist()
        assert [text.startswith("trained in") for text in said] == [
            bool(loss) for loss in detail.tokens.loss_mask
        ]
        seen += int(masked.sum())
    assert seen > 0


def table_of(size: int, **said: Any) -> TokenTable:
    """Tokens of the policy about which only this is known."""
    plain = TokenTable(
        token_ids=np.arange(size, dtype=np.int32),
        logprobs=np.full(size, -0.5, np.float32),
        versions=np.full(size, 3, np.int64),
        sources=np.full(size, SOURCES.index("policy"), np.int8),
        turns=np.zeros(size, np.int32),
        roles=np.zeros(size, np.int8),
        marks=np.full(size, -1, np.int8),
        loss_weights=np.ones(size, np.float32),
        window_index=np.full(size, -1, np.int32),
        trained_at_update=np.full(size, -1, np.int64),
        loss_mask=np.zeros(size, np.uint8),
        mask_reasons=np.full(size, -1, np.int8),
        figures={name: np.full(size, np.nan, np.float32) for name in COLUMN_NAMES},
    )
    given: dict[str, Any] = {name: np.asarray(value) for name, value in said.items()}
    return plain._replace(**given)


def detail_of(table: TokenTable, windows: list[dict[str, Any]]) -> TrajectoryDetail:
    names = ["index", "start", "end", "state", "reason", "update", "version"]
    return TrajectoryDetail(
        row={"trajectory_id": 5, "purpose": "train"},
        reward_parts={},
        rewards=[],
        prompt_ids=np.zeros(0, np.int32),
        images=[],
        tokens=table,
        text=None,
        pieces=None,
        said={},
        windows=pd.DataFrame(windows, columns=names),
        siblings=pd.DataFrame(),
    )


def window(index: int, start: int, end: int, state: str, **said: Any) -> dict[str, Any]:
    return {"index": index, "start": start, "end": end, "state": state} | said


@pytest.fixture
def mixed() -> TrajectoryDetail:
    """Ten tokens: two trained (one of weight 2), one masked, two inserted by a tool, two of a
    dropped window, one that waits, two of no window yet."""
    mask, stale = REASONS.index("boundary_mask"), REASONS.index("stale")
    table = table_of(
        10,
        versions=[3, 3, 4, -1, -1, 5, 5, 6, 6, 6],
        sources=[SOURCES.index(s) for s in ["policy"] * 3 + ["tool"] * 2 + ["policy"] * 5],
        turns=[0, 0, 0, 1, 1, 2, 2, 2, 2, 2],
        loss_weights=np.array([1, 2, 1, 0, 0, 1, 1, 1, 1, 1], np.float32),
        window_index=[0, 0, 0, 0, 0, 1, 1, 2, -1, -1],
        trained_at_update=[9, 9, 9, 9, 9, -1, -1, -1, -1, -1],
        loss_mask=[1, 1, 0, 0, 0, 0, 0, 0, 0, 0],
        mask_reasons=[-1, -1, mask, -1, -1, stale, stale, -1, -1, -1],
    )
    table.figures["learner_logprobs"][:3] = -0.5 + np.log([1.0, 2.0, 0.5])
    windows = [
        window(0, 0, 5, "trained", update=9, version=6),
        window(1, 5, 7, "dropped", reason="stale"),
        window(2, 7, 8, "ready"),
    ]
    return detail_of(table, windows)


def test_each_token_says_why_it_was_trained_or_not(mixed: TrajectoryDetail) -> None:
    said = fates(mixed)
    assert said[0] == "trained in update 9"
    assert said[1] == "trained in update 9, and counted 2 times"
    assert said[2].startswith("not in the loss: boundary mask (")
    assert said[2].endswith(", its window was trained in update 9")
    assert said[3] == "not trained: it was inserted (tool), and is context of what follows"
    assert said[5].startswith("not in the loss: stale (")
    assert said[5].endswith(", with all of its window")
    assert said[7] == "not trained yet: its window is ready"
    assert said[9] == "not trained yet: its window is not complete"


def test_tokens_of_an_evaluation_wait_for_no_window() -> None:
    sources = [SOURCES.index(source) for source in ("policy", "tool")]
    table = table_of(2, versions=[3, -1], sources=sources)
    detail = detail_of(table, [])
    asked = replace(detail, row=detail.row | {"purpose": "eval"})
    assert fates(asked)[0] == "never trained: it is of an evaluation"
    assert fates(asked)[1].startswith("not trained: it was inserted (tool)")
    assert "no update trains the answers of an evaluation" in tokens.scale_html(asked, "value")


def test_a_reply_is_read_behind_all_that_the_agent_sent(mixed: TrajectoryDetail) -> None:
    """The policy's own words begin no turn, whatever they look like."""
    said = {0: "<|im_start|>system\nno", 3: "<|im_start|>tool\n42", 5: "right"}
    read = replace(mixed, said=said)
    first, second = replies(read)
    assert (first, second) == (slice(0, 3), slice(5, 10))
    assert answer_parts(read, slice(second.start)) == [
        AnswerPart("answer", "text", "<|im_start|>system\nno"),
        AnswerPart("tool", "text", "42"),
    ]
    assert answer_parts(read, second) == [AnswerPart("answer", "text", "right")]


def test_ratio_age_and_loss_weight(mixed: TrajectoryDetail) -> None:
    nan = float("nan")
    figures = {name: colour_values(mixed, name) for name in ("ratio", "age", "loss weight")}
    assert np.allclose(figures["ratio"][:4], [1, 2, 0.5, nan], equal_nan=True)
    assert np.allclose(figures["age"][:6], [3, 3, 2, nan, nan, nan], equal_nan=True)
    assert np.allclose(
        figures["loss weight"], [1, 2, 0, nan, nan, 0, 0, nan, nan, nan], equal_nan=True
    )
    scale = colour_scale(figures["ratio"], "ratio")
    assert scale.middle == 1
    plain = background(1.0, "ratio", scale)
    assert plain is not None
    assert plain.endswith(",0.00)")
    assert background(2.0, "ratio", scale) != background(0.5, "ratio", scale)


def test_borders_of_windows_turns_and_weights(mixed: TrajectoryDetail) -> None:
    assert borders(mixed) == [
        [0, "cut", "window 0: trained in update 9"],
        [0, "turn", "turn 0: policy"],
        [2, "weights", "weights 4"],
        [3, "turn", "turn 1: tool"],
        [5, "cut", "window 1: dropped, stale"],
        [5, "turn", "turn 2: policy"],
        [5, "weights", "weights 5"],
        [7, "cut", "window 2: is ready"],
        [7, "weights", "weights 6"],
    ]


def test_what_is_not_recorded_is_said_to_be_so(mixed: TrajectoryDetail) -> None:
    assert "not recorded for single tokens" in tokens.scale_html(mixed, "entropy")
    assert "no value model" in tokens.scale_html(mixed, "value")
    assert "last window of an answer" in tokens.scale_html(mixed, "return")
    assert "value" not in columns(mixed)
    assert columns(mixed)["weights"] == [3, 3, 4, None, None, 5, 5, 6, 6, 6]


def test_an_answer_as_json(mixed: TrajectoryDetail, trained: TrajectoryDetail) -> None:
    told = json.loads(answer_json(mixed))
    assert told["trajectory"] == {"trajectory_id": 5, "purpose": "train"}
    first = told["tokens"][0]
    assert (first["position"], first["text"], first["weights"]) == (0, "[0]", 3)
    assert first["why"] == "trained in update 9"
    assert "value" not in first
    assert "weights" not in told["tokens"][3]
    whole = json.loads(answer_json(trained))
    assert [token["text"] for token in whole["tokens"]] == trained.pieces


def test_where_two_answers_differ() -> None:
    found = difference([1, 2, 3, 4, 5], [1, 2, 9, 4, 5, 6])
    assert found.left.tolist() == [False, False, True, False, False]
    assert found.right.tolist() == [False, False, True, False, False, True]
    assert (found.same, found.together) == (4, 2)
    assert difference_text(found, 7, 8) == (
        "They begin with the same 2 tokens and share 4; 1 are in 7 alone and 2 in 8 alone "
        "(underlined)."
    )
    same = difference([1, 2], [1, 2])
    assert difference_text(same, 7, 8) == "Both say the same, all 2 tokens."
    assert difference([], [1]).right.tolist() == [True]


def test_what_differs_goes_to_the_browser(trained: TrajectoryDetail) -> None:
    differs = np.zeros(len(trained.tokens.token_ids), bool)
    differs[[3, 40]] = True
    assert answer_data(trained, "value", differs=differs)["differs"] == [3, 40]
    assert answer_data(trained, "value", 32, differs=differs)["differs"][:1] == [8]


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
    monkeypatch.setattr(token_facts, "MAX_TOKENS", 32)
    parts = [answer_data(trained, "logprob", first) for first in range(0, 97, 32)]
    assert trained.pieces is not None
    assert [text for part in parts for text in part["texts"]] == trained.pieces[:128]
    assert all(part["size"] == len(trained.pieces) for part in parts)
    marks = [border for part in parts for border in part["borders"]]
    assert marks == [border for border in borders(trained) if border[0] < 128]
