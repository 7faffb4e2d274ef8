"""A run's store as the coordinator sees it: append records, replay them.

`append` returns once the records are safe: token diagnostics, then the journal (one Arrow batch,
one fsync), then one SQL transaction. SQL that cannot be written (disk full, server away) does not
stop the run: the journal is the truth, `behind` says why SQL does not follow, and a later append
brings SQL up to it. SQL that lacks much when a run is opened is brought up by a thread beside the
run, which waits for nothing. Callers use one thread at a time, and there is one writer: a store
holds the run's writer lock until it is closed. A journal that has lost records which a checkpoint
or SQL knows of is refused.
"""

import contextlib
import json
import logging
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Self

from sqlalchemy import make_url
from sqlalchemy.exc import OperationalError

from headrace.config.sections.run import RunConfig
from headrace.errors import UserError
from headrace.host.disk import writing
from headrace.protocol.messages.control import JournalEnd
from headrace.protocol.records.record_types import Record, Snapshot, UpdateCommitted
from headrace.run_files.run_folder import RESOLVED, hold_writer, read_config, write_config
from storage import projection
from storage.database.engine import SQLITE_NAME, open_writer
from storage.database.reader import check_formats
from storage.journal.checkpoints import check_history, lost
from storage.journal.diagnostics import DiagnosticsWriter
from storage.journal.segments import end_of, fsync, segment_paths
from storage.journal.store import Journal, read_journal, run_id_of, snapshots

log = logging.getLogger(__name__)
CATCH_UP_S = 2.0
"""At most so often SQL that could not be written is tried again."""
CATCH_UP_SHARE = 0.1
"""And at most this share of the time is spent on it, where a server does not even refuse."""
MUCH = 20_000
"""So many records that SQL lacks, a second's work or more, are brought up beside the run."""
LITTLE = 2_000
"""When so few are left, the run does the rest itself."""
CLOSING_S = 60.0
"""How long the end of a run waits for SQL that is being brought up beside it."""
START_BYTES = 1 << 20
"""About what the files take that are made when a run is opened."""


class RunStore:
    """Journal, diagnostics and SQL of one run. Make it with `create` or `open`."""

    def __init__(
        self, run_dir: Path, run_id: str, config: RunConfig, *, wait_s: float = 1.0
    ) -> None:
        """`wait_s`: how long another writer may still need to end."""
        self._run_dir = run_dir
        with contextlib.ExitStack() as stack:
            self._lock = stack.enter_context(hold_writer(run_dir, wait_s=wait_s))
            self._open(run_id, config)
            stack.pop_all()

    def _open(self, run_id: str, config: RunConfig) -> None:
        run_dir, segment_mib = self._run_dir, config.storage.segment_mib
        check_formats(run_dir)
        check_history(run_dir)
        try:
            with writing(run_dir, START_BYTES):
                self._engine = open_writer(run_dir, config.storage.database)
                with self._engine.begin() as connection:
                    values = json.loads(config.model_dump_json())
                    self._run = projection.register(connection, run_id, values)
                    seen = projection.next_offset(connection, self._run)
        except OperationalError as error:
            raise UserError(
                f"SQL in {self._database(config)} cannot be written ({error.orig}): make room "
                "there, or bring the server back, and start the run again"
            ) from error
        self._sql = self._database(config)
        # Before anything is cut: SQL gets no record that is not safe in the journal.
        if seen > (rows := end_of(run_dir / "journal").rows):
            self._engine.dispose()
            raise lost(
                run_dir, f"the database knows {seen:,} records, and the journal has {rows:,}"
            )
        self._journal = Journal(
            run_dir / "journal", run_id=run_id, segment_mib=segment_mib, sync=self._sync
        )
        self._diagnostics = (
            DiagnosticsWriter(run_dir / "diagnostics", segment_mib=segment_mib)
            if config.storage.token_diagnostics
            else None
        )
        self._diagnosed = False
        """Diagnostics of records that the journal did not take yet are on the disk."""
        self._in_sql = False
        self.behind = self._last_behind = ""
        self._catch_up_at = 0.0
        self._beside: Future[None] | None = None
        self._closing = threading.Event()
        self._catch_up()

    def _database(self, config: RunConfig) -> str:
        """Where SQL is, without a password."""
        url = config.storage.database
        if url is None:
            return str(self._run_dir / SQLITE_NAME)
        return make_url(url).render_as_string(hide_password=True)

    @property
    def place(self) -> str:
        """Where records go at this moment: into the journal, or from there into SQL."""
        return f"SQL in {self._sql}" if self._in_sql else f"the disk of {self._run_dir / 'journal'}"

    @classmethod
    def create(cls, run_dir: Path, run_id: str, config: RunConfig) -> Self:
        """The store of a new run; UserError where the folder already holds one."""
        if segment_paths(run_dir / "journal"):
            raise UserError(f"{run_dir} already holds a run; resume it or choose another name")
        run_dir.mkdir(parents=True, exist_ok=True)
        if not (run_dir / RESOLVED).exists():
            write_config(run_dir, config)
        return cls(run_dir, run_id, config)

    @classmethod
    def open(cls, run_dir: Path, *, wait_s: float = 1.0) -> Self:
        """The store of an existing run: a torn tail is cut, SQL is brought up to the journal.
        DamagedError: the journal is not what was written, and nothing was changed."""
        if not (run_dir / RESOLVED).exists():
            raise UserError(f"{run_dir} is not a run folder: it has no {RESOLVED}")
        return cls(run_dir, run_id_of(run_dir), read_config(run_dir), wait_s=wait_s)

    @property
    def end(self) -> JournalEnd:
        """Where the journal ends."""
        return self._journal.end

    def append(self, records: Sequence[Record]) -> None:
        """Make records safe, in order. StorageBlockedError: none of them is in the journal, and the
        next append has to be of the same ones."""
        if not records:
            return
        if self._diagnostics is not None and not self._diagnosed:
            self._diagnostics.append(r for r in records if isinstance(r, UpdateCommitted))
            self._diagnosed = True
        first = self._journal.next_offset
        self._journal.append(records)
        self._diagnosed, self._in_sql = False, True
        try:
            if not self.behind:
                self._project(list(enumerate(records, start=first)))
            elif self._beside is not None:
                self._rejoin(0.0)
            elif time.monotonic() >= self._catch_up_at:
                self._catch_up()
        finally:
            self._in_sql = False

    @property
    def wants_snapshot(self) -> bool:
        """Whether a snapshot among the next records is worth its bytes."""
        return self._journal.wants_snapshot

    def snapshots(self) -> Iterator[tuple[int, Snapshot]]:
        """The journal's snapshots with their offsets, the newest first."""
        return snapshots(self._run_dir / "journal")

    def replay(
        self, first: int = 0, end: int | None = None, *, only: Sequence[type[Record]] = ()
    ) -> Iterator[Record]:
        """The records with offsets from `first` to before `end`, in order, tokens included; commits
        come without their diagnostics. `only`: others than of these kinds may be left out. Bytes
        are checked as far as they are read."""
        for batch in read_journal(self._run_dir / "journal", first, only=only):
            for offset, record in batch:
                if end is not None and offset >= end:
                    return
                yield record

    def close(self) -> None:
        """Seal what is open. The store cannot be used afterwards."""
        if self._beside is not None:
            self._rejoin(CLOSING_S)
        if self.behind and self._beside is None:
            self._catch_up()
        if self._beside is not None and not self._closing.is_set():
            self._rejoin(CLOSING_S)
        self._journal.close()
        if self._diagnostics is not None:
            self._diagnostics.close()
        self._engine.dispose()
        self._lock.close()

    def _sync(self, file: int) -> None:
        """What every batch of the journal waits for."""
        fsync(file)

    def _catch_up(self) -> None:
        """Project what the journal has and SQL lacks."""
        was_behind, self.behind = self.behind, ""
        began = time.monotonic()
        try:
            first = self._projected()
        except OperationalError as error:
            self._fall_behind(error, took_s=time.monotonic() - began)
            return
        if (lacks := self._journal.next_offset - first) > MUCH:
            self.behind = f"SQL in {self._sql} is being brought up to the journal"
            log.info("%s: it lacks %d records; the run does not wait for them", self.behind, lacks)
            self._beside = Future()
            work = threading.Thread(target=self._bring_up, args=(self._beside,), daemon=True)
            work.start()
            return
        for batch in read_journal(self._run_dir / "journal", first):
            self._project(batch)
            if self.behind:
                return
        if was_behind:
            log.info("SQL has caught up with the journal")

    def _projected(self) -> int:
        """The first record that SQL does not have."""
        with self._engine.begin() as connection:
            return projection.next_offset(connection, self._run)

    def _bring_up(self, done: Future[None]) -> None:
        """What the thread beside the run does: project until SQL lacks little, or nobody waits for
        it any more."""
        try:
            while self._journal.next_offset - (first := self._projected()) > LITTLE:
                for batch in read_journal(self._run_dir / "journal", first):
                    if self._closing.is_set():
                        return
                    if batch[-1][0] >= self._journal.next_offset:
                        break  # it is being written: SQL gets nothing that is not safe there
                    with self._engine.begin() as connection:
                        projection.apply(connection, self._run, batch)
            done.set_result(None)
        except Exception as error:  # the boundary of the thread: whoever rejoins it raises it
            done.set_exception(error)

    def _rejoin(self, wait_s: float) -> None:
        """Do the rest where the thread beside the run is done; `wait_s`: so long it is waited for,
        and longer means that the run ends without."""
        assert self._beside is not None
        if not self._beside.done() and not wait_s:
            return
        try:
            self._beside.result(wait_s)
        except TimeoutError:
            self._closing.set()
            log.warning("SQL in %s lacks the run's end: a resume will bring it up", self._sql)
            return
        except OperationalError as error:
            self._beside = None
            self._fall_behind(error)
            return
        self._beside = None
        self._catch_up()

    def _project(self, records: list[tuple[int, Record]]) -> None:
        try:
            with self._engine.begin() as connection:
                projection.apply(connection, self._run, records)
        except OperationalError as error:
            self._fall_behind(error)

    def _fall_behind(self, error: OperationalError, took_s: float = 0.0) -> None:
        """`took_s`: how long a connection was waited for."""
        reason = (str(error.orig).strip() or "no reason given").splitlines()[0]
        text = f"SQL in {self._sql} does not follow the journal for now: {reason}"
        self.behind = text
        self._catch_up_at = time.monotonic() + max(CATCH_UP_S, took_s / CATCH_UP_SHARE)
        if text != self._last_behind:
            log.warning(text)
        self._last_behind = text
