"""The race: arms that start, an order that is drawn, a ratio that leaves nobody out."""

import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from benchmarks.kit import study_runs
from benchmarks.kit.arms import Arm, key
from benchmarks.kit.rows import ResultFile
from benchmarks.kit.study_plan import Study, in_drawn_order
from benchmarks.kit.study_runs import Runner
from benchmarks.studies.comparison_figures import (
    arm_figures,
    course_table,
    part_figures,
    part_table,
    ratio_line,
    ratio_table,
    summarise,
)
from benchmarks.studies.study import main
from headrace.config.loading.recipe import load_recipe
from headrace.config.preflight.checks import problems
from headrace.errors import RunFailedError, UserError
from headrace.host.install import ROOT
from tests.benchmarks.race_rows import (
    PAIR,
    SEEDS,
    Curve,
    add,
    points_of,
    race_row,
    rising,
    small_race,
    start_of,
)
from tests.headrace.conftest import write_model

SETTINGS = ("short", "long")
RACES = [Study.load("tppo-vs-ppo", setting) for setting in SETTINGS]
NEW = Study.load("race")
REAL = Study.load("real-model")
LOCKSTEP = ("synchronous", "windowed", "grpo-synchronous")


@pytest.mark.parametrize("race", RACES, ids=SETTINGS)
@pytest.mark.parametrize("mode", RACES[0].file.arms)
def test_every_point_of_every_arm_is_a_configuration_that_starts(mode: str, race: Study) -> None:
    for point in points_of(race, mode):
        arm = race.arm(mode, point)
        config = load_recipe(ROOT / arm.recipe, [f"seed={race.file.seeds[0]}", *arm.overrides])
        assert problems(config) == []
        assert config.schedule.mode in mode or config.schedule.mode == "streaming"
        assert config.generator.count == 1
        assert config.learner.policy.minibatches == point["steps"]
        assert (config.algorithm.value is None) == mode.startswith("grpo")
        assert (config.learner.context == "full") or mode not in LOCKSTEP
        assert config.stop.tokens == race.file.variables["tokens"]
        assert config.evaluation.num_prompts >= 1024
        assert not set(race.file.seeds) & set(race.tuning().seeds)


@pytest.mark.parametrize("mode", NEW.file.arms)
def test_every_point_of_the_new_race_is_a_configuration_that_starts(mode: str) -> None:
    grid = NEW.file.grids[NEW.file.arms[mode].grid or ""]
    assert grid.budget == 17
    found = set()
    for point in points_of(NEW, mode):
        arm = NEW.arm(mode, point, tuned=True)
        config = load_recipe(ROOT / arm.recipe, arm.overrides)
        assert problems(config) == []
        assert config.stop.accuracy == NEW.target
        found.add(config.model_dump_json())
    assert len(found) == grid.budget
    assert not set(NEW.file.seeds) & set(NEW.tuning().seeds)


@pytest.mark.parametrize("mode", REAL.file.arms)
def test_every_point_on_the_real_model_is_a_configuration(mode: str, tmp_path: Path) -> None:
    """Its rules hold, with a model and a file that are there."""
    data = tmp_path / "data.jsonl"
    data.write_text("\n".join(f'{{"prompt": "{n} =", "answer": "{n}"}}' for n in range(999)))
    there = [f"model.path={write_model(tmp_path / 'model')}", f"task.path={data}"]
    found = set()
    for point in points_of(REAL, mode):
        arm = REAL.arm(mode, point, tuned=True)
        config = load_recipe(ROOT / arm.recipe, [*arm.overrides, *there])
        assert problems(config) == []
        found.add(config.model_dump_json())
    assert len(found) == REAL.file.grids[REAL.file.arms[mode].grid or ""].budget == 5


@pytest.mark.parametrize(
    ("race", "part"), [(race, part) for race in (*RACES, NEW) for part in race.file.parts]
)
def test_arms_of_a_part_are_runs_of_their_own_that_start(race: Study, part: str) -> None:
    found = race.part(part)
    digests = set()
    for variant, arm in found.values():
        config = load_recipe(ROOT / arm.recipe, arm.overrides)
        assert problems(config) == []
        digests.add(config.model_dump_json())
        against = variant.against or race.file.parts[part].against
        assert against is None or against in found
        if race.file.parts[part].tuned:
            assert config.stop.accuracy == race.target
    assert len(digests) == len(found)
    assert len({arm.name for _, arm in found.values()}) == len(found)


@pytest.mark.parametrize("race", RACES, ids=SETTINGS)
def test_seeds_of_what_old_data_costs_are_of_nothing_else(race: Study) -> None:
    seeds = race.file.parts["old-data"].seeds
    assert not set(seeds) & {*race.file.seeds, *race.tuning().seeds}
    assert [seed for _, seed, _ in race.part_plan("old-data")] == sorted([*seeds] * 8)


def test_the_order_of_the_arms_is_drawn_from_the_seed_and_turned_for_the_next() -> None:
    arms = [Arm(name, "recipes/quickstart.toml") for name in "abcde"]
    plan = in_drawn_order(arms, range(40))
    assert plan == in_drawn_order(arms[::-1], range(40))
    assert [place for _, _, place in plan] == list(range(5)) * 40
    orders = ["".join(arm.name for arm, one, _ in plan if one == seed) for seed in range(40)]
    assert all(even == odd[::-1] for even, odd in zip(orders[::2], orders[1::2], strict=True))
    assert len(set(orders)) > 20
    assert {order[0] for order in orders} == set("abcde")


def ran(
    tmp_path: Path, ppo: list[Curve], streaming: list[Curve]
) -> tuple[dict[str, Any], ResultFile]:
    """The result of a race at the points where tuning begins."""
    race, rows = small_race(tmp_path), ResultFile(tmp_path / "race.jsonl")
    for mode, curves in zip(PAIR, (ppo, streaming), strict=True):
        for seed, curve in zip(SEEDS, curves, strict=False):
            add(race, rows, mode, start_of(race, mode), seed, curve)
    return summarise(race, rows.rows, list(race.file.arms), SEEDS), rows


def test_ratio_is_of_restricted_means_and_its_bounds_are_of_seeds(tmp_path: Path) -> None:
    slow, fast, faster = rising(0.03), rising(0.06), rising(0.09)
    result, _ = ran(tmp_path, [slow, slow, slow], [fast, faster, fast])
    assert result["target"] == pytest.approx(0.95 * 0.9)
    # A hundred tokens a second, after those of two updates of warm-up; rows lack those trained.
    generated = result["generated"]["ratio_of_seed"]
    assert generated[1] == pytest.approx((28.5 + 2) / (14.25 + 2), abs=0.05)
    assert "trained" not in result
    # Smoothing three points of a line leaves it a line: 0.855 at 28.5, 14.25 and 9.5 s; at the
    # corner below the top it takes a little of it.
    ratios = result["ratio_of_seed"]
    assert ratios[1] == ratios[3] == pytest.approx(2.0, abs=0.05)
    assert ratios[2] == pytest.approx(3.0, abs=0.1)
    assert (result["ratio_min"], result["ratio_max"]) == (ratios[1], ratios[2])
    assert result["log_ratio"] == pytest.approx(statistics.geometric_mean(ratios.values()))
    seconds = {mode: result["arms"][mode]["seconds"] for mode in PAIR}
    assert result["ratio"] == pytest.approx(seconds["synchronous"] / seconds["streaming"])
    low, high = result["interval"]
    assert (
        result["ratio_min"] - 1e-9 <= low <= result["ratio"] <= high <= result["ratio_max"] + 1e-9
    )
    assert (result["censored"], result["tuned"], result["seeds"]) == (0, False, [1, 2, 3])
    table = ratio_table(small_race(tmp_path), result)
    assert [line[1] for line in table.lines] == ["0.765", "0.810", "0.855", "0.900"]
    assert {line[0] for line in table.lines} == {"synchronous over streaming"}
    assert {line[-1] for line in table.lines} == {"-"}
    assert json.loads(json.dumps(result))["setting"] == "small"
    line = ratio_line(result, PAIR)
    assert "every run came there" in line
    assert "not tuned alike" in line


def test_a_streaming_run_that_never_crosses_counts_with_its_whole_time(tmp_path: Path) -> None:
    """Without it the ratio would be 3, and it is the slowest of all."""
    slow, fast, never = rising(0.03), rising(0.09), rising(0.09, until=60.0, top=0.5)
    result, _ = ran(tmp_path, [slow, slow, slow], [fast, fast, never])
    assert result["censored"] == 1
    assert result["arms"]["streaming"]["censored"] == 1
    assert result["ratio_of_seed"][3] == pytest.approx(28.5 / 60, abs=0.02)
    assert result["ratio_min"] == result["ratio_of_seed"][3]
    assert result["ratio"] == pytest.approx(3 * 28.5 / (9.5 + 9.5 + 60), rel=0.05)
    assert "1 of these runs never came there" in ratio_line(result, PAIR)
    table = ratio_table(small_race(tmp_path), result)
    assert [line[2] for line in table.lines][:3] == ["0 + 1"] * 3


def test_figures_of_an_arm(tmp_path: Path) -> None:
    slow, fast = rising(0.03), rising(0.09)
    result, _ = ran(tmp_path, [slow] * 3, [fast] * 3)
    arm = result["arms"]["streaming"]
    assert arm["cpu_s"] == pytest.approx(2 * arm["seconds"])
    assert arm["tokens"] == pytest.approx(100 * (arm["seconds"] + 2))
    assert arm["context_share"] == pytest.approx(0.4)
    assert arm["point"] == dict(start_of(small_race(tmp_path), "streaming"))
    # One second apart, and 9.5 s to the target: that is not a tenth of it.
    assert not arm["dense"]
    assert result["arms"]["synchronous"]["dense"]
    assert "more than a tenth of a crossing time apart" in ratio_line(result, PAIR)


def test_an_arm_has_its_falls_and_points_of_tuning_beside_its_final_accuracy(
    tmp_path: Path,
) -> None:
    """Smoothed, one run goes from 0.6 over 0.5 and 0.4 to 0.3, and the others never fall."""
    dip = [(0, 0.0, 0.6), (1, 10.0, 0.6), (2, 20.0, 0.3), (3, 30.0, 0.3), (4, 40.0, 0.3)]
    result, _ = ran(tmp_path, [rising(0.03)] * 3, [dip, rising(0.09), rising(0.09)])
    (name, *cells, _) = course_table(result).lines[1]
    assert (name, cells) == (
        "streaming",
        ["0.900 (0.300 to 0.900)", "0.00 (0.00 to 0.30)", "", "0"],
    )


def test_explained_variance_is_told_by_quarter_of_the_policys_updates() -> None:
    rows = {seed: race_row("a", seed, rising(0.1, until=9)) for seed in (1, 2)}
    for seed, row in rows.items():
        tenths = [9, 9, 1, 2, 3, None, 4, 5, 6, 7, 8]  # two of warm-up, one unknown
        row["series"]["critic/vf_explained_var"] = [t and 0.1 * t * seed for t in tenths]
    # 0.15, 0.35, 0.55 and 0.75 in one run, twice that in the other.
    found = arm_figures(rows, 0.8)["explained"]
    assert found == pytest.approx([0.225, 0.525, 0.825, 1.125])


def test_without_one_side_there_is_no_ratio(tmp_path: Path) -> None:
    result, _ = ran(tmp_path, [rising(0.03)], [])
    assert result["ratio"] is None
    assert result["arms"]["synchronous"]["seeds"] == 1
    result, _ = ran(tmp_path / "other", [], [rising(0.03)])
    assert (result["ratio"], result["tuned"]) == (None, False)


def test_a_race_of_tuned_arms_says_so(tmp_path: Path) -> None:
    race = small_race(tmp_path)
    tuning = ResultFile(race.path("tuning"))
    for mode in PAIR:
        while missing := race.tuning(tuning).walk(mode).missing:
            slope = 0.1 if missing.point["steps"] == 4 else 0.05
            add(race, tuning, mode, missing.point, missing.seed, rising(slope))
    rows = ResultFile(tmp_path / "race.jsonl")
    for mode in PAIR:
        best = race.best(mode)
        assert best["steps"] == 4
        for seed in SEEDS:
            add(race, rows, mode, best, seed, rising(0.05))
    result = summarise(race, rows.rows, PAIR, SEEDS)
    assert result["tuned"] is True
    assert [arm["points"] for arm in result["arms"].values()] == [11, 11]
    assert summarise(race, rows.rows, list(race.file.arms), SEEDS)["tuned"] is True
    # Rows of other settings than the best ones are not those of the race.
    start = ResultFile(tmp_path / "start.jsonl")
    add(race, start, "streaming", start_of(race, "streaming"), 1, rising(0.2))
    assert "arms" not in summarise(race, start.rows, PAIR, SEEDS)


def test_factors_are_measured_against_the_races_target(tmp_path: Path) -> None:
    race = small_race(tmp_path)
    rows = ResultFile(race.path("factors"))
    for _, arm in race.part("factors").values():
        slope = 0.03 if "synchronous" in arm.name else 0.06
        rows.add(key(arm, 11), race_row(arm.name, 11, rising(slope, top=0.9)))
    found = part_figures(race, "factors", rows.rows, 0.6)
    tail = found["streaming, tail 3"]
    assert tail["target"] == pytest.approx(0.855)
    assert tail["over"]["ratio"] == pytest.approx(0.5, abs=0.03)
    assert found["streaming, window 41"]["seconds"] == pytest.approx(10.0)
    assert found["streaming, window 41"]["over"] == {}
    assert found["synchronous, steps 4"]["target"] == 0.6


def test_a_part_counts_who_never_came_there_and_how_far_accuracy_fell(tmp_path: Path) -> None:
    race = small_race(tmp_path)
    rows, seeds = ResultFile(race.path("old-data")), race.file.parts["old-data"].seeds
    found = race.part("old-data")
    best, plain = (found[f"streaming, {name}"][1] for name in ("as tuned", "larger steps"))
    dip = [(0, 0.0, 0.6), (1, 10.0, 0.6), (2, 20.0, 0.3), (3, 30.0, 0.3), (4, 40.0, 0.3)]
    for seed in seeds[:2]:
        rows.add(key(best, seed), race_row(best.name, seed, rising(0.1)))
        slow = dip if seed == seeds[0] else rising(0.05)
        rows.add(key(plain, seed), race_row(plain.name, seed, slow))
    figures = part_figures(race, "old-data", rows.rows, race.target)
    assert list(figures) == ["streaming, as tuned", "streaming, larger steps"]
    tuned, larger = figures.values()
    assert (tuned["censored"], larger["censored"]) == (0, 1)
    assert larger["over"]["ratio_min"] == pytest.approx(2.0, abs=0.1)
    assert larger["over"]["ratio_max"] > 4
    assert larger["fall"] == [pytest.approx(0.3), 0.0]
    text = part_table(race, "old-data", figures).markdown()
    assert text.startswith(
        "| streaming T-PPO | seeds | seconds to 0.87 | seed by seed | over those"
    )
    assert "| larger steps | 2 (1 crossed) |" in text
    assert "over 40, " in text


def measure_of(others: list[float]) -> Any:
    shares = iter(others)

    def run(arm: Arm, seed: int, root: Path, *, remove: bool) -> dict[str, Any]:
        beside = next(shares)
        if beside < 0:
            raise RunFailedError("no memory")
        more = {"others_cpu_share": beside, "disturbed": beside > 0.05}
        return race_row(arm.name, seed, rising(0.1), **more)

    return run


def test_a_disturbed_run_is_run_again_and_a_row_says_its_place(tmp_path: Path) -> None:
    arm = Arm("one", "recipes/quickstart.toml")
    runner = Runner("race", ResultFile(tmp_path / "rows.jsonl"), measure_of([0.5, 0.0]))
    assert runner.run_all([(arm, 1, 3)]) == []
    assert [row["place"] for row in runner.rows.rows.values()] == [3, 3]
    assert list(runner.rows.rows) == [f"{key(arm, 1)}/disturbed-0", key(arm, 1)]
    assert runner.run_all([(arm, 1, 3)]) == [], "nothing is missing"


@pytest.mark.parametrize(("there", "warned"), [(None, False), (True, False), (False, True)])
def test_rows_of_another_kind_of_processor_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, there: bool | None, warned: bool
) -> None:
    monkeypatch.setattr(study_runs, "has_bfloat16", lambda: True)
    arm = Arm("one", "recipes/quickstart.toml")
    runner = Runner("race", ResultFile(tmp_path / "rows.jsonl"), measure_of([0.0]))
    runner.rows.rows["before"] = {"machine": {} if there is None else {"bfloat16": there}}
    runner.run_all([(arm, 1, 0)])
    assert (study_runs.OTHER_MACHINE in capsys.readouterr().err) is warned


def test_a_failure_is_kept_in_tuning_alone(tmp_path: Path) -> None:
    arm = Arm("one", "recipes/quickstart.toml")
    runner = Runner("race", ResultFile(tmp_path / "rows.jsonl"), measure_of([-1, -1]))
    assert runner.run_all([(arm, 1, 0)]) == ["one seed 1: no memory"]
    assert runner.rows.rows == {}
    runner.run_all([(arm, 1, 0)], keep_failures=True)
    assert runner.rows.rows[key(arm, 1)]["failed"] == "no memory"


def test_a_study_whose_recipe_is_missing_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text('recipe = "recipes/no-such-recipe.toml"\nseeds = [0]\n[arms]\none = []\n')
    with pytest.raises(UserError, match=r"no recipe at .*no-such-recipe\.toml"):
        main([str(path), "--list"])


def test_own_seeds_go_into_an_own_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / "own.jsonl"
    with pytest.raises(SystemExit):
        main(["tppo-vs-ppo", "--setting", "short", "--seed-list", "7", "8"])
    asked: list[tuple[str, int]] = []

    def run(arm: Arm, seed: int, root: Path, *, remove: bool) -> dict[str, Any]:
        asked.append((arm.name, seed))
        return race_row(arm.name, seed, rising(0.03 if "synchronous" in arm.name else 0.06))

    monkeypatch.setattr("benchmarks.studies.study.run_arm", run)
    options = ["--setting", "short", "--seed-list", "7", "8", "--rows", str(own), "--reduced"]
    assert main(["tppo-vs-ppo", *options, "--json"]) == 0
    assert sorted(asked) == [(f"short/{mode}", seed) for mode in sorted(PAIR) for seed in (7, 8)]
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert {"ratio", "ratio_min", "ratio_max", "tuned", "censored", "interval", "setting",
            "commit", "format"} <= set(result)  # fmt: skip
    assert (result["seeds"], result["tuned"], result["setting"]) == ([7, 8], False, "short")
    assert result["ratio"] == pytest.approx(2.0, abs=0.1)
    assert len(ResultFile(own).rows) == 4
