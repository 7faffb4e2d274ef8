"""The page Compare: which runs, which is better since when, tables, and what cannot be compared."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from dashboard.components.multi_run_picker import suggested
from dashboard.views.compare import ACCURACY, METRIC_NAMES, SHOWN
from headrace.protocol.records.record_types import EvaluationDone, RunPhase
from headrace.run_files.run_notes import change_notes
from storage import queries
from storage.run_store import RunStore
from tests.dashboard.scripted_run import EVALUATIONS, make_config, write_run
from tests.dashboard.test_runs_page import html_of, line

TIMEOUT_S = 60
FIRST, SECOND = "first-20260101-120000-aaaa", "second-20260102-120000-bbbb"
WORSE = 0.5
TOKENS = "tokens to 50.0 %"


def page(root: str, left: str | None) -> None:
    """The page, with a run chosen at the left or none."""
    from pathlib import Path

    from dashboard.components.run_picker import RunChoice
    from dashboard.views import compare

    compare.render(Path(root), RunChoice(left, None))


@pytest.fixture
def open_page() -> Callable[..., AppTest]:
    def opened(root: Path, *runs: str, left: str | None = None) -> AppTest:
        test = AppTest.from_function(page, args=(str(root), left), default_timeout=TIMEOUT_S)
        if runs:
            test.query_params["runs"] = list(runs)
        return test

    return opened


@pytest.fixture(scope="module")
def two_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of one recipe and configuration but for the seed, one of which ends worse."""
    root = tmp_path_factory.mktemp("two")
    for number, name in enumerate((FIRST, SECOND)):
        started = 1_767_268_800.0 + 1000 * number
        run = write_run(root, name, started=started, updates=4, roll_back_after=None)
        config = json.loads((run / "resolved.json").read_text())
        (run / "resolved.json").write_text(json.dumps({**config, "seed": number}))
    last = queries.evaluations(run).iloc[-1]
    store = RunStore.open(run)
    store.append(
        [
            EvaluationDone(
                at=float(last["at"]), label="after", update=int(last["update"]),
                version=int(last["version"]), num_prompts=1024, accuracy=WORSE,
                response_length=40.0, max_response_length=117, truncated=0.0, failed=0,
                seconds=3.0, train_time_s=float(last["train_time_s"]),
            )
        ]
    )  # fmt: skip
    store.close()
    return root


def charts_of(test: AppTest) -> int:
    return len(test.get("arrow_vega_lite_chart") or test.get("vega_lite_chart"))


def test_a_root_without_runs(open_page: Callable[..., AppTest], tmp_path: Path) -> None:
    test = open_page(tmp_path).run()
    assert not test.exception
    assert "Choose runs above" in html_of(test)


def test_without_a_list_it_is_the_run_at_the_left_and_its_recipe(
    open_page: Callable[..., AppTest], two_runs: Path
) -> None:
    test = open_page(two_runs, left=FIRST).run()
    assert not test.exception
    assert test.multiselect(key="compared").value == [FIRST, SECOND]
    assert test.query_params["runs"] == [FIRST, SECOND]  # so that a link shows the same
    assert charts_of(test) == len(SHOWN)


def test_one_run_is_drawn_and_nothing_said_of_better(
    open_page: Callable[..., AppTest], two_runs: Path
) -> None:
    test = open_page(two_runs, FIRST).run()
    assert not test.exception
    assert "One line says nothing by itself" in html_of(test)
    assert "One run differs from nothing" in html_of(test)
    assert charts_of(test) == len(SHOWN)


@pytest.mark.parametrize("axis", ["update", "train_time", "wall", "tokens"])
def test_which_is_better_since_when(
    open_page: Callable[..., AppTest], two_runs: Path, axis: str
) -> None:
    test = open_page(two_runs, FIRST, SECOND)
    test.session_state["axis"] = axis
    test.session_state["seeds"] = False
    test.run()
    assert not test.exception
    html = html_of(test)
    assert "Against scripted seed 0 (aaaa)" in html
    assert '<b>scripted seed 1 (bbbb)</b> is <span class="hr-bad">worse</span> since ' in html
    assert f"by {100 * (EVALUATIONS['after'] - WORSE):.1f} points" in html
    if axis == "update":
        assert "since update 4, by" in html
    test.number_input(key="margin").set_value(60.0).run()
    assert "is not apart from it for good" in html_of(test)
    test.selectbox(key="against").select(SECOND).run()
    assert "Against scripted seed 1 (bbbb)" in html_of(test)


def test_one_evaluation_is_no_verdict(open_page: Callable[..., AppTest], tmp_path: Path) -> None:
    for name, end in ((FIRST, True), (SECOND, False)):
        write_run(tmp_path, name, updates=2, roll_back_after=None, end=end)
    test = open_page(tmp_path, FIRST, SECOND)
    test.query_params["seeds"] = "false"
    html = html_of(test.run())
    assert "cannot be told yet: 1 evaluation" in html
    assert "better" not in html.rpartition("since when?")[2]  # links to the cards come first


def test_one_evaluation_of_each_seed_is_no_verdict(
    open_page: Callable[..., AppTest], tmp_path: Path
) -> None:
    """Seeds that stop by time end at different updates: two places on the axis, and no curve."""
    runs = []
    for age, accuracy in enumerate((0.8, 0.4)):
        for seed in range(2):
            config = make_config(tmp_path, schedule={"max_staleness": 2 + age})
            run = tmp_path / f"run-{age}{seed}"
            store = RunStore.create(run, run.name, config.model_copy(update={"seed": seed}))
            done = EvaluationDone(
                at=1010.0, label="after", update=10 + 2 * seed + age, version=1, num_prompts=1024,
                accuracy=accuracy, response_length=40.0, max_response_length=117, truncated=0.0,
                failed=0, seconds=3.0, train_time_s=9.0,
            )  # fmt: skip
            store.append([RunPhase(at=1000.0, phase="starting"), done])
            store.close()
            runs.append(run.name)
    html = html_of(open_page(tmp_path, *runs).run())
    assert "Against scripted seeds 0, 1 (2 runs)" in html
    assert html.count("cannot be told yet: 1 evaluation") == 1


def test_cpu_time_is_an_axis_of_what_was_sampled(
    open_page: Callable[..., AppTest], two_runs: Path
) -> None:
    test = open_page(two_runs, FIRST, SECOND)
    test.session_state["axis"] = "cpu"
    test.session_state["seeds"] = False
    test.run()
    assert not test.exception
    assert charts_of(test) == len(SHOWN)


def test_seeds_are_one_line_with_a_switch(
    open_page: Callable[..., AppTest], two_runs: Path
) -> None:
    test = open_page(two_runs, FIRST, SECOND).run()
    assert not test.exception
    assert test.selectbox(key="against").options == ["scripted seeds 0, 1 (2 runs)"]
    said = "".join(caption.value for caption in test.caption)
    assert "An alert: under 0.02 for 20 updates" in said
    assert "Shaded" not in said
    test.toggle(key="seeds").set_value(False).run()
    assert len(test.selectbox(key="against").options) == 2


def test_accuracies_and_what_a_target_cost(
    open_page: Callable[..., AppTest], two_runs: Path
) -> None:
    test = open_page(two_runs, FIRST, SECOND).run()
    rows: Any = test.dataframe[0].value
    assert list(rows["run"]) == [f"overview?run={FIRST}", f"overview?run={SECOND}"]
    assert list(rows["first"]) == [EVALUATIONS["before"]] * 2
    assert list(rows["last"]) == [EVALUATIONS["after"], WORSE]
    test.number_input(key="target").set_value(50.0).run()
    assert not test.exception
    rows = test.dataframe[0].value
    assert rows[TOKENS][0] == queries.run_line(two_runs / FIRST).trained_tokens > 0
    test.number_input(key="target").set_value(99.0).run()
    assert test.dataframe[0].value["tokens to 99.0 %"].isna().all()


def test_differences_in_configuration(open_page: Callable[..., AppTest], two_runs: Path) -> None:
    test = open_page(two_runs, FIRST, SECOND).run()
    found: Any = test.dataframe[1].value
    assert list(found.index) == ["seed"]
    assert found.loc["seed"].tolist() == ["0", "1"]


def test_every_metric_can_be_chosen(open_page: Callable[..., AppTest], two_runs: Path) -> None:
    test = open_page(two_runs, FIRST, SECOND)
    test.session_state["metrics"] = [*METRIC_NAMES[10:14], "weights/slowest_loaded"]
    test.run()
    assert not test.exception
    assert charts_of(test) == 4
    assert "None of these runs has it so far." in html_of(test)


def test_what_cannot_be_compared_is_said(
    open_page: Callable[..., AppTest], two_runs: Path, tmp_path: Path
) -> None:
    (two_runs / "broken-1").mkdir()
    (two_runs / "broken-1" / "resolved.json").write_text('{"na')
    test = open_page(two_runs, FIRST, "nowhere", "broken-1").run()
    assert not test.exception
    html = html_of(test)
    assert f"There is no run nowhere under {two_runs}" in html
    assert "Run broken-1 cannot be read: " in html
    assert charts_of(test) == len(SHOWN)
    test = open_page(two_runs, "nowhere").run()
    assert not test.exception
    assert "Choose runs above" in html_of(test)


def test_an_archived_run_is_compared_where_it_is_named(
    open_page: Callable[..., AppTest], two_runs: Path
) -> None:
    change_notes(two_runs / SECOND, archived=True)
    try:
        test = open_page(two_runs, FIRST).run()
        assert SECOND not in "".join(test.multiselect(key="compared").options)
        test = open_page(two_runs, FIRST, SECOND).run()
        assert not test.exception
        assert test.multiselect(key="compared").value == [FIRST, SECOND]
    finally:
        change_notes(two_runs / SECOND, archived=False)


def test_a_run_that_has_only_begun(open_page: Callable[..., AppTest], tmp_path: Path) -> None:
    run = tmp_path / "young-20260101-000000-0000"
    store = RunStore.create(run, run.name, make_config(tmp_path))
    store.append([RunPhase(at=time.time(), phase="starting")])
    test = open_page(tmp_path, run.name).run()
    assert not test.exception
    assert "No update and no evaluation yet: starting." in html_of(test)
    store.close()


def test_what_is_suggested() -> None:
    lines = [
        line("new-1", name="other"),
        *(line(f"quick-{i}") for i in range(8)),
        line("eval-1", kind="evaluation"),
    ]
    assert suggested(lines, "quick-3") == ["quick-3", *(f"quick-{i}" for i in (0, 1, 2, 4, 5))]
    assert suggested(lines, None) == ["new-1", "quick-0"]  # the only one of its recipe
    assert suggested(lines, "eval-1") == ["new-1", "quick-0"]
    assert suggested([], "quick-3") == []


def test_a_chart_whose_runs_have_not_changed_is_not_made_again(
    open_page: Callable[..., AppTest], two_runs: Path, made_charts: list[Any]
) -> None:
    test = open_page(two_runs, FIRST, SECOND).run()
    assert len(made_charts) == len(SHOWN)
    assert not open_page(two_runs, FIRST, SECOND).run().exception
    assert len(made_charts) == len(SHOWN)
    test.multiselect(key="metrics").set_value([ACCURACY, "actor/grad_norm", SHOWN[1]]).run()
    assert not test.exception
    assert len(made_charts) == len(SHOWN) + 1
    test.toggle(key="seeds").set_value(False).run()
    assert len(made_charts) == len(SHOWN) + 1 + 3, "other lines are other charts"


def test_every_figure_is_offered_once() -> None:
    assert len(METRIC_NAMES) == len(set(METRIC_NAMES))
