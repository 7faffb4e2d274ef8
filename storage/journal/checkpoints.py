"""Checkpoints compared with the journal that they were written beside.

In: a run's folder. Out: checkpoints that rest on records which the journal does not hold any more.
Only manifests are read, and of the journal only what they name. A checkpoint whose manifest names
no place in it rests on anything; a run cannot resume from one whose manifest is unreadable.
"""

import logging
from pathlib import Path
from typing import NamedTuple

from headrace.protocol.messages.control import JournalEnd
from headrace.run_files.run_folder import read_manifest
from storage.journal.record_batches import DamagedError
from storage.journal.segments import digest_at, end_of

log = logging.getLogger(__name__)


class OrphanCheckpoint(NamedTuple):
    """A checkpoint, and of how many records it is."""

    path: Path
    records: int


def orphan_checkpoints(run_dir: Path) -> list[OrphanCheckpoint]:
    """Checkpoints of records that the journal does not hold, oldest first."""
    found = []
    for path in (run_dir / "checkpoints").glob("step_*"):
        try:
            named = read_manifest(path).get("journal")
            if named is None:
                continue
            end = JournalEnd(int(named["records"]), str(named["digest"]))
        except (OSError, ValueError, KeyError, TypeError):
            continue
        # It takes a second each, and a supervisor ends a start that says nothing for two minutes.
        log.info("comparing %s with the journal", path.name)
        if digest_at(run_dir / "journal", end.records) != end.digest:
            found.append(OrphanCheckpoint(path, end.records))
    return sorted(found, key=lambda orphan: orphan.records)


def check_history(run_dir: Path) -> None:
    """Refuse a journal without the records that a checkpoint rests on."""
    end = end_of(run_dir / "journal")
    for orphan in reversed(orphan_checkpoints(run_dir)):
        is_short = orphan.records > end.rows
        now = f"it holds {end.rows:,}" if is_short else "they are other ones"
        raise lost_records_error(
            run_dir, f"{orphan.path.name} rests on {orphan.records:,} records of the journal; {now}"
        )


def lost_records_error(run_dir: Path, what: str) -> DamagedError:
    """The message to a user about lost records."""
    return DamagedError(
        f"{run_dir.name}: {what}, so records are lost. Put the whole journal back from a copy, or "
        f"run `headrace audit {run_dir} --repair`: it says what is lost, and from where the run "
        "can go on"
    )
