"""Pairwise-RL as a user goes about it: anchors by a judge, then PPO on beating them."""

import json
from pathlib import Path

import pytest

from storage import queries
from tests.integration.runs import REPOSITORY, headrace
from tests.pair_model import write_pair_model

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

POLICY = REPOSITORY / "recipes" / "models" / "tracking-cold"
RECIPE = REPOSITORY / "recipes" / "pairwise-ppo.toml"
UPDATES = 3


def test_anchors_are_made_and_answers_earn_by_beating_them(tmp_path: Path) -> None:
    judge = write_pair_model(POLICY, tmp_path / "judge")
    anchors, root = tmp_path / "anchors.jsonl", tmp_path / "runs"
    options = "reward.sources.pairs.options"
    small = (
        f"{options}.model={judge}", f"{options}.anchors={anchors}", "evaluation.num_prompts=8",
        "schedule.batch_windows=16", "algorithm.value.warmup_updates=1", f"stop.updates={UPDATES}",
        "reward.audit.share=1.0", "reward.sources.pairs.timeout_s=60",
    )  # fmt: skip
    made = headrace(
        "reward", "anchors", str(RECIPE), "--best-of", "2", "--prompts", str(4 * UPDATES + 8),
        "--out", str(anchors), *small,
    )  # fmt: skip
    assert made.returncode == 0, made.stdout + made.stderr
    done = headrace("train", str(RECIPE), "--plain", "--no-dashboard", "--root", str(root), *small)
    assert done.returncode == 0, done.stdout + done.stderr
    (run_dir,) = [path for path in root.iterdir() if path.is_dir()]

    sources = queries.reward_sources(run_dir).set_index("source")
    assert sources["audits"].sum() > 0
    rows = queries.trajectory_page(run_dir, where="purpose = 'train'", limit=10_000).rows
    ended = rows[rows["reward_status"] == "ok"]
    assert len(ended) >= 16 * UPDATES
    assert ended["reward"].between(0.0, 1.0).all()
    assert (ended["correct"] == (ended["reward"] > 0.5)).all()
    assert not (rows["reward_status"] == "invalid").any()
    audited = headrace("audit", "latest", "--json", "--root", str(root))
    assert audited.returncode == 0, audited.stdout + audited.stderr
    shown = json.loads(headrace("show", "latest", "--json", "--root", str(root)).stdout)
    assert shown["updates"] == UPDATES
