"""TRL against ours: the same work for both, tuning, rows, and how TRL's process is spoken with."""

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks import trl, trl_arms, trl_environment
from benchmarks.rows import Rows
from benchmarks.runs import Summary
from benchmarks.trl import Bench, key, ratios
from benchmarks.trl_arms import (
    ARMS,
    RECIPE,
    STREAMING,
    SYNCHRONOUS,
    TRL,
    Arm,
    Settings,
    Work,
    intervals,
    job_of,
    listen,
    our_overrides,
    run_trl,
    trl_command,
    tuned,
)
from benchmarks.trl_job import is_correct, trainer_arguments
from headrace.config.checks import problems
from headrace.config.load import load_recipe
from headrace.config.reward import RewardConfig
from headrace.errors import RunFailedError, UserError
from headrace.install import ROOT
from rewards.verifier import build_verifier
from tasks.chain_sums import CHAIN_SUMS, read_prompt, write_jumps
from tasks.procedural import prompt_row
from tests.rewards.items import item
from tests.rewards.test_math_answer import RIGHT, WRONG

ARM = {arm.name: arm for arm in ARMS}


def grid(arm: Arm) -> Iterator[Settings]:
    """All settings that tuning could come to."""
    found: list[Settings] = [arm.base]
    for stage in arm.stages:
        found += [{**settings, **change} for settings in found for change in stage]
    return iter(found)


# -- the same work ---------------------------------------------------------------------------------


@pytest.mark.parametrize("work", [Work(3, 24), Work(3, 60, accuracy=0.75)])
def test_trl_is_told_what_the_recipe_says(work: Work, tmp_path: Path) -> None:
    config = load_recipe(ROOT / RECIPE, work.overrides())
    job = job_of(config, ARM[TRL].base, work, tmp_path)
    arguments = trainer_arguments(job)
    policy = config.learner.policy
    assert Path(job.model) == ROOT / "recipes/models/chain-sums-cold"
    assert arguments["max_steps"] == work.updates * policy.minibatches == 2 * work.updates
    assert arguments["num_generations"] == config.schedule.num_generations == 16
    assert arguments["max_completion_length"] == config.task.max_response_length == 240
    assert arguments["learning_rate"] == policy.lr == 1e-4
    assert (arguments["adam_beta1"], arguments["adam_beta2"]) == policy.betas
    assert arguments["temperature"] == config.generator.temperature == config.evaluation.temperature
    assert arguments["beta"] == 0.001
    assert (arguments["epsilon"], arguments["epsilon_high"]) == (0.2, 0.2)
    assert not arguments["gradient_checkpointing"]
    assert job.every_updates == (None if work.accuracy is None else 2)


def test_an_update_has_the_same_completions_however_the_batch_is_split(tmp_path: Path) -> None:
    work = Work(0, 10)
    config = load_recipe(ROOT / RECIPE, work.overrides())
    for settings in grid(ARM[TRL]):
        if settings["processes"] * settings["micro_batch"] > 64:
            continue
        found = trainer_arguments(job_of(config, settings, work, tmp_path))
        at_once = found["per_device_train_batch_size"] * settings["processes"]
        assert at_once * found["gradient_accumulation_steps"] == 64
        assert at_once * found["steps_per_generation"] == 128


def test_a_batch_that_cannot_be_split_is_refused(tmp_path: Path) -> None:
    config = load_recipe(ROOT / RECIPE)
    settings = {**ARM[TRL].base, "micro_batch": 48}
    with pytest.raises(ValueError, match="micro-batches of 48"):
        trainer_arguments(job_of(config, settings, Work(0, 10), tmp_path))


@pytest.mark.parametrize("mode", [STREAMING, SYNCHRONOUS])
def test_every_setting_of_ours_is_a_configuration_that_starts(mode: str) -> None:
    for settings in grid(ARM[mode]):
        for work in (Work(0, 10), Work(0, 10, accuracy=0.75)):
            config = load_recipe(ROOT / RECIPE, our_overrides(mode, settings, work))
            assert problems(config) == []
            assert config.schedule.mode == mode
            assert (config.schedule.batch_windows, config.schedule.num_generations) == (128, 16)


def test_arms_are_tuned_with_the_same_number_of_runs() -> None:
    assert [arm.budget for arm in ARMS] == [8, 8, 8]


def test_the_scorers_agree() -> None:
    """On the verifier's own cases, and on answers of the task, right, wrong, cut and spoilt."""
    cases = [(text, answer) for text, answer, marker in RIGHT + WRONG if marker == "#"]
    rng = random.Random(0)
    for index in range(200):
        row = prompt_row(CHAIN_SUMS, index, 0)
        text = write_jumps(read_prompt(str(row.prompt)), rng)
        spoilt = text.replace(rng.choice(text), rng.choice(CHAIN_SUMS.characters))
        cut = text[: rng.randrange(len(text))]
        cases += [(given, row.answer) for given in (text, spoilt, cut, text + text)]
    verify = build_verifier(RewardConfig(kind="math", answer_marker="#"))
    seen = set()
    for finished in (True, False):
        for text, answer in cases:
            ours = verify(item(text, answer=answer, finished=finished))
            assert is_correct(text, answer, finished=finished, marker="#") == ours.correct
            assert ours.reward == float(ours.correct)
            seen.add((finished, ours.correct))
    assert seen == {(True, True), (True, False), (False, False)}


def test_trls_environment_needs_none_of_our_packages() -> None:
    code = (
        "import sys, benchmarks.trl_job as job; from rewards.math_answer import is_right;"
        "assert is_right('#7', '7', marker='#');"
        "print(*sorted({name.split('.')[0] for name in sys.modules} - sys.stdlib_module_names))"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1"}
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) <= {"__main__", "benchmarks", "rewards"}


# -- TRL's process ---------------------------------------------------------------------------------

FAKE = """#!{python}
import json, sys
job = json.load(open(sys.argv[-1]))
rows = [json.loads(line) for line in open(job["train_rows"])]
held_out = [json.loads(line) for line in open(job["held_out_rows"])]
print("a library's greeting")
def say(at, **message): print(json.dumps({{"at": at, **message}}), flush=True)
{body}
"""
WHOLE = """
figures = {"label": "during", "update": 2, "train_time_s": 5.0, "num_prompts": len(held_out),
           "accuracy": 0.5, "response_length": 9.0, "seconds": 1.0}
say(100.0, phase="training")
say(105.0, phase="evaluating")
say(106.0, evaluation=figures)
say(107.0, phase="training")
say(112.0, phase="closing")
say(113.0, result={"updates": job["updates"], "train_time_s": 10.0, "tokens": 50 * len(rows),
                   "completions": 128, "reward": 0.25, "versions": {"trl": "1"}})
"""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts a script that speaks as TRL's side does in the place of its Python."""

    def put(body: str) -> Path:
        python = tmp_path / "python"
        python.write_text(FAKE.format(python=sys.executable, body=body))
        python.chmod(0o755)
        monkeypatch.setattr(trl_arms, "trl_python", lambda: python)
        return python

    return put


def test_a_run_of_trl_is_what_its_process_says(fake: Any, tmp_path: Path) -> None:
    fake(WHOLE)
    work = Work(5, 4, accuracy=0.75)
    figures, clock = run_trl(ARM[TRL].base, work, tmp_path / "run")
    assert clock == [(100.0, 105.0), (107.0, 112.0)]
    # Eight prompts an update, each once in the file.
    assert figures["tokens"] == 50 * 4 * 8
    assert (figures["updates"], figures["train_time_s"]) == (4, 10.0)
    (evaluation,) = figures["evaluations"]
    assert (evaluation["accuracy"], evaluation["num_prompts"]) == (0.5, 1024)
    rows = [json.loads(line) for line in (tmp_path / "run/train.jsonl").read_text().splitlines()]
    assert rows[0] == {
        "prompt": prompt_row(CHAIN_SUMS, 0, 5).prompt,
        "answer": prompt_row(CHAIN_SUMS, 0, 5).answer,
    }


@pytest.mark.parametrize(
    "body", ["sys.exit('no such option')", "sys.stderr.write('no such option')"]
)
def test_a_process_without_a_result_is_a_failed_run(body: str, fake: Any, tmp_path: Path) -> None:
    fake(body)
    with pytest.raises(RunFailedError, match="no such option"):
        run_trl(ARM[TRL].base, Work(0, 4), tmp_path / "run")


def test_a_process_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import time; print('{}', flush=True); time.sleep(600)"]
    with pytest.raises(RunFailedError, match="ended with -15"):
        listen(command, dict(os.environ), tmp_path / "log", wall_s=1.0)


def test_several_processes_are_started_by_torchs_launcher() -> None:
    (settings,) = (one for one in ARM[TRL].stages[0] if one.get("processes") == 2)
    command = trl_command(Path("python"), {**ARM[TRL].base, **settings}, Path("job"))
    assert command[:5] == ["python", "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    assert command[-3:] == ["-m", "benchmarks.trl_trainer", "job"]


def test_the_clock_runs_between_training_and_an_evaluation() -> None:
    phases = [
        (0.0, "starting"), (1.0, "evaluating"), (2.0, "training"), (5.0, "draining"),
        (6.0, "evaluating"), (8.0, "training"), (9.0, "draining"), (9.5, "closing"),
        (9.8, "finished"),
    ]  # fmt: skip
    assert intervals(phases) == [(2.0, 6.0), (8.0, 9.5)]


# -- the environment -------------------------------------------------------------------------------


def test_the_environment_is_built_once_for_a_lock(tmp_path: Path) -> None:
    lock, folder = tmp_path / "trl.lock", tmp_path / "cache" / "trl"
    lock.write_text("# made\nother==1\ntorch==2\ntrl==3\n")
    commands: list[list[str]] = []

    def run(command: Any, log: Path) -> bool:
        commands.append(list(command))
        folder.mkdir(exist_ok=True)
        return "torch==2+cpu" not in command or "--extra-index-url" in command

    python = trl_environment.trl_python(folder, lock, run)
    assert python == folder / "bin" / "python"
    assert commands[0][-3:] == ["venv", "--clear", str(folder)]
    # pip's own sources first, then PyTorch's.
    assert [command[-1] for command in commands[1:]] == [
        "torch==2+cpu", trl_environment.TORCH_CPU_INDEX, "trl==3",
    ]  # fmt: skip
    assert "other==1" in commands[-1]
    commands.clear()
    trl_environment.trl_python(folder, lock, run)
    assert commands == []
    lock.write_text("torch==2\ntrl==4\n")
    trl_environment.trl_python(folder, lock, run)
    assert commands[-1][-1] == "trl==4"


def test_an_environment_that_cannot_be_built_is_said_and_not_taken_for_built(
    tmp_path: Path,
) -> None:
    lock, folder = tmp_path / "trl.lock", tmp_path / "cache" / "trl"
    lock.write_text("torch==2\ntrl==3\n")
    for _ in range(2):
        with pytest.raises(UserError, match="could not be built"):
            trl_environment.trl_python(folder, lock, lambda command, log: "venv" in command)


def test_torch_comes_from_where_the_set_up_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    installer = __import__("installer")
    assert installer.TORCH_CPU_INDEX == trl_environment.TORCH_CPU_INDEX
    text = trl_environment.LOCK.read_text(encoding="utf-8")
    pins = dict(line.split("==") for line in text.splitlines() if not line.startswith("#"))
    assert {"trl", "transformers", "torch", "accelerate", "math-verify"} <= set(pins)
    assert not {name for name in pins if name.startswith(("nvidia-", "vllm", "torchvision"))}


# -- tuning and rows -------------------------------------------------------------------------------


def test_tuning_tries_each_change_on_the_best_of_the_stages_before() -> None:
    arm = Arm("x", {"a": 0, "b": 0}, (({"a": 1}, {"a": 2}), ({"b": 1},), ({"b": 2},)))
    speeds = {(0, 0): 10.0, (1, 0): 30.0, (2, 0): 20.0, (1, 1): 25.0, (1, 2): 40.0}
    measured: list[tuple[int, int]] = []
    while True:
        best, following = tuned(
            arm,
            lambda s: speeds[s["a"], s["b"]] if (s["a"], s["b"]) in measured else None,
        )
        if following is None:
            break
        measured.append((following["a"], following["b"]))
    assert measured == [(0, 0), (1, 0), (2, 0), (1, 1), (1, 2)]
    assert best == {"a": 1, "b": 2}


class Measured:
    """Stands in for runs: figures by rule, and what was asked for."""

    def __init__(self, others: float = 0.0, failing: str = "") -> None:
        self.asked: list[tuple[str, int, float | None]] = []
        self.others, self.failing = others, failing

    def __call__(
        self, arm: Arm, settings: Settings, work: Work, root: Path, name: str
    ) -> dict[str, Any]:
        self.asked.append((arm.name, work.seed, work.accuracy))
        if self.failing and settings.get(self.failing):
            raise RunFailedError("it cannot do that")
        speed = {TRL: 100.0, STREAMING: 300.0, SYNCHRONOUS: 200.0}[arm.name] + work.seed
        passive = 50.0 if settings.get("wait_policy") == "passive" else 0.0
        evaluations = [
            {"label": "during", "update": 2 * n, "train_time_s": 1000 * n / speed, "accuracy": a}
            for n, a in enumerate((0.2, 0.8, 0.7, 0.8, 0.9))
        ]
        return {
            "updates": 8,
            "train_time_s": 5000 / speed,
            "tokens": 5000,
            "tokens_per_s": speed + passive,
            "cpu_s": 10.0,
            "cpu_ms_per_token": {TRL: 3.0, STREAMING: 4.0, SYNCHRONOUS: 2.0}[arm.name],
            "others": self.others,
            "stolen": 0.0,
            "evaluations": evaluations if work.accuracy else [],
        }


def bench(tmp_path: Path, measured: Measured, **more: bool) -> Bench:
    return Bench(Rows(tmp_path / "rows.jsonl"), 24, tmp_path, measure=measured, **more)


def whole(tmp_path: Path, measured: Measured, seeds: int = 2) -> Mapping[str, Any]:
    one = bench(tmp_path, measured)
    one.tune()
    for seed in range(seeds):
        one.show(seed)
    assert one.failed == []
    return one.result(range(seeds))


def test_a_whole_bench_and_its_result(tmp_path: Path) -> None:
    measured = Measured()
    result = whole(tmp_path, measured)
    assert len(measured.asked) == 3 * 8 + 2 * 2 * 3
    assert not {seed for _, seed, _ in measured.asked[: 3 * 8]} & {0, 1}
    # TRL's tuning found the passive wait, fifty tokens a second faster.
    assert result["arms"][TRL]["settings"]["wait_policy"] == "passive"
    assert result["ratio"] == pytest.approx((300 / 150 + 301 / 151) / 2, abs=1e-4)
    assert result["ratio_min"] == pytest.approx(301 / 151, abs=1e-4)
    assert result["ratio_max"] == pytest.approx(2.0)
    assert (result["cpu_ratio"], result["tuned"], result["repeats"]) == (1.5, True, 2)
    # The first of two evaluations in a row: the third one, not the lonely first.
    assert result["arms"][STREAMING]["seconds"]["max"] == [pytest.approx(10.0)] * 2
    assert result["arms"][TRL]["missed"] == 0


def test_what_is_there_is_not_run_again(tmp_path: Path) -> None:
    whole(tmp_path, Measured())
    again = Measured()
    whole(tmp_path, again, seeds=3)
    assert {seed for _, seed, _ in again.asked} == {2}


def test_a_run_that_others_disturbed_is_made_once_more_and_said(tmp_path: Path) -> None:
    result = whole(tmp_path, Measured(others=0.2), seeds=1)
    assert result["disturbed"] == 6
    again = Measured()
    assert whole(tmp_path, again, seeds=1)["disturbed"] == 0
    assert len(again.asked) == 3 * 8 + 6


def test_settings_that_fail_are_tried_and_never_chosen(tmp_path: Path) -> None:
    measured = Measured(failing="continuous_batching")
    result = whole(tmp_path, measured, seeds=1)
    assert result["tuned"]
    assert result["arms"][TRL]["settings"]["continuous_batching"] is False
    rows = Rows(tmp_path / "rows.jsonl").rows.values()
    (failed,) = (row for row in rows if "failed" in row)
    assert (failed["part"], failed["failed"]) == ("tuning", "it cannot do that")


def test_a_run_that_is_shown_and_fails_is_no_row_and_is_said(tmp_path: Path) -> None:
    one = bench(tmp_path, Measured(failing="micro_batch"), tunes=False)
    one.show(0)
    assert len(one.failed) == 2
    result = one.result([0])
    assert (result["ratio"], result["repeats"], result["tuned"]) == (None, 0, False)
    assert result["arms"][STREAMING]["tokens_per_s"]["median"] == 300.0


def test_a_run_that_never_got_there_is_a_bound(tmp_path: Path) -> None:
    class Slow(Measured):
        def __call__(self, *arguments: Any) -> dict[str, Any]:
            row = super().__call__(*arguments)
            return {**row, "evaluations": row["evaluations"][:2]}

    one = bench(tmp_path, Slow())
    one.show(0)
    trls = one.result([0])["arms"][TRL]
    assert (trls["missed"], trls["seconds"]["median"]) == (1, [10.0, None])


def test_ratios_are_of_seeds_that_all_arms_have() -> None:
    found = {"a": {0: {"x": 6.0}, 1: {"x": 8.0}}, "b": {1: {"x": 2.0}, 2: {"x": 1.0}}}
    assert ratios(found, lambda rows: rows["a"]["x"] / rows["b"]["x"]) == [4.0]


def test_another_setting_or_work_is_another_row() -> None:
    base = key("speed", ARM[TRL], ARM[TRL].base, Work(0, 24))
    assert base != key("speed", ARM[TRL], {**ARM[TRL].base, "threads": 1}, Work(0, 24))
    assert base != key("speed", ARM[TRL], ARM[TRL].base, Work(0, 25))


def test_listing_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Bench, "_run", None)
    rows = tmp_path / "rows.jsonl"
    assert trl.main(["--list", "--seeds", "1", "--rows", str(rows)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 * 3
    assert all(line.startswith("missing") for line in lines)
    assert not rows.exists()


def test_ours_are_runs_of_the_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def train(recipe: str, overrides: list[str], **_: Any) -> Summary:
        asked.append([recipe, *overrides])
        raise RunFailedError("no further")

    monkeypatch.setattr(trl_arms, "train", train)
    with pytest.raises(RunFailedError, match="no further"):
        trl_arms.measure(
            ARM[STREAMING], {"learner.precision": "float32"}, Work(7, 4), tmp_path, "run"
        )
    ((recipe, *overrides),) = asked
    assert recipe.endswith(RECIPE)
    assert {"schedule.mode=streaming", "seed=7", "stop.updates=4"} <= set(overrides)
    assert 'learner.precision="float32"' in overrides
