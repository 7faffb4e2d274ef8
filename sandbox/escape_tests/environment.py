"""Surroundings of a cell, which must stay as they are while an escape is tried.

A bystander process with a secret in its environment, listeners on every kind of socket, a folder
with a secret and with files that anybody may write, the clock and the machine's name. `facts` gives
a program the places of all this; `harm` lists what changed.
"""

import contextlib
import os
import platform
import resource
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Self

from sandbox.interpreter import Interpreter
from sandbox.limits import ONE_THREAD, Limits

CLOCK_SLACK_S = 30.0
_CONTENT = "nobody wrote here\n"
_BYSTANDER = """
import os, signal, sys, time
for number in (signal.SIGWINCH, signal.SIGURG, signal.SIGIO, signal.SIGUSR1):
    signal.signal(number, lambda *_: os._exit(9))
print("here", flush=True)
time.sleep(600)
"""


class EscapeEnvironment:
    """The surroundings of one escape."""

    def __enter__(self) -> Self:
        self.token = secrets.token_hex(16)
        self._folder = Path(tempfile.mkdtemp(prefix="headrace-escape-"))
        self._folder.chmod(0o777)
        self._secret = self._folder / "secret.txt"
        self._secret.write_text(self.token)
        self._victim = self._folder / "victim.txt"
        self._victim.write_text(_CONTENT)
        self._victim.chmod(0o666)
        self._sockets = self._listeners()
        self._bystander = subprocess.Popen(
            [sys.executable, "-S", "-c", _BYSTANDER],
            stdout=subprocess.PIPE,
            env={"HEADRACE_ESCAPE_SECRET": self.token},
        )
        assert self._bystander.stdout is not None
        self._bystander.stdout.readline()
        self._before = self._state()
        self._clock = time.time() - time.monotonic()
        return self

    def __exit__(self, *exc: object) -> None:
        self._bystander.kill()
        self._bystander.wait()
        assert self._bystander.stdout is not None
        self._bystander.stdout.close()
        for each in self._sockets.values():
            each.close()
        shutil.rmtree(self._folder)

    def _listeners(self) -> dict[str, socket.socket]:
        abstract, file, here = f"\0headrace-{self.token[:12]}", self._folder / "socket", "127.0.0.1"
        listeners = {}
        for name, family, kind, address in (
            ("TCP", socket.AF_INET, socket.SOCK_STREAM, (here, 0)),
            ("UDP", socket.AF_INET, socket.SOCK_DGRAM, (here, 0)),
            ("ABSTRACT", socket.AF_UNIX, socket.SOCK_STREAM, abstract),
            ("ABSTRACT_DATAGRAM", socket.AF_UNIX, socket.SOCK_DGRAM, f"{abstract}-d"),
            ("SOCKET_FILE", socket.AF_UNIX, socket.SOCK_STREAM, str(file)),
        ):
            listeners[name] = each = socket.socket(family, kind)
            each.bind(address)
            each.setblocking(False)
            if kind == socket.SOCK_STREAM:
                each.listen()
        file.chmod(0o777)
        return listeners

    def facts(self, limits: Limits, python: Interpreter) -> str:
        """Return lines for a program: its targets, and what it may see on purpose.

        That is modules (VISIBLE), folders on the way to them (WAY), variables (GIVEN)."""
        values: dict[str, object] = {
            "TCP": self._sockets["TCP"].getsockname()[1],
            "UDP": self._sockets["UDP"].getsockname()[1],
            "ABSTRACT": f"\0headrace-{self.token[:12]}",
            "FOLDER": str(self._folder),
            "SECRET": str(self._secret),
            "VICTIM": str(self._victim),
            "BYSTANDER": self._bystander.pid,
            "OUTSIDE": os.getpid(),
            "PROCESSES": limits.processes,
            "MEMORY": limits.memory_bytes,
            "DISK": limits.disk_bytes,
            "FILES": limits.files,
            "VISIBLE": sorted(_modules(python)),
            "WAY": sorted({part for path in _shown(python) for part in Path(path).parts}),
            "GIVEN": sorted(ONE_THREAD) if python.shows_packages else [],
        }
        return "; ".join(f"{name} = {value!r}" for name, value in values.items()) + "\n"

    def harm(self) -> list[str]:
        """Return what has changed."""
        found = [
            f"{name} was reached" for name, each in self._sockets.items() if _was_reached(each)
        ]
        code = self._bystander.poll()
        if code is not None:
            return [*found, f"the bystander ended with {code}"]
        after = self._state()
        found += [f"{key} changed" for key, value in after.items() if value != self._before[key]]
        if abs(time.time() - time.monotonic() - self._clock) > CLOCK_SLACK_S:
            found.append("the clock changed")
        return found

    def _state(self) -> dict[str, object]:
        """Everything that a program could change outside and that does not change by itself."""
        pid = self._bystander.pid
        status = self._victim.stat() if self._victim.exists() else None
        return {
            "the folder": sorted(os.listdir(self._folder)),
            "a file": self._victim.read_text() if status else None,
            "a file's mode": status and status.st_mode,
            "a file's time": status and status.st_mtime_ns,
            "a file's links": (status and status.st_nlink, self._secret.stat().st_nlink),
            "the bystander's limits": [
                resource.prlimit(pid, which)
                for which in (resource.RLIMIT_NOFILE, resource.RLIMIT_CORE)
            ],
            "the bystander's priority": os.getpriority(os.PRIO_PROCESS, pid),
            "the bystander's cores": os.sched_getaffinity(pid),
            "the machine's name": platform.node(),
            "the own limits": resource.getrlimit(resource.RLIMIT_NOFILE),
        }


def _modules(python: Interpreter) -> set[str]:
    """Names of what programs may import from visible packages."""
    listed = {name.partition(".")[0] for folder in python.paths for name in os.listdir(folder)}
    return listed | dict(python.modules).keys()


def _shown(python: Interpreter) -> list[str]:
    """Folders and files that are seen for the sake of packages."""
    return [*python.paths, *dict(python.modules).values()]


def _was_reached(listener: socket.socket) -> bool:
    """Return whether anything arrived."""
    with contextlib.suppress(BlockingIOError):
        if listener.type == socket.SOCK_STREAM:
            listener.accept()[0].close()
        else:
            listener.recv(1)
        return True
    return False
