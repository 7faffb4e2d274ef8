"""The repair of a journal that no coordinator can be started from.

In: the folder of a stopped run. Out: a journal that ends before the first record
that cannot be read, applied or projected; the damaged one beside it under the name
`journal.damaged-N`; checkpoints that rest on records which are gone under other names; SQL rebuilt.
Promises: what is kept can be resumed from, because all of it was applied and projected first;
nothing is thrown away, because what is lost to the run stays in the damaged journal; a run of which
nothing is damaged or lost is left as it is. Token diagnostics keep every batch that is whole.
"""

import contextlib
import shutil
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, get_args

import msgspec
import pyarrow as pa
from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError, SQLAlchemyError

from headrace.errors import UserError, first_line
from headrace.protocol.records.record_types import (
    AnyRecord,
    Forgotten,
    LineageBegan,
    UpdateCommitted,
)
from headrace.run_files.run_folder import hold_writer, locked, read_manifest, write_atomically
from headrace.trajectory.account import Account
from headrace.trajectory.token_ledger import LedgerError
from storage import projection
from storage.audit.files import checkpoint_problem
from storage.audit.findings import Findings
from storage.audit.reading import UNREADABLE, JournalRecord, UsableRecords, survey
from storage.audit.sql import RECORDS_PER_TRANSACTION, check_rows, moment
from storage.database.engine import SQLITE_NAME, open_file, open_writer
from storage.database.reader import check_formats, open_run, read_config
from storage.journal.checkpoints import orphan_checkpoints
from storage.journal.record_batches import SegmentWalk
from storage.journal.segments import SegmentWriter, recover, segment_paths
from storage.journal.store import read_journal, run_id_of

_NO_NEW_SEGMENT = 2**62
_KINDS = frozenset(kind.__name__ for kind in get_args(AnyRecord))


class RepairReport(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a repair.

    Attributes:
        why: the first problem; None where the journal was left as it is. kept, lost: numbers of
        records. Lost are those still in the damaged journal, or known to checkpoints or SQL.
        lost_kinds: the lost records by kind, those of damaged batches as far as these still say it;
        `unknown`: the others. lost_diagnostics: windows' that can still be counted. damaged: the
        folder that the damaged journal is in now; None where it only was too short. checkpoints:
        those of updates that the journal has lost, under their new names. diagnostics: the folder
        that damaged token diagnostics are in now; None: they were sound. made_anew: SQL was
        rebuilt. goes_on: the learner's next start: a checkpoint that is whole, or "the starting
        model"; None: there is nothing left to which the journal can go back.
    """

    why: str | None
    kept: int
    lost: int = 0
    lost_kinds: dict[str, int] = {}
    damaged: str | None = None
    checkpoints: list[str] = []
    diagnostics: str | None = None
    lost_diagnostics: int = 0
    made_anew: bool = False
    goes_on: str | None = None


def repair(run_dir: Path) -> RepairReport:
    """Repair a journal. UserError, and nothing is changed: the folder holds no run, or one that is
    written; its server does not answer; there is no room to try the journal."""
    config = read_config(run_dir)
    check_formats(run_dir)
    with locked(run_dir), hold_writer(run_dir):
        if config["storage"]["database"] is not None:
            open_writer(run_dir, config["storage"]["database"]).dispose()
        for name in ("journal", "diagnostics"):  # A repair was killed between its two renames.
            if not (run_dir / name).exists() and (run_dir / f"{name}.repaired").exists():
                (run_dir / f"{name}.repaired").rename(run_dir / name)
        findings = Findings()
        whole = survey(run_dir / "journal", findings, growing=False)
        try:
            trial = _ReplayTrial(run_dir, config, whole.end)
        except OperationalError as error:
            said = f"SQL in {tempfile.gettempdir()} cannot be written: {first_line(error.orig)}"
            raise UserError(f"nothing was changed; {said}") from error
        why = trial.problem or next((f"{f.where}: {f.text}" for f in findings.all()), None)
        known = _known(run_dir)
        if not segment_paths(run_dir / "journal"):
            return RepairReport(why=why, kept=0, lost=known, lost_kinds=+Counter(unknown=known))
        aside, rows = _mend_diagnostics(run_dir)
        found: dict[str, Any] = {"kept": trial.kept, "diagnostics": aside, "lost_diagnostics": rows}
        if why is None and known <= trial.kept and not orphan_checkpoints(run_dir):
            if is_made_anew := known < trial.kept or not _is_sql_sound(run_dir, config, known):
                _project(run_dir, config)
            goes_on = _newest_in_reach(run_dir, trial)
            return RepairReport(why=None, made_anew=is_made_anew, goes_on=goes_on, **found)
        kinds, damaged = Counter[str](), None
        if why is not None:
            kinds = _lost_kinds(run_dir / "journal", trial.kept)
            part = run_dir / "journal.repaired"
            _copy(run_dir / "journal", part, trial.kept)
            damaged = _free(run_dir, "journal.damaged-{}")
            (run_dir / "journal").rename(damaged)
            part.rename(run_dir / "journal")
        if (unknown := known - trial.kept - kinds.total()) > 0:
            kinds["unknown"] += unknown
        _project(run_dir, config)
        checkpoints = _set_aside(run_dir, trial.account, trial.update)
        return RepairReport(
            why=why or "the journal is not the one that checkpoints or the database rest on",
            lost=kinds.total(),
            lost_kinds=dict(kinds),
            damaged=None if damaged is None else damaged.name,
            checkpoints=checkpoints,
            made_anew=True,
            goes_on=_newest_in_reach(run_dir, trial),
            **found,
        )


class _ReplayTrial:
    """Applies and projects a journal record by record until one cannot be.

    Attributes:
        kept: all records before this offset can be used. problem: why the next one cannot; None
        where there is no such one. update: the last one committed on the surviving lineage among
        them. forgotten: no rollback can reach an earlier update.
    """

    def __init__(self, run_dir: Path, config: Mapping[str, Any], end: int) -> None:
        self.account = Account(has_value=config["algorithm"]["value"] is not None)
        self.update = self.forgotten = 0
        self._tried = 0
        journaled = UsableRecords(run_dir / "journal", end)
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-"))
            self._engine = open_file(Path(folder) / SQLITE_NAME)
            stack.callback(self._engine.dispose)
            with self._engine.begin() as connection:
                self._run = projection.register(connection, run_id_of(run_dir), config)
            self.problem = self._try(journaled)
        self.kept = self._tried if self.problem else journaled.reached
        if self.problem is None and journaled.problem is not None:
            self.problem = f"record {journaled.reached}: {journaled.problem}"

    def _try(self, journaled: UsableRecords) -> str | None:
        records = iter(journaled)
        while reads := list(islice(records, RECORDS_PER_TRANSACTION)):
            is_projected = self._project(reads) is None
            for read in reads:
                self._tried = read.offset
                problem = None if is_projected else self._project([read])
                if problem := problem or self._apply(read):
                    return problem
        return None

    def _apply(self, read: JournalRecord) -> str | None:
        """Return why a coordinator cannot apply a record; None where it can."""
        try:
            self.account.apply(read.record)
        except (LedgerError, *UNREADABLE) as error:
            return _text(read, "be applied", error)
        if isinstance(read.record, UpdateCommitted | LineageBegan):
            self.update = read.record.update
        elif isinstance(read.record, Forgotten):
            self.forgotten = read.record.update
        return None

    def _project(self, reads: Sequence[JournalRecord]) -> str | None:
        """Return why a database cannot take these records; None where it can."""
        try:
            with self._engine.begin() as connection:
                projection.apply(connection, self._run, reads)
        except OperationalError:  # of the disk, and not of a record
            raise
        except (SQLAlchemyError, *UNREADABLE) as error:
            return _text(reads[-1], "be projected", error)
        return None


def _text(read: JournalRecord, what: str, error: BaseException) -> str:
    name = type(read.record).__name__
    return f"record {read.offset}: {name} cannot {what}: {first_line(error)}"


# -- the journal that is kept ----------------------------------------------------------------------


def _lost_kinds(folder: Path, first: int) -> Counter[str]:
    """Lost records by kind; `unknown`: unreadable, or shown to be gone by later ones."""
    kinds, end = Counter[str](), first
    changed: list[pa.RecordBatch] = []
    for path in segment_paths(folder):
        for batch in SegmentWalk(path).salvage(changed):
            offsets = batch.column("offset").to_numpy()
            kinds.update(batch.column("kind").filter(pa.array(offsets >= first)).to_pylist())
            end = max(end, int(offsets[-1]) + 1)
    for batch in changed:
        names = batch.column("kind").to_pylist()
        kinds.update(name if name in _KINDS else "unknown" for name in names)
    kinds["unknown"] += max(0, end - first - kinds.total())
    return +kinds


def _copy(source: Path, target: Path, rows: int) -> None:
    """Copy the first `rows` records of a journal; only a cut batch is rewritten."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    row = 0
    for path in segment_paths(source):
        end, cut = 0, None
        for frame in SegmentWalk(path):
            if row + frame.batch.num_rows > rows:
                end, cut = frame.position, frame
                break
            row, end = row + frame.batch.num_rows, frame.end
        if end:
            with path.open("rb") as file:
                (target / path.name).write_bytes(file.read(end))
            recover(target)
        if cut is not None and row < rows:
            writer = SegmentWriter(target, cut.batch.schema, segment_bytes=_NO_NEW_SEGMENT)
            writer.append(cut.batch.slice(0, rows - row))
            writer.close()
        if row >= rows or cut is not None:
            return


def _free(folder: Path, pattern: str) -> Path:
    """The first numbered name that nothing has."""
    number = 1
    while (folder / pattern.format(number)).exists():
        number += 1
    return folder / pattern.format(number)


def _project(run_dir: Path, config: Mapping[str, Any]) -> None:
    """Rebuild SQL from the journal."""
    url = config["storage"]["database"]
    if url is None:
        for ending in ("", "-wal", "-shm"):
            (run_dir / f"{SQLITE_NAME}{ending}").unlink(missing_ok=True)
    engine: Engine = open_writer(run_dir, url)
    # All in one transaction would keep other runs of a server from beginning until its end.
    with engine.begin() as connection:
        projection.forget(connection, run_id := run_id_of(run_dir))
        run = projection.register(connection, run_id, config)
    records = chain.from_iterable(read_journal(run_dir / "journal"))
    while some := list(islice(records, RECORDS_PER_TRANSACTION)):
        with engine.begin() as connection:
            projection.apply(connection, run, some)
    engine.dispose()


def _newest_in_reach(run_dir: Path, trial: _ReplayTrial) -> str | None:
    """The newest of the checkpoints to which the journal can go back."""
    root, newest = run_dir / "checkpoints", trial.update
    if trial.account.taken is not None:
        newest = max(newest, trial.account.taken.update)
    for update in range(newest, trial.forgotten - 1, -1):
        path = root / f"step_{update}"
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            if checkpoint_problem(path, read_manifest(path)) is None:
                return path.name
    return None if trial.forgotten else "the starting model"


def _is_sql_sound(run_dir: Path, config: Mapping[str, Any], known: int) -> bool:
    """Return whether SQL's rows are those of the first `known` records."""
    findings = Findings()
    with moment(run_dir, findings) as now:
        if now is not None:
            check_rows(run_dir, config, now, known, findings)
    return not findings.all()


def _known(run_dir: Path) -> int:
    """Number of records that checkpoints and the database know of."""
    known = [orphan.records for orphan in orphan_checkpoints(run_dir)]
    with contextlib.suppress(UserError, SQLAlchemyError, *UNREADABLE):
        known.append(open_run(run_dir).next_offset())
    return max(known, default=0)


def _mend_diagnostics(run_dir: Path) -> tuple[str | None, int]:
    """Leave out damaged batches of token diagnostics: each row stands for itself."""
    folder, part = run_dir / "diagnostics", run_dir / "diagnostics.repaired"
    walks = [SegmentWalk(path).done() for path in segment_paths(folder)]
    if all(walk.ending() in ("sealed", "open") for walk in walks):
        return None, 0
    shutil.rmtree(part, ignore_errors=True)
    changed: list[pa.RecordBatch] = []
    for walk in walks:
        for batch in SegmentWalk(walk.path).salvage(changed):
            # One segment for each batch: files of several formats may be among them.
            writer = SegmentWriter(part, batch.schema, segment_bytes=_NO_NEW_SEGMENT)
            writer.append(batch)
            writer.close()
    part.mkdir(exist_ok=True)
    damaged = _free(run_dir, "diagnostics.damaged-{}")
    folder.rename(damaged)
    part.rename(folder)
    return damaged.name, sum(batch.num_rows for batch in changed)


def _set_aside(run_dir: Path, account: Account, update: int) -> list[str]:
    """Rename checkpoints of lost updates, so that no run resumes from them."""
    root = run_dir / "checkpoints"
    out = account.taken.update if account.taken is not None else update
    lost = {orphan.path for orphan in orphan_checkpoints(run_dir)}
    found = ((path, path.name.removeprefix("step_")) for path in sorted(root.glob("step_*")))
    steps = {path: int(number) for path, number in found if number.isdigit()}
    newer = [path for path, number in steps.items() if path in lost or number > max(update, out)]
    names = []
    for path in newer:
        renamed = _free(root, f"damaged-{{}}-{path.name}")
        path.rename(renamed)
        names.append(renamed.name)
    left = [number for path, number in steps.items() if path not in newer]
    if newer and left:
        write_atomically(root / "latest", f"step_{max(left)}\n")
    elif newer:
        (root / "latest").unlink(missing_ok=True)
    return names
