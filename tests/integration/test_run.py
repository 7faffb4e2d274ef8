"""The main job on real parts: vLLM, ZeroMQ, DeepSpeed, SQLAlchemy, Arrow, from the command line."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq

from headrace.protocol.records.record_types import LineageBegan, UpdateCommitted
from headrace.protocol.transport.curve import enter
from tests.integration.audit import assert_trained_once, records_of
from tests.integration.runs import PLAIN, QUICKSTART, REPOSITORY, SMALL, Run, headrace
from tests.metric_values import number

EXPECTED = """run_id recipe wall_s time_to_first_update_s reward response_length trajectories
    weight_version staleness idle_share"""
DIFFERENCE = "rollout/logprob_diff"
pytestmark = [pytest.mark.slow, pytest.mark.vllm, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """A run of a few updates that ended by itself, garbage thrown at its socket meanwhile. Each of
    its processes is started as a user's."""
    settings = ("stop.updates=6", "learner.precision=float32")
    run = Run(tmp_path_factory.mktemp("runs"), *settings, cold=True)
    try:
        run.until(lambda: "coordinator.json" in _files(run))
        _throw_garbage(run.run_dir)
        assert run.wait() == 0, run.text()
        yield run
    finally:
        run.end()


def _files(run: Run) -> list[str]:
    try:
        return [p.name for p in run.run_dir.iterdir()]
    except (ValueError, FileNotFoundError):
        return []


def _throw_garbage(run_dir: Path) -> None:
    """Not a message, a wrong version, an oversized one; from somebody who has the run's keys, and
    from somebody who has none."""
    address = json.loads((run_dir / "coordinator.json").read_text())["address"]
    for keys in (run_dir / "keys", None):
        with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
            socket.linger = 1000
            socket.identity = b"stranger"
            if keys is not None:
                enter(socket, str(keys))
            socket.connect(address)
            # Once the run has refused somebody, his socket has no connection to send on any more.
            with contextlib.suppress(zmq.Again):
                for frames in (
                    [b"hello", b""],
                    [b"HR\x63" + os.urandom(40), b""],
                    [b"HR\x01\xc1", b"\0" * 64],
                ):
                    socket.send_multipart(frames, zmq.NOBLOCK)


def test_the_run_ends_by_itself_and_tells_everything(finished: Run) -> None:
    shown = finished.show()
    assert shown["status"] == "finished"
    assert shown["updates"] == 6
    assert 0.0 < shown["eval"]["before"] < 0.6
    assert shown["eval"]["after"] is not None
    assert shown["tokens"]["trained_policy"] > 0
    assert shown["tokens"]["trained_value"] > 0
    assert shown["checkpoints"]
    for key in EXPECTED.split():
        assert shown[key] is not None, key
    assert "held-out accuracy" in finished.text()


def test_a_recipe_is_measured_and_its_forecast_compared(finished: Run) -> None:
    """Three updates of the same recipe; no folder is left, and `latest` is the run that was."""
    recipe = [str(QUICKSTART), *SMALL, *PLAIN, "--root", str(finished.root)]
    done = headrace("config", "explain", *recipe, "--measure", "--against", "latest", "--json")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)["facts"]
    assert facts["binds"] in ("learner", "generators")
    names = ("generators", "learner", "computed, value model", "forecast over run")
    assert all(facts[name] > 0 for name in names)
    assert facts["computed, window"] == pytest.approx(1, abs=0.2)  # of the boundary no loss
    assert facts["changes most"] in facts
    assert finished.show()["run_id"] == finished.run_dir.name


def test_each_role_takes_the_memory_that_was_estimated(tmp_path: Path) -> None:
    """Within 15 %. Processes begin as a user's. Of pages that those of other tests have, too, they
    are charged a part alone, so the floor is a rough one."""
    command = ["config", "explain", str(QUICKSTART), "--measure", "--root", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "headrace", *command],
        capture_output=True, text=True, timeout=400, cwd=REPOSITORY,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = re.findall(r"^memory, (\w+) +([\d.]+) GiB .* ([\d.]+) estimated", done.stdout, re.M)
    assert {role for role, *_ in found} == {"coordinator", "generator", "learner", "reward"}
    for role, measured, estimated in found:
        assert 0.6 < float(measured) / float(estimated) < 1.15, (role, measured, estimated)


def test_no_token_is_trained_twice_nor_an_unfinished_value(finished: Run) -> None:
    assert_trained_once(finished.run_dir)


def test_behaviour_and_learner_logprobs_agree_in_float32(finished: Run) -> None:
    first = [
        number(r.metrics["rollout/logprob_diff"])
        for r in records_of(finished.run_dir)
        if isinstance(r, UpdateCommitted) and "rollout/logprob_diff" in r.metrics
    ]
    assert first
    assert np.mean(first) < 0.001


def test_garbage_on_the_socket_was_refused_and_counted(finished: Run) -> None:
    incidents = [r for r in records_of(finished.run_dir) if type(r).__name__ == "Incident"]
    assert sum(r.kind == "message_rejected" for r in incidents) == 3
    assert any(r.kind == "connection_denied" for r in incidents)


def test_checkpoints_load_in_transformers(finished: Run) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    newest = sorted((finished.run_dir / "checkpoints").glob("step_*"))[-1]
    model = AutoModelForCausalLM.from_pretrained(newest / "policy")
    tokenizer = AutoTokenizer.from_pretrained(newest / "policy")
    assert model.config.vocab_size >= len(tokenizer)
    assert (newest / "manifest.json").exists()


@pytest.mark.parametrize("kind", ["trajectories", "tokens", "metrics"])
@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_exports(finished: Run, tmp_path: Path, kind: str, form: str) -> None:
    out = tmp_path / f"{kind}.{form}"
    command = ["export", "latest", kind, "--format", form, "--out", str(out)]
    done = headrace(*command, "--root", str(finished.root))
    assert done.returncode == 0, done.stderr
    assert out.stat().st_size > 100
    again = headrace(*command, "--root", str(finished.root))
    assert again.returncode == 2
    assert len(again.stderr.strip().splitlines()) == 1


def test_a_killed_learner_comes_back_and_ctrl_c_leaves_everything_in_order(tmp_path: Path) -> None:
    """That such a run can be resumed is seen in test_exact_resume.py."""
    run = Run(tmp_path / "runs", *PLAIN, "checkpoint.every_updates=2", "stop.updates=100000")
    try:
        # Update 2 alone is trained on tokens of its own version; it has to be journaled.
        run.until(lambda: _checkpoints(run) >= 2 and run.show()["updates"] >= 2)
        os.kill(run.supervised("learner-0"), signal.SIGKILL)
        seen = _checkpoints(run)
        run.until(lambda: _checkpoints(run) > seen)
        run.interrupt()
        assert run.wait(120) == 130, run.text()
        records = records_of(run.run_dir)
        (rollback,) = [r for r in records if isinstance(r, LineageBegan)]
        assert rollback.lineage == 1
        updates = [r.metrics for r in records if isinstance(r, UpdateCommitted)]
        differences = [number(m[DIFFERENCE]) for m in updates if DIFFERENCE in m]
        assert differences[0] < 0.05  # The learner runs in bfloat16 autocast here.
        shown = run.show()
        assert shown["status"] == "interrupted"
        _assert_balanced(shown)
        assert_trained_once(run.run_dir)
    finally:
        run.end()


def _checkpoints(run: Run) -> int:
    folder = run.root
    return max(
        (int(p.parent.name[5:]) for p in folder.glob("*/checkpoints/step_*/manifest.json")),
        default=0,
    )


def _assert_balanced(shown: dict[str, Any]) -> None:
    tokens = shown["tokens"]
    assert tokens["generated"] == (
        tokens["trained_policy"]
        + tokens["ready"]
        + tokens["in_flight"]
        + sum(tokens["dropped"].values())
    )
    kept = tokens["trained_value"] + tokens["value_waiting"] + tokens["value_dropped"]
    assert tokens["value_finished"] == kept > 0
