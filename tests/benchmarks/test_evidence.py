"""The pages are what the rows say, and every plot can be drawn from the rows there are."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import evidence
from benchmarks.kit.arms import key
from benchmarks.kit.rows import ResultFile, read_rows
from benchmarks.kit.study_plan import Study
from benchmarks.kit.study_plots import median_line
from benchmarks.studies.comparison_figures import summarise
from benchmarks.versus_trl import trl
from tests.benchmarks.race_rows import SEEDS, add, race_row, rising, small_race, start_of


@pytest.fixture(scope="module")
def made() -> dict[str, str]:
    """All that is made of the rows that are checked in."""
    return evidence.parts()


@pytest.mark.parametrize("page", evidence.PAGES, ids=lambda path: path.stem)
def test_a_page_is_what_the_rows_say(page: Path, made: dict[str, str]) -> None:
    old = page.read_text(encoding="utf-8")
    assert evidence.page(old, made) == old


def test_every_part_has_its_place_on_a_page(made: dict[str, str]) -> None:
    texts = [path.read_text(encoding="utf-8") for path in evidence.PAGES]
    names = [match[2] for text in texts for match in evidence.PART.finditer(text)]
    assert sorted(names) == sorted(made)


def test_the_readme_has_twelve_claims_at_most(made: dict[str, str]) -> None:
    assert len(made["measured"].splitlines()) <= 2 + 12


def test_a_claim_is_made_of_the_rows_that_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims = tmp_path / "claims.toml"
    claims.write_text(
        """[[claim]]
        says = "b less a"
        rows = "made"
        where = "row['seed'] < 2"
        figure = "{median(less('b', 'a')):+.2f} of {len(rows)}"
        spread = "{between(less('b', 'a'), '.1f')}"
        command = "headrace bench made"
        [[claim]]
        says = "the newest"
        rows = "made"
        newest = true
        figure = "{last['mean']:.1f}"
        command = "headrace bench made"
        """
    )
    monkeypatch.setattr(evidence, "CLAIMS", claims)
    monkeypatch.setattr(evidence, "RESULTS", tmp_path)
    rows = ResultFile(tmp_path / "made.jsonl")
    for seed, (a, b) in enumerate(((0.5, 0.7), (0.5, 0.9), (0.5, 0.1))):
        for arm, mean in (("a", a), ("b", b)):
            rows.add(f"{arm}/{seed}", {"arm": arm, "seed": seed, "mean": mean})
    (_, both), (_, newest) = evidence.lines()
    assert both[:4] == ("b less a", "+0.30 of 4", "0.2 to 0.4", "`headrace bench made`")
    assert newest[1:3] == ("0.1", "")


def test_a_source_counts_commits_and_names_all_processors() -> None:
    rows = [
        {"at": at, "commit": commit, "machine": {"processor": "Intel(R) Xeon(R) Processor"}}
        for at, commit in ((2, "bbbbbbbbbbbb"), (1, "aaaaaaaaaaaa"))
    ]
    assert evidence.source(rows) == "bbbbbbb+1, Xeon"
    rows[1]["machine"] = {"processor": "AMD EPYC"}
    assert evidence.source(rows) == "bbbbbbb+1, EPYC/Xeon"
    assert evidence.source([{"at": 1, "machine": {"processor": "EPYC"}}]) == "2026-11, EPYC"


@pytest.fixture
def race(tmp_path: Path) -> Study:
    """A small race without rows."""
    return small_race(tmp_path)


def run(race: Study, mode: str, slope: float, seeds: tuple[int, ...] = SEEDS) -> None:
    """Rows of an arm where its tuning begins."""
    for seed in seeds:
        add(race, ResultFile(race.path()), mode, start_of(race, mode), seed, rising(slope))


def test_a_race_has_a_plot_of_the_arms_whose_seeds_were_all_run(
    race: Study, tmp_path: Path
) -> None:
    run(race, "synchronous", 0.03)
    run(race, "streaming", 0.06, SEEDS[:2])
    assert evidence.finished_arms(race) == {}
    run(race, "streaming", 0.06, SEEDS[2:])
    run(race, "whole", 0.09, SEEDS[:2])
    assert list(evidence.finished_arms(race)) == ["synchronous", "streaming"]
    run(race, "whole", 0.09, SEEDS[2:])
    arms = evidence.finished_arms(race)
    assert list(arms) == ["synchronous", "streaming", "whole"]
    result = summarise(race, read_rows(race.path()), list(arms), SEEDS)
    tables = evidence.race_tables(race, result).split("\n\n")
    assert [len(table.splitlines()) for table in tables] == [5, 5, 2 + 4 * 2]
    evidence.draw_race(race, arms, tmp_path / "race.svg")
    assert (tmp_path / "race.svg").read_text(encoding="utf-8").startswith("<?xml")


@pytest.mark.parametrize("study", evidence.studies(), ids=lambda study: study.name)
def test_a_study_that_has_rows_has_its_plots(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = replace(study, folder=tmp_path)
    monkeypatch.setattr(evidence, "studies", lambda: [study])
    monkeypatch.setattr(evidence, "RACES", ())
    monkeypatch.setattr(trl, "plots", dict)
    assert evidence.plots() == {}
    rows, tenths = ResultFile(study.path()), [0.1 * i for i in range(10)]
    assert study.file.reduced is not None
    for arm, seed, _ in study.plan(study.file.reduced.arms, range(study.file.reduced.seeds)):
        row = race_row(arm.name, seed, rising(0.1, until=10), mean=0.5, dropped={"stale": 51})
        row["series"]["actor/entropy"] = [0.5] * row["updates"]
        row["early_positions"] = {"all": {"value": tenths, "advantage": tenths[::-1]}}
        row["written"] = {"after": dict.fromkeys(("short", "long", "lines", "neutral"), 0.5)}
        rows.add(key(arm, seed), row)
    plots = evidence.plots()
    assert list(plots) == [plot.file for plot in study.file.plots]
    for name, (caption, draw) in plots.items():
        assert caption
        draw(tmp_path / f"{name}.svg")
        assert (tmp_path / f"{name}.svg").read_text(encoding="utf-8").startswith("<?xml")


def test_a_median_of_lines_is_taken_where_all_of_them_are() -> None:
    lines = [
        [(0.0, 0.0), (10.0, 1.0)],
        [(1.0, 3.0), (5.0, 3.0)],
        [(0.0, 9.0), (2.0, 9.0), (8.0, 9.0)],
    ]
    assert median_line(lines) == [(1.0, 3.0), (2.0, 3.0), (5.0, 3.0)]
    slow = median_line([lines[0], lines[0], lines[1]])
    assert [value for _, value in slow] == pytest.approx([0.1, 0.5])
