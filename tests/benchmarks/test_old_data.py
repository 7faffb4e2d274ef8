"""What the age of a stream's data costs: runs that a user could ask for, and their table."""

from pathlib import Path

import pytest

from benchmarks import old_data
from benchmarks.race import Race
from benchmarks.race_settings import SETTINGS
from benchmarks.study_plan import key
from headrace.config.checks import problems
from headrace.config.load import load_recipe
from headrace.install import ROOT
from tests.benchmarks.race_rows import race_row, rising, small_race


@pytest.mark.parametrize("name", SETTINGS)
def test_every_arm_is_a_run_of_its_own_that_a_user_could_ask_for(name: str) -> None:
    race = Race(SETTINGS[name])
    arms = {arm.name.partition(", ")[2]: arm for arm in old_data.arms(race)}
    configs = {label: load_recipe(ROOT / a.recipe, a.overrides) for label, a in arms.items()}
    digests = {
        load_recipe(ROOT / arm.recipe, arm.overrides).model_dump_json() for arm in arms.values()
    }
    assert len(digests) == len(arms) == 1 + len(old_data.CONTEXTS) + len(old_data.REMEDIES)
    best = configs[old_data.BEST]
    for label, config in configs.items():
        assert problems(config) == []
        assert config.schedule.mode == "streaming"
        assert config.stop.accuracy == race.setting.tuning_target
        larger = label.startswith(old_data.LARGER)
        rate = 2 * best.learner.policy.lr if larger else best.learner.policy.lr
        assert config.learner.policy.lr == pytest.approx(rate)
        assert config.learner.value is not None
        if larger:
            steps = {config.learner.policy.minibatches, config.learner.value.minibatches}
            assert max(steps) == old_data.MANY_STEPS


def test_its_seeds_are_of_nothing_else() -> None:
    for setting in SETTINGS.values():
        assert not set(old_data.SEEDS) & {*setting.seeds, *setting.tuning_seeds}
    plan = old_data.plan(Race(SETTINGS["long"]))
    assert [seed for _, seed, _ in plan] == sorted([*old_data.SEEDS] * 8)


def test_the_table_counts_who_never_came_there_and_how_far_accuracy_fell(tmp_path: Path) -> None:
    race = small_race(tmp_path)
    rows = race.rows("old_data")
    assert old_data.table(race, rows.rows).startswith("Not measured yet: `headrace bench")
    best, _, _, plain, *_ = old_data.arms(race)
    dip = [(0, 0.0, 0.6), (1, 10.0, 0.6), (2, 20.0, 0.3), (3, 30.0, 0.3), (4, 40.0, 0.3)]
    for seed in old_data.SEEDS[:2]:
        rows.add(key(best, seed), race_row(best.name, seed, rising(0.1)))
        slow = dip if seed == old_data.SEEDS[0] else rising(0.05)
        rows.add(key(plain, seed), race_row(plain.name, seed, slow))
    found = old_data.figures(race, rows.rows)
    assert list(found) == [old_data.BEST, old_data.LARGER]
    tuned, larger = found.values()
    assert (tuned["censored"], larger["censored"]) == (0, 1)
    assert larger["over_best"]["ratio_min"] == pytest.approx(2.0, abs=0.1)
    assert larger["over_best"]["ratio_max"] > 4
    assert larger["fall"] == [pytest.approx(0.3), 0.0]
    text = old_data.table(race, rows.rows)
    assert f"| {old_data.LARGER} | 2 (1 crossed) |" in text
    assert "over 40, " in text
