"""Engines and migrations, on SQLite and on PostgreSQL."""

from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Engine, inspect, text
from sqlalchemy.exc import DBAPIError

from headrace.errors import UserError
from storage.database import open_reader, open_writer, upgrade
from storage.tables import Base


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


def test_unreachable_server_is_named_without_its_password(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        open_writer(tmp_path, "postgresql://anna:secret@127.0.0.1:1/runs")
    assert "127.0.0.1:1" in str(caught.value)
    assert "secret" not in str(caught.value)
