"""A journal whose files and bytes were changed: UserError, or the records that were written, from
the first one on; and one that is opened to be written on is read again with what was added. Cut off
behind a record, a journal looks like a shorter one, which checkpoints know better."""

import logging
import tempfile
from functools import cache
from pathlib import Path

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from headrace.errors import UserError
from headrace.protocol.records.record_types import Record
from storage.journal.segments import segment_paths
from storage.journal.store import Journal, read_journal
from tests.fuzz.damage import BYTES, damaged
from tests.storage.samples import same, small_run

SEGMENT_MIB = 0.004


@cache
def written(*, closed: bool) -> tuple[dict[str, bytes], list[Record]]:
    """The files of a journal, and its records. These are not quite what was appended: diagnostics
    of updates are elsewhere."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        journal = Journal(folder, run_id="run", segment_mib=SEGMENT_MIB)
        for batch in small_run():
            journal.append(batch)
        if closed:
            journal.close()
        records = [record for batch in read_journal(folder) for _, record in batch]
        return {path.name: path.read_bytes() for path in segment_paths(folder)}, records


@st.composite
def changed(draw: st.DrawFn, files: dict[str, bytes]) -> dict[str, bytes]:
    """Files one or two of which are cut off, longer, gone, exchanged, doubled or damaged."""
    files = dict(files)
    for _ in range(draw(st.integers(1, 2))):
        name, other = (draw(st.sampled_from(sorted(files))) for _ in range(2))
        match draw(st.integers(0, 7)):
            case 0:
                files[name] = files[name][: draw(st.integers(0, len(files[name])))]
            case 1:
                files[name] += bytes(draw(st.integers(0, 200)))
            case 2:
                del files[name]
            case 3:
                files[name] = files[other]
            case 4:
                files[f"segment-{draw(st.integers(0, 8)):06}.arrow"] = files[name]
            case _:
                files[name] = draw(damaged(files[name], BYTES))
        if not files:
            break
    return files


def read(folder: Path, records: list[Record]) -> tuple[str, int]:
    """What becomes of reading, and how many records were read; each is the one that was written."""
    found = 0
    try:
        for batch in read_journal(folder):
            for offset, record in batch:
                assert offset == found
                assert same(record, records[found])
                found += 1
    except UserError:
        return "refused", found
    return "taken", found


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Journals are cut off on purpose, and each warns."""
    logging.getLogger("storage").setLevel(logging.ERROR)


@given(st.data())
def test_a_changed_journal_is_refused_or_holds_what_was_written(data: st.DataObject) -> None:
    whole, records = written(closed=data.draw(st.booleans()))
    files = data.draw(st.just(whole) | changed(whole))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for path, content in files.items():
            (folder / path).write_bytes(content)
        outcome, found = read(folder, records)
        event(outcome)
        if files == whole:
            assert (outcome, found) == ("taken", len(records))
        if outcome == "refused":
            return
        try:
            journal = Journal(folder, run_id="run", segment_mib=SEGMENT_MIB)
        except UserError:
            return
        goes_on_at = journal.next_offset
        assert goes_on_at <= found
        journal.append(records[:1])
        journal.close()
        assert sum(map(len, read_journal(folder))) == goes_on_at + 1
