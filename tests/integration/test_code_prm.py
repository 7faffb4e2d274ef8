"""The recipe of process rewards as it runs: windows of unfinished answers earn something."""

import json
from pathlib import Path

import pytest

from storage.queries import metric_series
from tests.integration.runs import REPOSITORY, headrace
from tests.rewards.line_models import write_line_model

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

POLICY = REPOSITORY / "recipes" / "models" / "straight-line-cold"
RECIPE = REPOSITORY / "recipes" / "code-prm.toml"


def test_windows_of_unfinished_answers_are_trained_with_rewards_of_their_lines(
    tmp_path: Path,
) -> None:
    model = write_line_model(POLICY, tmp_path / "prm")
    done = headrace(
        "train", str(RECIPE), "--plain", "--no-dashboard", "--root", str(tmp_path / "runs"),
        "generator.engine=torch", "stop.updates=6", "algorithm.value.warmup_updates=1",
        "schedule.batch_windows=48", "evaluation.before=false", "evaluation.num_prompts=32",
        "reward.sources.lines.timeout_s=30",
        f"reward.sources.lines.options.model={model}", f"model.critic_path={model}",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    root = str(tmp_path / "runs")
    (run_dir,) = [path for path in (tmp_path / "runs").iterdir() if path.is_dir()]

    def total(name: str) -> float:
        return float(metric_series(run_dir, [name])["value"].sum())

    assert total("reward/process_tokens") >= total("reward/process_unfinished") > 0
    assert total("reward/lines_failed") == 0
    audited = headrace("audit", "latest", "--json", "--root", root)
    assert audited.returncode == 0, audited.stdout + audited.stderr
    shown = json.loads(headrace("show", "latest", "--json", "--root", root).stdout)
    assert shown["updates"] == 6
