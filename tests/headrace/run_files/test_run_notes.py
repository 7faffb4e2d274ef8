"""What people note on a run: kept, changed, bounded, and never in the way."""

import json
from pathlib import Path

import pytest

from headrace.config.loading.recipe import load_recipe
from headrace.errors import UserError
from headrace.run_files import run_folder
from headrace.run_files.run_notes import (
    MAX_NOTE_CHARACTERS,
    RunNotes,
    change_notes,
    read_notes,
    tidy_tags,
)


def test_what_is_noted_is_kept_and_changed_one_by_one(tmp_path: Path) -> None:
    assert read_notes(tmp_path) == RunNotes()
    change_notes(tmp_path, tags=["best", "paper"], note="  first line\nsecond ")
    assert change_notes(tmp_path, archived=True) == read_notes(tmp_path)
    found = RunNotes(("best", "paper"), "first line\nsecond", archived=True)
    assert read_notes(tmp_path) == found
    assert change_notes(tmp_path, tags=[], archived=False) == RunNotes(note="first line\nsecond")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.json"]  # nothing half written
    assert set(json.loads((tmp_path / "notes.json").read_text())) == {"tags", "note", "archived"}


NO_NOTES = ("", "{", "[1]", '{"tags": 3}', '{"note": null}', "\udcff", '{"note": "\udcff"}')


@pytest.mark.parametrize("text", NO_NOTES)
def test_a_file_that_is_no_notes_is_told_and_replaced(tmp_path: Path, text: str) -> None:
    (tmp_path / "notes.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    found = read_notes(tmp_path)
    assert "notes.json cannot be read" in found.trouble
    assert "\n" not in found.trouble
    assert (found.tags, found.note, found.archived) == ((), "", False)
    change_notes(tmp_path, note="anew")
    assert read_notes(tmp_path) == RunNotes(note="anew")


def test_keys_of_a_later_version_are_no_trouble(tmp_path: Path) -> None:
    (tmp_path / "notes.json").write_text('{"tags": ["a"], "stars": 5}')
    assert read_notes(tmp_path) == RunNotes(("a",))


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "notes.json").mkdir()  # stands in the way, for root too
    with pytest.raises(UserError, match=r"nothing can be noted on .* cannot be written") as caught:
        change_notes(tmp_path, note="x")
    assert "\n" not in str(caught.value)


def test_tags_are_tidied_and_bounded() -> None:
    assert tidy_tags([" a  b ", "c,d", "a b", "", ","]) == ("a b", "c d")
    with pytest.raises(UserError, match="40 characters"):
        tidy_tags(["x" * 41])
    with pytest.raises(UserError, match="20 tags"):
        tidy_tags(map(str, range(21)))


def test_a_note_is_bounded(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="2,000 characters at most"):
        change_notes(tmp_path, note="x" * (MAX_NOTE_CHARACTERS + 1))
    assert not (tmp_path / "notes.json").exists()


def test_latest_never_means_an_archived_run(recipe: Path, tmp_path: Path) -> None:
    config = load_recipe(recipe, [f'root="{tmp_path}/runs"'])
    first, second = run_folder.make_run_folder(config), run_folder.make_run_folder(config)
    root = first.parent
    change_notes(second, archived=True)
    assert run_folder.find_run(root, "latest") == first
    assert run_folder.find_run(root, second.name) == second
    change_notes(first, archived=True)
    assert run_folder.latest_name(root) is None
    change_notes(second, archived=False)
    assert run_folder.find_run(root, "latest") == second
