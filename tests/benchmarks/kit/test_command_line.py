"""What `headrace bench NAME --help` shows."""

import ast
from pathlib import Path

import pytest

from benchmarks.kit.command_line import command_line
from headrace.host.install import ROOT

FILES = sorted((ROOT / "benchmarks").rglob("*.py"))


def calls(path: Path, name: str) -> list[ast.Call]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == name
    ]


def test_every_option_of_every_benchmark_says_what_it_is() -> None:
    assert len(FILES) > 50
    silent = [
        f"{path.name}: {ast.unparse(call.args[0])}"
        for path in FILES
        for call in calls(path, "add_argument")
        if "help" not in {keyword.arg for keyword in call.keywords}
    ]
    assert silent == []


def test_benchmarks_share_one_kind_of_command_line() -> None:
    own = {path.stem for path in FILES if calls(path, "ArgumentParser")}
    assert own == {"command_line"}


def test_help_keeps_the_text_and_tells_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    parser = command_line("name", "What it is.\n\n  a table   as it stands: 5 %\n")
    parser.add_argument("--count", type=int, default=3, help="how many")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 20], help="how large")
    parser.add_argument("--rows", type=Path, default=ROOT / "rows" / "50%.jsonl", help="where to")
    parser.add_argument("--out", type=Path, help="a folder")
    parser.add_argument("--fast", action="store_true", help="in a hurry")
    with pytest.raises(SystemExit):
        parser.parse_args(["--help"])
    said = capsys.readouterr().out
    assert "headrace bench name" in said
    assert "  a table   as it stands: 5 %\n" in said
    shown = " ".join(said.split())
    for part in ("how many (default: 3)", "how large (default: 1 20)", "(default: rows/50%.jsonl)"):
        assert part in shown
    assert shown.count("default") == 3
    assert parser.parse_args(["--json"]).json is True
    with pytest.raises(SystemExit):
        command_line("name", None, json=False).parse_args(["--json"])
