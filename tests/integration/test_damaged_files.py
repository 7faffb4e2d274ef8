"""Every file of a run that had checkpoints, a rollback and a clean end, with a bit flipped, half of
it gone, empty and missing: the audit names it, or nobody needs it."""

import fcntl
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.errors import UserError
from headrace.protocol.records.record_types import CheckpointWritten, LineageBegan, RunPhase
from headrace_cli.cli import main
from storage.audit import audit_run
from tests.integration.audit import records_of
from tests.integration.runs import PLAIN, Run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

STEP = "checkpoints/step_*"
NAMED = (
    "resolved.json", "supervisor.jsonl", "applied/rank-0.jsonl", "headrace.sqlite",
    "journal/segment-000001.arrow", "journal/segment-000002.arrow", "journal/last",
    "diagnostics/segment-000001.arrow", "checkpoints/latest", f"{STEP}/manifest.json",
    f"{STEP}/state/critic-0.safetensors", f"{STEP}/state/policy-0.safetensors",
    f"{STEP}/policy/generation_config.json",
    *(f"{STEP}/{model}/{name}" for model in ("policy", "critic") for name in (
        "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
    )),
    *(f"keys/{name}.key{half}" for name in ("server", "client") for half in ("", "_secret")),
)  # fmt: skip
IRRELEVANT = {
    ".lock": "it is empty: only that a process holds it counts, and whoever locks makes it",
    ".writer": "who holds its lock, in words; whoever takes that writes it anew",
    "coordinator.json": "where a running coordinator is; every start makes it anew",
    "now.json": "what a run that goes on waits for; its coordinator writes it every second",
    "headrace.sqlite-shm": "SQLite's index of the WAL, which the first reader makes anew",
    "headrace.sqlite-wal": "empty, once the last writer has closed the database",
    "logs/": "what processes printed, for people",
}
WHERE = {
    "headrace.sqlite": b"edger/generated",  # between rows a page has bytes that are nobody's
    "keys/": b'"\n',  # the end of a key; what precedes the keys is comments
}
"""Behind which bytes of a file the bit is flipped, where not any will do."""


def flipped(data: bytes, name: str) -> bytes:
    """With one bit of the byte in the middle, or before the last `WHERE`, changed."""
    mark = next((mark for begin, mark in WHERE.items() if name.startswith(begin)), b"")
    at = max(data.rfind(mark) - 1, 0) if mark else len(data) // 2
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


DAMAGE: dict[str, Callable[[bytes, str], bytes | None]] = {
    "one bit flipped": flipped,
    "half gone": lambda data, _: data[: len(data) // 2],
    "empty": lambda *_: b"",
    "missing": lambda *_: None,
}


def make_run(root: Path) -> None:
    run = Run(
        root, *PLAIN, "stop.updates=6", "checkpoint.every_updates=1", "checkpoint.keep_last=1",
        "storage.segment_mib=0.05", "schedule.window=30", "task.max_response_length=60",
    )  # fmt: skip
    try:
        run.until(lambda: run.root.is_dir() and any(p.is_dir() for p in run.root.iterdir()))
        run.until(lambda: run.applied() >= 2)
        os.kill(run.supervised("learner-0"), signal.SIGKILL)
        assert run.wait() == 0, run.text()
    finally:
        run.end()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run, made once for all test processes; not to be changed."""
    base = tmp_path_factory.getbasetemp()
    root = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "damaged-files"
    root.mkdir(exist_ok=True)
    with (root / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (root / "made").exists():
            make_run(root / "runs")
            (root / "made").touch()
    (run_dir,) = (path.parent for path in root.glob("runs/*/resolved.json"))
    return run_dir


def copied(run_dir: Path, root: Path) -> Path:
    """A copy under the same name; large files are shared, and replaced rather than changed."""

    def copy(source: str, target: str) -> None:
        (os.link if source.endswith(".safetensors") else shutil.copy2)(source, target)

    return Path(shutil.copytree(run_dir, root / run_dir.name, copy_function=copy))


def damage(path: Path, name: str, how: str) -> None:
    old = path.read_bytes()
    new = DAMAGE[how](old, name) if old or how != "one bit flipped" else old
    path.unlink()
    if new is not None:
        path.write_bytes(new)


def file_of(run_dir: Path, name: str) -> Path:
    if name == "journal/last":
        return sorted((run_dir / "journal").iterdir())[-1]
    (path,) = run_dir.glob(name)
    return path


def answers(run_dir: Path, out: Path, capsys: pytest.CaptureFixture[str]) -> list[object]:
    """Of `audit`, `show --json` and all exports."""
    said: list[object] = []
    for command in ("audit", "show"):
        assert main([command, str(run_dir), "--json"]) == 0
        said.append(capsys.readouterr().out)
    for kind in ("trajectories", "tokens", "metrics", "windows", "preferences", "sft"):
        path = out / f"{kind}.jsonl"
        assert main(["export", str(run_dir), kind, "--out", str(path), "--force"]) == 0
        said.append(path.read_bytes())
    capsys.readouterr()
    return said


def test_the_run_is_whole_and_these_are_its_files(whole: Path, tmp_path: Path) -> None:
    run_dir = copied(whole, tmp_path)
    assert audit_run(run_dir).findings == []
    kinds = {type(record) for record in records_of(run_dir)}
    assert {CheckpointWritten, LineageBegan, RunPhase} <= kinds
    listed = {file_of(whole, name) for name in NAMED}
    listed |= set((whole / "journal").iterdir())
    left = {path for path in whole.rglob("*") if path.is_file()} - listed
    names = {str(path.relative_to(whole)) for path in left}
    assert {name for name in names if not name.startswith(tuple(IRRELEVANT))} == set()


@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.parametrize("name", NAMED)
def test_what_is_damaged_is_named(whole: Path, tmp_path: Path, name: str, how: str) -> None:
    run_dir = copied(whole, tmp_path)
    path = file_of(run_dir, name)
    damage(path, name, how)
    try:
        found = [f"{f.kind} {f.where} {f.text}" for f in audit_run(run_dir).findings]
    except UserError as error:  # of the configuration: nothing can be read without it
        found = [str(error)]
    words = {"headrace.sqlite": "sql ", "manifest.json": "manifest"}
    folders = ("applied", "diagnostics", "journal")
    word = path.parent.name if path.parent.name in folders else words.get(path.name, path.name)
    assert any(word.removesuffix("_secret") in line for line in found), found


@pytest.mark.parametrize("how", DAMAGE)
def test_what_is_irrelevant_changes_no_answer(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], how: str
) -> None:
    before = answers(copied(whole, tmp_path / "before"), tmp_path, capsys)
    run_dir = copied(whole, tmp_path / "after")
    for path in [path for path in run_dir.rglob("*") if path.is_file()]:
        name = str(path.relative_to(run_dir))
        if name.startswith(tuple(IRRELEVANT)):
            damage(path, name, how)
    assert answers(run_dir, tmp_path, capsys) == before
