"""The command line with the real coordinator and reward worker, and the scripted engine."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "recipes" / "models" / "chain-sums-cold"
RECIPE = str(ROOT / "recipes" / "quickstart.toml")


def call(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The program in a process of its own, with two minutes to answer."""
    command = [sys.executable, "-m", "headrace_cli.cli", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120
    )


@pytest.mark.slow
def test_an_evaluation_without_a_learner(tmp_path: Path) -> None:
    done = call(
        *("eval", str(MODEL), "--task", RECIPE, "--json", "--root", str(tmp_path / "runs")),
        *("generator.engine=fake", "evaluation.num_prompts=32", "transport.stall_timeout_s=60"),
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["num_prompts"] == 32
    assert 0.0 <= result["accuracy"] <= 1.0
    assert result["response_length"] > 0
    assert result["model"] == str(MODEL)
    run_dir = tmp_path / "runs" / result["run_id"]
    keys = run_dir / "keys"
    assert keys.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in keys.iterdir()} == {0o600}
    config = json.loads((run_dir / "resolved.json").read_text())
    assert config["transport"]["curve_keys"] == str(keys)
    events = [json.loads(x) for x in (run_dir / "supervisor.jsonl").read_text().splitlines()]
    started = [row["name"] for row in events if row["event"] == "started"]
    assert started == ["coordinator", "generator-0", "reward-0"]
    shown = call("show", result["run_id"], "--json", "--root", str(tmp_path / "runs"))
    assert json.loads(shown.stdout)["run_id"] == result["run_id"]
    assert (tmp_path / "runs" / "latest").read_text().strip() == result["run_id"]
    audited = call("audit", str(run_dir), "--json")
    assert audited.returncode == 0, audited.stdout + audited.stderr


@pytest.mark.slow
def test_a_row_without_an_answer_is_one_line_and_leaves_no_run(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "a1b2=", "answer": "3"}\n{"prompt": "a1b2c3="}\n')
    recipe = tmp_path / "rows.toml"
    text = Path(RECIPE).read_text().replace("max_terms = 32 ", f'path = "{rows}" ')
    text = text.replace('kind = "chain_sums"', 'kind = "dataset"')
    recipe.write_text(text.replace("models/chain-sums-cold", str(MODEL)))
    runs = tmp_path / "runs"
    done = call(
        *("train", str(recipe), "--plain", "--no-dashboard", "--root", str(runs)),
        "generator.engine=fake",
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert "row 2" in done.stderr
    assert not runs.exists()
