"""The page of a reward model's training: its figures, its curves, what is awaited."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

import dashboard
from dashboard.charts.figures import reliability_chart
from headrace.config.loading.recipe import load_reward_model
from headrace.run_files import reward_model_run as lines
from headrace.run_files.run_folder import make_run_folder

ROOT = Path(__file__).resolve().parents[2]
APP = Path(dashboard.__file__).parent / "app.py"
BINS = [
    {"from": 0.1, "to": 0.2, "count": 40, "forecast": 0.15, "share": 0.2},
    {"from": 0.8, "to": 0.9, "count": 24, "forecast": 0.85, "share": 0.8},
]


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    recipe = ROOT / "recipes" / "reward-models" / "pairwise.toml"
    return make_run_folder(load_reward_model(recipe, [f'root="{tmp_path}/runs"']))


def finished(run_dir: Path) -> None:
    figures: dict[str, float | None] = {"loss": 0.4, "accuracy": 0.8, "ece": 0.05}
    figures |= {"gap": 0.1, "bias": 0.02}
    lines.append_line(run_dir, lines.EvaluationLine(0, figures | {"accuracy": 0.5}, 0.0, 1.0))
    for step in range(1, 21):
        line = lines.StepLine(step, 1 / step, 0.3, 1e-3, 64 * step, 0.1 * step, 1.0 + step)
        lines.append_line(run_dir, line)
    lines.append_line(run_dir, lines.EvaluationLine(20, figures, 2.0, 22.0))
    report: dict[str, Any] = {"after": {"calibration": {"bins": BINS}}, "examples": {}}
    (run_dir / lines.REPORT).write_text(json.dumps(report))
    page = "# Reward model\n\n![a](report.svg)\nof ![b](https://e.test)\n"
    (run_dir / lines.REPORT_PAGE).write_text(page)
    lines.write_status(run_dir, lines.RewardModelStatus("finished", 20, 20, 1.0, 22.0))


def opened(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> AppTest:
    monkeypatch.setattr(sys, "argv", ["app.py", str(run_dir.parent)])
    test = AppTest.from_file(str(APP), default_timeout=60).run()
    assert not test.exception
    return test


def text_of(test: AppTest) -> str:
    return "\n".join(str(element.proto.body) for element in test.get("html"))


def test_a_finished_training(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finished(run_dir)
    test = opened(run_dir, monkeypatch)
    shown = text_of(test)
    for title in (run_dir.name, "Position bias", "Held-out accuracy", "Calibration"):
        assert title in shown
    assert "Area under the curve" not in shown
    metrics = {metric.label: (metric.value, metric.delta) for metric in test.metric}
    assert metrics["Held-out accuracy"] == ("80.0 %", "+30.0 points")
    assert metrics["Tokens trained"][0] == "1,280"
    (page,) = [each.value for each in test.markdown if "# Reward model" in each.value]
    assert "](" not in page, "a browser would ask the host of a picture for it"


def test_a_ranker_has_figures_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = ROOT / "recipes" / "reward-models" / "coca.toml"
    run_dir = make_run_folder(load_reward_model(recipe, [f'root="{tmp_path}/runs"']))
    figures: dict[str, float | None] = {"map": 0.7, "ndcg_1": 0.6, "ndcg_10": 0.8}
    lines.append_line(run_dir, lines.EvaluationLine(0, {"map": 0.3, "recognised": None}, 0.0, 1.0))
    lines.append_line(run_dir, lines.StepLine(1, 4.8, 0.3, 1e-3, 64, 0.1, 1.0))
    lines.append_line(run_dir, lines.EvaluationLine(2, figures | {"recognised": 0.8}, 2.0, 22.0))
    (run_dir / lines.REPORT).write_text(json.dumps({"after": figures, "examples": {}}))
    lines.write_status(run_dir, lines.RewardModelStatus("finished", 2, 2, 1.0, 22.0))
    test = opened(run_dir, monkeypatch)
    shown = text_of(test)
    for title in ("Ranking", "Variants recognised", "Gradient norm"):
        assert title in shown
    assert "Calibration" not in shown
    metrics = {metric.label: (metric.value, metric.delta) for metric in test.metric}
    assert metrics["Held-out MAP"] == ("70.0 %", "+40.0 points")
    assert metrics["Variants recognised"][0] == "0.8"


def test_a_training_that_has_just_begun(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    test = opened(run_dir, monkeypatch)
    assert run_dir.name in text_of(test)
    assert {metric.value for metric in test.metric} == {"-", "0"}


def test_an_interrupted_training_says_how_it_goes_on(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    why = "interrupted after 3 of 10 steps"
    lines.write_status(run_dir, lines.RewardModelStatus("interrupted", 3, 10, 1.0, 5.0, why))
    (said,) = [box.value for box in opened(run_dir, monkeypatch).info]
    assert said.startswith(f"The run was {why}. Go on with it by `--resume`")


def test_the_reliability_chart_has_a_dot_a_bin() -> None:
    chart = reliability_chart(BINS).to_dict()
    dots = chart["datasets"][chart["layer"][1]["data"]["name"]]
    assert [dot["count"] for dot in dots] == [40, 24]
