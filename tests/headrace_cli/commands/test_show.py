"""`headrace show`: figures and tables, never a Python dict."""

from pathlib import Path

import pytest

from headrace_cli.cli import main
from headrace_cli.commands.data.tables import figure_lines, table_lines
from storage import queries
from tests.dashboard.scripted_run import write_run


def test_figures_are_names_with_values_and_lists_are_tables() -> None:
    row = {
        "run_id": "r",
        "updates": 12345,
        "idle_share": {"learner": 0.18, "generator": None},
        "alerts": ["one thing", "and another"],
        "checkpoints": [
            {"update": 10, "path": "step_10", "accuracy": None},
            {"update": 2000, "path": "step_2000", "accuracy": None},
        ],
        "rewards": {"sums": {"answers": 8, "reward": 0.5}, "judge": {"answers": 4, "reward": None}},
        "judges": {},
    }
    assert list(figure_lines(row)) == [
        "run_id                       r",
        "updates                      12,345",
        "idle_share learner           0.18",
        "idle_share generator         -",
        "alerts                       one thing",
        "alerts                       and another",
        "judges                       -",
        "",
        "checkpoints",
        "  update  path",
        "      10  step_10",
        "   2,000  step_2000",
        "",
        "rewards",
        "  name   answers  reward",
        "  sums         8     0.5",
        "  judge        4       -",
    ]


def test_lines_of_a_list_move_no_cursor() -> None:
    assert list(figure_lines({"alerts": ["\x1b[2Jit"]})) == [f"{'alerts':<28} \\x1b[2Jit"]


def test_rows_may_lack_a_column() -> None:
    assert list(table_lines([{"a": 1}, {"a": None}])) == ["a", "1", "-"]


def test_a_run_is_shown_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = write_run(tmp_path, updates=3, roll_back_after=None)
    assert main(["show", run_dir.name, "--root", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "{" not in text
    assert "[" not in text
    summary = queries.run_summary(run_dir)
    first = summary["time_to_first_update_s"]
    (line,) = [line for line in text.splitlines() if line.startswith("time_to_first_update_s")]
    assert line.split()[1] == f"{first:,.4g}"
    evaluations = text.partition("\nevaluations\n")[2].splitlines()
    assert evaluations[0].split()[:2] == ["at", "label"]
    assert [line.split()[2] for line in evaluations[1:3]] == ["before", "after"]
