"""A checkpoint counts only when it is whole."""

import errno
import os
import queue
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.host import disk
from headrace.run_files.run_folder import manifest_text, read_manifest
from learner.process.checkpoint import mismatch, newest, write_checkpoint
from learner.process.write_behind import Tell, WriteBehind
from tests.small_disk import small_disk


def fill(folder: Path) -> None:
    (folder / "state").mkdir()
    (folder / "state" / "numbers").write_text("one two")


def write(root: Path, update: int) -> Path:
    return write_checkpoint(root, update, fill, facts={"version": update}, keep_last=2)


def test_the_newest_whole_one_is_found(tmp_path: Path) -> None:
    for update in (3, 9, 10):
        write(tmp_path, update)
    assert (tmp_path / "latest").read_text() == "step_10\n"
    assert newest(tmp_path) == tmp_path / "step_10"
    (tmp_path / "step_10" / "state" / "numbers").write_text("one too")
    assert "numbers" in str(mismatch(tmp_path / "step_10"))
    assert newest(tmp_path) == tmp_path / "step_9"
    (tmp_path / "step_9" / "manifest.json").write_text("{")
    assert newest(tmp_path) is None


def test_old_ones_go(tmp_path: Path) -> None:
    for update in (1, 2, 3, 4):
        write(tmp_path, update)
    assert sorted(p.name for p in tmp_path.glob("step_*")) == ["step_3", "step_4"]


@pytest.mark.parametrize("update", [3, 2])
def test_one_that_is_half_removed_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, update: int
) -> None:
    """A learner is killed while it removes an old one, or one of the same number: an audit would
    find that damaged."""
    for earlier in (1, 2):
        write(tmp_path, earlier)

    def killed(path: Path, **_: object) -> None:
        if path.exists():
            (path / "manifest.json").unlink()
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            write(tmp_path, update)
    assert [mismatch(path) for path in tmp_path.glob("step_*")] == [None, None]
    write(tmp_path, 4)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["latest", f"step_{update}", "step_4"]


def test_one_that_is_read_on_nfs_goes_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that a process of the host has open, or mapped, stays there under another name."""
    rmdir = os.rmdir

    def busy(path: str, **options: Any) -> None:
        if ".step_1." in str(path):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
        rmdir(path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rmdir", busy)
        for update in (1, 2, 3, 4):
            write(tmp_path, update)
        assert newest(tmp_path) == tmp_path / "step_4"
    write(tmp_path, 5)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest", "step_4", "step_5"]


def test_a_draft_of_the_same_number_is_not_in_the_way(tmp_path: Path) -> None:
    """An abandoned lineage left a checkpoint, and a learner was killed while it wrote it again."""
    write(tmp_path, 1)
    write(tmp_path, 9)
    shutil.copytree(tmp_path / "step_9", tmp_path / ".step_9.partial")
    write(tmp_path, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest", "step_1", "step_2"]


def test_the_manifest_names_every_file(tmp_path: Path) -> None:
    path = write(tmp_path, 5)
    manifest = read_manifest(path)
    assert (manifest["update"], manifest["version"]) == (5, 5)
    assert manifest["files"]["state/numbers"]["bytes"] == 7
    assert (path / "manifest.json").read_text() == manifest_text(manifest)


def test_no_bit_of_a_manifest_can_change(tmp_path: Path) -> None:
    """Not of the fields that a resume believes, either: versions, steps, the batch."""
    path = write(tmp_path, 5) / "manifest.json"
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
        assert mismatch(path.parent) is not None, at


def test_what_was_half_written_is_not_seen(tmp_path: Path) -> None:
    """A writer that died, and a number that an abandoned lineage used before."""
    (tmp_path / ".step_7.partial").mkdir(parents=True)
    (tmp_path / ".step_7.partial" / "junk").write_text("")
    assert newest(tmp_path) is None
    assert newest(tmp_path / "nowhere") is None
    path = write(tmp_path, 7)
    assert not (path / "junk").exists()
    assert write(tmp_path, 7) == path
    assert mismatch(path) is None


def test_all_of_it_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, synced: dict[int, int]
) -> None:
    """A power cut then leaves what the manifest names, or no checkpoint of this number."""
    lacking = list[Path]()

    def looked(move: Callable[[Path, Path], Path]) -> Callable[[Path, Path], Path]:
        def look_and_move(path: Path, target: Path) -> Path:
            parts = ((part, part.stat()) for part in (path, *path.rglob("*")))
            lacking.extend(part for part, now in parts if synced.get(now.st_ino) != now.st_size)
            return move(path, target)

        return look_and_move

    for name in ("rename", "replace"):
        monkeypatch.setattr(Path, name, looked(getattr(Path, name)))
    write(tmp_path, 1)
    assert lacking == []
    assert tmp_path.stat().st_ino in synced


def passed_over(root: Path) -> list[str]:
    found: list[str] = []
    newest(root, passed_over=found)
    return found


def test_what_is_passed_over_is_named(tmp_path: Path) -> None:
    for update in (8, 9, 10):
        write_checkpoint(tmp_path, update, fill, facts={}, keep_last=3)
    assert passed_over(tmp_path) == []
    (tmp_path / "step_10" / "state" / "numbers").unlink()
    (tmp_path / "step_9" / "manifest.json").write_text("{")
    first, second = passed_over(tmp_path)
    assert first == "checkpoint step_10 was passed over: state/numbers is missing or changed"
    assert second.startswith("checkpoint step_9 was passed over: no readable manifest.json")
    (tmp_path / "step_8" / "manifest.json").unlink()
    assert newest(tmp_path) is None
    assert len(passed_over(tmp_path)) == 3


@pytest.mark.parametrize("known", [True, False])
def test_it_waits_for_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: bool) -> None:
    """Whether or not it is known before how much it is: nothing of it stays on the full disk, and
    the older ones are there all the time."""
    monkeypatch.setattr(disk, "RETRY_S", 0.01)
    size, told = 700_000, list[str]()

    def big(folder: Path) -> None:
        (folder / "model").write_bytes(bytes(size))
        fill(folder)

    with small_disk(tmp_path / "disk", "1m") as small:
        root = small.path / "checkpoints"
        write(root, 1)
        small.fill()

        def later() -> None:
            while not told:
                time.sleep(0.01)
            for _ in range(20):
                time.sleep(0.01)
                assert newest(root) == root / "step_1"
            small.free()

        thread = threading.Thread(target=later)
        thread.start()
        needs = size if known else 0
        path = write_checkpoint(root, 2, big, facts={}, keep_last=2, needs=needs, tell=told.append)
        thread.join()
        assert mismatch(path) is None
        assert sorted(p.name for p in root.iterdir()) == ["latest", "step_1", "step_2"]
    assert told == [f"room for {needs:,} bytes in {root}, and 0 are free", ""]


def test_a_failed_write_of_a_rank_that_waits_for_others_ends_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody asks for its result: the rank waits to hear of rank 0, which waits for its file."""
    codes = queue.Queue[int]()
    monkeypatch.setattr(os, "_exit", codes.put)

    def stale(_tell: Tell) -> None:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), "policy-1.safetensors")

    WriteBehind[None]("checkpoint", print, fatal=True).begin(stale)
    assert codes.get(timeout=60) == 1
    assert "the checkpoint cannot be written" in caplog.text
    assert os.strerror(errno.ESTALE) in caplog.text
