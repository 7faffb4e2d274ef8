"""A run's store as the coordinator sees it: append records, replay them.

`append` returns once the records are safe: token diagnostics, then the journal (one Arrow batch,
one fsync). SQL is the journal's projection: SQLite's one transaction comes in the same call while
that succeeds, and a background thread, for which nothing waits, writes to a server, and to
SQLite that lacks something. SQL that cannot be written (disk full, file locked, server away or
silent) does not stop the run: `behind` says why it does not follow and `behind_s` for how long, and
it is brought up to the journal later, each record once. Callers use one thread at a time, and there
is one writer: a store holds the run's writer lock until it is closed. A journal that has lost
records which a checkpoint or SQL knows of is refused.
"""

import contextlib
import json
import logging
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Self

from sqlalchemy.exc import DBAPIError, InterfaceError, InternalError, OperationalError

from headrace.config.sections.process import mask_password
from headrace.config.sections.run import RunConfig
from headrace.errors import UserError, first_line
from headrace.host.disk import writing
from headrace.protocol.messages.control import JournalEnd
from headrace.protocol.records.record_types import Record, Snapshot, UpdateCommitted
from headrace.run_files.run_folder import RESOLVED, hold_writer, read_config, write_config
from storage import projection
from storage.database.engine import SQLITE_NAME, DatabaseAwayError, open_writer
from storage.database.reader import check_formats
from storage.journal.checkpoints import check_history, lost_records_error
from storage.journal.diagnostics import DiagnosticsWriter
from storage.journal.segments import end_of, segment_paths
from storage.journal.store import Journal, read_journal, run_id_of, snapshots
from storage.projection.rows import PlacedRecord

log = logging.getLogger(__name__)
CATCH_UP_S = 2.0
"""Minimum seconds between attempts to write SQL again after a failure."""
BACKGROUND_CATCH_UP_RECORDS = 20_000
"""If SQLite lacks more records (about a second of work), a background thread adds them."""
BEHIND_AFTER_S = 5.0
"""SQL that has not had a record for so long is behind."""
MAX_CLOSE_S = 60.0
"""Maximum number of seconds that the end of a run waits for SQL to catch up,"""
MAX_SILENCE_S = 10.0
"""and maximum number of seconds without a written record."""
PROJECTED_RECORDS = 2_000
"""Maximum number of records kept in memory for SQL, and read from the journal at a time."""
STATEMENT_S = 60
"""A server's longest statement."""
YIELD_S, MAX_YIELD_S = 1e-5, 0.25
"""Seconds per lacking record, and at most, that a commit waits while SQL that answers lacks more
than `PROJECTED_RECORDS`: 1,300 records a second, 1,000 on a busy machine, left the thread
behind."""
DATABASE_AWAY_ERRORS = (OperationalError, InterfaceError, InternalError)
"""Errors that may pass; the last one: the server ended a session for its idleness."""
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
            self._open(run_id, config, stack)
            stack.pop_all()

    def _open(self, run_id: str, config: RunConfig, undo: contextlib.ExitStack) -> None:
        run_dir, segment_mib = self._run_dir, config.storage.segment_mib
        url = config.storage.database
        self._sql = str(run_dir / SQLITE_NAME) if url is None else mask_password(url)
        check_formats(run_dir)
        check_history(run_dir)
        try:
            with writing(run_dir, START_BYTES):
                self._engine = open_writer(run_dir, url, statement_s=STATEMENT_S)
                undo.callback(self._engine.dispose)
                with self._engine.begin() as connection:
                    values = json.loads(config.model_dump_json())
                    self._run = projection.register(connection, run_id, values)
                    seen = projection.next_offset(connection, self._run)
        except DBAPIError as error:
            is_away = isinstance(error, DATABASE_AWAY_ERRORS)
            raise (DatabaseAwayError if is_away else UserError)(
                f"SQL in {self._sql} cannot be written ({first_line(error.orig)}): make room, "
                f"bring the server back, or have `headrace audit {run_dir} --repair` make it anew"
            ) from error
        # Before anything is cut: SQL gets no record that is not safe in the journal.
        if seen > (rows := end_of(run_dir / "journal").rows):
            raise lost_records_error(
                run_dir, f"the database knows {seen:,} records, and the journal has {rows:,}"
            )
        self._journal = Journal(run_dir / "journal", run_id=run_id, segment_mib=segment_mib)
        self._diagnostics = (
            DiagnosticsWriter(run_dir / "diagnostics", segment_mib=segment_mib)
            if config.storage.token_diagnostics
            else None
        )
        self._diagnosed = False
        """Diagnostics of records that the journal did not take yet are on the disk."""
        self._in_sql = False
        self._next = seen
        """The first record that SQL does not have."""
        self._trouble = self._last_trouble = ""
        self._since: float | None = None
        """Time when the oldest record came that SQL does not have."""
        self._catch_up_at, self._moved_at = 0.0, time.monotonic()
        self._wake, self._closing = threading.Condition(), False
        self._pending: list[PlacedRecord] = []
        """Requests of the run to its background thread."""
        self._background: Future[None] | None = None
        lacks, is_server = rows - seen, url is not None
        if lacks > (0 if is_server else BACKGROUND_CATCH_UP_RECORDS):
            self._trouble = f"SQL in {self._sql} is being brought up to the journal"
            log.info("%s: it lacks %d records; the run does not wait", self._trouble, lacks)
            self._since = self._moved_at
        elif lacks:
            self._update_sql([])
        if is_server or self._trouble:
            self._start_background()

    @property
    def place(self) -> str:
        """The store that is being written at this moment: the journal, or SQL."""
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
        """The store of an existing run; cuts a torn tail and brings SQL up to the journal.
        DamagedError: the journal is not what was written, and nothing was changed."""
        if not (run_dir / RESOLVED).exists():
            raise UserError(f"{run_dir} is not a run folder: it has no {RESOLVED}")
        return cls(run_dir, run_id_of(run_dir), read_config(run_dir), wait_s=wait_s)

    @property
    def end(self) -> JournalEnd:
        """The journal's end."""
        return self._journal.end

    def append(self, records: Sequence[Record]) -> None:
        """Write records in order. StorageBlockedError: none is in the journal; append the same
        next."""
        if not records:
            return
        if self._diagnostics is not None and not self._diagnosed:
            self._diagnostics.append(r for r in records if isinstance(r, UpdateCommitted))
            self._diagnosed = True
        first = self._journal.next_offset
        self._journal.append(records)
        self._diagnosed, placed = False, list(enumerate(records, start=first))
        if self._background is not None:
            self._queue_for_sql(placed, self._background)
            return
        self._in_sql = True
        try:
            self._update_sql(placed)
        finally:
            self._in_sql = False
        if self._trouble:
            self._start_background()

    @property
    def behind(self) -> str:
        """The reason why SQL does not follow the journal; empty while it does."""
        late = f"SQL in {self._sql} is over {BEHIND_AFTER_S:.0f} s late"
        return self._trouble or (late if self.behind_s > BEHIND_AFTER_S else "")

    @property
    def behind_s(self) -> float:
        """For how many seconds SQL has lacked a record; 0 while it has all of them."""
        since = self._since
        return 0.0 if since is None else time.monotonic() - since

    @property
    def wants_snapshot(self) -> bool:
        """True if a snapshot among the next records is worth its bytes."""
        return self._journal.wants_snapshot

    def snapshots(self) -> Iterator[tuple[int, Snapshot]]:
        """The journal's snapshots with their offsets, the newest first."""
        return snapshots(self._run_dir / "journal")

    def replay(
        self, first: int = 0, end: int | None = None, *, only: Sequence[type[Record]] = ()
    ) -> Iterator[Record]:
        """The records from offset `first` to before `end`, in order, tokens included.

        Commits come without their diagnostics. `only`: others than of these kinds may be left out.
        Bytes are checked as far as they are read."""
        for batch in read_journal(self._run_dir / "journal", first, only=only):
            for offset, record in batch:
                if end is not None and offset >= end:
                    return
                yield record

    def close(self) -> None:
        """Seal what is open. The store cannot be used afterwards."""
        if self._background is not None:
            self._finish_background(self._background)
        self._journal.close()
        if self._diagnostics is not None:
            self._diagnostics.close()
        self._engine.dispose()
        self._lock.close()

    def _start_background(self) -> None:
        """From now on a thread writes SQL, and the run does not wait for it."""
        self._background = Future()
        threading.Thread(target=self._run_background, args=(self._background,), daemon=True).start()

    def _queue_for_sql(self, placed: list[PlacedRecord], background: "Future[None]") -> None:
        """Leave records to the background thread."""
        if background.done():
            background.result()  # its error ends the run, as it does without a thread
        with self._wake:
            self._since = self._since or time.monotonic()
            self._pending += placed
            if len(self._pending) > PROJECTED_RECORDS:
                self._pending = placed  # the journal has the others
            self._wake.notify()
        lacks, silent_s = self._journal.next_offset - self._next, time.monotonic() - self._moved_at
        if lacks > PROJECTED_RECORDS and silent_s < BEHIND_AFTER_S:
            time.sleep(min(lacks * YIELD_S, MAX_YIELD_S))

    def _run_background(self, done: "Future[None]") -> None:
        """Keep SQL up with the journal, in the background thread."""
        try:
            ending = False
            while not ending:
                with self._wake:
                    again = self._catch_up_at - time.monotonic() if self._trouble else None
                    self._wake.wait_for(lambda: self._pending or self._closing, again)
                    records, self._pending = self._pending, []
                    ending, began = self._closing, time.monotonic()
                self._update_sql(records, at_once=ending)
                with self._wake:
                    if not self._trouble:
                        self._since = began if self._pending else None
            done.set_result(None)
        except Exception as error:  # the boundary of the thread: the next append raises it
            done.set_exception(error)

    def _finish_background(self, background: "Future[None]") -> None:
        """Wait for the thread to write the rest, for a bounded time."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if self.behind:
            log.warning("the run's end waits for SQL, %.0f s at most: %s", MAX_CLOSE_S, self.behind)
        began = time.monotonic()
        while not wait([background], 0.1).done:
            if time.monotonic() > min(
                began + MAX_CLOSE_S, max(began, self._moved_at) + MAX_SILENCE_S
            ):
                break
        else:
            background.result()
        if self._next < self._journal.next_offset:
            log.warning("SQL in %s lacks the run's end: a resume or repair brings it up", self._sql)

    def _update_sql(self, records: list[PlacedRecord], *, at_once: bool = False) -> None:
        """Bring SQL up to the last of these records or, where it lacks others before them, to the
        journal's end; where that failed, not again for a while, unless `at_once`."""
        try:
            if records and not self._trouble and records[0][0] <= self._next:
                self._project(records)
            elif self._next < self._journal.next_offset and (
                at_once or time.monotonic() >= self._catch_up_at
            ):
                self._catch_up()
        except DATABASE_AWAY_ERRORS as error:
            why = first_line(error.orig)
            text = f"SQL in {self._sql} does not follow the journal for now: {why}"
            self._trouble, self._catch_up_at = text, time.monotonic() + CATCH_UP_S
            self._since = self._since or time.monotonic()
            if text != self._last_trouble:
                log.warning(text)
            self._last_trouble = text

    def _catch_up(self) -> None:
        """Project what the journal has and SQL lacks."""
        with self._engine.begin() as connection:
            self._next = projection.next_offset(connection, self._run)
        lacking: list[PlacedRecord] = []
        for batch in read_journal(self._run_dir / "journal", self._next):
            if batch[-1][0] >= self._journal.next_offset:
                break  # it is being written: SQL gets nothing that is not safe there
            lacking += batch
            if len(lacking) >= PROJECTED_RECORDS:
                self._project(lacking)
                lacking = []
        self._project(lacking)
        if self._trouble:
            log.info("SQL has caught up with the journal")
        self._trouble = ""

    def _project(self, records: list[PlacedRecord]) -> None:
        if records:
            with self._engine.begin() as connection:
                projection.apply(connection, self._run, records)
            self._next, self._moved_at = records[-1][0] + 1, time.monotonic()
