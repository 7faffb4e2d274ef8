"""A run's store as the coordinator sees it: append records, replay them.

`append` returns once the records are safe: token diagnostics, then the journal (one Arrow batch,
one fsync), then one SQL transaction. SQL that cannot be written (disk full, server away) does not
stop the run: the journal is the truth, `behind` says why SQL does not follow, and a later append
brings SQL up to it. One thread at a
time, and one writer: a store holds the run's writer lock until it is closed. A journal that has
lost records which a checkpoint or SQL knows of is refused.
"""

import contextlib
import json
import logging
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from sqlalchemy import make_url
from sqlalchemy.exc import OperationalError

from headrace.config.run import RunConfig
from headrace.errors import UserError
from headrace.protocol.messages import JournalEnd
from headrace.protocol.records import Record, UpdateCommitted
from headrace.run_folder import RESOLVED, hold_writer, read_config, write_config
from storage import projection
from storage.checkpoints import check_history, lost
from storage.database import SQLITE_NAME, open_writer
from storage.diagnostics import DiagnosticsWriter
from storage.journal import Journal, read_journal, run_id_of
from storage.older_runs import keep_old_file
from storage.projection.registry import register
from storage.segments import end_of, segment_paths

log = logging.getLogger(__name__)
CATCH_UP_S = 2.0
"""At most so often SQL that could not be written is tried again."""
CATCH_UP_SHARE = 0.1
"""And at most this share of the time is spent on it, where a server does not even refuse."""


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
        check_history(run_dir)
        if config.storage.database is None:
            keep_old_file(run_dir)
        try:
            self._engine = open_writer(run_dir, config.storage.database)
            with self._engine.begin() as connection:
                values = json.loads(config.model_dump_json())
                self._run = register(connection, run_id, values)
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
        self._journal = Journal(run_dir / "journal", run_id=run_id, segment_mib=segment_mib)
        self._diagnostics = (
            DiagnosticsWriter(run_dir / "diagnostics", segment_mib=segment_mib)
            if config.storage.token_diagnostics
            else None
        )
        self._diagnosed = False
        """Diagnostics of records that the journal did not take yet are on the disk."""
        self.behind = self._last_behind = ""
        self._catch_up_at = 0.0
        self._catch_up()

    def _database(self, config: RunConfig) -> str:
        """Where SQL is, without a password."""
        url = config.storage.database
        if url is None:
            return str(self._run_dir / SQLITE_NAME)
        return make_url(url).render_as_string(hide_password=True)

    @property
    def place(self) -> str:
        """The journal's folder."""
        return str(self._run_dir / "journal")

    @classmethod
    def create(cls, run_dir: Path, run_id: str, config: RunConfig) -> "RunStore":
        """The store of a new run; UserError where the folder already holds one."""
        if segment_paths(run_dir / "journal"):
            raise UserError(f"{run_dir} already holds a run; resume it or choose another name")
        run_dir.mkdir(parents=True, exist_ok=True)
        if not (run_dir / RESOLVED).exists():
            write_config(run_dir, config)
        return cls(run_dir, run_id, config)

    @classmethod
    def open(cls, run_dir: Path, *, wait_s: float = 1.0) -> "RunStore":
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
        self._diagnosed = False
        if not self.behind:
            self._project(list(enumerate(records, start=first)))
        elif time.monotonic() >= self._catch_up_at:
            self._catch_up()

    def replay(self) -> Iterator[Record]:
        """Every record in order, tokens included; commits come without their diagnostics."""
        for batch in read_journal(self._run_dir / "journal"):
            for _, record in batch:
                yield record

    def close(self) -> None:
        """Seal what is open. The store cannot be used afterwards."""
        if self.behind:
            self._catch_up()
        self._journal.close()
        if self._diagnostics is not None:
            self._diagnostics.close()
        self._engine.dispose()
        self._lock.close()

    def _catch_up(self) -> None:
        """Project what the journal has and SQL lacks."""
        was_behind, self.behind = self.behind, ""
        began = time.monotonic()
        try:
            with self._engine.begin() as connection:
                first = projection.next_offset(connection, self._run)
        except OperationalError as error:
            self._fall_behind(error, took_s=time.monotonic() - began)
            return
        for batch in read_journal(self._run_dir / "journal", first):
            self._project(batch)
            if self.behind:
                return
        if was_behind:
            log.info("SQL has caught up with the journal")

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
