"""How fast a stream could be at best: generator and learner measured each alone, for its tokens.

In: the arm `streaming` of a race. Out: a row with three times for the same tokens: `stream_s`, the
run's own training seconds; `generator_s`, what its tokens take a generator alone on its core, all
of its slots full; `learner_s`, what its batches take a learner alone on its cores. A stream cannot
be faster than the slower of the two; the quotient of that and `stream_s` is the share of the
ceiling that it reached. Idle shares say nothing of this: who shares a core or waits for memory is
not idle.

The generator's rate is that of evaluations of the first and the last policy (their harmonic mean,
for a run's tokens lie between), while every slot was in use: up to the first token of the last
prompt to begin.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.kit.arms import Arm, Row
from benchmarks.kit.machine_state import Watch
from benchmarks.kit.runs import train
from headrace.config.device_defaults import resolve_generator
from headrace.config.sections.run import RunConfig
from headrace.errors import RunFailedError
from headrace.host.hardware import detect
from headrace.host.install import ROOT
from headrace_cli.launch.plan import cpu_places, role_environment
from storage.queries import evaluation_answers

UNSEEN = (
    "evaluation.before=false",
    "evaluation.after=false",
    "evaluation.every_updates=null",
    "evaluation.spacing=0",
    "evaluation.spacing_from_s=0",
)
"""No evaluations: nothing is read from them, and they would be most of the run."""
ALONE = (*UNSEEN, "evaluation.only=true", "evaluation.before=true")
"""One evaluation and no training: what a generator does alone."""
WAVES = 12
"""Prompts for each slot at the least, so that the slots are full for most of the time."""


def measure(arm: Arm, seed: int) -> Row:
    """Run the arm, then its two halves alone."""
    with tempfile.TemporaryDirectory(prefix="headrace-ceiling-") as scratch:
        folder = Path(scratch)
        recipe = str(ROOT / arm.recipe)
        overrides = [f"seed={seed}", *arm.overrides, *UNSEEN]
        with Watch() as watch:
            stream = train(recipe, overrides, root=folder, name="stream")
            run_dir = Path(stream["folder"])
            learner = learner_alone(run_dir)
            config = RunConfig.model_validate_json((run_dir / "resolved.json").read_text())
            last = run_dir / stream["checkpoints"][-1]["path"] / "policy"
            policies = {"first": Path(config.model.path), "last": last}
            rates = {
                name: generator_alone(arm, seed, policy, config, folder, name)
                for name, policy in policies.items()
            }
        tokens = stream["tokens"]["generated"]
        return {
            "arm": arm.name,
            "seed": seed,
            "generated": tokens,
            "trained": stream["tokens"]["trained_policy"],
            "stream_s": round(stream["train_time_s"], 2),
            "learner_s": round(learner["seconds"], 2),
            "learner_updates": learner["updates"],
            "generator_s": round(sum(tokens / 2 / rate for rate in rates.values()), 2),
            "generator_tokens_per_s": {name: round(rate, 1) for name, rate in rates.items()},
            **watch.state({}).as_row(),
        }


def learner_alone(run_dir: Path) -> dict[str, Any]:
    """Seconds and updates of the run's batches on the cores that its learner had."""
    config = RunConfig.model_validate_json((run_dir / "resolved.json").read_text())
    cores = cpu_places(config, detect())[1] or tuple(sorted(os.sched_getaffinity(0)))
    answer = subprocess.run(
        [
            sys.executable,
            "-m",
            "benchmarks.kit.learner_alone",
            str(run_dir),
            ",".join(map(str, cores)),
        ],
        cwd=ROOT,
        env={**os.environ, **role_environment(config.learner.threads)},
        capture_output=True,
        text=True,
    )
    if answer.returncode != 0:
        raise RunFailedError(
            f"learner alone ended with {answer.returncode}: {answer.stderr[-500:]}"
        )
    found: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
    return found


def generator_alone(
    arm: Arm, seed: int, policy: Path, config: RunConfig, root: Path, name: str
) -> float:
    """Tokens a second of the arm's generator with a policy, while all its slots are full."""
    seats = resolve_generator(config, detect().gpus).config.generator.seats
    prompts = max(config.evaluation.num_prompts, WAVES * seats)
    chosen = replace(
        arm,
        overrides=(
            *arm.overrides,
            *ALONE,
            f"model.path={policy}",
            f"evaluation.num_prompts={prompts}",
        ),
    )
    recipe = str(ROOT / chosen.recipe)
    summary = train(
        recipe, [f"seed={seed}", *chosen.overrides], root=root, name=f"generator-{name}"
    )
    folder = Path(summary["folder"])
    rate = full_rate(evaluation_answers(folder))
    shutil.rmtree(folder)
    return rate


def full_rate(answers: Any) -> float:
    """Tokens a second from the first token of all to the last answer's first, of a frame with
    `length`, `first_token_at` and `finished_at`. An answer that was being written at that time
    counts with the part of it that its share of the time makes."""
    begin, end = answers["first_token_at"].min(), answers["first_token_at"].max()
    spans = (answers["finished_at"] - answers["first_token_at"]).clip(lower=1e-9)
    written = ((end - answers["first_token_at"]) / spans).clip(lower=0.0, upper=1.0)
    return float((answers["length"] * written).sum() / (end - begin))


def share(row: Row) -> float:
    """How much of its ceiling the stream reached, 0 to 1."""
    return float(max(row["generator_s"], row["learner_s"]) / row["stream_s"])
