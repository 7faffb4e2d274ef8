"""The pages of guarantees name tests that are there, and lines as programs print them."""

import errno
import itertools
import re
import shlex
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from coordinator.incidents.alerts import Incidents
from headrace.errors import StorageBlockedError, UserError
from headrace.host import disk
from headrace.run_files import run_folder
from headrace_cli.cli import parse
from headrace_cli.commands.run.generator import await_listener
from headrace_cli.commands.run.train import report
from headrace_cli.launch.supervisor import OURS, RunOutcome
from storage.journal.checkpoints import lost_records_error
from storage.journal.record_batches import damage_error
from storage.run_store import START_BYTES
from tests.documented import is_documented, lines

ROOT = Path(__file__).parents[1]
PAGES = ("operations", "security", "several-hosts")
NAMED = re.compile(r"`(tests/[\w./{},-]+?\.py)(?:::(\w+))?`")


def named(page: str) -> Iterator[tuple[Path, str]]:
    """Files of tests, and tests in them, that a page names; `{a,b}` is both."""
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    for path, test in NAMED.findall(text):
        parts = [part.split(",") for part in re.split(r"[{}]", path)]
        for chosen in itertools.product(*parts):
            yield ROOT / "".join(chosen), test


@pytest.mark.parametrize("page", PAGES)
def test_every_test_that_a_page_names_is_there(page: str) -> None:
    found = list(named(page))
    assert found
    for path, test in found:
        assert path.is_file(), path
        assert not test or f"def {test}(" in path.read_text(encoding="utf-8"), f"{path}::{test}"


def test_every_file_that_a_page_names_is_there() -> None:
    """By its path from the root; links are checked by `scripts/docs.py`."""
    pages = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md"))
    folders = {path.name for path in ROOT.iterdir() if path.is_dir()}
    form = re.compile(r"`([a-z_]+/[\w./-]+\.(?:py|toml|jsonl|sh|lock))`")
    named = {
        (page.name, path)
        for page in pages
        for path in form.findall(page.read_text(encoding="utf-8"))
        if path.partition("/")[0] in folders
    }
    assert len(named) > 40
    assert sorted(f"{page}: {path}" for page, path in named if not (ROOT / path).exists()) == []


def commands() -> Iterator[tuple[str, str]]:
    """Each command of README and docs with its page, but forms with brackets."""
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        text = path.read_text(encoding="utf-8").replace("\\\n", " ")
        for quoted, line in re.findall(r"`(headrace [^`]+)`|^(headrace .*)$", text, re.MULTILINE):
            said = " ".join((quoted or line).split())
            if "[" not in said:
                yield said, path.name


def test_every_command_that_a_page_names_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    """Words and options are known; a sentence may name a command without what it needs."""
    found = sorted(set(commands()))
    assert len(found) > 100
    wrong = []
    for said, page in found:
        cut = itertools.takewhile(lambda word: word not in "|>&;", shlex.split(said, comments=True))
        words = ["1" if word == "N" else word for word in list(cut)[1:] if word != "..."]
        try:
            parse(words)
        except SystemExit as ended:
            line = capsys.readouterr().err
            if not ended.code:
                continue
            options = {word for word in words if word.startswith("--")}
            with pytest.raises(SystemExit):
                parse([*(word for word in words if word not in options), "--help"])
            known = set(re.findall(r"--[\w-]+", capsys.readouterr().out))
            is_short = re.search("are required|expected one argument", line)
            if not (is_short and options <= known):
                wrong.append((page, said, line))
    assert not wrong


def test_every_guarantee_names_a_test() -> None:
    text = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    section = text.split("## What is guaranteed", 1)[1].split("###", 1)[0]
    rows = [line for line in section.splitlines() if line.startswith("|")][2:]
    assert len(rows) > 10
    for row in rows:
        tests = NAMED.findall(row.split(" | ")[1])
        assert tests
        assert all(test for _, test in tests), row


def test_what_is_no_line_of_the_page_is_told_from_one() -> None:
    assert len(lines()) > 20
    assert is_documented("generator-0 died (exit code 1): starting it again in 4 s")
    assert not is_documented("generator-0 died (exit code 1)")
    assert not is_documented("generator-0 died (exit code 1): starting it again in some seconds")


def test_what_a_disk_that_takes_nothing_makes_the_run_say() -> None:
    troubles = Incidents(lambda *told: None)
    with pytest.raises(StorageBlockedError) as full, disk.writing(ROOT, START_BYTES):
        raise OSError(errno.ENOSPC, "full")
    with pytest.raises(StorageBlockedError) as closed, disk.writing(ROOT, START_BYTES):
        raise OSError(errno.EROFS, "read-only")
    for name in ("the journal", "learner-0"):
        troubles.set_wait(name, "disk", str(full.value))
        troubles.set_wait(name, "disk", "")
    troubles.set_wait("the journal", "disk", str(closed.value))
    assert len(troubles.newest) == 5
    assert [text for text in troubles.newest if not is_documented(text)] == []


def test_what_a_user_is_refused_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def lock() -> None:
        with run_folder.locked(tmp_path):
            pass

    told: list[str] = []
    refusals: list[Callable[[], object]] = [
        partial(run_folder.hold_writer, tmp_path, wait_s=0.0),
        lock,
        partial(await_listener, "tcp://127.0.0.1:9", patience_s=0.2, tell=told.append),
    ]
    said: list[Exception] = [
        damage_error(tmp_path / "run" / "journal" / "segment-000001.arrow", 1_234),
        lost_records_error(
            tmp_path / "run", "step_8 rests on 1,000 records of the journal; it holds 9"
        ),
    ]
    with run_folder.hold_writer(tmp_path), run_folder.locked(tmp_path):
        for refusal in refusals:
            with pytest.raises(UserError) as refused:
                refusal()
            said.append(refused.value)
    told += [f"error: {error}" for error in said]
    assert len(told) == 6
    report(RunOutcome(OURS, "nobody makes progress: the learner to join for 300 s"), tmp_path)
    told.append(capsys.readouterr().err.strip())
    assert [line for line in told if not is_documented(line)] == []
