"""Engines and migrations, on SQLite and on PostgreSQL."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, Engine, event, insert, inspect, text
from sqlalchemy.exc import DBAPIError

import storage
from headrace.errors import UserError
from headrace.host.install import ROOT
from storage.database.engine import DATABASE_VERSION, open_reader, open_writer, upgrade
from storage.database.tables import Base, Run


def differences(engine: Engine) -> list[object]:
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        return list(compare_metadata(context, Base.metadata))


def test_migrations_make_the_models_on_sqlite(tmp_path: Path) -> None:
    engine = open_writer(tmp_path, None)
    assert differences(engine) == []
    upgrade(engine)
    with engine.connect() as connection:
        assert connection.execute(text("pragma journal_mode")).scalar() == "wal"
        assert connection.execute(text("pragma foreign_keys")).scalar() == 1
        assert connection.execute(text("pragma journal_size_limit")).scalar() == 256 << 20
    engine.dispose()


@pytest.mark.parametrize("name", ["a#b", "a?b", "a%20b", "50%", "a b"])
def test_folders_of_any_name(tmp_path: Path, name: str) -> None:
    run_dir = tmp_path / name / "run"
    run_dir.mkdir(parents=True)
    open_writer(run_dir, None).dispose()
    with open_reader(run_dir, None).connect() as connection:
        assert connection.execute(text("select count(*) from runs")).scalar() == 0
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_an_installation_under_any_name(tmp_path: Path) -> None:
    folder = tmp_path / "feature%2Fone"  # as Jenkins names a workspace
    folder.mkdir()
    (folder / "storage").symlink_to(Path(storage.__file__).parent)
    code = (
        "import sys, pathlib, storage.database.engine as engine; print(engine.__file__);"
        "engine.open_writer(pathlib.Path(sys.argv[1]), None).dispose()"
    )
    told = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, env=told, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(folder))


@pytest.mark.parametrize("last", [1, 5, 10, 20, 30])
def test_migrations_that_end_in_the_middle_leave_nothing(tmp_path: Path, last: int) -> None:
    """A writer that dies while it makes its tables does not make the file one that no later writer
    can open."""
    begun: list[str] = []

    def die(connection: Connection, cursor: object, statement: str, *_: object) -> None:
        begun.append(statement)
        if len(begun) == last:
            raise KeyboardInterrupt

    event.listen(Engine, "before_cursor_execute", die)
    try:
        with pytest.raises(KeyboardInterrupt):
            open_writer(tmp_path, None)
    finally:
        event.remove(Engine, "before_cursor_execute", die)
    engine = open_writer(tmp_path, None)
    assert differences(engine) == []
    engine.dispose()


@pytest.mark.postgresql
def test_migrations_make_the_models_on_postgresql(tmp_path: Path, postgresql_url: str) -> None:
    engine = open_writer(tmp_path, postgresql_url)
    assert differences(engine) == []
    assert {"runs", "trajectories"} <= set(inspect(engine).get_table_names())
    engine.dispose()


def test_reader_cannot_write(tmp_path: Path) -> None:
    open_writer(tmp_path, None).dispose()
    engine = open_reader(tmp_path, None)
    with engine.connect() as connection, pytest.raises(DBAPIError, match="readonly"):
        connection.execute(text("delete from runs"))


def test_a_reader_who_cannot_write_the_folder_sees_what_the_writer_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it writes, when all that there is stands in the WAL, and when it has ended."""
    writer = open_writer(tmp_path, None)
    monkeypatch.setattr(os, "access", lambda *_: False)
    reader = open_reader(tmp_path, None)
    for number in (1, 2):
        with writer.begin() as connection:
            connection.execute(insert(Run).values(run_id=f"run-{number}", name="", config={}))
        with reader.connect() as connection:
            assert connection.execute(text("select count(*) from runs")).scalar() == number
    writer.dispose()
    assert [path.name for path in tmp_path.iterdir()] == ["headrace.sqlite"]
    with reader.connect() as connection:
        assert connection.execute(text("select count(*) from runs")).scalar() == 2


@pytest.mark.postgresql
def test_reader_cannot_write_on_postgresql(tmp_path: Path, postgresql_url: str) -> None:
    open_writer(tmp_path, postgresql_url).dispose()
    engine = open_reader(tmp_path, postgresql_url)
    with engine.connect() as connection, pytest.raises(DBAPIError, match="read-only"):
        connection.execute(text("delete from runs"))
    engine.dispose()


def test_folder_without_a_database(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no headrace\.sqlite"):
        open_reader(tmp_path, None)


@pytest.mark.parametrize("url", ["mysql://user@host/name", "no url at all"])
def test_other_databases_are_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(UserError, match=r"storage\.database"):
        open_writer(tmp_path, url)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://anna:secret@127.0.0.1:1/runs",
        "postgresql://127.0.0.1:1/runs?user=anna&password=secret",
    ],
)
def test_unreachable_server_is_named_without_its_password(tmp_path: Path, url: str) -> None:
    with pytest.raises(UserError) as caught:
        open_writer(tmp_path, url)
    assert "127.0.0.1:1" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_readers_know_the_newest_migration() -> None:
    names = {path.name[:4] for path in Path(storage.__file__).parent.glob("migrations/versions/0*")}
    assert max(names) == DATABASE_VERSION
