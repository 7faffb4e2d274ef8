"""A stream that trains adapters with vLLM: its learner is killed and goes on, and a replay of the
last update, from the base model and a checkpoint's adapters, agrees with what was reported."""

import json
import os
import signal
from pathlib import Path

import pytest
from sqlalchemy import select
from transformers import AutoModelForCausalLM

from storage.database.reader import open_run
from storage.database.tables import WeightVersion
from storage.queries import metric_series
from tests.integration.audit import assert_trained_once
from tests.integration.runs import Run, headrace

pytestmark = [pytest.mark.slow, pytest.mark.vllm, pytest.mark.timeout(300)]
ADAPTERS = (
    "learner.lora.rank=4", "learner.precision=float32", "stop.updates=4",
    "checkpoint.every_updates=1", "checkpoint.keep_last=4",
    "evaluation.before=false", "evaluation.after=false",
)  # fmt: skip


def test_published_adapters_are_what_the_learner_trains(tmp_path: Path) -> None:
    """vLLM's logprobs beside its own weights are the learner's to float32's rounding."""
    alone = ("learner.lora.publish=adapter", "learner.policy.lr=1e-3", "stop.updates=3")
    run = Run(tmp_path / "runs", *ADAPTERS, *alone)
    try:
        assert run.wait() == 0, run.text()
    finally:
        run.end()
    assert_trained_once(run.run_dir)
    reader = open_run(run.run_dir)
    sizes = [size for (size,) in reader.rows(select(WeightVersion.num_bytes))]
    merged = run.run_dir / "checkpoints" / "step_3" / "policy"
    whole = AutoModelForCausalLM.from_pretrained(merged).num_parameters() * 4
    assert len(sizes) >= 3
    assert 0 < max(sizes) < 0.05 * whole
    differences = metric_series(run.run_dir, ["rollout/logprob_diff_max"], "update")["value"]
    assert 0 < differences.max() < 1e-4


def test_a_stream_of_adapters(tmp_path: Path) -> None:
    run = Run(tmp_path / "runs", *ADAPTERS)
    try:
        run.until(lambda: run.applied() >= 2)
        os.kill(run.supervised("learner-0"), signal.SIGKILL)
        assert run.wait() == 0, run.text()
    finally:
        run.end()
    assert_trained_once(run.run_dir)
    last = run.run_dir / "checkpoints" / "step_4"
    for name in ("policy", "critic"):
        assert (last / name / "adapter" / "adapter_model.safetensors").is_file()
    merged = AutoModelForCausalLM.from_pretrained(last / "policy").num_parameters()
    adapter = (last / "policy" / "adapter" / "adapter_model.safetensors").stat().st_size / 4
    assert adapter < 0.05 * merged
    done = headrace("replay", str(run.run_dir), "--update", "4", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    quantities = json.loads(done.stdout)["quantities"]
    compared = {q["name"]: q["compared"] for q in quantities if q["source"] == "models"}
    assert min(compared[f"weights of the {name}"] for name in ("policy", "critic")) > 0
    assert {q["name"] for q in quantities if q["differing"]} == set()
