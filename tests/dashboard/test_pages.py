"""Every page through Streamlit's own test harness: no exception, and the store's numbers."""

import json
import re
import sys
import time
from collections.abc import Callable
from html import escape, unescape
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pandas as pd
import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

import dashboard
from dashboard.components.panels import ALONG, ANSWERS
from dashboard.components.tokens import COLOURINGS
from dashboard.formatting import count, share
from dashboard.reads import data
from dashboard.views.answer import _group_words
from dashboard.views.learning import ARRAYS, CHARTS
from dashboard.views.pipeline import idle_shares
from dashboard.views.rewards import CHARTS as REWARD_CHARTS
from dashboard.views.trajectories import ROWS, range_filter, worth_reading
from headrace.protocol.records.record_types import (
    Incident,
    MetricsSampled,
    RunPhase,
    TrajectoryEnded,
)
from headrace.run_files.checked_lines import checked_line
from headrace.run_files.run_folder import LATEST, locked
from storage import queries
from storage.audit import audit_run
from storage.queries import trajectory_index
from storage.queries.trajectory_index import matching
from storage.run_store import RunStore
from tests.dashboard.odd_runs import breathe, crash, evaluate
from tests.dashboard.scripted_run import (
    EVALUATIONS,
    MARKUP,
    MARKUP_ID,
    make_config,
    write_run,
    write_run_without_critic,
)
from tests.storage import samples

APP = Path(dashboard.__file__).parent / "app.py"
TIMEOUT_S = 60


def page(name: str, run: str) -> None:
    """One page of one run, without the picker around it."""
    import importlib

    from dashboard.reads import data

    view = importlib.import_module(f"dashboard.views.{name}")
    view.render(data.RunData(data.run_line(run)))


@pytest.fixture
def open_page(run_dir: Path) -> Callable[..., AppTest]:
    def opened(name: str, run: Path = run_dir) -> AppTest:
        test = AppTest.from_function(page, args=(name, str(run)), default_timeout=TIMEOUT_S)
        return test

    return opened


def metrics_of(test: AppTest) -> dict[str, str]:
    return {metric.label: metric.value for metric in test.metric}


def html_of(test: AppTest) -> str:
    return "\n".join(str(element.proto.body) for element in test.get("html"))


def tokens_of(test: AppTest) -> list[dict[str, Any]]:
    """What the page's token blocks were given."""
    return [json.loads(block.proto.mixed.json or block.proto.json) for block in blocks_of(test)]


def blocks_of(test: AppTest) -> list[Any]:
    return list(test.get("bidi_component"))


def test_the_app_opens_the_newest_run(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["app.py", str(run_dir.parent)])
    test = AppTest.from_file(str(APP), default_timeout=TIMEOUT_S).run()
    assert not test.exception
    assert test.selectbox[0].value == LATEST
    assert run_dir.name in html_of(test)
    test.selectbox[0].select(run_dir.name).run()
    assert not test.exception
    assert test.query_params["run"] == run_dir.name


def opened_app(root: Path, monkeypatch: pytest.MonkeyPatch) -> AppTest:
    monkeypatch.setattr(sys, "argv", ["app.py", str(root)])
    return AppTest.from_file(str(APP), default_timeout=TIMEOUT_S)


def test_a_link_under_latest_names_the_run(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    test = opened_app(run_dir.parent, monkeypatch).run()
    assert test.query_params["run"] == run_dir.name
    assert test.selectbox[0].value == LATEST  # which this session goes on to follow


def test_who_follows_latest_turns_to_a_new_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = write_run(tmp_path, "first-1", updates=2, roll_back_after=None)
    followed, fixed = opened_app(tmp_path, monkeypatch).run(), opened_app(tmp_path, monkeypatch)
    fixed.query_params["run"] = first.name
    fixed.run()
    write_run(tmp_path, "second-2", updates=2, roll_back_after=None)
    st.cache_data.clear()
    assert "second-2" in html_of(followed.run())
    assert followed.query_params["run"] == "second-2"
    assert "second-2" not in html_of(fixed.run())
    assert fixed.query_params["run"] == "first-1"


def test_a_run_that_is_not_there_is_said_to_be_unknown(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    test = opened_app(run_dir.parent, monkeypatch)
    test.query_params["run"] = "nowhere"
    test.run()
    assert not test.exception
    assert f"There is no run nowhere under {run_dir.parent}" in html_of(test)
    assert test.selectbox[0].value == "nowhere"
    test.selectbox[0].select(run_dir.name).run()
    assert run_dir.name in html_of(test)


def test_a_broken_run_is_counted_and_its_page_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path, "whole-1", updates=2, roll_back_after=None)
    (tmp_path / "broken-1").mkdir()
    (tmp_path / "broken-1" / "resolved.json").write_text('{"na')
    test = opened_app(tmp_path, monkeypatch).run()
    assert not test.exception
    assert '<a href="runs">2 runs</a> (1 cannot be read) under ' in html_of(test)
    test.selectbox[0].select("broken-1").run()
    assert not test.exception
    assert "Run broken-1 cannot be read: " in html_of(test)


def test_a_root_without_runs_says_what_is_awaited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["app.py", str(tmp_path)])
    test = AppTest.from_file(str(APP), default_timeout=TIMEOUT_S).run()
    assert not test.exception
    assert "headrace train recipes/quickstart.toml" in html_of(test)


def test_overview_shows_the_summary(open_page: Callable[..., AppTest], run_dir: Path) -> None:
    test = open_page("overview").run()
    assert not test.exception
    summary = queries.run_summary(run_dir)
    shown = metrics_of(test)
    assert shown["Held-out accuracy"] == share(EVALUATIONS["after"])
    assert shown["Updates"] == count(summary["updates"]) == "24"
    assert shown["Tokens trained"] == count(summary["tokens"]["trained_policy"])
    html = html_of(test)
    assert f"<b>{count(summary['tokens']['generated'])}</b><span>generated" in html
    assert "adds up to the token" in html
    assert "learner-0 is lost" in html
    processes, _ = (frame.value for frame in test.dataframe)
    assert set(processes["process"]) == {"generator-0", "learner-0", "reward-0"}
    assert '<a href="runs">1 run</a> under ' in html


def test_the_ledger_shown_is_what_the_journal_says(run_dir: Path) -> None:
    tokens = queries.run_summary(run_dir)["tokens"]
    again = audit_run(run_dir).counts
    for account in ("generated", "trained_policy", "ready", "in_flight"):
        assert tokens[account] == again[account], account
    assert {k: v for k, v in tokens["dropped"].items() if v} == again["dropped"]


@pytest.mark.parametrize("axis", ["update", "train_time", "wall", "tokens", "cpu"])
def test_learning_over_every_axis(open_page: Callable[..., AppTest], axis: str) -> None:
    test = open_page("learning")
    test.session_state["axis"] = axis
    test.run()
    assert not test.exception
    assert len(test.get("arrow_vega_lite_chart") or test.get("vega_lite_chart")) == (
        len(CHARTS) + len(ARRAYS) + 1
    )
    assert "Healthy: falls slowly" in html_of(test)


def test_learning_without_a_critic_has_no_cards_that_would_stay_empty(
    open_page: Callable[..., AppTest], tmp_path: Path
) -> None:
    run = write_run_without_critic(tmp_path)
    test = open_page("learning", run).run()
    assert not test.exception
    html = html_of(test)
    of_critics = [title for title, names in CHARTS if names[0].startswith("critic/")]
    assert len(of_critics) == 3
    for title in (*of_critics, *(title for title, _ in ARRAYS)):
        assert title not in html
    assert html.count("</h2>") == len(CHARTS) - len(of_critics) + 1


@pytest.mark.parametrize("span", ["last 20 s", "whole run"])
def test_pipeline(open_page: Callable[..., AppTest], run_dir: Path, span: str) -> None:
    """The numbers are those of the span that is drawn."""
    test = open_page("pipeline")
    test.session_state["span"] = span
    test.run()
    assert not test.exception
    line = queries.run_line(run_dir)
    end = (line.started_at or 0.0) + line.wall_s
    since = end - 20 if span == "last 20 s" else None
    learner, generators = idle_shares(queries.activity(run_dir, since=since))
    shown = metrics_of(test)
    assert shown["Learner idle"] == share(learner)
    assert shown["Generators idle"] == share(generators)
    assert learner is not None
    assert "Generation binds: in the last minute the learner waited" in test.info[0].value


def test_a_generator_that_was_there_for_a_moment_counts_for_that() -> None:
    rows = [
        ("generator-0", "working", 0.0, 3540.0, 1.0),
        ("generator-1", "waiting", 3480.0, 3540.0, 1.0),
        ("learner", "waiting", 0.0, 885.0, 1.0),
        ("learner", "working", 885.0, 3540.0, 1.0),
    ]
    frame = pd.DataFrame(rows, columns=["lane", "kind", "start", "end", "share"])
    assert idle_shares(frame) == pytest.approx((0.25, 60 / 3600))
    assert idle_shares(frame[:0]) == (None, None)


def test_trajectories_filter_and_read(open_page: Callable[..., AppTest], run_dir: Path) -> None:
    test = open_page("trajectories").run()
    assert not test.exception
    total = queries.trajectory_page(run_dir, filters={"purpose": "train"}).total
    assert f"of {count(total)} trajectories" in test.caption[0].value
    test.number_input(key="reward_from").set_value(1.0)
    test.number_input(key="length_from").set_value(60)
    test.multiselect(key="statuses").set_value(["finished"])
    test.run()
    assert not test.exception
    rows = test.dataframe[0].value
    assert len(rows) > 0
    assert (rows["reward"] == 1).all()
    assert (rows["length"] >= 60).all()
    assert metrics_of(test)["Reward"] == "1"


def test_a_range_of_updates_may_have_an_end_alone(
    open_page: Callable[..., AppTest], run_dir: Path
) -> None:
    test = open_page("trajectories").run()
    test.number_input(key="to_update").set_value(4).run()
    assert not test.exception
    found = [queries.trajectory_page(run_dir, updates=(1, last)).total for last in (4, 24)]
    assert 0 < found[0] < found[1]
    assert f"of {count(found[0])} trajectories" in test.caption[0].value


def test_answers_of_evaluations_along_the_stream_are_a_choice(
    open_page: Callable[..., AppTest], tmp_path: Path
) -> None:
    along: dict[str, Any] = {"evaluation": {"mode": "along", "every_updates": 1}}
    run = write_run(tmp_path, updates=3, roll_back_after=None, end=False, **along)
    evaluate(run, {"a": ["1", "2"], "b": ["2", "2"]}, purpose="along")
    test = open_page("trajectories", run)
    test.session_state[ANSWERS] = ALONG
    test.run()
    assert not test.exception
    assert sorted(test.dataframe[0].value["reward"]) == [0, 0, 0, 1]


def test_search_in_responses_finds_markup_and_shows_it_as_text(
    open_page: Callable[..., AppTest],
) -> None:
    test = open_page("trajectories")
    test.session_state["search_place"] = "response"
    test.session_state["search"] = "<b>bold"
    test.run()
    assert not test.exception
    assert list(test.dataframe[0].value["trajectory_id"]) == [MARKUP_ID]
    html = html_of(test)
    assert "<img" not in html
    assert "<b>bold" not in html
    assert "".join(tokens_of(test)[0]["texts"]) == f"{MARKUP}<eos>"


@pytest.mark.parametrize("by", COLOURINGS)
def test_every_colouring(open_page: Callable[..., AppTest], by: str) -> None:
    test = open_page("trajectories")
    test.query_params["trajectory"] = "200"
    test.session_state["colour_by"] = by
    test.run()
    assert not test.exception
    assert "Trajectory 200" in html_of(test)
    (data,) = tokens_of(test)
    assert data["trajectory"] == 200
    assert ("not recorded" in html_of(test)) == (by == "entropy")


def test_another_answer_is_read_beside_it(open_page: Callable[..., AppTest], run_dir: Path) -> None:
    test = open_page("trajectories")
    test.query_params["trajectory"] = "200"
    test.query_params["beside"] = "201"
    test.run()
    assert not test.exception
    left, right = tokens_of(test)
    assert (left["trajectory"], right["trajectory"]) == (200, 201)
    assert any("They begin with the same" in caption.value for caption in test.caption)
    shared = [
        "".join(text for i, text in enumerate(side["texts"]) if i not in side["differs"])
        for side in (left, right)
    ]
    assert shared[0] == shared[1]
    test.button(key="sibling_201").click().run()
    assert not test.exception
    assert [data["trajectory"] for data in tokens_of(test)] == [201]  # not beside itself


def folded(run: str, key: int) -> None:
    """What is folded below an answer."""
    from dashboard.reads import data
    from dashboard.views import answer

    answer._all_known(data.RunData(data.run_line(run)).trajectory(key))


def test_windows_that_lost_tokens_are_rows_of_a_table(tmp_path: Path) -> None:
    run = samples.write_run(tmp_path / "run")
    test = AppTest.from_function(folded, args=(str(run), 10), default_timeout=TIMEOUT_S).run()
    assert not test.exception
    masked = [json.loads(text) for text in test.dataframe[0].value["masked"]]
    assert masked == [[["boundary_mask", 6, 8, 2]], [["stale", 8, 11, 3]], []]


def test_an_answer_that_ended_without_a_token_waits_for_none(
    open_page: Callable[..., AppTest], tmp_path: Path
) -> None:
    run = samples.write_run(tmp_path / "run")
    test = open_page("trajectories", run)
    test.query_params["trajectory"] = "50"
    assert "Waits for the first token" in html_of(test.run())
    store = RunStore.open(run)
    store.append([TrajectoryEnded(at=50.0, trajectory_id=50, status="aborted", length=0)])
    store.close()
    st.cache_data.clear()
    assert "ended without a token (aborted)" in html_of(test.run())
    assert not test.exception


def test_siblings_are_one_click_away(open_page: Callable[..., AppTest]) -> None:
    test = open_page("trajectories")
    test.query_params["trajectory"] = "200"
    test.run()
    test.button(key="sibling_201").click().run()
    assert not test.exception
    assert "Trajectory 201" in html_of(test)


def test_a_mean_reward_says_of_how_many_answers_it_is() -> None:
    """Of four answers one has no score yet, and one scoring failed."""
    about = {"update": 3, "evaluation": None, "purpose": "train"}
    rows = pd.DataFrame([{**about, "reward": reward} for reward in (1.0, None, 0.0, None)])
    assert _group_words(rows) == "update 3, training: reward 0.5 (mean of 2)"
    assert _group_words(rows[:2]) == "update 3, training: reward 1"
    assert _group_words(rows[1:2]) == "update 3, training: no reward"


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("999999", "has no trajectory 999999"),
        ("9" * 30, "There is no trajectory &#x27;9999"),
        ("-1", "There is no trajectory"),
        ("<b>1", "There is no trajectory &#x27;&lt;b&gt;1"),
    ],
)
def test_an_unknown_trajectory_is_said_to_be_unknown(
    open_page: Callable[..., AppTest], asked: str, said: str
) -> None:
    test = open_page("trajectories")
    test.query_params["trajectory"] = asked
    test.run()
    assert not test.exception
    assert said in html_of(test)


def test_every_trajectory_can_be_reached_in_any_order(
    open_page: Callable[..., AppTest], run_dir: Path
) -> None:
    """Page by page, in the order asked for, each of them once; rows are chosen by their id."""
    wanted = queries.trajectory_page(
        run_dir, filters={"purpose": "train"}, sort="length", descending=True, limit=10_000
    ).rows
    test = open_page("trajectories")
    test.session_state["sort"] = "longest"
    seen: list[int] = []
    for page in range(1, -(-len(wanted) // ROWS) + 1):
        test.session_state["page"] = page
        test.run()
        assert not test.exception
        rows = test.dataframe[0].value
        seen += list(rows["trajectory_id"])
        caption = f"to {count(len(seen))} of {count(len(wanted))} trajectories"
        assert caption in test.caption[0].value
        assert f"Trajectory {worth_reading(rows)}<" in html_of(test)
    assert len(seen) > ROWS
    assert seen == list(wanted["trajectory_id"])


def test_the_first_answer_shown_is_one_that_has_ended() -> None:
    rows = pd.DataFrame(
        {
            "trajectory_id": [9, 8, 7, 6],
            "length": [0, 4, 5, 6],
            "status": ["issued", "running", "finished", "finished"],
        }
    )
    assert worth_reading(rows) == 7
    assert worth_reading(rows[:2]) == 8
    assert worth_reading(rows[:1]) == 9
    assert worth_reading(rows[:0]) is None, "the answers of a live page may have gone on"


PAGE_NAMES = ["overview", "learning", "rewards", "pipeline", "trajectories", "dropped"]


@pytest.mark.parametrize("name", PAGE_NAMES)
def test_a_run_that_has_only_begun_says_what_it_waits_for(
    open_page: Callable[..., AppTest], tmp_path: Path, name: str
) -> None:
    run = tmp_path / "young-20260101-000000-0000"
    store = RunStore.create(run, run.name, make_config(tmp_path))
    store.append([RunPhase(at=time.time(), phase="starting")])
    test = open_page(name, run).run()
    assert not test.exception
    assert "Waits for" in html_of(test)
    store.close()


def test_dropped_explains_every_dropped_token(
    open_page: Callable[..., AppTest], run_dir: Path
) -> None:
    """Reason by reason as the ledger has it, and all of them in the rows."""
    ledger = queries.run_summary(run_dir)["tokens"]["dropped"]
    known = {reason: tokens for reason, tokens in ledger.items() if tokens}
    assert {"stale", "value_warmup", "discarded_at_end", "reward_failed"} <= set(known)
    test = open_page("dropped").run()
    assert not test.exception
    html = html_of(test)
    assert f"{count(sum(known.values()))} tokens, as the ledger counts them" in html
    for reason, tokens in known.items():
        assert f"<b>{reason.replace('_', ' ')}</b><span>{count(tokens)}</span>" in html
    lost = 0
    total = queries.dropped_page(run_dir).total
    for page in range(1, -(-total // ROWS) + 1):
        test.session_state["rows_page"] = page
        test.run()
        rows = test.dataframe[0].value
        lost += int(rows["lost"].sum())
    assert lost == sum(known.values())
    test.session_state["rows_page"] = 1
    test.session_state["by"] = "trajectory"
    test.multiselect(key="reasons").set_value(["reward_failed"]).run()
    assert not test.exception
    (row,) = test.dataframe[0].value.to_dict("records")
    assert row["lost"] == known["reward_failed"]
    assert row["trajectory"].endswith("&trajectory=40")  # the one that was scored in vain
    assert row["reasons"] == "reward failed"


def test_dropped_of_a_run_without_losses(open_page: Callable[..., AppTest], tmp_path: Path) -> None:
    run = write_run(tmp_path, updates=2, roll_back_after=None, end=False, algorithm={"value": {}})
    dropped = queries.dropped_tokens(run)
    test = open_page("dropped", run).run()
    assert not test.exception
    assert ("No token was dropped." in html_of(test)) == (not dropped)


def test_a_run_that_was_lost_is_not_blamed_for_its_last_sample(
    open_page: Callable[..., AppTest], tmp_path: Path
) -> None:
    """Its coordinator was killed between a sample of the ledger and the next one."""
    run = write_run(tmp_path, updates=6, roll_back_after=None, end=False)
    line, store = queries.run_line(run), RunStore.open(run)
    at = (line.started_at or 0.0) + line.wall_s
    store.append([MetricsSampled(at=at, update=6, metrics={"ledger/dropped/stale": 1e6})])
    store.close()
    assert queries.run_line(run).status == "lost"
    test = open_page("dropped", run).run()
    assert not test.exception
    assert "tokens by now; the newest sample of the ledger" in html_of(test)
    assert "headrace audit" not in html_of(test)


def test_a_failed_run_blames_no_reward_function_for_another_reason(
    open_page: Callable[..., AppTest], tmp_path: Path
) -> None:
    run = write_run(tmp_path, roll_back_after=None, end=False)
    crash(run)
    assert queries.reward_failures(run)
    test = open_page("overview", run).run()
    assert not test.exception
    assert "died 4 times" in test.error[0].value
    assert "The reward function gave no score" not in html_of(test)


def test_a_run_whose_episodes_failed_blames_no_reward_function(
    open_page: Callable[..., AppTest], tmp_path: Path
) -> None:
    run = write_run(tmp_path, roll_back_after=None, end=False)
    assert queries.reward_failures(run)
    store, why = RunStore.open(run), "64 episodes in a row failed; the last: environment_crashed: x"
    store.append([RunPhase(at=1_767_270_000.0, phase="failed", detail=why)])
    store.close()
    test = open_page("overview", run).run()
    assert not test.exception
    assert "episodes in a row failed" in test.error[0].value
    assert "The reward function gave no score" not in html_of(test)


def test_an_empty_answer_that_gets_no_score_is_said_to_be_empty(
    open_page: Callable[..., AppTest], tmp_path: Path
) -> None:
    run = write_run(tmp_path, updates=0, roll_back_after=None, end=False)
    evaluate(run, {"d": [""]}, ends=False)
    test = open_page("overview", run).run()
    assert not test.exception
    assert "(an empty answer)" in html_of(test)


def test_a_failed_run_names_each_function_of_its_reward(
    open_page: Callable[..., AppTest], tmp_path: Path
) -> None:
    functions = [{"name": "checks.py:right"}, {"name": "checks.py:short", "weight": 0.2}]
    reward = {"kind": "function", "functions": functions}
    run = write_run(tmp_path, updates=0, roll_back_after=None, end=False, reward=reward)
    evaluate(run, {"d": ["2"]}, ends=False)
    test = open_page("overview", run).run()
    assert not test.exception
    assert "<b>checks.py:right, checks.py:short</b> raised" in html_of(test)


def test_tokens_of_a_dropped_window_say_why_where_they_stand(
    open_page: Callable[..., AppTest], run_dir: Path
) -> None:
    page = queries.dropped_page(run_dir, reasons=["stale"], limit=1)
    row = page.rows.iloc[0]
    test = open_page("trajectories")
    test.query_params["trajectory"] = str(row["trajectory_id"])
    test.run()
    html = html_of(test)
    assert f"Trajectory {row['trajectory_id']}<" in html
    (data,) = tokens_of(test)
    assert f"window {row['window']}: dropped, stale" in [text for _, _, text in data["borders"]]
    said = [data["why"][fate] for fate in data["fates"]]
    assert sum(text.startswith("not in the loss: stale") for text in said) >= row["lost"]


@pytest.mark.parametrize("only", [True, False])
def test_progress_towards_updates_is_of_a_run_that_trains(
    open_page: Callable[..., AppTest], tmp_path: Path, only: bool
) -> None:
    run = write_run(tmp_path, updates=0, roll_back_after=None, end=False, evaluation={"only": only})
    test = open_page("overview", run).run()
    assert not test.exception
    assert [bar.text for bar in test.progress] == ([] if only else ["update 0 of 24"])


def test_a_live_run_shows_progress_and_heartbeats(
    open_page: Callable[..., AppTest], tmp_path: Path
) -> None:
    run = write_run(tmp_path, started=time.time() - 15, updates=3, roll_back_after=None, end=False)
    breathe(run)
    with locked(run):
        test = open_page("overview", run).run()
    assert not test.exception
    assert "hr-pill live" in html_of(test)
    assert set(test.dataframe[0].value["state"]) == {"up"}


def test_ranges_become_filters() -> None:
    assert range_filter("length", 10, None) == ["length >= 10"]
    assert range_filter("reward", -0.5, 1) == ["reward >= -0.5", "reward <= 1"]
    assert range_filter("length", 1234567, None) == ["length >= 1234567"]
    assert range_filter("reward", 1e-5, None) == ["reward >= 0.00001"]


SOURCES = {
    "sources": {"sums": {"kind": "math"}, "judge": {"kind": "function", "function": "m:f"}},
    "route": {"default": "sums"},
    "audit": {"source": "sums", "share": 1.0},
    "alerts": {"answers": 16, "gap_rise": 0.05},
}


def test_rewards_of_every_source(open_page: Callable[..., AppTest], tmp_path: Path) -> None:
    run = write_run(tmp_path, updates=8, roll_back_after=None, reward=SOURCES)
    test = open_page("rewards", run).run()
    assert not test.exception
    shown = test.dataframe[0].value.set_index("source")
    rows: Any = queries.reward_sources(run).set_index("source")
    assert list(shown.index) == ["judge", "sums"]
    assert list(shown["kind"]) == ["function", "math"]
    assert list(shown["answers"]) == list(rows["answers"])
    assert shown.loc["judge", "audits"] == f"{count(rows.loc['judge', 'audits'])} (1 failed)"
    assert shown.loc["sums", "gap"] == "-"
    assert 0 < rows.loc["judge", "gap"] < 0.5
    html = html_of(test)
    assert "last failed audit of judge:</span> &lt;b&gt;no \\u202everdict\\x1b[2J" in html
    assert "last failure of sums:</span> no result within 10 s" in html
    told = [text for text in queries.run_summary(run)["alerts"] if "exceed the audited" in text]
    assert len(told) == 1
    assert escape(told[0]) in html
    charts = test.get("arrow_vega_lite_chart") or test.get("vega_lite_chart")
    assert len(charts) >= len(REWARD_CHARTS)
    (link,) = re.findall('href="([^"]*)">judge: [0-9]+ paid more than the audit<', html)
    (alerted,) = re.findall('href="([^"]*)">[^<]* exceed the audited', html)
    for address, least in ((link, 0.0), (alerted, None)):
        answers = open_page("trajectories", run)
        for name, value in parse_qsl(urlsplit(unescape(address)).query):
            answers.query_params[name] = value
        found = answers.run().dataframe[0].value
        assert not answers.exception
        assert list(found["gap"]) == sorted(found["gap"], reverse=True)
        total = len(found)
        if least is None:
            judged = queries.trajectory_page(run, filters={"reward_source": "judge"}, limit=1000)
            last = judged.rows.dropna(subset=["gap"]).sort_values("rewarded_at")
            assert total == 16
            assert set(found["trajectory_id"]) <= set(last["trajectory_id"])
        else:
            assert total == rows.loc["judge", "paid_more"]
            assert (found["gap"] > least).all()
    read = open_page("trajectories", run)
    read.query_params["trajectory"] = "9"
    read.run()
    assert not read.exception
    assert any("Audited by sums: crashed" in caption.value for caption in read.caption)


def test_an_alert_of_the_first_evaluation_leads_to_its_answers(
    open_page: Callable[..., AppTest], tmp_path: Path
) -> None:
    run = write_run(tmp_path, updates=1, roll_back_after=None, end=False)
    store = RunStore.open(run)
    text = "default: no answer of 4 had the answer marker '#', so none can be right"
    alert = Incident(at=1_767_270_000.0, level="warning", kind=queries.ALERT, text=text)
    store.append([alert])
    store.close()
    html = html_of(open_page("rewards", run).run())
    (address,) = re.findall('href="([^"]*)">default: no answer of 4', html)
    asked = dict(parse_qsl(urlsplit(unescape(address)).query))
    assert asked == {"run": run.name, "answers": "evaluation 1", "sources": "default"}


def test_a_judge_that_stays_away_is_an_alert_of_the_rewards(
    open_page: Callable[..., AppTest], tmp_path: Path
) -> None:
    run = write_run(tmp_path, updates=1, roll_back_after=None, end=False)
    away = {"at": 1_767_268_900.0, "event": "gave_up", "name": "judge-fair", "detail": "killed"}
    (run / "supervisor.jsonl").write_bytes(checked_line(away))
    test = open_page("rewards", run).run()
    assert not test.exception
    assert "judge-fair gave_up: killed" in html_of(test)
    assert "The monitors are quiet." not in html_of(test)


def test_a_run_with_one_source_has_its_page_too(
    open_page: Callable[..., AppTest], run_dir: Path
) -> None:
    test = open_page("rewards").run()
    assert not test.exception
    shown = test.dataframe[0].value
    assert list(shown["source"]) == ["default"]
    assert list(shown["kind"]) == ["math"]
    assert "The monitors are quiet." in html_of(test)
    points = queries.reward_lengths(run_dir, newest=50)
    assert len(points) == 50
    assert set(points.columns) == {"trajectory_id", "source", "length", "reward", "correct"}


@pytest.mark.parametrize("name", [*PAGE_NAMES, "critic"])
def test_nothing_is_drawn_anew_where_nothing_has_changed(
    open_page: Callable[..., AppTest], name: str, made_charts: list[Any]
) -> None:
    """A second visit makes no chart, which is most of what a page costs."""
    test = open_page(name).run()
    assert not test.exception
    assert made_charts
    made_charts.clear()
    test = open_page(name).run()
    assert not test.exception
    assert made_charts == []


def test_a_filter_is_evaluated_once(
    open_page: Callable[..., AppTest], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []

    def counted(*of: Any, **wanted: Any) -> Any:
        asked.append(wanted)
        return matching(*of, **wanted)

    monkeypatch.setattr(trajectory_index, "matching", counted)
    test = open_page("trajectories").run()
    assert len(asked) == 1
    test.number_input(key="length_from").set_value(60).run()
    assert not test.exception
    assert len(asked) == 2
    assert (test.dataframe[0].value["length"] >= 60).all()


def test_what_was_written_meanwhile_redraws_only_what_looks_otherwise(
    open_page: Callable[..., AppTest], tmp_path: Path, made_charts: list[Any]
) -> None:
    """A sample of gauges within the same second draws no chart of updates anew."""
    run = write_run(tmp_path, updates=4, roll_back_after=None, end=False)
    store = RunStore.open(run)
    for name in ("learning", "rewards"):
        assert not open_page(name, run).run().exception
    assert made_charts
    line = queries.run_line(run)
    assert line.status == "training"
    now = (line.started_at or 0.0) + line.wall_s
    store.append([MetricsSampled(at=now + 1e-3, update=4, metrics={"ledger/generated": 1e6})])
    data.run_line.clear()
    test = open_page("overview", run).run()
    assert "1,000,000" in html_of(test)
    made_charts.clear()
    for name in ("learning", "rewards"):
        assert not open_page(name, run).run().exception
    assert made_charts == []
    store.close()
