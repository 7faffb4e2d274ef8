"""The two services that some tests need and pip cannot bring: Chromium and a PostgreSQL server.

Out: where they are, a throw-away PostgreSQL server, and (`python -m tests.services`) their
installation. Promises: installing needs the standard library only; finding them starts nothing; a
server listens on a Unix socket in a folder of its own and on no port, and goes with its `with`
block.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_chromium() -> str | None:
    """Path of a Chromium for Playwright's `executable_path`; the variable `CHROMIUM` goes first."""
    names = (os.environ.get("CHROMIUM", ""), *CHROMIUM_NAMES)
    return next((path for name in names if name and (path := shutil.which(name))), None)


def find_postgresql() -> Path | None:
    """Folder with `initdb` and `pg_ctl`: on PATH, else the newest where Debian puts them."""
    on_path = shutil.which("initdb")
    if on_path:
        return Path(on_path).resolve().parent
    found = Path("/usr/lib/postgresql").glob("*/bin/initdb")
    return max(
        (path.parent for path in found), key=lambda path: int(path.parent.name), default=None
    )


@contextlib.contextmanager
def postgresql_server() -> Iterator[str]:
    """Run a PostgreSQL server in a folder of its own; yields the URL of an empty database.

    PostgreSQL refuses to run as root: root hands the folder to the user `postgres`, who runs it.
    pytest's own temporary folders are closed to that user.
    """
    binaries = find_postgresql()
    if binaries is None:
        raise RuntimeError("no PostgreSQL server on this machine: install the package postgresql")
    as_user: list[str] = []
    user = "postgres"
    folder = Path(tempfile.mkdtemp(prefix="headrace-postgresql-"))
    if os.geteuid() == 0:
        as_user = ["runuser", "-u", user, "--"]
        shutil.chown(folder, user)
    data = folder / "data"

    def run(*command: str | Path) -> None:
        done = subprocess.run(
            [*as_user, *map(str, command)], cwd="/", capture_output=True, text=True
        )
        if done.returncode != 0:
            raise RuntimeError(f"{command[0]} failed: {done.stdout[-500:]} {done.stderr[-500:]}")

    options = f"-c listen_addresses='' -c unix_socket_directories='{folder}' -c fsync=off"
    started = False
    try:
        run(
            binaries / "initdb",
            "-D",
            data,
            "-U",
            user,
            "--auth=trust",
            "--encoding=UTF8",
            "--no-sync",
        )
        run(binaries / "pg_ctl", "-D", data, "-o", options, "-l", folder / "log", "-w", "start")
        started = True
        yield f"postgresql+psycopg://{user}@/{user}?host={folder}"
    finally:
        if started:
            run(binaries / "pg_ctl", "-D", data, "-m", "immediate", "-w", "stop")
        shutil.rmtree(folder, ignore_errors=True)


def cannot_have(service: str, package: str) -> NoReturn:
    """Skip a test that needs a service which is not here; under continuous integration, fail it:
    there nobody would notice that it never runs."""
    import pytest

    reason = f"no {service} on this machine: install the package {package}"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


def missing_packages() -> list[str]:
    """Debian packages that would bring what is not here."""
    return [
        package
        for package, found in (("chromium", find_chromium()), ("postgresql", find_postgresql()))
        if not found
    ]


def install() -> None:
    """Install what is missing where that is possible; say what will be skipped where it is not."""
    wanted = missing_packages()
    if wanted and os.geteuid() == 0 and shutil.which("apt-get"):
        print(f"installing {' '.join(wanted)} with apt-get", flush=True)
        # At run level 1 Debian starts no server of its own after the installation.
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
        for arguments in (["update"], ["install", "-y", "--no-install-recommends", *wanted]):
            command = ["apt-get", "-qq", *arguments]
            done = subprocess.run(command, env=environment, capture_output=True, text=True)
            if done.returncode != 0:
                lines = done.stderr.strip().splitlines()
                print(f"apt-get {arguments[0]} failed: {lines[-1] if lines else done.returncode}")
    for package in missing_packages():
        print(f"{package} is not installed: the tests that need it will be skipped")
        print(f"  to run them: sudo apt-get install {package}")


if __name__ == "__main__":
    install()
    sys.exit(0)
