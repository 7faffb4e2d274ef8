"""The page Health and the alerts, in every state of a run."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from dashboard.components.reading import literal_markdown
from dashboard.views.learning import CHARTS
from headrace.metrics.health_ranges import BANDS
from headrace.protocol.records.record_types import MetricsSampled, RunPhase
from headrace.run_files.run_folder import locked
from storage.run_store import RunStore
from tests.dashboard.odd_runs import breathe, collapse, crash
from tests.dashboard.scripted_run import make_config, write_run
from tests.dashboard.test_pages import TIMEOUT_S, html_of, page
from tests.headrace_cli.commands.inspection.test_runs import NOBODY, ahead

FOR = BANDS["actor/entropy"].updates


@pytest.fixture
def opened() -> Callable[[str, Path], AppTest]:
    def open_page(name: str, run: Path) -> AppTest:
        arguments = (name, str(run))
        return AppTest.from_function(page, args=arguments, default_timeout=TIMEOUT_S)

    return open_page


@pytest.fixture(scope="module")
def collapsed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = write_run(
        tmp_path_factory.mktemp("collapsed"), updates=3, roll_back_after=None, end=False
    )
    collapse(run, first=4, updates=FOR + 4)
    return run


def test_a_finished_run(opened: Callable[[str, Path], AppTest], run_dir: Path) -> None:
    test = opened("health", run_dir).run()
    assert not test.exception
    assert test.success[0].value == literal_markdown(
        "The run has finished. All 3 processes ended in good order."
    )
    html = html_of(test)
    assert "None.</span>" in html  # no alerts
    assert "This run did not write down what it waits for." in html
    assert "No process wrote one" in html
    assert "learner-0 is lost" in html  # an incident, before it came back
    rows = test.dataframe[0].value.set_index("process")
    assert rows.loc["learner-0", "restarts"] == 1
    assert list(rows["state"]) == ["gone", "gone", "ended"]


def test_a_live_run_that_is_well(opened: Callable[[str, Path], AppTest], tmp_path: Path) -> None:
    run = write_run(tmp_path, started=time.time() - 600, updates=3, roll_back_after=None, end=False)
    breathe(run, waits={"the learner's update 4": 1.5})
    with locked(run):
        test = opened("health", run).run()
    assert not test.exception
    assert test.success[0].value == literal_markdown("All 3 processes are well.")
    waits = test.dataframe[1].value
    assert list(waits["for"]) == ["the learner's update 4"]


def test_a_live_run_with_a_silent_generator(
    opened: Callable[[str, Path], AppTest], tmp_path: Path
) -> None:
    run = write_run(tmp_path, started=time.time() - 600, updates=3, roll_back_after=None, end=False)
    store = RunStore.open(run)
    memory = {"memory/generator-0": 3.0 * 2**30}
    store.append([MetricsSampled(at=time.time(), update=3, metrics=memory)])
    store.close()
    breathe(run, silent="generator-0", age_s=700.0)
    with locked(run):
        test = opened("health", run).run()
    assert not test.exception
    assert test.warning[0].value.startswith(
        literal_markdown("generator-0 has been silent for 11:4")
    )
    rows = test.dataframe[0].value.set_index("process")
    assert rows.loc["generator-0", "state"] == "silent"
    assert rows.loc["generator-0", "memory"] == "3.0 GiB"
    assert len(test.get("arrow_vega_lite_chart") or test.get("vega_lite_chart")) == 1


@pytest.mark.parametrize("url", [None, NOBODY])
def test_a_live_run_whose_sql_is_behind(
    opened: Callable[[str, Path], AppTest], tmp_path: Path, url: str | None
) -> None:
    run = write_run(tmp_path, started=time.time() - 600, updates=3, roll_back_after=None, end=False)
    ahead(run, "training", url)
    test = opened("health", run).run()
    assert not test.exception
    said = test.warning[0].value
    assert literal_markdown("SQL does not follow (42 s by ") in said
    assert "as of" in said or "as the coordinator last said" in said


def test_a_run_that_crashed(opened: Callable[[str, Path], AppTest], tmp_path: Path) -> None:
    run = write_run(tmp_path, updates=3, roll_back_after=None, end=False)
    crash(run)
    test = opened("health", run).run()
    assert not test.exception
    said = test.warning[0].value
    assert said.startswith(
        literal_markdown("The run has failed: learner-0 died 4 times (exit code 1).")
    )
    assert said.endswith(literal_markdown("learner-0 died 4 times (exit code 1)."))
    (stack,) = [e for e in test.expander if e.label.startswith(literal_markdown("learner-0: "))]
    assert stack.label == literal_markdown("learner-0: MemoryError: 3 GiB")
    assert "&lt;img src=x" in html_of(test)
    assert "<img" not in html_of(test)


def test_a_run_that_was_lost(opened: Callable[[str, Path], AppTest], tmp_path: Path) -> None:
    run = write_run(tmp_path, updates=2, roll_back_after=None, end=False)
    test = opened("health", run).run()
    assert not test.exception
    assert test.warning[0].value.startswith(
        literal_markdown("The run was lost: the coordinator is gone")
    )
    assert set(test.dataframe[0].value["state"]) == {"left behind"}


def test_a_run_that_has_only_begun(opened: Callable[[str, Path], AppTest], tmp_path: Path) -> None:
    run = tmp_path / "young-20260101-000000-0000"
    store = RunStore.create(run, run.name, make_config(tmp_path))
    store.append([RunPhase(at=time.time(), phase="starting")])
    breathe(run, waits={"a generator to join": 42.0})
    test = opened("health", run).run()
    assert not test.exception
    assert literal_markdown("No process has said hello yet.") in test.success[0].value
    assert "a generator to join" in list(test.dataframe[0].value["for"])
    store.close()


@pytest.mark.parametrize("name", ["overview", "health"])
def test_an_alert_leads_to_its_chart(
    opened: Callable[[str, Path], AppTest], collapsed: Path, name: str
) -> None:
    test = opened(name, collapsed).run()
    assert not test.exception
    html = html_of(test)
    link = f"learning?run={collapsed.name}&amp;chart=actor%2Fentropy"
    assert f'<a href="{link}">Entropy under 0.02 for {FOR + 4} updates</a>' in html
    assert "(since update 4, now)" in html
    asked = opened("learning", collapsed)
    asked.query_params["chart"] = "actor/entropy"
    asked.run()
    assert not asked.exception
    charts = asked.get("arrow_vega_lite_chart") or asked.get("vega_lite_chart")
    assert html_of(asked).count(">Entropy</h2>") == 2
    assert '"field": "top"' in charts[0].proto.spec  # the band


def test_a_gauge_between_updates_is_drawn_over_time(
    opened: Callable[[str, Path], AppTest], run_dir: Path
) -> None:
    test = opened("learning", run_dir)
    test.query_params["chart"] = "schedule/live"
    test.run()
    assert not test.exception
    charts = test.get("arrow_vega_lite_chart") or test.get("vega_lite_chart")
    assert "wall-clock time" in charts[0].proto.spec
    assert "without an update that has it" not in html_of(test)


def test_an_overview_without_alerts_has_no_list(
    opened: Callable[[str, Path], AppTest], run_dir: Path
) -> None:
    test = opened("overview", run_dir).run()
    assert "hr-alerts" not in html_of(test)


def test_an_address_that_asks_for_no_metric_shows_all_as_ever(
    opened: Callable[[str, Path], AppTest], run_dir: Path
) -> None:
    test = opened("learning", run_dir)
    test.query_params["chart"] = "<b>nothing"
    test.run()
    assert not test.exception
    assert html_of(test).count("</h2>") == len(CHARTS) + 3 + 1


@pytest.mark.parametrize("name", ["overview", "learning", "rewards", "pipeline", "health"])
def test_every_chart_says_in_words_what_it_shows(
    opened: Callable[[str, Path], AppTest], collapsed: Path, name: str
) -> None:
    """The words are the chart's label for screen readers; its title is a heading."""
    test = opened(name, collapsed).run()
    assert not test.exception
    charts = test.get("arrow_vega_lite_chart") or test.get("vega_lite_chart")
    for chart in charts:
        assert '"description": "' in chart.proto.spec
    assert html_of(test).count("<h1") == 1
    assert "<h2" in html_of(test)
