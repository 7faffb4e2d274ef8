"""`headrace export` and `headrace sql` as a user meets them."""

import io
import json
import re
from pathlib import Path

import pytest

from headrace_cli import command_table
from headrace_cli.cli import main
from storage.exports.job import KINDS
from storage.exports.sql import TABLES
from storage.exports.writers import FORMATS
from tests.storage.samples import write_run


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_run(tmp_path_factory.mktemp("runs") / "sample-1"))


def fails(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line that a mistake prints."""
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    return captured.err


def test_help_names_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert tuple(command_table.KINDS) == tuple(KINDS)
    assert command_table.FORMATS == FORMATS
    assert set(command_table.SCHEMAS) == {name for each in KINDS.values() for name in each}
    assert tuple(TABLES) == command_table.TABLES
    with pytest.raises(SystemExit):
        main(["export", "--help"])
    text = capsys.readouterr().out
    assert all(word in text for word in (*KINDS, *FORMATS, *command_table.SCHEMAS))


def test_an_export_says_what_it_wrote(
    run_dir: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "t.csv")
    assert main(["export", run_dir, "tokens", "--out", out]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith(f"53 rows of tokens in {out}: ")
    assert first.split(": ")[1].split()[1].startswith("kB")
    assert second.startswith("left out, without a value in any row: ")
    assert "mark" in second.split(": ")[1].split(", ")
    chosen = ["--columns", "position, value", "--where", "value > 0", "--force"]
    assert main(["export", run_dir, "tokens", "--out", out, *chosen]) == 0
    assert (tmp_path / "t.csv").read_text().splitlines()[:2] == ['"position","value"', "0,1.0"]


def test_mistakes_of_an_export(
    run_dir: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    export = ("export", run_dir, "tokens")
    for force in ((), ("--force",)):
        assert "is a folder; name a file" in fails(capsys, *export, "--out", str(tmp_path), *force)
    assert "name the format" in fails(capsys, *export, "--out", str(tmp_path / "t"))
    line = fails(capsys, *export, "--out", str(tmp_path / "t.xls"))
    assert all(fmt in line for fmt in FORMATS)
    assert "cannot write" in fails(capsys, *export, "--out", "/proc/t.csv")
    line = fails(capsys, *export, "--out", str(tmp_path / "t.csv"), "--columns", "lenght")
    assert "did you mean length" in line
    assert list(tmp_path.iterdir()) == []


def test_what_an_export_says_beside_its_rows(
    run_dir: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokens = ("export", run_dir, "tokens", "--out", str(tmp_path / "t.jsonl"))
    assert main([*tokens, "--where", "reward > 90"]) == 0
    assert "no row of tokens matches reward > 90" in capsys.readouterr().err
    assert main([*tokens, "--force"]) == 0
    assert re.search(r"^[\d,]+ bytes a row: .*Parquet", capsys.readouterr().err)
    assert main([*tokens, "--force", "--columns", "token,value"]) == 0
    assert capsys.readouterr().err == ""
    assert "--csv-safe is for csv, not for jsonl" in fails(capsys, *tokens, "--force", "--csv-safe")


def test_an_answer_as_table_csv_and_json(
    run_dir: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    query = (
        "select status, count(*) as n, max(reward) as best from trajectories group by 1 order by 1"
    )
    assert main(["sql", run_dir, query]) == 0
    table = capsys.readouterr().out.splitlines()
    assert [line.split() for line in table] == [
        ["status", "n", "best"],
        ["finished", "2", "1"],
        ["issued", "1", "-"],
        ["running", "1", "-"],
        ["truncated", "1", "-"],
    ]
    assert main(["sql", run_dir, query, "--format", "csv"]) == 0
    assert capsys.readouterr().out.splitlines()[:3] == [
        '"status","n","best"',
        '"finished",2,1.0',
        '"issued",1,',
    ]
    odd = "select '7' as text, '' as empty, null as none, '=a()' as sum, -1 as less, 'a\"b' as q"
    assert main(["sql", run_dir, odd, "--format", "csv", "--csv-safe"]) == 0
    assert capsys.readouterr().out.splitlines()[1] == '"7","",,"\'=a()",-1,"a""b"'
    monkeypatch.setattr("sys.stdin", io.StringIO(query))
    assert main(["sql", run_dir, "-", "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert rows[0] == {"status": "finished", "n": 2, "best": 1.0}
    assert rows[1]["best"] is None
    assert main(["sql", run_dir, "select 1 where false", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
    assert main(["sql", run_dir, "from tokens", "--limit", "2"]) == 0
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == 3
    assert "--limit 0 prints all" in captured.err


def test_mistakes_of_a_query(run_dir: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = fails(capsys, "sql", run_dir, "select rewrd from trajectories")
    assert '"rewrd" not found' in line
    assert '"reward"' in line
    assert "write one SELECT" in fails(capsys, "sql", run_dir, "drop table tokens")
    line = fails(capsys, "sql", run_dir, "select * from '/etc/passwd.csv'")
    assert "disabled by configuration" in line
    for limit in (("--limit", "-1"), ("--memory", "0"), ("--seconds", "nan")):
        assert limit[0] in fails(capsys, "sql", run_dir, "select 1", *limit)
    line = fails(capsys, "sql", run_dir, "select 1", "--memory", str(10**30))
    assert "a memory limit of 1000000" in line
    assert "--seconds` allows more" in fails(
        capsys, "sql", run_dir, "select count(*) from range(100000000000)", "--seconds", "0.2"
    )
