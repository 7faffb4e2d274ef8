"""User's notes on a run: tags, a note, and whether it is archived.

In: a run's folder. Out: `RunNotes`, which is kept in that folder as `notes.json`, apart from all
that the run writes itself: no figure and no account knows of it. It is written atomically, and a
folder that cannot be written is a UserError of one line. Reading never fails: a file that cannot be
read is reported in `trouble`.
"""

import threading
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from headrace.errors import UserError
from headrace.run_files.run_folder import NOTES, write_atomically

MAX_TAGS, MAX_TAG_CHARACTERS, MAX_NOTE_CHARACTERS = 20, 40, 2000
_ONE_CHANGE = threading.Lock()


@dataclass(frozen=True)
class RunNotes:
    """Notes on a run. An archived run is left out of lists unless it is asked for, and `latest`
    never means it. `trouble`: why the file that is there says nothing."""

    tags: tuple[str, ...] = ()
    note: str = ""
    archived: bool = False
    trouble: str = ""


def read_notes(run_dir: Path) -> RunNotes:
    """Return the notes on a run; empty ones where there is no file."""
    path = run_dir / NOTES
    try:
        found = msgspec.json.decode(path.read_bytes(), type=RunNotes)
    except FileNotFoundError:
        return RunNotes()
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        return RunNotes(trouble=f"{path} cannot be read: {error}")
    return replace(found, trouble="")


def change_notes(
    run_dir: Path,
    *,
    tags: Iterable[str] | None = None,
    note: str | None = None,
    archived: bool | None = None,
) -> RunNotes:
    """Change what is given and keep the rest; returns what is noted now."""
    with _ONE_CHANGE:
        notes = replace(read_notes(run_dir), trouble="")
        if tags is not None:
            notes = replace(notes, tags=tidy_tags(tags))
        if note is not None:
            note = note.strip()
            if len(note) > MAX_NOTE_CHARACTERS:
                raise UserError(
                    f"a note has {MAX_NOTE_CHARACTERS:,} characters at most, and this one has "
                    f"{len(note):,}"
                )
            notes = replace(notes, note=note)
        if archived is not None:
            notes = replace(notes, archived=archived)
        kept = {"tags": notes.tags, "note": notes.note, "archived": notes.archived}
        text = msgspec.json.format(msgspec.json.encode(kept), indent=2).decode()
        try:
            write_atomically(run_dir / NOTES, text + "\n")
        except OSError as error:
            raise UserError(
                f"nothing can be noted on {run_dir.name}: {run_dir} cannot be written "
                f"({error.strerror or error})"
            ) from error
    return notes


def tidy_tags(tags: Iterable[str]) -> tuple[str, ...]:
    """Return tags without commas and needless blanks, each once. UserError: too many, too long."""
    found = dict.fromkeys(" ".join(tag.replace(",", " ").split()) for tag in tags)
    kept = tuple(filter(None, found))
    if len(kept) > MAX_TAGS:
        raise UserError(f"a run has {MAX_TAGS} tags at most, and these are {len(kept)}")
    if long := [tag for tag in kept if len(tag) > MAX_TAG_CHARACTERS]:
        raise UserError(
            f"a tag has {MAX_TAG_CHARACTERS} characters at most: {long[0][:MAX_TAG_CHARACTERS]}..."
        )
    return kept
