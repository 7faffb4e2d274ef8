"""The page Runs: rows, filters, orders, notes, archive, and folders that are broken."""

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from dashboard.components.run_table import RunFilter, chosen_lines, run_rows, styled
from headrace.run_files.run_folder import latest_name, locked
from headrace.run_files.run_notes import RunNotes, change_notes, read_notes
from storage import queries
from storage.audit import audit_run
from storage.queries import RunLine
from tests.dashboard.scripted_run import EVALUATIONS, write_run

TIMEOUT_S = 60
FIRST, SECOND = "first-20260101-120000-aaaa", "second-20260102-120000-bbbb"


def page(root: str) -> None:
    """The page as the app has it; where it turns to is kept in the session."""
    from pathlib import Path

    import streamlit as st

    from dashboard.views import runs

    def turn(title: str, query: runs.Query) -> None:
        st.session_state["turned"] = (title, dict(query))

    runs.render(Path(root), turn)


@pytest.fixture
def open_page() -> Callable[[Path], AppTest]:
    return lambda root: AppTest.from_function(page, args=(str(root),), default_timeout=TIMEOUT_S)


@pytest.fixture
def two_runs(tmp_path: Path) -> Path:
    """A root with two runs, the second of which is newer and has another seed."""
    for number, name in enumerate((FIRST, SECOND)):
        started = 1_767_268_800.0 + 1000 * number
        run = write_run(tmp_path, name, started=started, updates=2, roll_back_after=None)
        config = json.loads((run / "resolved.json").read_text())
        (run / "resolved.json").write_text(json.dumps({**config, "seed": number}))
    return tmp_path


def html_of(test: AppTest) -> str:
    return "\n".join(str(element.proto.body) for element in test.get("html"))


def rows_of(test: AppTest) -> Any:
    return test.dataframe[0].value


def choose(test: AppTest, *names: str) -> AppTest:
    """Choose rows as a click does."""
    st.cache_data.clear()
    test.session_state["chosen_rows"] = list(names)
    return test.run()


def test_a_root_without_runs_says_how_to_start_one(
    open_page: Callable[[Path], AppTest], tmp_path: Path
) -> None:
    test = open_page(tmp_path).run()
    assert not test.exception
    assert "headrace train recipes/quickstart.toml" in html_of(test)


def test_rows_are_what_the_store_says(open_page: Callable[[Path], AppTest], two_runs: Path) -> None:
    test = open_page(two_runs).run()
    assert not test.exception
    rows = rows_of(test)
    assert list(rows["run"]) == [SECOND, FIRST]  # the newest first
    line = queries.run_line(two_runs / SECOND)
    row = rows.iloc[0]
    assert (row["recipe"], row["seed"], row["algorithm"]) == ("scripted", 1, "tppo, streaming")
    assert row["accuracy"] == EVALUATIONS["after"]
    assert (row["tokens"], row["updates"]) == (line.trained_tokens, 2)
    assert row["time"] == pytest.approx(line.wall_s)
    assert row["state"] == "finished"
    assert row["when"].timestamp() > 0
    test.selectbox(key="order_runs").select("oldest").run()
    assert list(rows_of(test)["run"]) == [FIRST, SECOND]


def test_a_broken_folder_is_a_grey_row_with_its_reason(
    open_page: Callable[[Path], AppTest], two_runs: Path
) -> None:
    (two_runs / "broken-1").mkdir()
    (two_runs / "broken-1" / "resolved.json").write_text('{"na')
    test = open_page(two_runs).run()
    assert not test.exception
    row = rows_of(test).set_index("run").loc["broken-1"]
    assert row["state"] == "unreadable"
    assert "resolved.json cannot be read" in row["why"]
    assert pd.isna(row["recipe"])
    table = run_rows(queries.list_runs(two_runs))
    html = styled(table).to_html()
    assert html.count("font-style: italic") == 1
    test.multiselect(key="states").set_value(["finished"]).run()
    assert set(rows_of(test)["run"]) == {FIRST, SECOND}


def test_notes_are_edited_and_kept_in_the_folder(
    open_page: Callable[[Path], AppTest], two_runs: Path
) -> None:
    test = choose(open_page(two_runs), FIRST)
    test.multiselect(key=f"tags_{FIRST}").set_value(["paper"])
    test.text_area(key=f"note_{FIRST}").set_value("lr was too high")
    next(button for button in test.button if button.label == "Keep").click().run()
    assert not test.exception
    assert read_notes(two_runs / FIRST) == RunNotes(("paper",), "lr was too high")
    row = rows_of(test).set_index("run").loc[FIRST]
    assert (row["tags"], row["note"]) == ("paper", "lr was too high")
    test.text_input(key="search_runs").set_value("LR high").run()
    assert list(rows_of(test)["run"]) == [FIRST]
    before = audit_run(two_runs / SECOND).counts
    assert audit_run(two_runs / FIRST).counts == before  # the account knows nothing of it


def test_what_cannot_be_noted_is_one_line(
    open_page: Callable[[Path], AppTest], two_runs: Path
) -> None:
    (two_runs / FIRST / "notes.json").mkdir()  # stands in the way, for root too
    test = choose(open_page(two_runs), FIRST)
    assert "notes.json cannot be read" in rows_of(test).set_index("run").loc[FIRST, "note"]
    next(button for button in test.button if button.label == "Keep").click().run()
    assert not test.exception
    assert f"nothing can be noted on {FIRST}" in test.error[0].value


def test_archived_runs_are_hidden_until_they_are_asked_for(
    open_page: Callable[[Path], AppTest], two_runs: Path
) -> None:
    test = choose(open_page(two_runs), SECOND)
    next(button for button in test.button if button.label == "Archive").click().run()
    assert not test.exception
    assert list(rows_of(test)["run"]) == [FIRST]
    assert latest_name(two_runs) == FIRST
    test.toggle(key="archived").set_value(True).run()
    rows = rows_of(test).set_index("run")
    assert rows.loc[SECOND, "state"] == "finished, archived"
    next(button for button in test.button if button.label == "Take back").click().run()
    assert latest_name(two_runs) == SECOND


def test_a_run_that_goes_on_is_not_archived(
    open_page: Callable[[Path], AppTest], tmp_path: Path
) -> None:
    run = write_run(tmp_path, "live-1", started=time.time() - 9, updates=2, roll_back_after=None,
                    end=False)  # fmt: skip
    with locked(run):
        test = choose(open_page(tmp_path), run.name)
    assert not test.exception
    assert rows_of(test)["state"].tolist() == ["training"]
    assert "Archive" not in {button.label for button in test.button}


def test_what_is_chosen_is_compared(open_page: Callable[[Path], AppTest], two_runs: Path) -> None:
    test = choose(open_page(two_runs), FIRST, SECOND, "gone-1")
    assert not test.exception
    assert f'"hr-chosen">{FIRST}, {SECOND}<' in html_of(test)
    next(button for button in test.button if button.label == "Compare").click().run()
    assert test.session_state["turned"] == ("Compare", {"runs": [FIRST, SECOND]})
    next(button for button in test.button if button.label == "Choose none").click().run()
    assert "hr-chosen" not in html_of(test)


# -- rows, without Streamlit -----------------------------------------------------------------------


def line(folder: str, **values: Any) -> RunLine:
    known: dict[str, Any] = {
        "run_id": folder, "run_dir": Path(folder), "name": "quick", "status": "finished",
        "started_at": 10.0, "wall_s": 5.0, "updates": 1, "trained_tokens": 7,
        "accuracy_before": None, "accuracy_after": None, "reward": None,
    }  # fmt: skip
    return RunLine(**{**known, **values})


LINES = [
    line("a", started_at=30.0, accuracy=0.5, notes=RunNotes(("x", "y"), "Slow start")),
    line("b", started_at=20.0, accuracy=None, status="failed", detail="out of memory"),
    line("c", started_at=10.0, accuracy=0.9, kind="evaluation", notes=RunNotes(archived=True)),
]


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        (RunFilter(), "ab"),
        (RunFilter(archived=True), "abc"),
        (RunFilter("START slow"), "a"),
        (RunFilter("memory quick"), "b"),
        (RunFilter("memory slow"), ""),
        (RunFilter(states=("failed",)), "b"),
        (RunFilter(tags=("y", "z")), "a"),
        (RunFilter(kinds=("evaluation",), archived=True), "c"),
    ],
)
def test_filters(wanted: RunFilter, names: str) -> None:
    assert [each.run_id for each in chosen_lines(LINES, wanted, "newest")] == list(names)


def test_orders_have_what_is_not_known_last() -> None:
    found = chosen_lines(LINES, RunFilter(archived=True), "accuracy")
    assert [each.run_id for each in found] == ["c", "a", "b"]
    assert chosen_lines(LINES, RunFilter(), "no such order")[0].run_id == "a"


def test_a_table_of_nothing_but_broken_folders_can_be_drawn() -> None:
    rows = run_rows([line("a", status=queries.UNREADABLE, started_at=None, detail="why")])
    assert rows["tokens"].isna().all()
    assert "why" in styled(rows).to_html()


def test_two_hundred_runs_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Later reads look at the times of files alone, and what is noted makes its run anew."""
    run = write_run(tmp_path, "run-000", updates=2, roll_back_after=None)
    for number in range(1, 200):
        (tmp_path / f"run-{number:03d}" / "journal").mkdir(parents=True)
        for name in ("resolved.json", "headrace.sqlite"):
            shutil.copy(run / name, tmp_path / f"run-{number:03d}" / name)
        for path in (run / "journal").iterdir():
            (tmp_path / f"run-{number:03d}" / "journal" / path.name).hardlink_to(path)
    assert len(queries.list_runs(tmp_path)) == 200
    read: list[str] = []
    whole = queries.any_line

    def counted(run_dir: Path) -> RunLine:
        read.append(run_dir.name)
        return whole(run_dir)

    monkeypatch.setattr("storage.queries.runs.any_line", counted)
    assert len(queries.list_runs(tmp_path)) == 200
    assert read == []
    change_notes(tmp_path / "run-007", note="x")
    found = {each.run_dir.name: each.notes.note for each in queries.list_runs(tmp_path)}
    assert (read, found["run-007"]) == (["run-007"], "x")
