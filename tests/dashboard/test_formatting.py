"""Numbers as people read them, captions, progress."""

from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pandas as pd
import pytest

from dashboard.formatting import (
    count,
    duration,
    metric_caption,
    number,
    progress,
    share,
    what_binds,
    without_template,
)
from dashboard.views import dropped, learning
from headrace.metrics.registry import METRICS


def test_nothing_known_is_a_dash() -> None:
    assert [write(None) for write in (count, share, number, duration)] == ["-"] * 4


def test_numbers() -> None:
    assert count(1234567) == "1,234,567"
    assert share(0.90625) == "90.6 %"
    assert [number(v) for v in (0.0, 0.00042, 1.2345, 999.7, 12345.6)] == [
        "0",
        "4.2e-04",
        "1.23",
        "1,000",
        "12,346",
    ]
    assert [duration(v) for v in (7.4, 185, 7620)] == ["7 s", "3:05 min", "2:07 h"]


def test_a_caption_says_what_it_means_and_what_healthy_is() -> None:
    info = METRICS["actor/entropy"]
    caption = metric_caption(["actor/entropy"])
    assert info.meaning[1:] in caption
    assert f"Healthy: {info.healthy}." in caption
    assert "Shaded: the healthy band; an alert: under 0.02 for 20 updates." in caption
    assert "not to 0. An alert: under 0.02" in metric_caption(["actor/entropy"], shaded=False)


def test_learning_draws_what_only_some_runs_have() -> None:
    along = ["along/accuracy", "along/first_version", "along/last_version"]
    of_mixture = ["mixture/sums/weight", "mixture/words/weight"]
    run: Any = SimpleNamespace(charted=lambda: [*along, "actor/entropy", *of_mixture])
    assert learning._further(run) == [
        ("Held-out accuracy along the stream", ("along/accuracy",)),
        ("Versions that answered along the stream", ("along/first_version", "along/last_version")),
        ("Mixture in force", tuple(of_mixture)),
    ]
    run.charted = lambda: ["actor/entropy"]
    assert learning._further(run) == []


@pytest.mark.parametrize("names", [names for _, names in learning.CHARTS])
def test_every_chart_of_learning_has_a_caption(names: tuple[str, ...]) -> None:
    caption = metric_caption(names)
    assert all(METRICS[name].meaning[1:] in caption for name in names)


def summary(**changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "updates": 30,
        "train_time_s": 60.0,
        "tokens": {"trained_policy": 900},
        "evaluations": [],
    }
    return base | changes


def test_progress_is_that_of_the_condition_that_is_nearest() -> None:
    stop = {"updates": 40, "train_time_s": 240.0, "tokens": None, "accuracy": None}
    assert progress(summary(), stop) == (
        0.75,
        "update 30 of 40  \u00b7  1:00 min of training of 4:00 min",
    )


def test_no_condition_no_progress() -> None:
    assert progress(summary(), {"updates": None}) is None


@pytest.mark.parametrize(
    ("learner", "generator", "beginning", "helps"),
    [
        (0.01, 0.02, "Nobody waits", ""),
        (0.03, 0.3, "The learner binds: in the last minute generators waited 30.0 %", "staleness"),
        (0.4, 0.0, "Generation binds: in the last minute the learner waited 40.0 %", "generator."),
        (0.2, 0.22, "Both sides wait, in the last minute about 21.0 %", "batch_windows"),
        (None, None, "Nobody waits", ""),
    ],
)
def test_what_binds_and_what_would_help(
    learner: float | None, generator: float | None, beginning: str, helps: str
) -> None:
    said = what_binds(learner, generator, over="in the last minute")
    assert said.startswith(beginning)
    assert helps in said


def test_rewards_and_turns_may_bind_too() -> None:
    said = what_binds(0.5, 0.0, over="in the last minute", scoring=40, live=3)
    assert said.startswith("Rewards bind: ")
    assert "40 answers wait for a score" in said
    away = what_binds(0.67, 0.92, over="in the last minute")
    assert away.startswith("Something else binds: in the last minute the learner waited 67.0 %")
    turns = what_binds(0.4, 0.5, over="in the last minute", mode="synchronous")
    assert "take turns in the mode synchronous" in turns


def test_prompts_are_shown_without_what_their_template_writes() -> None:
    head, tail = "<|system|>You are a helpful assistant.<|user|>", "<|end|><|assistant|>"
    prompts = [f"{head}Tom has {n} pens. How many?{tail}" for n in (4, 17)]
    assert without_template(prompts) == [f"\u2026 Tom has {n} pens. How many?" for n in (4, 17)]
    for whole in (prompts[:1], ["1 + 2 =", "1 + 3 ="], [], ["", "a"]):
        assert without_template(whole) == whole


def test_a_lost_token_leads_to_its_answer_whatever_the_folder_is_called() -> None:
    rows = pd.DataFrame({"trajectory_id": [7], "reasons": [{"stale": 3}], "reward": [None]})
    (link,) = dropped.shown(rows, "tppo+fix")["trajectory"]
    assert parse_qsl(urlsplit(link).query) == [("run", "tppo+fix"), ("trajectory", "7")]
