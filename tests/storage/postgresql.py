"""PostgreSQL servers of the tests' own: one for all tests that want an empty database in it, and
one for a test that stops it."""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from uuid import uuid4

import psutil
import psycopg
import pytest

from headrace.host.hardware import free_port
from tests.services import cannot_have, find_postgresql


@lru_cache
def _user() -> list[str]:
    """PostgreSQL does not run as root: as its own user then."""
    return ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []


class Server:
    """A server in a folder of its own, on a free port."""

    def __init__(self, binaries: Path, folder: Path) -> None:
        self._binaries, self._folder = binaries, folder
        if os.geteuid() == 0:
            shutil.chown(folder, "postgres")
        self._port = free_port()
        self.url = f"postgresql://tester@127.0.0.1:{self._port}/"
        self._data = folder / "data"
        _call(binaries / "initdb", "-D", self._data, "-A", "trust", "-U", "tester", "--no-sync")

    def start(self) -> None:
        """Until it takes connections."""
        options = f"-p {self._port} -k {self._folder} -h 127.0.0.1 -F"
        self._control("-l", self._folder / "log", "-o", options, "start")

    def stop(self) -> None:
        """At once: connections break, and what was not committed is gone."""
        self._control("-m", "immediate", "stop")

    def freeze(self) -> None:
        """All its processes stand still; the kernel still takes connections for it."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """They go on."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        pid = int((self._data / "postmaster.pid").read_text().split()[0])
        server = psutil.Process(pid)
        server.send_signal(number)  # a stopped one starts no others
        for process in server.children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def _control(self, *arguments: object) -> None:
        _call(self._binaries / "pg_ctl", "-D", self._data, "-w", *arguments)

    def new_database(self) -> str:
        """URL of a new, empty database."""
        name = f"test_{uuid4().hex[:8]}"
        with psycopg.connect(self.url + "postgres", autocommit=True) as connection:
            connection.execute(f"create database {name}")
        return self.url + name


def _served() -> Iterator[Server]:
    binaries = find_postgresql()
    if binaries is None:
        cannot_have("PostgreSQL server", "postgresql")
    with tempfile.TemporaryDirectory(prefix="headrace-pg-") as name:
        server = Server(binaries, Path(name))
        server.start()
        try:
            yield server
        finally:
            with contextlib.suppress(OSError):  # It does not run.
                server.thaw()
            with contextlib.suppress(subprocess.CalledProcessError):
                server.stop()


@pytest.fixture(scope="session")
def _server() -> Iterator[Server]:
    yield from _served()


@pytest.fixture
def postgresql_url(_server: Server) -> str:
    """URL of a new, empty database."""
    return _server.new_database()


@pytest.fixture
def own_server() -> Iterator[Server]:
    """A server that nobody else uses, so that a test may stop it; it runs at the beginning."""
    yield from _served()


def _call(*command: object) -> None:
    subprocess.run(
        [*_user(), *map(str, command)],
        check=True,
        cwd="/tmp",
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=240,
    )
