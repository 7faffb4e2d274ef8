"""Runs whose rows an older version made: how they are recognised, and projected anew from their
journals.

In: a run's folder. Out: a SQLite file with rows of today's format. The journal is the truth, so no
row is carried over: all are made again, once, in one transaction. Where the folder can be written
the new file replaces the old one, a copy of which stays beside it. A folder that cannot be written
stays as it is, and the rows go into the user's cache. Rows on a database server are left alone too.
"""

import fcntl
import hashlib
import os
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, select, text
from sqlalchemy.exc import OperationalError, ProgrammingError

from headrace.errors import UserError
from headrace.protocol.records import RECORD_FORMAT
from headrace.run_folder import is_running
from storage.database import DATABASE_VERSION, SQLITE_NAME, open_file, read_file
from storage.segments import segment_paths
from storage.tables import Projection, Run


def is_current(engine: Engine, run_id: str) -> bool:
    """Whether this version can read what the database holds of a run. UserError: a later version
    made it."""
    version = _version(engine)
    if version is not None and version > DATABASE_VERSION:
        raise UserError(
            f"the database of run {run_id} has version {version}, and this version of Headrace "
            f"reads up to {DATABASE_VERSION}: use the version that wrote it"
        )
    if version != DATABASE_VERSION:
        return version is None  # nothing is there yet
    return _format(engine, run_id) in (None, RECORD_FORMAT)


def keep_old_file(run_dir: Path) -> None:
    """Copy a SQLite file of an older version before it is changed; the copy's name has it."""
    path = run_dir / SQLITE_NAME
    if not path.exists():
        return
    engine = read_file(path)
    version = _version(engine)
    engine.dispose()
    kept = run_dir / f"{path.stem}-version-{version}{path.suffix}"
    if version is None or version >= DATABASE_VERSION or kept.exists():
        return
    part = kept.with_name(f".{kept.name}.part")
    part.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as old, closing(sqlite3.connect(part)) as new:
        old.backup(new)
    part.replace(kept)


def rebuilt(run_dir: Path, run_id: str, config: Mapping[str, Any]) -> Path:
    """The SQLite file with today's rows of a run, made where it is missing. UserError: an older
    version still writes the run."""
    if not os.access(run_dir, os.W_OK):
        return _rebuild(run_dir, run_id, config, _cache_of(run_dir) / SQLITE_NAME)
    if is_running(run_dir):
        raise UserError(
            f"{run_dir.name} is being written by an older version of Headrace: read it with that "
            "version, or when it has ended"
        )
    with _alone(run_dir):
        keep_old_file(run_dir)
        return _rebuild(run_dir, run_id, config, run_dir / SQLITE_NAME)


def _rebuild(run_dir: Path, run_id: str, config: Mapping[str, Any], path: Path) -> Path:
    from storage import projection  # few runs need it, and every reader would pay for it
    from storage.journal import read_journal
    from storage.projection.registry import register

    engine = open_file(path)
    if _format(engine, run_id) != RECORD_FORMAT:
        with engine.begin() as connection:
            run = register(connection, run_id, config)
            for records in read_journal(run_dir / "journal"):
                projection.apply(connection, run, records)
    engine.dispose()
    return path


def _version(engine: Engine) -> str | None:
    """The last migration of a database; None where there are no tables."""
    try:
        with engine.connect() as connection:
            found = connection.execute(text("select version_num from alembic_version")).scalar()
    except (OperationalError, ProgrammingError):
        return None
    return None if found is None else str(found)


def _format(engine: Engine, run_id: str) -> int | None:
    """The record format that a run's rows were made from; None where there are no rows."""
    made = select(Projection.format).join(Run, Run.id == Projection.run).where(Run.run_id == run_id)
    with engine.connect() as connection:
        return connection.execute(made).scalar()


def _cache_of(run_dir: Path) -> Path:
    """A folder in the user's cache for this run and the present state of its journal."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    sizes = [path.stat().st_size for path in segment_paths(run_dir / "journal")]
    key = hashlib.sha256(f"{run_dir.resolve()} {sizes}".encode()).hexdigest()[:16]
    folder = home / "headrace" / f"{run_dir.resolve().name}-{key}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return Path(tempfile.mkdtemp(prefix="headrace-"))
    return folder


@contextmanager
def _alone(run_dir: Path) -> Iterator[None]:
    """Let one process in at a time."""
    with (run_dir / ".rebuild.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
