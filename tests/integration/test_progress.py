"""Slow runs and stuck ones, as whole runs: who makes progress is waited for, also at a stop, and
who makes none is found."""

import json
import re
import time
from dataclasses import asdict
from pathlib import Path

import pytest
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from headrace.protocol.records.record_types import (
    Incident,
    UpdateCommitted,
    VersionLoaded,
    VersionPublished,
)
from headrace.run_files.update_log import read_applied
from learner.process.checkpoint import mismatch
from tests.documented import is_documented
from tests.integration.audit import assert_trained_once, records_of
from tests.integration.runs import REPOSITORY, Run, headrace
from tests.integration.slow_role import Slow

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
COLD = REPOSITORY / "recipes" / "models" / "chain-sums-cold"
STALL_S = 3.0
FAST = (
    "generator.engine=fake", "evaluation.before=false", "evaluation.after=false",
    "algorithm.value.warmup_updates=0", "transport.self_test_s=null",
)  # fmt: skip


def slow_run(
    monkeypatch: pytest.MonkeyPatch,
    root: Path,
    slow: Slow,
    *overrides: str,
    resume: str | None = None,
) -> Run:
    """A run whose roles go through `slow_role`."""
    monkeypatch.setenv("SLOW", json.dumps(asdict(slow)))
    return Run(root, *overrides, resume=resume, slow=True)


def larger_model(folder: Path) -> Path:
    """The quickstart's with 12 MiB of weights, none of them trained."""
    config = AutoConfig.from_pretrained(COLD, intermediate_size=2048)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(COLD).save_pretrained(folder)
    return folder


def test_what_takes_longer_than_the_stall_time_out_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An update, its publication, and loading the weights at a generator."""
    slow = Slow(micro_batch_s=1.6, mib_s=0.4)
    run = slow_run(
        monkeypatch, tmp_path / "runs", slow, *FAST,
        f"model.path={larger_model(tmp_path / 'model')}", f"transport.stall_timeout_s={STALL_S}",
        "stop.updates=1", "learner.micro_batch_tokens=400",
    )  # fmt: skip
    try:
        assert run.wait() == 0, run.text()
    finally:
        run.end()
    records = records_of(run.run_dir)
    assert [r.text for r in records if isinstance(r, Incident) and r.kind == "stalled"] == []
    updates = [r for r in records if isinstance(r, UpdateCommitted)]
    published = {r.version: r.at for r in records if isinstance(r, VersionPublished)}
    loads = [r.at - published[r.version] for r in records if isinstance(r, VersionLoaded)]
    times = [update.metrics["timing_s/update"] for update in updates]
    assert all(isinstance(s, float) and s > 1.3 * STALL_S for s in times), times
    (behind,) = [
        r.at - update.at
        for r in records
        for update in updates
        if isinstance(r, VersionPublished) and r.update == update.update
    ]
    assert min(behind, max(loads)) > 1.3 * STALL_S
    # A line comes every few seconds: which step it meets is chance.
    assert re.search(r"now learner-0 update 1: (value )?steps? ", run.text())
    assert " loading version " in run.text()


def test_a_learner_that_is_stuck_in_a_micro_batch_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = slow_run(
        monkeypatch, tmp_path / "runs", Slow(stuck_at=1), *FAST,
        f"transport.stall_timeout_s={STALL_S}", "learner.micro_batch_tokens=400",
    )  # fmt: skip
    try:
        assert run.wait() == 1, run.text()
    finally:
        run.end()
    assert "nobody makes progress: " in run.text()
    assert "the learner's update 1 (update 1: " in run.text()


def test_a_checkpoint_that_takes_longer_than_a_stop_may_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two and a half times as long, and more; by Ctrl-C and by `headrace stop`. Nothing of it is
    trained again."""
    slow = Slow(fsync_s=0.4, stop_s=2.0)
    run = slow_run(monkeypatch, tmp_path / "runs", slow, *FAST, "checkpoint.every_updates=null")
    try:
        run.until(lambda: run.root.is_dir() and any(p.is_dir() for p in run.root.iterdir()))
        run.until(lambda: run.applied() >= 2)
        asked_at = time.monotonic()
        run.interrupt()
        assert run.wait() == 130, run.text()
        took = time.monotonic() - asked_at
    finally:
        run.end()
    assert took > 2.5 * slow.stop_s
    assert "now learner-0 syncing the checkpoint of update " in run.text()
    told = [line for line in run.text().splitlines() if line.startswith("stopping: ")]
    assert len(told) == 1
    assert is_documented(told[0])
    trained = run.applied()
    path = run.run_dir / "checkpoints" / f"step_{trained}"
    assert mismatch(path) is None
    again = slow_run(monkeypatch, run.root, slow, resume=run.run_dir.name)
    try:
        again.until(lambda: again.applied() > trained)
        asked_at = time.monotonic()
        said = headrace("stop", "latest", "--root", str(run.root), f"--timeout={2 * slow.stop_s}")
        assert said.returncode == 0, (said.stderr, said.stdout)
        assert time.monotonic() - asked_at > 2.5 * slow.stop_s
        assert "now learner-0 syncing the checkpoint of update " in said.stdout
        assert again.wait() == 0, again.text()
    finally:
        again.end()
    everything = [update.update for _, update in read_applied(run.run_dir)]
    assert everything == [*range(1, again.applied() + 1)]
    assert_trained_once(run.run_dir)
