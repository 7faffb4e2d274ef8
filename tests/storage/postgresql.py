"""A PostgreSQL server of the tests' own: a fixture that gives a URL of an empty database."""

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest

from tests.services import cannot_have


def _binaries() -> Path | None:
    """The newest installed server."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if found:
        return found[-1].parent
    on_path = shutil.which("initdb")
    return Path(on_path).parent if on_path else None


@lru_cache
def _user() -> list[str]:
    """PostgreSQL does not run as root: as its own user then."""
    return ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []


@pytest.fixture(scope="session")
def _server() -> Iterator[str]:
    binaries = _binaries()
    if binaries is None:
        cannot_have("PostgreSQL server", "postgresql")
    with tempfile.TemporaryDirectory(prefix="headrace-pg-") as name:
        folder = Path(name)
        if os.geteuid() == 0:
            shutil.chown(folder, "postgres")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        data = folder / "data"
        _call(binaries / "initdb", "-D", data, "-A", "trust", "-U", "tester", "--no-sync")
        options = f"-p {port} -k {folder} -h 127.0.0.1 -F"
        _call(
            binaries / "pg_ctl", "-D", data, "-w", "-l", folder / "log", "-o", options, "start"
        )  # fmt: skip
        try:
            yield f"postgresql://tester@127.0.0.1:{port}/"
        finally:
            _call(binaries / "pg_ctl", "-D", data, "-w", "-m", "immediate", "stop")


@pytest.fixture
def postgresql_url(_server: str) -> str:
    """URL of a new, empty database."""
    name = f"test_{uuid4().hex[:8]}"
    with psycopg.connect(_server + "postgres", autocommit=True) as connection:
        connection.execute(f"create database {name}")
    return _server + name


def _call(*command: object) -> None:
    subprocess.run(
        [*_user(), *map(str, command)],
        check=True,
        cwd="/tmp",
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=60,
    )
