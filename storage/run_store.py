"""A run's store as the coordinator sees it: append records, replay them.

`append` returns once the records are safe: token diagnostics, then the journal (one Arrow batch,
one fsync), then one SQL transaction. SQL that cannot be written (disk full, server away) does not
stop the run: the journal is the truth, and the next append brings SQL up to it. One writer, one
thread at a time.
"""

import json
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

from sqlalchemy.exc import OperationalError

from headrace.config.run import RunConfig
from headrace.errors import UserError
from headrace.protocol.records import Record, UpdateCommitted
from headrace.run_folder import RESOLVED, read_config, write_config
from storage import projection
from storage.database import open_writer
from storage.diagnostics import DiagnosticsWriter
from storage.journal import Journal, read_journal, run_id_of
from storage.older_runs import keep_old_file
from storage.projection.registry import register
from storage.segments import segment_paths

log = logging.getLogger(__name__)


class RunStore:
    """Journal, diagnostics and SQL of one run. Make it with `create` or `open`."""

    def __init__(self, run_dir: Path, run_id: str, config: RunConfig) -> None:
        self._run_dir = run_dir
        segment_mib = config.storage.segment_mib
        self._journal = Journal(run_dir / "journal", run_id=run_id, segment_mib=segment_mib)
        self._diagnostics = (
            DiagnosticsWriter(run_dir / "diagnostics", segment_mib=segment_mib)
            if config.storage.token_diagnostics
            else None
        )
        if config.storage.database is None:
            keep_old_file(run_dir)
        self._engine = open_writer(run_dir, config.storage.database)
        with self._engine.begin() as connection:
            values = json.loads(config.model_dump_json())
            self._run = register(connection, run_id, values)
        self._is_behind = False
        self._catch_up()

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
    def open(cls, run_dir: Path) -> "RunStore":
        """The store of an existing run: a torn tail is cut, SQL is brought up to the journal."""
        if not (run_dir / RESOLVED).exists():
            raise UserError(f"{run_dir} is not a run folder: it has no {RESOLVED}")
        return cls(run_dir, run_id_of(run_dir), read_config(run_dir))

    def append(self, records: Sequence[Record]) -> None:
        """Make records safe, in order. StorageFullError: none of them is in the journal."""
        if not records:
            return
        if self._diagnostics is not None:
            self._diagnostics.append(r for r in records if isinstance(r, UpdateCommitted))
        first = self._journal.next_offset
        self._journal.append(records)
        if self._is_behind:
            self._catch_up()
        else:
            self._project(list(enumerate(records, start=first)))

    def replay(self) -> Iterator[Record]:
        """Every record in order, tokens included; commits come without their diagnostics."""
        for batch in read_journal(self._run_dir / "journal"):
            for _, record in batch:
                yield record

    def close(self) -> None:
        """Seal what is open. The store cannot be used afterwards."""
        if self._is_behind:
            self._catch_up()
        self._journal.close()
        if self._diagnostics is not None:
            self._diagnostics.close()
        self._engine.dispose()

    def _catch_up(self) -> None:
        """Project what the journal has and SQL lacks."""
        self._is_behind = False
        try:
            with self._engine.begin() as connection:
                first = projection.next_offset(connection, self._run)
                if first > self._journal.next_offset:
                    log.warning("the journal is shorter than SQL: projecting it anew")
                    projection.forget(connection, self._run)
                    first = 0
        except OperationalError as error:
            self._fall_behind(error)
            return
        for batch in read_journal(self._run_dir / "journal", first):
            self._project(batch)
            if self._is_behind:
                return

    def _project(self, records: list[tuple[int, Record]]) -> None:
        try:
            with self._engine.begin() as connection:
                projection.apply(connection, self._run, records)
        except OperationalError as error:
            self._fall_behind(error)

    def _fall_behind(self, error: OperationalError) -> None:
        self._is_behind = True
        log.warning("SQL is behind the journal until the next append: %s", error.orig)
