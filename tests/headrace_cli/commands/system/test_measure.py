"""What a recipe is forecast to do, against numbers worked out by hand."""

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import psutil
import pytest

from headrace.config.estimates.model_shape import ModelShape
from headrace.config.preflight.checks import problems
from headrace.config.sections.run import RunConfig
from headrace.host.hardware import GIB, MIB, Gpu, Hardware
from headrace_cli.commands.system.measure import (
    AnswerWindows,
    LearnerCost,
    Measurement,
    MemoryWatch,
    forecast,
    gains,
    measured_facts,
    run_overrides,
)

Make = Callable[..., RunConfig]
CPU = Hardware((0, 1), 64 * GIB, 64 * GIB, bfloat16=True)
PROMPTS, LENGTHS = np.array([40, 20]), np.array([150, 60])
"""Windows of 60: three, of which the last has 30 tokens, and one."""
SMALL = ModelShape(
    parameters=648_000, hidden=1, intermediate=1, heads=1, kv_heads=1, head_dim=1, layers=1,
    vocabulary=1,
)  # fmt: skip


def seen(config: RunConfig) -> Measurement:
    """Two updates of such a recipe, in which 10 seconds of each half trained 210 tokens."""
    cost = forecast(
        config, Measurement(0, 0, 0, 1, 1, 1, LearnerCost(1, 1, 1), 1, PROMPTS, LENGTHS)
    ).cost
    return Measurement(10, 10, 1, 210, 470, 480, cost, 100, PROMPTS, LENGTHS)


def test_what_is_computed_for_windows(make_config: Make) -> None:
    windows = AnswerWindows.of(PROMPTS, LENGTHS, 60)
    assert windows.end.tolist() == [60, 120, 150, 60]
    assert windows.final.tolist() == [False, False, True, True]
    whole, carried = (
        windows.cost(make_config(f"learner.context={name}")) for name in ("full", "carried")
    )
    # The prompt of the long answer is read three times, its first windows twice and once.
    assert whole == LearnerCost((3 * 40 + 20) / 210, (60 + 120) / 210, (40 + 60 + 40 + 120) / 210)
    assert carried == LearnerCost((40 + 20) / 210, 0.0, (40 + 60 + 60) / 210)
    # Four answers to a prompt compute it once.
    group = ("schedule.num_generations=4", "schedule.batch_windows=8", "learner.context=carried")
    assert windows.cost(make_config(*group)) == LearnerCost(15 / 210, 0.0, (10 + 60 + 60) / 210)
    assert windows.cost(make_config(*group, "learner.share_prompts=false")) == carried


def test_a_fitted_value_model_reads_answers_once(make_config: Make) -> None:
    config = make_config("algorithm.value.fit=least_squares", "algorithm.value.layers=null")
    cost = forecast(config, seen(config)).cost
    assert cost.value == pytest.approx((40 + 60 + 40 + 120 + 40 + 20 + 210) / 210)


def test_a_forecast_of_what_was_seen_is_what_was_seen(make_config: Make) -> None:
    config = make_config("schedule.window=60", "schedule.batch_windows=4")
    now = forecast(config, seen(config))
    assert (now.tokens, now.learner_s, now.generator_s) == pytest.approx((210, 21, 2.1))
    assert now.seconds == pytest.approx(21)
    chosen = forecast(config, replace(seen(config), kept=0.05))
    assert (chosen.learner_s, chosen.seconds) == pytest.approx((21, 42))
    taught = (40 + 20 + 210) / 210
    assert now.cost.taught == pytest.approx(taught)
    twice = make_config("schedule.window=60", "schedule.batch_windows=8")
    assert forecast(twice, seen(config)).seconds == pytest.approx(41)
    turns = make_config("schedule.window=60", "schedule.batch_windows=4", "schedule.mode=windowed")
    assert forecast(turns, seen(config)).seconds == pytest.approx(23.1)


def test_the_key_that_changes_most_is_named(make_config: Make) -> None:
    config = make_config("schedule.window=60", "schedule.batch_windows=4", "stop.updates=9")
    by_key = {key: gain for gain, key, _ in gains(config, seen(config))}
    assert by_key["learner.ranks=2"] == pytest.approx(2)
    assert by_key["generator.count=2"] == pytest.approx(1)
    assert by_key["schedule.batch_windows=8"] == pytest.approx(2 * 21 / 41)
    cost, less = (
        AnswerWindows.of(PROMPTS, LENGTHS, 60).cost(make_config(f"learner.context={name}"))
        for name in ("full", "carried")
    )
    taught = 3 * 270 / 210
    left = 10 * less.policy / cost.policy + 10 * (less.judged + taught) / (cost.judged + taught)
    assert by_key["learner.context=carried"] == pytest.approx(21 / (left + 1))
    facts = {fact.name: fact.value for fact in measured_facts(config, seen(config))}
    assert (facts["binds"], facts["changes most"]) == ("learner", "learner.ranks=2")
    computed = [facts[f"computed, {part}"] for part in ("prompt", "prefix", "window")]
    assert sum(map(float, computed)) == pytest.approx(470 / 210, abs=0.02)


def test_the_measured_batch_is_a_share_that_the_machine_can_do(make_config: Make) -> None:
    config = make_config("schedule.batch_windows=96", "schedule.num_generations=8")

    def batch(shape: ModelShape, hardware: Hardware = CPU) -> int:
        found = dict(override.split("=") for override in run_overrides(config, shape, hardware))
        size, bound = (int(found[f"schedule.{n}"]) for n in ("batch_windows", "max_staleness"))
        assert size * (bound + 1) == 96 * (config.schedule.max_staleness + 1)
        assert size % 8 == 0
        recipe = ("schedule.num_generations=8", "evaluation.mode=along")
        assert problems(make_config(*recipe, *run_overrides(config, shape, CPU))) == []
        return size

    large = ModelShape(**{**vars(SMALL), "parameters": 135_000_000})
    huge = ModelShape(**{**vars(SMALL), "parameters": 9_000_000_000})
    assert (batch(SMALL), batch(large), batch(huge)) == (96, 32, 8)
    assert batch(huge, Hardware((0,), GIB, GIB, (Gpu(0, "card", 80 * GIB),))) == 96


def test_peaks_of_memory_are_those_of_a_roles_processes_and_their_children() -> None:
    taken = "x = b'1' * (100 << 20)\n"
    wait = "import time; print(flush=True); time.sleep(60)"
    child = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {taken + wait!r}])\n"
    with MemoryWatch({"learner.run": "learner"}) as watch:
        command = [sys.executable, "-c", f"{child}{taken}{wait}", "learner.run"]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert [process.stdout.readline() for _ in range(2)] == [b"\n"] * 2
            deadline = time.monotonic() + 60
            while watch.peaks["learner"] <= 200 * MIB and time.monotonic() < deadline:
                time.sleep(0.05)
            for one in psutil.Process(process.pid).children():
                one.kill()
            process.kill()
    assert 200 * MIB < watch.peaks["learner"] < 300 * MIB
    assert watch.peaks["coordinator"] > 0
