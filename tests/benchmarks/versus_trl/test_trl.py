"""TRL against ours: the same work for both, tuning, rows, and how TRL's process is spoken with."""

import itertools
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.kit.arms import Arm
from benchmarks.kit.rows import ResultFile, read_rows
from benchmarks.kit.study_file import Grid, Point
from benchmarks.versus_trl import trl, trl_arms
from benchmarks.versus_trl.trl import (
    MODES,
    PARTS,
    RACE,
    SPEED,
    STREAMING,
    SYNCHRONOUS,
    TrlComparison,
    score,
)
from benchmarks.versus_trl.trl_arms import (
    TRL,
    TrlArm,
    job_of,
    listen,
    run,
    trl_command,
    trl_environment_of,
)
from benchmarks.versus_trl.trl_job import TrlJob, is_correct
from headrace.config.loading.recipe import load_recipe
from headrace.config.preflight.checks import problems
from headrace.config.sections.reward import RewardConfig
from headrace.config.sections.run import RunConfig
from headrace.errors import RunFailedError, UserError
from headrace.host.install import ROOT
from headrace_cli.launch.plan import OPENMP_SPIN_COUNT
from rewards.build import build_verifier
from tasks.procedural.base import prompt_row
from tasks.procedural.chain_sums import CHAIN_SUMS, read_prompt, write_jumps
from tests.benchmarks.race_rows import race_row, rising
from tests.rewards.answers.test_math_answer import RIGHT, WRONG
from tests.rewards.items import item

FOUND = TrlComparison({})
GRIDS = FOUND.tuning.grids
RECIPE = "recipes/algorithms/grpo.toml"
START = GRIDS[TRL].start


def arm_of(part: str, mode: str, point: Point, *, updates: int = 24) -> Arm:
    return TrlComparison({}, updates).arm(part, mode, point)


def points(grid: Grid) -> Iterator[Point]:
    """All points that tuning could come to."""
    values = [(grid.start[name], *others) for name, others in grid.alternatives.items()]
    for chosen in itertools.product(*values):
        yield dict(zip(grid.alternatives, chosen, strict=True))


def config_of(arm: Arm, seed: int = 0) -> RunConfig:
    return load_recipe(ROOT / arm.recipe, [f"seed={seed}", *arm.overrides])


def trl_job(part: str, point: Point) -> TrlJob:
    return job_of(config_of(arm_of(part, TRL, point), 3), point, Path("folder"))


def work_of(part: str, updates: int) -> tuple[str, ...]:
    """What TRL's arm is told of a run, its point apart."""
    return arm_of(part, TRL, START, updates=updates).overrides


# -- the same work ---------------------------------------------------------------------------------


@pytest.mark.parametrize("part", PARTS)
def test_trl_is_told_what_the_recipe_says(part: str) -> None:
    config = config_of(arm_of(part, SYNCHRONOUS, GRIDS[SYNCHRONOUS].start), 3)
    job = trl_job(part, START)
    arguments = job.arguments
    policy = config.learner.policy
    assert Path(job.model) == ROOT / "recipes/models/chain-sums-cold"
    assert arguments["seed"] == config.seed == 3
    assert (
        arguments["max_steps"] == 2 * job.updates == policy.minibatches * (config.stop.updates or 0)
    )
    assert arguments["num_generations"] == config.schedule.num_generations == 16
    assert arguments["max_completion_length"] == config.task.max_response_length == 240
    assert arguments["learning_rate"] == policy.lr == 1e-4
    assert (arguments["adam_beta1"], arguments["adam_beta2"]) == policy.betas
    assert arguments["temperature"] == config.generator.temperature == config.evaluation.temperature
    assert arguments["beta"] == 0.001
    assert (arguments["epsilon"], arguments["epsilon_high"]) == (0.2, 0.2)
    assert not arguments["gradient_checkpointing"]
    assert (job.accuracy, job.limit_s) == (config.stop.accuracy, config.stop.train_time_s)
    assert job.every_updates == config.evaluation.every_updates == (2 if part == RACE else None)
    assert job.evaluate_before == config.evaluation.before
    assert job.evaluate_after == config.evaluation.after == (part == SPEED)


@pytest.mark.parametrize("part", PARTS)
def test_all_arms_do_the_same_work(part: str) -> None:
    for mode in MODES:
        arm = arm_of(part, mode, GRIDS[mode].start, updates=10)
        assert arm.recipe == RECIPE
        assert set(work_of(part, 10)) <= set(arm.overrides)
    trls = arm_of(part, TRL, START, updates=10)
    assert isinstance(trls, TrlArm)
    assert trls.point == START, "what else TRL is told is its point"
    assert all(one.startswith(("stop.", "evaluation.")) for one in trls.overrides)


def test_an_update_has_the_same_completions_however_the_batch_is_split() -> None:
    for point in points(GRIDS[TRL]):
        job = trl_job(SPEED, point)
        found = job.arguments
        at_once = found["per_device_train_batch_size"] * job.processes
        assert at_once == point["at_once"]
        assert at_once * found["gradient_accumulation_steps"] == 64
        assert at_once * found["steps_per_generation"] == 128
        threads = int(trl_environment_of(point)["OMP_NUM_THREADS"])
        assert threads * job.processes <= 2


def test_trls_weights_stay_in_float32() -> None:
    """Its continuous batching casts them to bfloat16, for good, where that is on."""
    for point in points(GRIDS[TRL]):
        told = trl_job(SPEED, point).arguments
        continuous = told["use_transformers_continuous_batching"]
        assert continuous == bool(point["continuous_batching"])
        assert told["bf16"] == (bool(point["bf16"]) and not continuous)


def test_a_batch_that_cannot_be_split_is_refused() -> None:
    with pytest.raises(ValueError, match="micro-batches of 48"):
        trl_job(SPEED, {**START, "at_once": 48})


@pytest.mark.parametrize("mode", [STREAMING, SYNCHRONOUS])
def test_every_setting_of_ours_is_a_configuration_that_starts(mode: str) -> None:
    for point in points(GRIDS[mode]):
        config = config_of(arm_of(SPEED, mode, point))
        assert problems(config) == []
        assert config.schedule.mode == mode
        assert (config.schedule.batch_windows, config.schedule.num_generations) == (128, 16)
    assert problems(config_of(arm_of(RACE, mode, GRIDS[mode].start))) == []


@pytest.mark.parametrize("mode", [STREAMING, SYNCHRONOUS])
def test_ours_begin_where_the_recipe_is(mode: str) -> None:
    """What the start says is what the recipe says by itself on two cores."""
    recipe = load_recipe(ROOT / RECIPE, [f"schedule.mode={mode}"])
    config = config_of(arm_of(SPEED, mode, GRIDS[mode].start))
    assert config.generator == recipe.generator
    assert config.schedule.bound == recipe.schedule.bound
    assert config.learner.model_copy(update={"lockstep_threads": None}) == recipe.learner


def test_arms_are_tuned_with_the_same_number_of_runs() -> None:
    assert set(GRIDS) == set(MODES)
    assert {grid.budget for grid in GRIDS.values()} == {8}
    for mode, grid in GRIDS.items():
        assert {name for name in grid.alternatives} == set(grid.start)
        digests = {arm_of(SPEED, mode, point).digest() for point in points(grid)}
        assert len(digests) == len(list(points(grid)))


def test_another_lock_makes_another_run_of_trl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = {mode: arm_of(SPEED, mode, GRIDS[mode].start).digest() for mode in MODES}
    lock = tmp_path / "trl.lock"
    lock.write_text("trl==99\n")
    monkeypatch.setattr("benchmarks.versus_trl.trl_arms.LOCK", lock)
    new = {mode: arm_of(SPEED, mode, GRIDS[mode].start).digest() for mode in MODES}
    assert [mode for mode in MODES if old[mode] != new[mode]] == [TRL]


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
        "import sys, benchmarks.versus_trl.trl_job as job;"
        "from rewards.answers.math_answer import is_right;"
        "assert is_right('#7', '7', marker='#');"
        "print(*sorted({name.split('.')[0] for name in sys.modules} - sys.stdlib_module_names))"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1"}
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) <= {"__main__", "benchmarks", "headrace", "rewards"}


# -- TRL's process ---------------------------------------------------------------------------------

FAKE = """#!{python}
import json, sys, time
job = json.load(open(sys.argv[-1]))
rows = [json.loads(line) for line in open(job["train_rows"])]
held_out = [json.loads(line) for line in open(job["held_out_rows"])]
print("a library's greeting")
def say(**message): print(json.dumps(message), flush=True)
{body}
"""
WHOLE = """
def evaluate(label, update, accuracy):
    say(evaluation={"label": label, "update": update, "version": update, "at": time.time(),
                    "train_time_s": 0.05 * update, "num_prompts": len(held_out), "seconds": 0.0,
                    "accuracy": accuracy, "response_length": 9.0, "max_response_length": 30})
evaluate("before", 0, 0.25)
while time.process_time() < 0.3:
    pass
evaluate("during", 2, 0.5)
say(result={"updates": job["updates"], "train_time_s": 10.0, "tokens": 50 * len(rows),
            "versions": {"trl": "1"}})
"""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a script that speaks as TRL's side does in the place of its Python."""

    def put(body: str) -> None:
        python = tmp_path / "python"
        python.write_text(FAKE.format(python=sys.executable, body=body))
        python.chmod(0o755)
        monkeypatch.setattr(trl_arms, "trl_python", lambda: python)

    return put


def test_a_run_of_trl_is_a_row_as_others_are(fake: Callable[[str], None], tmp_path: Path) -> None:
    fake(WHOLE)
    row = run(arm_of(RACE, TRL, START), 5, tmp_path, remove=False)
    assert (row["arm"], row["seed"], row["recipe"]) == ("race/trl", 5, RECIPE)
    assert (row["point"], row["versions"]) == (START, {"trl": "1"})
    # Eight prompts an update, each once in the file.
    assert row["tokens"] == {"trained_policy": 50 * 60 * 8, "generated": 50 * 60 * 8}
    assert (row["updates"], row["train_time_s"]) == (60, 10.0)
    assert row["evaluations"] == [[0, 0.0, 0.25, 9.0], [2, 0.1, 0.5, 9.0]]
    assert (row["num_prompts"], row["final"], row["max_length"]) == (1024, 0.5, 30)
    assert {"wall_s", "others_cpu_share", "steal_share", "disturbed"} <= set(row)
    assert sum(row["cpu_s"].values()) > 0.2
    assert row["evaluation_cpu_s"][0] == 0.0
    (file,) = tmp_path.glob("trl-5-*/train.jsonl")
    written = [json.loads(line) for line in file.read_text().splitlines()]
    drawn = [prompt_row(CHAIN_SUMS, index, 5) for index in range(480)]
    assert written == [{"prompt": one.prompt, "answer": one.answer} for one in drawn]


def test_what_a_run_leaves_is_removed(fake: Callable[[str], None], tmp_path: Path) -> None:
    fake(WHOLE)
    root = tmp_path / "root"
    root.mkdir()
    run(arm_of(SPEED, TRL, START, updates=2), 5, root)
    assert list(root.iterdir()) == []


@pytest.mark.parametrize(
    "body", ["sys.exit('no such option')", "sys.stderr.write('no such option')"]
)
def test_a_process_without_a_result_is_a_failed_run(
    body: str, fake: Callable[[str], None], tmp_path: Path
) -> None:
    fake(body)
    with pytest.raises(RunFailedError, match="no such option"):
        run(arm_of(SPEED, TRL, START, updates=2), 0, tmp_path)


def test_a_process_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import time; print('{}', flush=True); time.sleep(600)"]
    with pytest.raises(RunFailedError, match="ended with -15"):
        listen(command, dict(os.environ), tmp_path / "log", wall_s=1.0)


def test_several_processes_are_started_by_torchs_launcher() -> None:
    job = trl_job(SPEED, {**START, "processes": 2})
    command = trl_command(Path("python"), job, Path("job"))
    assert command[:5] == ["python", "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    assert command[-3:] == ["-m", "benchmarks.versus_trl.trl_trainer", "job"]


def test_ours_are_runs_of_the_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Arm] = []

    def made(arm: Arm, *_: Any, **__: Any) -> dict[str, Any]:
        asked.append(arm)
        return {}

    monkeypatch.setattr(trl_arms, "run_arm", made)
    arm = arm_of(SPEED, STREAMING, GRIDS[STREAMING].start)
    run(arm, 7, tmp_path)
    assert asked == [arm]
    assert "schedule.mode=streaming" in arm.overrides


# -- the environment -------------------------------------------------------------------------------


def test_the_set_up_makes_the_environment(tmp_path: Path) -> None:
    script = tmp_path / "scripts" / "setup.py"
    script.parent.mkdir()
    script.write_text("import sys; sys.exit(sys.argv[1:] != ['trl'])")
    python = trl_arms.trl_python(tmp_path)
    assert python == tmp_path / ".cache" / "trl" / "bin" / "python"
    script.write_text("import sys; sys.exit(1)")
    with pytest.raises(UserError, match="could not be built"):
        trl_arms.trl_python(tmp_path)


def test_trls_lock_holds_no_build_for_a_gpu() -> None:
    text = trl_arms.LOCK.read_text(encoding="utf-8")
    pins = dict(line.split("==") for line in text.splitlines() if not line.startswith("#"))
    assert {"trl", "transformers", "torch", "accelerate", "math-verify"} <= set(pins)
    assert not {name for name in pins if name.startswith(("nvidia-", "vllm", "torchvision"))}


def test_idle_threads_of_trl_spin_as_ours_at_first() -> None:
    assert START["spins"] == OPENMP_SPIN_COUNT


# -- tuning and rows -------------------------------------------------------------------------------


class Measured:
    """Stands in for runs: rows by rule, and what was asked for."""

    def __init__(self, *, failing: str = "", disturbed: int = 0, top: float = 0.9) -> None:
        self.asked: list[tuple[str, int]] = []
        self.failing, self.disturbed, self.top = failing, disturbed, top

    def __call__(self, arm: Arm, seed: int, root: Path, *, remove: bool) -> dict[str, Any]:
        self.asked.append((arm.name, seed))
        part, _, mode = arm.name.partition("/")
        point = arm.point if isinstance(arm, TrlArm) else {}
        if point.get(self.failing):
            raise RunFailedError("it cannot do that")
        # 1,000 tokens a run and 2 CPU seconds a second.
        seconds = {TRL: 12.0, STREAMING: 4.0, SYNCHRONOUS: 6.0}[mode] + 0.01 * seed
        if point.get("spins") == 300_000:
            seconds -= 2.0
        slope = {TRL: 0.025, STREAMING: 0.075, SYNCHRONOUS: 0.05}[mode]
        curve = (
            [(0, 0.0, 0.1), (24, seconds, 0.4)] if part == SPEED else rising(slope, top=self.top)
        )
        self.disturbed -= 1
        beside = 0.2 if self.disturbed >= 0 else 0.01
        state = {"others_cpu_share": beside, "disturbed": beside > 0.05}
        return race_row(arm.name, seed, curve, **state)


@pytest.fixture
def bench(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., dict[str, Any]]:
    """`headrace bench trl --json` with runs that are stood in for: its result, and `code`."""

    def call(measured: Measured, *options: str) -> dict[str, Any]:
        monkeypatch.setattr(trl, "run", measured)
        monkeypatch.setattr(trl, "trl_python", lambda: None)
        code = trl.main([*options, "--json", "--rows", str(tmp_path / "rows.jsonl")])
        return {**json.loads(capsys.readouterr().out.splitlines()[-1]), "code": code}

    return call


Bench = Callable[..., dict[str, Any]]


def test_a_whole_bench_and_its_result(bench: Bench, tmp_path: Path) -> None:
    measured = Measured()
    result = bench(measured, "--seeds", "2")
    assert len(measured.asked) == 3 * 8 + 2 * 2 * 3
    assert {seed for _, seed in measured.asked[: 3 * 8]} == {100}
    # TRL's tuning found the longer spin, two seconds faster.
    arms = result["arms"]
    assert arms[TRL]["point"] == {**START, "spins": 300_000}
    assert result["ratio"] == pytest.approx((10.0 + 10.01) / (4.0 + 4.01))
    assert result["ratio_min"] == pytest.approx(10.01 / 4.01)
    assert result["ratio_max"] == pytest.approx(10.0 / 4.0)
    assert result["cpu_ratio"] == pytest.approx((10.0 + 10.01) / (6.0 + 6.01))
    assert (result["code"], result["tuned"], result["seeds"]) == (0, True, [0, 1])
    assert {"commit", "format", "machine", "interval"} <= set(result)
    assert arms[STREAMING]["tokens_per_s"]["max"] == 250.0
    assert arms[STREAMING]["cpu_s_per_token"] == pytest.approx(2 * 4.005 / 1000)
    assert [arms[mode]["seconds"] for mode in MODES] == pytest.approx([30.0, 10.0, 15.0])
    assert [arms[mode]["cpu_s"] for mode in MODES] == pytest.approx([60.0, 20.0, 30.0])
    assert arms[STREAMING]["against_trl"]["seconds"]["ratio"] == pytest.approx(3.0)
    assert arms[TRL]["against_trl"]["seconds"]["ratio"] == 1.0
    assert (arms[TRL]["censored"], arms[TRL]["disturbed"], arms[TRL]["prompts"]) == (0, 0, 1024)
    rows = ResultFile(tmp_path / "rows.jsonl").rows.values()
    assert {row["study"] for row in rows} == {"trl"}
    # Both parts of all arms in an order drawn for the seed.
    assert sorted(row["place"] for row in rows if row["seed"] == 0) == list(range(6))


def test_the_table_has_a_line_for_each_arm_and_the_rows_a_plot(
    bench: Bench, tmp_path: Path
) -> None:
    rows = tmp_path / "rows.jsonl"
    assert trl.plots(rows) == {}
    bench(Measured(), "--seeds", "2")
    found = trl.TrlComparison(read_rows(rows))
    result = trl.summarise(found, range(2))
    text = trl.arms_table(result).markdown()
    assert "| trl | 2, 2 | 100 | 20.01 | 30.0 | 60.0 | 1.00 (1.00 to 1.00) | 1.00 (" in text
    assert "| streaming | 2, 2 | 250 (249 to 250) | 8.01 | 10.0 | 20.0 | 3.00 (3.00 to" in text
    assert "over TRL's: 2.50 (seeds 2.50 to 2.50" in trl.ratio_line(result)
    assert "over those of our synchronous mode: 1.67; all tuned alike" in trl.ratio_line(result)
    ((_, draw),) = trl.plots(rows).values()
    draw(tmp_path / "trl.svg")
    assert (tmp_path / "trl.svg").stat().st_size > 1000


def test_the_table_says_who_never_got_there(bench: Bench, tmp_path: Path) -> None:
    bench(Measured(top=0.7), "--reduced")
    found = trl.TrlComparison(read_rows(tmp_path / "rows.jsonl"))
    assert "| trl | 2, 2 (0 crossed) |" in trl.arms_table(trl.summarise(found, range(2))).markdown()


def test_what_is_there_is_not_run_again(bench: Bench) -> None:
    bench(Measured(), "--seeds", "2")
    again = Measured()
    bench(again, "--seeds", "3")
    assert {seed for _, seed in again.asked} == {2}


def test_a_run_that_others_disturbed_is_made_again(bench: Bench, tmp_path: Path) -> None:
    measured = Measured(disturbed=1)
    assert bench(measured, "--seeds", "1")["arms"][TRL]["disturbed"] == 0
    assert measured.asked[0] == measured.asked[1]
    assert len(measured.asked) == 3 * 8 + 6 + 1
    (kept,) = (row for row in ResultFile(tmp_path / "rows.jsonl").rows.values() if row["disturbed"])
    assert kept["key"].endswith("/disturbed-0")


def test_settings_that_fail_are_tried_and_never_chosen(bench: Bench, tmp_path: Path) -> None:
    result = bench(Measured(failing="continuous_batching"), "--seeds", "1")
    assert result["tuned"]
    assert result["arms"][TRL]["point"]["continuous_batching"] == 0
    rows = ResultFile(tmp_path / "rows.jsonl").rows.values()
    (failed,) = (row for row in rows if "failed" in row)
    assert (failed["seed"], failed["failed"]) == (100, "it cannot do that")
    assert score([failed]) > score([race_row("speed/trl", 100, rising(0.01, until=1000.0))])


def test_a_run_that_is_shown_and_fails_is_no_row_and_is_said(bench: Bench) -> None:
    result = bench(Measured(failing="at_once"), "--reduced", "--seeds", "1")
    assert (result["code"], result["ratio"], result["tuned"]) == (1, None, False)
    assert (result["arms"][TRL]["speed_seeds"], result["arms"][TRL]["s_per_token"]) == (0, None)
    assert result["arms"][STREAMING]["tokens_per_s"]["median"] == 250.0


def test_a_run_that_never_got_there_counts_with_its_whole_time(bench: Bench) -> None:
    trls = bench(Measured(top=0.7), "--reduced")["arms"][TRL]
    assert (trls["censored"], trls["seconds"], trls["race_seeds"]) == (2, 40.0, 2)


def test_listing_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(trl, "Runner", None)
    rows = tmp_path / "rows.jsonl"
    assert trl.main(["--list", "--seeds", "1", "--rows", str(rows)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["tuning"] * 3 + ["missing"] * 6
    assert not rows.exists()
