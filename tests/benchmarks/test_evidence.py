"""The pages are what the rows say, and every plot can be drawn from the rows there are."""

from pathlib import Path

import pytest

from benchmarks import evidence, race_evidence
from benchmarks.race import Race
from benchmarks.race_settings import GRIDS
from benchmarks.rows import Rows
from benchmarks.study_plan import Study, key
from benchmarks.study_plots import PLOTS
from tests.benchmarks.race_rows import SMALL, add, race_row, rising


@pytest.mark.parametrize("page", evidence.PAGES, ids=lambda path: path.stem)
def test_a_page_is_what_the_rows_say(page: Path) -> None:
    old = page.read_text(encoding="utf-8")
    assert evidence.page(old, evidence.tables()) == old


def test_every_table_has_its_place_on_a_page() -> None:
    texts = [path.read_text(encoding="utf-8") for path in evidence.PAGES]
    names = [match[2] for text in texts for match in evidence.PART.finditer(text)]
    assert sorted(names) == sorted(evidence.tables())


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rows:
    """The rows of a small race, none yet, in place of those that are checked in."""
    rows = Rows(tmp_path / "race.jsonl")
    monkeypatch.setattr(race_evidence, "SETTINGS", {"small": SMALL})
    monkeypatch.setattr(race_evidence, "race_path", lambda name: rows.path)
    monkeypatch.setattr(race_evidence, "Race", lambda setting: Race(setting, tmp_path))
    return rows


def test_a_race_that_has_rows_has_a_line_for_each_arm(rows: Rows) -> None:
    assert race_evidence.race_table("small").startswith("Not measured yet")
    for seed in SMALL.seeds:
        for mode, slope in (("synchronous", 0.03), ("streaming", 0.06)):
            text = race_evidence.race_table("small") if rows.rows else ""
            add(rows, mode, GRIDS[mode].start, seed, rising(slope))
    assert "2 of 3 seeds of streaming have been run. Nothing is claimed yet." in text
    text = race_evidence.race_table("small")
    assert "under way" not in text
    assert "| streaming | 3 | 14.4 | 28.8 | 1,638 | 1.98 | 1.98 to 1.98 | 0.900 | 0.450 |" in text
    assert "| synchronous | 100 | generator-0 70, learner-0 60 | 0.10, 0.30 | 1.50 |" in text
    assert "not tuned alike" in text


def rows_for(study: Study, path: Path) -> None:
    """Made rows of the study's reduced form."""
    rows, tenths = Rows(path), [0.1 * i for i in range(10)]
    for arm, seed in study.plan(reduced=True):
        row = race_row(arm.name, seed, rising(0.1, until=10), mean=0.5, dropped={"stale": 51})
        row["series"]["actor/entropy"] = [0.5] * row["updates"]
        row["early_positions"] = {"all": {"value": tenths, "advantage": tenths[::-1]}}
        row["written"] = {"after": dict.fromkeys(("short", "long", "lines", "neutral"), 0.5)}
        rows.add(key(arm, seed), row)


@pytest.mark.parametrize(
    "study", [*evidence.STUDIES, *evidence.NEW_STUDIES], ids=lambda study: study.name
)
def test_a_study_that_has_rows_has_its_plots_and_its_table(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.study_plan.RESULTS", tmp_path)
    assert evidence.study_part(study) == f"Not measured yet: `headrace bench {study.name}`.\n"
    rows_for(study, study.rows_path)
    text = evidence.study_part(study)
    for arm in study.reduced_arms:
        assert f"| {arm} | {study.reduced_seeds} | 0.900 |" in text
    assert "Others disturbed" not in text
    names = [path.name for path in evidence.draw(tmp_path / "images")]
    for name in PLOTS[study.name]:
        assert f"images/evidence/{name}.svg" in text
        assert f"{name}.svg" in names


def test_the_page_counts_the_runs_that_others_disturbed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.study_plan.RESULTS", tmp_path)
    study = evidence.STUDIES[-1]
    rows = Rows(study.rows_path)
    for seed, disturbed in ((0, True), (1, False)):
        row = race_row(study.reference, seed, rising(0.1), mean=0.5, disturbed=disturbed)
        row["series"]["actor/entropy"] = [0.5] * row["updates"]
        rows.add(key(study.arms[0], seed), row)
    assert "Others disturbed 1 of 2 runs." in evidence.study_part(study)


def test_plots_are_drawn_and_stand_on_the_page(tmp_path: Path) -> None:
    text = evidence.PAGE.read_text(encoding="utf-8")
    for path in evidence.draw(tmp_path):
        assert path.read_text(encoding="utf-8").startswith("<?xml")
        assert f"images/evidence/{path.name}" in text


def test_a_race_that_is_over_has_a_plot_with_both_arms_and_the_median_of_each(
    rows: Rows, tmp_path: Path
) -> None:
    for seed in SMALL.seeds:
        assert "race-small.svg" not in race_evidence.part("small")
        for mode, slope in (("synchronous", 0.03), ("streaming", 0.06)):
            add(rows, mode, GRIDS[mode].start, seed, rising(slope))
    assert "race-small.svg" in race_evidence.part("small")
    assert tmp_path / "race-small.svg" in race_evidence.draw(tmp_path)
    assert "to 0.900 it is" in race_evidence.part("small")


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        # PPO comes there in 28.5 seconds, windows in a stream in 14.4, and this arm in 9.75.
        ("whole", {"of a stream of windows": "0.68"}),
        ("windowed", {"those of T-PPO in turns": "2.92", "over those of its stream": "0.68"}),
    ],
)
def test_an_arm_is_compared_and_drawn_once_all_its_seeds_were_run(
    rows: Rows, tmp_path: Path, mode: str, said: dict[str, str]
) -> None:
    for one, rise in (("synchronous", 0.03), ("streaming", 0.06)):
        for seed in SMALL.seeds:
            add(rows, one, GRIDS[one].start, seed, rising(rise))
    for seed in SMALL.seeds:
        text = race_evidence.race_table("small")
        assert [name for name in said if f"{name}: " in text] == []
        assert list(race_evidence.finished_arms("small")) == ["synchronous", "streaming"]
        add(rows, mode, GRIDS[mode].start, seed, rising(0.09))
    text = race_evidence.race_table("small")
    for name, ratio in said.items():
        found = f"{name}: {ratio} (seeds {ratio} to {ratio}; 95 % interval {ratio} to {ratio})"
        assert found in text
    assert text.count("to 0.900 it is") == 1 + len(said)
    assert list(race_evidence.finished_arms("small")) == ["synchronous", "streaming", mode]
    assert tmp_path / "race-small.svg" in race_evidence.draw(tmp_path)


def test_a_median_of_lines_is_taken_where_all_of_them_are() -> None:
    lines = [
        [(0.0, 0.0), (10.0, 1.0)],
        [(1.0, 3.0), (5.0, 3.0)],
        [(0.0, 9.0), (2.0, 9.0), (8.0, 9.0)],
    ]
    found = race_evidence.median_line(lines)
    assert (found[0], found[-1]) == ((1.0, 3.0), (5.0, 3.0))
    assert race_evidence.median_line([lines[0]])[30][1] == pytest.approx(30 / 59)
