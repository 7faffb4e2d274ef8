"""The pages are what the rows say, and every plot can be drawn from the rows there are."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import evidence
from benchmarks.kit.arms import key
from benchmarks.kit.rows import Rows
from benchmarks.kit.study_plan import Study
from tests.benchmarks.race_rows import SEEDS, add, race_row, rising, small_race, start_of


@pytest.fixture(scope="module")
def tables() -> dict[str, str]:
    """All that is made of the rows that are checked in."""
    return evidence.tables()


@pytest.mark.parametrize("page", evidence.PAGES, ids=lambda path: path.stem)
def test_a_page_is_what_the_rows_say(page: Path, tables: dict[str, str]) -> None:
    old = page.read_text(encoding="utf-8")
    assert evidence.page(old, tables) == old


def test_every_table_has_its_place_on_a_page(tables: dict[str, str]) -> None:
    texts = [path.read_text(encoding="utf-8") for path in evidence.PAGES]
    names = [match[2] for text in texts for match in evidence.PART.finditer(text)]
    assert sorted(names) == sorted(tables)


@pytest.fixture
def race(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Study:
    """A small race without rows, in place of the one whose rows are checked in."""
    race = small_race(tmp_path)
    monkeypatch.setattr(evidence, "races", lambda: [race])
    return race


def run(race: Study, mode: str, slope: float, seeds: tuple[int, ...] = SEEDS) -> None:
    """Rows of an arm where its tuning begins."""
    for seed in seeds:
        add(race, Rows(race.path()), mode, start_of(race, mode), seed, rising(slope))


def test_a_race_that_has_rows_has_a_line_for_each_arm(race: Study) -> None:
    assert evidence.race_part(race).startswith("Not measured yet")
    run(race, "synchronous", 0.03)
    run(race, "streaming", 0.06, SEEDS[:2])
    text = evidence.race_part(race)
    assert "2 of 3 seeds of streaming have been run. Nothing is claimed yet." in text
    run(race, "streaming", 0.06, SEEDS[2:])
    text = evidence.race_part(race)
    assert "under way" not in text
    assert "| streaming | 3 | 14.4 | 28.8 | 1,638 | 1.98 | 1.98 to 1.98 | 0.900 | 0.450 |" in text
    assert "| synchronous | 100 | generator-0 70, learner-0 60 | 0.10, 0.30 | 1.50 |" in text
    assert "not tuned alike" in text


def test_what_is_run_beside_the_race_says_how_to_get_it(race: Study) -> None:
    command = "headrace bench tppo-vs-ppo --setting small --old-data"
    assert evidence.race_parts(race) == {"old-data-small": f"Not measured yet: `{command}`.\n"}


def rows_for(study: Study) -> None:
    """Made rows of the study's reduced form."""
    rows, tenths = Rows(study.path()), [0.1 * i for i in range(10)]
    assert study.file.reduced is not None
    for arm, seed, _ in study.plan(study.file.reduced.arms, range(study.file.reduced.seeds)):
        row = race_row(arm.name, seed, rising(0.1, until=10), mean=0.5, dropped={"stale": 51})
        row["series"]["actor/entropy"] = [0.5] * row["updates"]
        row["early_positions"] = {"all": {"value": tenths, "advantage": tenths[::-1]}}
        row["written"] = {"after": dict.fromkeys(("short", "long", "lines", "neutral"), 0.5)}
        rows.add(key(arm, seed), row)


NEW = [study for study in evidence.studies() if study.file.measured is None]


@pytest.mark.parametrize("study", NEW, ids=lambda study: study.name)
def test_a_study_that_has_rows_has_its_plots_and_its_table(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = replace(study, folder=tmp_path)
    monkeypatch.setattr(evidence, "studies", lambda: [study])
    assert evidence.study_part(study) == f"Not measured yet: `headrace bench {study.name}`.\n"
    rows_for(study)
    text = evidence.study_part(study)
    assert study.file.reduced is not None
    for arm in study.file.reduced.arms:
        assert f"| {arm} | {study.file.reduced.seeds} | 0.900 |" in text
    assert "Others disturbed" not in text
    names = [path.name for path in evidence.draw(tmp_path / "images")]
    for plot in study.file.plots:
        assert f"images/evidence/{plot.file}.svg" in text
        assert f"{plot.file}.svg" in names


def test_the_page_counts_the_runs_that_others_disturbed(tmp_path: Path) -> None:
    study = replace(Study.load("vapo-parts"), folder=tmp_path)
    rows, arm = Rows(study.path()), study.arm("vapo")
    for seed, disturbed in ((0, True), (1, False)):
        row = race_row(arm.name, seed, rising(0.1), mean=0.5, disturbed=disturbed)
        rows.add(key(arm, seed), row)
    assert "Others disturbed 1 of 2 runs." in evidence.study_part(study)


def test_rows_that_were_measured_before_are_found_by_their_names_then(tmp_path: Path) -> None:
    rows = Rows(tmp_path / "s.jsonl")
    for seed in (0, 1):
        rows.add(f"gone/{seed}/of-an-older-recipe", {"arm": "gone", "seed": seed, "mean": 0.5})
    found = evidence.measured(tmp_path / "s.jsonl")
    assert {name: list(by_seed) for name, by_seed in found.items()} == {"gone": [0, 1]}


def test_plots_are_drawn_and_stand_on_the_page(tmp_path: Path) -> None:
    text = evidence.PAGES[0].read_text(encoding="utf-8")
    for path in evidence.draw(tmp_path):
        assert path.read_text(encoding="utf-8").startswith("<?xml")
        assert f"images/evidence/{path.name}" in text


def test_a_race_that_is_over_has_a_plot_with_both_arms_and_the_median_of_each(
    race: Study, tmp_path: Path
) -> None:
    run(race, "synchronous", 0.03)
    run(race, "streaming", 0.06, SEEDS[:2])
    assert "race-small.svg" not in evidence.race_part(race)
    run(race, "streaming", 0.06, SEEDS[2:])
    assert "race-small.svg" in evidence.race_part(race)
    assert tmp_path / "race-small.svg" in evidence.draw(tmp_path)
    assert "to 0.900 it is" in evidence.race_part(race)


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        # PPO comes there in 28.5 seconds, windows in a stream in 14.4, and this arm in 9.75.
        ("whole", {"of a stream of windows": "0.68"}),
        ("windowed", {"those of T-PPO in turns": "2.92", "over those of its stream": "0.68"}),
    ],
)
def test_an_arm_is_compared_and_drawn_once_all_its_seeds_were_run(
    race: Study, mode: str, said: dict[str, str]
) -> None:
    run(race, "synchronous", 0.03)
    run(race, "streaming", 0.06)
    run(race, mode, 0.09, SEEDS[:2])
    text = evidence.race_part(race)
    assert [name for name in said if f"{name}: " in text] == []
    assert list(evidence.finished_arms(race)) == ["synchronous", "streaming"]
    run(race, mode, 0.09, SEEDS[2:])
    text = evidence.race_part(race)
    for name, ratio in said.items():
        found = f"{name}: {ratio} (seeds {ratio} to {ratio}; 95 % interval {ratio} to {ratio})"
        assert found in text
    assert text.count("to 0.900 it is") == 1 + len(said)
    assert list(evidence.finished_arms(race)) == ["synchronous", "streaming", mode]


def test_a_median_of_lines_is_taken_where_all_of_them_are() -> None:
    lines = [
        [(0.0, 0.0), (10.0, 1.0)],
        [(1.0, 3.0), (5.0, 3.0)],
        [(0.0, 9.0), (2.0, 9.0), (8.0, 9.0)],
    ]
    found = evidence.median_line(lines)
    assert (found[0], found[-1]) == ((1.0, 3.0), (5.0, 3.0))
    assert evidence.median_line([lines[0]])[30][1] == pytest.approx(30 / 59)
