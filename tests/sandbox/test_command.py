"""`headrace sandbox run` prints what came of a program; the doctor says where it runs."""

import json
from pathlib import Path

import pytest

from headrace.errors import UserError
from headrace_cli.cli import main
from sandbox import isolation_check

FIELDS = ["layer", "status", "exit_code", "stdout", "stderr", "seconds", "cut"]


def test_a_file_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "program.py"
    file.write_text("import sys\nprint('out')\nsys.exit('why')")
    code = main(["sandbox", "run", str(file), "--json"])
    if code == 2:
        pytest.skip(capsys.readouterr().err)
    answer = json.loads(capsys.readouterr().out)
    assert list(answer) == FIELDS
    assert (answer["status"], answer["exit_code"]) == ("failed", 1)
    assert (answer["stdout"], answer["stderr"]) == ("out\n", "why\n")
    assert main(["sandbox", "run", str(file), "--seconds", "5"]) == 0
    assert "status     failed" in capsys.readouterr().out


def test_what_a_program_prints_moves_no_cursor(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "program.py"
    file.write_text(r"print('\x1b[2J')")
    if main(["sandbox", "run", str(file)]) == 2:
        pytest.skip(capsys.readouterr().err)
    assert "stdout     \n\\x1b[2J\n" in capsys.readouterr().out


def test_what_cannot_be_run_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["sandbox", "run", str(tmp_path / "none.py")]) == 2
    assert "cannot be read as a program" in capsys.readouterr().err
    file = tmp_path / "program.py"
    file.write_text("print(1)")
    assert main(["sandbox", "run", str(file), "--seconds", "0"]) == 2
    capsys.readouterr()
    for option, value, reason in (
        ("--package", "no-such-package", "is not installed beside Headrace"),
        ("--python", "/no/such/python", "cannot be asked where its library is"),
    ):
        assert main(["sandbox", "run", str(file), option, value]) == 2
        assert reason in capsys.readouterr().err

    async def none(python: object) -> str:
        raise UserError("no sandbox for programs on this machine")

    monkeypatch.setattr("sandbox.pool.working_layer", none)
    assert main(["sandbox", "run", str(file)]) == 2
    assert "no sandbox for programs" in capsys.readouterr().err.splitlines()[-1]


def test_the_doctor_names_layers_and_why_others_do_not_hold(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def trials() -> list[isolation_check.LayerTrial]:
        return [
            isolation_check.LayerTrial("namespaces", refused="unshare: Operation not permitted"),
            isolation_check.LayerTrial("landlock", tried=78),
        ]

    monkeypatch.setattr(isolation_check, "known_trials", trials)
    main(["doctor"])
    shown = capsys.readouterr().out
    assert "not to be had: unshare: Operation not permitted" in shown
    assert "holds 78 of 78 escapes" in shown
    assert "programs run in landlock" in shown
