"""The critic's page: returns of earlier windows, figures with golden numbers, and every state."""

import json
import math
import re
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from streamlit.testing.v1 import AppTest

from dashboard.charts.critic_figures import (
    along_chart,
    before_ends_chart,
    calibration_chart,
    ends_chart,
    numbers_chart,
    tenths_chart,
)
from dashboard.reads import critic
from dashboard.reads.critic import ALL, LESS, MORE, Mean
from dashboard.reads.critic_summary import attainable_text, verdict
from dashboard.views.critic import (
    ARRAYS,
    OVER_UPDATES,
    chosen_updates,
    newest_update,
    without_critic,
)
from storage import queries
from storage.queries import CriticSample
from storage.queries.critic import returns_before
from tests.dashboard.scripted_run import write_run, write_run_without_critic
from tests.dashboard.test_pages import html_of, page


def tokens_of(**columns: Any) -> pd.DataFrame:
    """Rows of a sample; what is not said is plain."""
    size = len(next(iter(columns.values())))
    plain: dict[str, Any] = {
        "trajectory_id": range(size),
        "window": 0,
        "position": 0,
        "length": 10,
        "left": 0,
        "finished": True,
        "in_loss": True,
        "value": 0.0,
        "advantage": 0.0,
        "return": 0.0,
        "lam": 1.0,
    }
    frame = pd.DataFrame({name: columns.get(name, value) for name, value in plain.items()})
    return frame.assign(error=frame["value"] - frame["return"])


def cuts_of(**columns: Any) -> pd.DataFrame:
    size = len(next(iter(columns.values())))
    plain: dict[str, Any] = {
        "trajectory_id": range(size),
        "window": 0,
        "position": 4,
        "length": 10,
        "update": 1,
        "lam": 1.0,
        "value": 0.0,
        "next_value": np.nan,
        "realised": 0.0,
    }
    return pd.DataFrame({name: columns.get(name, value) for name, value in plain.items()})


# -- figures ---------------------------------------------------------------------------------------


def test_returns_before_the_last_window() -> None:
    """Two windows of two tokens, the second worth 1: by hand, with a discount and a reward on the
    way."""
    index = np.arange(3)
    assert returns_before(index, 2, 1.0, [], 1.0).tolist() == [1, 1, 1]
    assert returns_before(index, 2, 1.0, [], 0.5).tolist() == [0.25, 0.5, 1]
    assert returns_before(index, 2, 1.0, [(0, 4.0)], 0.5).tolist() == [4.25, 0.5, 1]
    assert returns_before(index, 2, 1.0, [(1, 4.0)], 0.5).tolist() == [2.25, 4.5, 1]


def test_explained_variance() -> None:
    returns = np.array([0.0, 0.0, 1.0, 1.0])
    assert critic.explained_variance(returns, returns) == 1
    assert critic.explained_variance(np.full(4, 0.5), returns) == 0
    assert critic.explained_variance(returns + 3, returns) == 1  # a bias is no variance
    assert critic.explained_variance(0.5 * returns, returns) == pytest.approx(0.75)
    assert critic.explained_variance(1 - returns, returns) == pytest.approx(-3)
    assert critic.explained_variance(returns, np.ones(4)) is None


def test_the_error_of_a_mean_counts_answers() -> None:
    one_each = tokens_of(value=[1.0, 3.0, 1.0, 3.0])
    assert critic.mean_over(one_each) == pytest.approx(Mean(2.0, math.sqrt(4 * 4 / 3) / 4))
    same_again = tokens_of(value=[1.0, 1.0, 3.0, 3.0], trajectory_id=[0, 0, 1, 1])
    assert critic.mean_over(same_again) == pytest.approx(Mean(2.0, 1.0))
    mean = critic.mean_over(tokens_of(value=[1.0, 2.0], trajectory_id=[0, 0]))
    assert mean.mean == 1.5
    assert math.isnan(mean.error)


def test_calibration_has_a_bin_a_width() -> None:
    """A hundred tokens, one at each hundredth, of which the upper half earns 1."""
    values = np.arange(100) / 99
    tokens = tokens_of(value=values, **{"return": (values > 0.5).astype(float)})
    bins = critic.calibration(tokens)
    assert len(bins) == critic.BINS
    assert bins["tokens"].sum() == bins["answers"].sum() == 100
    assert list(bins["came"][:6]) == [0] * 6
    assert list(bins["came"][6:]) == [1] * 6
    assert bins["said"].is_monotonic_increasing
    assert len(critic.calibration(tokens_of(value=[0.5, 0.5]))) == 1


def test_along_parts_answers_by_what_they_earned() -> None:
    tokens = tokens_of(
        trajectory_id=[0, 0, 1, 1, 2, 2],
        position=[0, 9, 0, 9, 0, 9],
        value=[0.4, 1.0, 0.6, 0.8, 0.5, 0.0],
        **{"return": [1.0, 1.0, 1.0, 1.0, 0.0, 0.0]},
    )
    rows = critic.along(tokens).set_index(["which", "tenth"])
    assert rows.loc[(MORE, 1), "value"] == 0.5
    assert rows.loc[(MORE, 10), "value"] == 0.9
    assert rows.loc[(LESS, 10), "value"] == 0
    assert list(rows["came"]) == [0, 1, 0, 1]
    assert rows.loc[(MORE, 1), "tokens"] == 2
    assert set(critic.along(tokens.assign(**{"return": 1.0}))["which"]) == {ALL}


def test_tenths_of_the_answer() -> None:
    tokens = tokens_of(
        trajectory_id=[0, 0, 1, 1],
        position=[0, 5, 0, 5],
        value=[1.0, 0.5, 0.0, 0.5],
        advantage=[2.0, -1.0, 9.0, 3.0],
        in_loss=[True, True, False, True],
        **{"return": [1.0, 1.0, 1.0, 0.0]},
    )
    rows = critic.tenths(tokens).set_index("tenth")
    assert list(rows.index) == [1, 6]
    assert rows.loc[1, "bias"] == -0.5
    assert rows.loc[1, "rmse"] == pytest.approx(math.sqrt(0.5))
    assert list(rows["advantage"]) == [2, 1]  # what is masked is no lesson
    assert list(rows["strength"]) == [2, 2]
    assert np.isnan(rows["explained"].to_numpy()[0])
    assert rows.loc[6, "explained"] == 0


def test_what_the_three_rules_assume() -> None:
    cuts = cuts_of(value=[0.9, 0.1, 0.5], next_value=[0.7, 0.3, np.nan], realised=[1.0, 0.0, 1.0])
    assert critic.assumed(cuts, "copy").tolist() == [0.9, 0.1, 0.5]
    assert critic.assumed(cuts, "bootstrap")[:2].tolist() == [0.7, 0.3]
    assert critic.assumed(cuts, "terminal").tolist() == [0, 0, 0]
    rows = critic.rules(cuts).set_index("rule")
    assert list(rows["cuts"]) == [2, 2, 2]  # the same cuts for all
    assert list(rows["bias"]) == pytest.approx([0, 0, -0.5])
    assert list(rows["rmse"]) == pytest.approx([0.1, 0.3, math.sqrt(0.5)])


def test_cuts_by_their_number() -> None:
    cuts = cuts_of(window=[0, 0, 2, 7, 30], value=[0.2, 0.4, 0.5, 1, 0], realised=[0, 1, 1, 1, 1])
    cuts = cuts.assign(assumed=cuts["value"], error=cuts["value"] - cuts["realised"])
    rows = critic.numbers(cuts)
    assert list(rows["cut"]) == ["1st", "3rd", "8th on"]
    assert list(rows["cuts"]) == [2, 1, 2]
    assert list(rows["assumed"]) == pytest.approx([0.3, 0.5, 0.5])
    assert list(rows["came"]) == [0.5, 1, 1]


def test_what_an_assumption_costs_fades_with_the_distance() -> None:
    """One window of five tokens that was closed with a value 0.8 too high; gamma 0.5, lambda 0.5:
    the advantage k tokens before the cut is 0.5 * 0.25^k * 0.8 too high. Recomputed from EGAE's own
    sum with both closing values."""
    gamma, lam, values, truth, closing = 0.5, 0.5, [0.3, 0.1, 0.4, 0.2, 0.6], 0.1, 0.9
    tokens = tokens_of(
        trajectory_id=[7] * 5, position=range(5), left=[4, 3, 2, 1, 0], finished=[False] * 5,
        value=values, lam=[lam] * 5,
    )  # fmt: skip
    cuts = cuts_of(trajectory_id=[7], value=[closing], realised=[truth], lam=[lam])
    cuts = cuts.assign(assumed=cuts["value"], error=cuts["value"] - cuts["realised"])
    rows = critic.costs(tokens, cuts, gamma=gamma).set_index("left")

    def advantages(after: float) -> list[float]:
        following = [*values[1:], after]
        delta = [gamma * following[t] - values[t] for t in range(5)]
        return [sum((gamma * lam) ** k * delta[t + k] for k in range(5 - t)) for t in range(5)]

    wrong = [a - b for a, b in zip(advantages(closing), advantages(truth), strict=True)]
    assert list(rows.index) == ["0", "1", "2 to 3", "4 to 7"]
    assert rows.loc["0", "bias"] == pytest.approx(wrong[4]) == pytest.approx(0.4)
    assert rows.loc["1", "bias"] == pytest.approx(wrong[3])
    assert rows.loc["2 to 3", "bias"] == pytest.approx((wrong[1] + wrong[2]) / 2)
    assert rows.loc["4 to 7", "rmse"] == pytest.approx(wrong[0])
    assert rows.loc["0", "noise"] == pytest.approx(0.6)  # |V - R| at that token


def test_advantages_before_a_windows_end() -> None:
    tokens = tokens_of(
        left=[0, 0, 5, 5000], finished=[True, False, False, False], advantage=[-2.0, 0.1, 1.0, 3.0]
    )
    rows = critic.ends(tokens)
    assert list(rows["left"]) == ["0", "0", "4 to 7", "4096 on"]
    assert list(rows["strength"]) == [0.1, 2, 1, 3]
    assert critic.distance_order(list(rows["left"])) == ["4096 on", "4 to 7", "0"]


def test_what_advantages_of_unfinished_windows_were_worth() -> None:
    tokens = tokens_of(
        trajectory_id=[0, 0, 1, 1, 2, 3, 4], finished=[False] * 6 + [True],
        in_loss=[True] * 5 + [False, True], advantage=[0.5, 1.5, -1.0, 1.0, 2.0, 50.0, -90.0],
        **{"return": [1.0, 1.0, 0.0, 0.0, 0.5, 0.0, 1.0]},
    )  # fmt: skip
    cuts = cuts_of(trajectory_id=range(4))
    found = critic.worth(tokens, cuts)  # means of windows: (1, 1), (0, 0), (2, .5)
    assert found.windows == 3
    assert found.correlation == pytest.approx(np.corrcoef([1, 0, 2], [1, 0, 0.5])[0, 1])
    flat = tokens.assign(**{"return": 1.0})
    assert critic.worth(flat, cuts).correlation is None
    assert critic.worth(tokens, cuts[:2]).windows == 2


def test_a_reward_halves_with_lambda() -> None:
    assert critic.reach(1.0, 0.95) == pytest.approx(13.513, abs=1e-3)
    assert critic.reach(0.5, 1.0) == 1
    assert critic.reach(1.0, 1.0) is None
    assert critic.reach(1.0, 0.0) is None


def sample_of(tokens: pd.DataFrame, cuts: pd.DataFrame) -> CriticSample:
    answers = tokens["trajectory_id"].nunique()
    return CriticSample(5, 9, answers, 2 * answers, tokens.drop(columns="error"), cuts)


def test_the_verdict_says_how_much_and_only_what_is_more_than_chance() -> None:
    returns = np.array([0.0, 1.0] * 40)
    tokens = tokens_of(value=0.5 * returns + 0.25, **{"return": returns})
    cuts = cuts_of(value=returns * 0 + 0.58, realised=np.array([0.4, 0.6] * 40))
    said = verdict(critic.report(sample_of(tokens, cuts), gamma=1.0, boundary="copy"))
    assert said.startswith("In updates 5 to 9 values explain 75 % of the variance of returns.")
    assert "On average they were neither too high nor too low (+0 \u00b1 0.03)." in said
    assert "At 80 cuts what was assumed of the rest was 0.08 \u00b1 0.01 too high, " in said
    assert "with a root mean square of 0.13." in said
    none = tokens_of(value=returns, **{"return": np.ones(80)})
    said = verdict(critic.report(sample_of(none, cuts[:0]), gamma=1.0, boundary="copy"))
    assert "all answers earned the same" in said
    assert "0.5 \u00b1 0.06 too low" in said
    assert "cuts" not in said
    worse = tokens_of(value=1 - returns, **{"return": returns})
    said = verdict(critic.report(sample_of(worse, cuts), gamma=1.0, boundary="terminal"))
    assert "explain none of the variance" in said
    assert "0.5 \u00b1 0.01 too low" in said


def test_every_chart_is_a_chart() -> None:
    returns = np.array([0.0, 1.0] * 40)
    tokens = tokens_of(
        value=returns * 0.5, position=np.arange(80) % 10, left=np.arange(80) % 7,
        finished=np.arange(80) % 3 == 0, advantage=returns - 0.5, **{"return": returns},
    )  # fmt: skip
    cuts = cuts_of(value=returns, next_value=returns, realised=returns, window=np.arange(80) % 9)
    found = critic.report(sample_of(tokens, cuts), gamma=0.9, boundary="copy")
    charts = [
        along_chart(found.along),
        calibration_chart(found.calibration),
        numbers_chart(found.numbers),
        tenths_chart(found.tenths, {"bias": "mean", "rmse": "rms"}),
        before_ends_chart(found.costs, {"bias": "mean", "rmse": "rms", "noise": "plain"}),
        ends_chart(found.ends),
    ]
    for chart in charts:
        assert chart.to_dict()["layer"]  # making it checks it against Vega-Lite's schema


# -- the store -------------------------------------------------------------------------------------


def test_the_sample_is_what_was_stored(run_dir: Path) -> None:
    """Token by token against the detail of each trajectory; what came is the answer's reward."""
    found = queries.critic_sample(run_dir, 1, 24)
    assert found.answers == found.of == found.tokens["trajectory_id"].nunique() > 20
    several = found.cuts.groupby("trajectory_id").size()
    assert several.max() >= 2
    for key in several.index[:6]:
        detail = queries.trajectory_detail(run_dir, int(key))
        rows = found.tokens[found.tokens["trajectory_id"] == key].set_index("position")
        figures = detail.tokens.figures
        assert set(rows.index) == set(np.flatnonzero(detail.tokens.trained_at_update >= 0))
        assert (rows["return"] == detail.row["reward"]).all()
        assert np.array_equal(rows["value"], figures["values"][rows.index])
        assert np.array_equal(rows["advantage"], figures["advantages"][rows.index])
        assert np.array_equal(rows["in_loss"], detail.tokens.loss_mask[rows.index] == 1)
        for cut in found.cuts[found.cuts["trajectory_id"] == key].to_dict("records"):
            window = detail.windows.set_index("index").loc[cut["window"]]
            assert cut["position"] == window["end"]
            assert cut["value"] == figures["values"][window["end"] - 1]
            following = figures["values"][window["end"]]
            assert np.array_equal([cut["next_value"]], [following], equal_nan=True)
            assert cut["realised"] == detail.row["reward"]


def test_a_range_of_updates_and_a_bound(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = queries.critic_sample(run_dir, 1, 24)
    some = queries.critic_sample(run_dir, 10, 12)
    assert 0 < some.of < whole.of
    monkeypatch.setattr("storage.queries.critic.MAX_ANSWERS", 5)
    few = queries.critic_sample(run_dir, 1, 24)
    assert (few.answers, few.of) == (5, whole.of)
    monkeypatch.setattr("storage.queries.critic.MAX_TOKENS", 1)
    assert queries.critic_sample(run_dir, 1, 24).answers == 1
    nothing = queries.critic_sample(run_dir, 900, 999)
    assert (nothing.answers, nothing.of, len(nothing.tokens), len(nothing.cuts)) == (0, 0, 0, 0)


def test_credit_that_ends_with_a_turn_is_known_in_last_windows_alone(tmp_path: Path) -> None:
    """The return of an earlier window is of its own turn, and not of all that the answer earned."""
    run = write_run(tmp_path, updates=12, roll_back_after=None)
    assert not queries.critic_sample(run, 1, 12).tokens["finished"].all()
    resolved = json.loads((run / "resolved.json").read_text())
    resolved["algorithm"]["turns"] = "turn"
    (run / "resolved.json").write_text(json.dumps(resolved))
    found = queries.critic_sample(run, 1, 12)
    assert found.tokens["finished"].all()
    assert found.answers > 0
    assert found.cuts.empty


def test_a_cut_behind_which_the_outcome_stood_is_no_guess(tmp_path: Path) -> None:
    """With the boundary "outcome": its answer was scored when its batch was taken."""
    run = write_run(tmp_path, updates=12, roll_back_after=None)
    with closing(sqlite3.connect(run / "headrace.sqlite")) as base, base:
        base.execute("UPDATE trajectories SET rewarded_at = 1e12 * (trajectory_id % 2)")
    every = queries.critic_sample(run, 1, 12)
    resolved = json.loads((run / "resolved.json").read_text())
    resolved["algorithm"]["advantages"]["boundary"] = "outcome"
    (run / "resolved.json").write_text(json.dumps(resolved))
    found = queries.critic_sample(run, 1, 12)
    is_guess = every.cuts["trajectory_id"] % 2 == 1
    assert is_guess.any()
    assert not is_guess.all()
    pd.testing.assert_frame_equal(found.cuts, every.cuts[is_guess].reset_index(drop=True))
    pd.testing.assert_frame_equal(found.tokens, every.tokens)


def test_the_documented_snippet(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As it stands, but for the run."""
    text = (Path(__file__).parents[3] / "docs" / "critic.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(compile(code.replace("runs/RUN", str(run_dir)), "docs/critic.md", "exec"), {})
    assert "In updates 1 to 40 values explain" in capsys.readouterr().out


# -- the page --------------------------------------------------------------------------------------


@pytest.fixture
def open_critic(run_dir: Path) -> Callable[..., AppTest]:
    def opened(run: Path = run_dir) -> AppTest:
        return AppTest.from_function(page, args=("critic", str(run)), default_timeout=60)

    return opened


def test_a_finished_run(open_critic: Callable[..., AppTest], run_dir: Path) -> None:
    test = open_critic().run()
    assert not test.exception
    found = critic.report(queries.critic_sample(run_dir, 5, 24), gamma=1.0, boundary="copy")
    assert test.info[0].value == verdict(found)
    shown = html_of(test)
    assert f"<span>Assumed less what came</span><b>{found.cut_bias.mean:+.3f}</b>" in shown
    charts = test.get("arrow_vega_lite_chart") or test.get("vega_lite_chart")
    known = set(queries.metric_names(run_dir))
    over = sum(1 for _, names in OVER_UPDATES if known & set(names))
    assert len(charts) == 8 + over + len(ARRAYS)
    rules = re.findall("<tr><td>(.*?)</td>", shown)
    assert rules == ["copy (in force)", "bootstrap", "terminal"]
    test.number_input(key="updates_from").set_value(10)
    test.number_input(key="updates_to").set_value(12).run()
    assert not test.exception
    assert test.info[0].value.startswith("In updates 10 to 12 ")
    assert "answers that ended in updates 10 to 12" in test.caption[0].value


def test_a_live_run(open_critic: Callable[..., AppTest], tmp_path: Path) -> None:
    run = write_run(tmp_path, started=time.time() - 15, updates=6, roll_back_after=None, end=False)
    test = open_critic(run).run()
    assert not test.exception
    assert test.info[0].value.startswith("In updates 1 to 6 ")


def test_a_run_in_its_warm_up_says_what_it_waits_for(
    open_critic: Callable[..., AppTest], tmp_path: Path
) -> None:
    value = {"warmup_updates": 50}
    run = write_run(
        tmp_path, updates=2, roll_back_after=None, end=False, algorithm={"value": value}
    )
    test = open_critic(run).run()
    assert not test.exception
    assert "warm-up records no values" in html_of(test)


def test_a_run_without_a_critic_says_so(
    open_critic: Callable[..., AppTest], tmp_path: Path
) -> None:
    run = write_run_without_critic(tmp_path)
    test = open_critic(run).run()
    assert not test.exception
    assert "This run has no critic: grpo takes advantages from" in html_of(test)
    unread = {"name": "x", "advantages": {"kind": "group"}, "value": {}}
    assert "does not read it" in without_critic(unread)


def test_the_updates_that_are_looked_at() -> None:
    assert chosen_updates(None, None, 0) == (1, 0)
    assert chosen_updates(None, None, 12) == (1, 12)
    assert chosen_updates(None, None, 400) == (301, 400)
    assert chosen_updates(7, None, 400) == (7, 400)
    assert chosen_updates(500, 900, 400) == (400, 400)
    assert chosen_updates(None, 10, 400) == (1, 10)
    assert newest_update(37) == 37
    assert newest_update(1234) == 1224


def test_the_newest_probes_say_what_can_be_explained() -> None:
    """Evaluations before training have none."""
    columns = ["prefixes", "attainable", "attainable_low", "attainable_high"]
    rows = [(0, *[math.nan] * 3), (17, *[math.nan] * 3), (75, 0.636, 0.483, 0.758)]
    texts = [attainable_text(pd.DataFrame(rows[:n], columns=columns)) for n in range(4)]
    assert texts[:2] == ["", ""]
    assert texts[2] == (
        " How much can be explained is not known yet: 17 prefixes of its evaluations' answers were "
        "probed, of 64."
    )
    assert texts[3] == (
        " By 75 prefixes of its evaluations' answers, 63.6 % can be explained (48.3 % to 75.8 %)."
    )


def test_probes_that_are_too_few_are_told() -> None:
    """As SQL has them where every evaluation lacks the share."""
    columns = ["prefixes", "attainable", "attainable_low", "attainable_high"]
    frame = pd.DataFrame([(0, None, None, None), (17, None, None, None)], columns=columns)
    assert "is not known yet: 17 prefixes" in attainable_text(frame)
