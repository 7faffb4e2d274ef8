"""A checkpoint counts only when it is whole."""

import json
from pathlib import Path

import pytest

from headrace.errors import UserError
from learner.checkpoint import mismatch, newest, read_manifest, write_checkpoint


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


def test_old_ones_go_but_the_best_stays(tmp_path: Path) -> None:
    write(tmp_path, 1)
    (tmp_path / "best").write_text("step_1\n")
    for update in (2, 3, 4):
        write(tmp_path, update)
    assert sorted(p.name for p in tmp_path.glob("step_*")) == ["step_1", "step_3", "step_4"]


def test_the_manifest_names_every_file(tmp_path: Path) -> None:
    path = write(tmp_path, 5)
    manifest = read_manifest(path)
    assert (manifest["update"], manifest["version"]) == (5, 5)
    assert manifest["files"]["state/numbers"]["bytes"] == 7
    assert json.loads((path / "manifest.json").read_text()) == manifest


def test_an_earlier_format_is_read_and_a_later_one_refused(tmp_path: Path) -> None:
    """Format 1 named its lineage where the coordinator did, and had the coordinator's own file."""
    path = write(tmp_path, 3)
    manifest = json.loads((path / "manifest.json").read_text())
    assert manifest["format"] == 2
    (path / "manifest.json").write_text(json.dumps(manifest | {"format": 1, "lineage": None}))
    assert newest(tmp_path) == path
    assert read_manifest(path)["lineage"] == 0
    (path / "manifest.json").write_text(json.dumps(manifest | {"format": 1, "lineage": 7}))
    assert read_manifest(path)["lineage"] == 7
    (path / "manifest.json").write_text(json.dumps(manifest | {"format": 3}))
    with pytest.raises(UserError, match="has checkpoint format 3, and this version"):
        read_manifest(path)


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
