"""Run folders: named, found, locked, discarded."""

import errno
import fcntl
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from headrace.config.loading.recipe import load_recipe
from headrace.config.sections.run import RunConfig
from headrace.errors import UserError
from headrace.run_files import run_folder
from headrace.run_files.run_notes import change_notes


@pytest.fixture
def config(recipe: Path, tmp_path: Path) -> RunConfig:
    return load_recipe(recipe, [f'root="{tmp_path}/runs"', 'name="a run/1"'])


def test_a_new_folder(config: RunConfig) -> None:
    run_dir = run_folder.make_run_folder(config)
    assert re.fullmatch(r"a-run-1-\d{8}-\d{6}-[0-9a-f]{4}", run_dir.name)
    assert run_folder.read_config(run_dir) == config
    assert (run_dir.parent / "latest").read_text().strip() == run_dir.name
    assert (run_dir / "logs").is_dir()


def test_a_configuration_is_on_the_disk_before_it_has_its_name(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch, synced: dict[int, int]
) -> None:
    """A resume writes it anew: a power cut then leaves the old one or the new one."""
    run_dir = run_folder.make_run_folder(config)
    replace, lacking = Path.replace, list[Path]()

    def look_and_replace(path: Path, target: Path) -> Path:
        if synced.get(path.stat().st_ino) != path.stat().st_size:
            lacking.append(path)
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", look_and_replace)
    run_folder.write_config(run_dir, config)
    assert lacking == []


def test_finding_runs(config: RunConfig) -> None:
    first, second = run_folder.make_run_folder(config), run_folder.make_run_folder(config)
    root = first.parent
    assert run_folder.find_run(root, first.name) == first
    assert run_folder.find_run(root, "latest") == second
    assert run_folder.find_run(root, str(first)) == first
    assert run_folder.find_run(root, first.name[:-1]) in (first, second)
    with pytest.raises(UserError, match="beginning of 2 runs"):
        run_folder.find_run(root, "a-run")
    with pytest.raises(UserError, match=f"did you mean {first.name[:-4]}"):
        run_folder.find_run(root, "x" + first.name[1:])


def test_a_run_that_never_began_leaves_nothing(config: RunConfig) -> None:
    first, second = run_folder.make_run_folder(config), run_folder.make_run_folder(config)
    root = first.parent
    run_folder.discard_run_folder(second)
    assert run_folder.find_run(root, "latest") == first
    run_folder.discard_run_folder(first)
    assert list(root.iterdir()) == []


def test_a_run_that_never_began_is_none_on_nfs_either(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folder stays there, with the lock that a reward model's training still has open."""
    first, second = run_folder.make_run_folder(config), run_folder.make_run_folder(config)
    rmdir = os.rmdir

    def busy(path: str, **options: Any) -> None:
        if Path(path).name == second.name:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
        rmdir(path, **options)

    monkeypatch.setattr(os, "rmdir", busy)
    run_folder.discard_run_folder(second)
    assert run_folder.run_names(first.parent) == [first.name]
    assert run_folder.find_run(first.parent, "latest") == first


def evaluation_of(config: RunConfig) -> RunConfig:
    only = config.evaluation.model_copy(update={"only": True})
    return config.model_copy(update={"name": "eval", "evaluation": only})


def test_latest_may_be_an_evaluation_and_what_needs_a_training_says_so(config: RunConfig) -> None:
    trained = run_folder.make_run_folder(config)
    root = trained.parent
    run_folder.need_training(trained)
    evaluated = run_folder.make_run_folder(evaluation_of(config))
    assert run_folder.find_run(root, "latest") == evaluated
    for command in ("train --resume", "replay --update 1"):
        words = [sys.executable, "-m", "headrace", *command.split(), "latest", "--root", str(root)]
        done = subprocess.run(words, capture_output=True, text=True)
        assert done.returncode == 2
        assert f"{evaluated.name} evaluates a model, and this needs a run" in done.stderr
        assert trained.name in done.stderr
    run_folder.discard_run_folder(evaluated)
    assert run_folder.find_run(root, "latest") == trained


def test_a_run_has_one_supervisor(config: RunConfig) -> None:
    run_dir = run_folder.make_run_folder(config)
    assert not run_folder.is_running(run_dir)
    found_anywhere = rf"still going on; .* headrace stop {re.escape(str(run_dir))}$"
    with run_folder.locked(run_dir):
        assert run_folder.is_running(run_dir)
        with pytest.raises(UserError, match=found_anywhere), run_folder.locked(run_dir):
            pass
    assert not run_folder.is_running(run_dir)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b'{"name": "x"}', "model: Field required"),
        (b'{"name": "\xff"}', ""),
        (b"", "Invalid JSON"),
        (b'{"name": {"url": "postgresql://me:hunter2@host/x"}}', "name: Input should be"),
    ],
)
def test_a_folder_of_another_version_is_refused(config: RunConfig, data: bytes, said: str) -> None:
    run_dir = run_folder.make_run_folder(config)
    (run_dir / "resolved.json").write_bytes(data)
    refused = pytest.raises(UserError, match=f"^.*cannot be read by this version: .*{said}.*$")
    with refused as found:
        run_folder.read_config(run_dir)
    assert "hunter2" not in str(found.value)


def test_a_run_that_cannot_be_written_is_one_line(config: RunConfig) -> None:
    run_dir = run_folder.make_run_folder(config)
    (run_dir / run_folder.LOCK).mkdir()
    with pytest.raises(UserError, match="cannot be written"), run_folder.locked(run_dir):
        pass


def test_a_file_system_without_locks_is_one_line(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(file: object, kind: int) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    run_dir = run_folder.make_run_folder(config)
    monkeypatch.setattr(fcntl, "flock", missing)
    with pytest.raises(UserError, match="locked: Function not"), run_folder.locked(run_dir):
        pass
    assert not run_folder.is_running(run_dir)


def test_a_note_makes_no_run_newer(config: RunConfig) -> None:
    first, second = run_folder.make_run_folder(config), run_folder.make_run_folder(config)
    change_notes(first, tags=["x"])
    assert run_folder.run_names(first.parent) == [first.name, second.name]
    assert run_folder.newest_run(first.parent, run_folder.is_training) == second.name


def test_who_looks_whether_a_run_goes_on_keeps_nobody_from_it(config: RunConfig) -> None:
    run_dir, over = run_folder.make_run_folder(config), threading.Event()

    def look() -> None:
        while not over.is_set():
            run_folder.is_running(run_dir)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        for _ in range(300):
            with run_folder.locked(run_dir):
                pass
    finally:
        over.set()
        thread.join()
