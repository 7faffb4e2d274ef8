"""A stream that trains adapters with vLLM: its learner is killed and goes on, and a replay of the
last update, from the base model and a checkpoint's adapters, agrees with what was reported."""

import json
import os
import signal
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from tests.integration.audit import assert_trained_once
from tests.integration.runs import Run, headrace

pytestmark = [pytest.mark.slow, pytest.mark.vllm, pytest.mark.timeout(300)]
ADAPTERS = (
    "learner.lora.rank=4", "learner.precision=float32", "stop.updates=4",
    "checkpoint.every_updates=1", "checkpoint.keep_last=4",
    "evaluation.before=false", "evaluation.after=false",
)  # fmt: skip


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
