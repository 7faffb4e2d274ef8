"""Processes that a supervisor starts: each in a session of its own, each with a log.

A `Child` is one `ProcessSpec` and its life so far. `Nursery` starts children, signals them,
collects their exit codes and keeps the reaper informed, so that none outlives the supervisor. It
signals process groups of its own children only.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from typing import IO

from headrace.processes import reaper
from headrace.processes.launch import ProcessSpec
from headrace.processes.logs import Log

TAIL_LINES = 15
_PIPE_S = 2.0
"""So long what a dead process printed may take through its pipe."""


class Child:
    """One process of the run and its history."""

    def __init__(self, spec: ProcessSpec) -> None:
        self.spec = spec
        self.process: subprocess.Popen[bytes] | None = None
        self.started_at = 0.0
        self.deaths = 0
        self.restart_at: float | None = None
        self.gave_up = False
        self.log: Log | None = None

    @property
    def running(self) -> bool:
        """Whether it was started and not yet found dead."""
        return self.process is not None

    def tail(self, lines: int = TAIL_LINES) -> str:
        """The last lines that it printed, in its last life."""
        return "" if self.log is None else self.log.tail(lines)


def describe_exit(code: int) -> str:
    """An exit status in words."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


class Nursery:
    """Starts and ends children; as a context manager it leaves no child running."""

    def __init__(self) -> None:
        self._reaper: subprocess.Popen[bytes] | None = None
        self._pipe: IO[bytes] | None = None

    def __enter__(self) -> "Nursery":
        command = [sys.executable, "-I", "-S", str(reaper.__file__)]
        self._reaper = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        self._pipe = self._reaper.stdin
        return self

    def __exit__(self, *exc: object) -> None:
        assert self._pipe is not None
        assert self._reaper is not None
        self._pipe.close()
        self._reaper.wait()

    def start(self, child: Child, placeholders: Mapping[str, str], *extra: str) -> int:
        """Start a child; returns its pid, which is also its process group."""
        argv = [*child.spec.argv, *extra]
        for placeholder, value in placeholders.items():
            argv = [argument.replace(placeholder, value) for argument in argv]
        child.process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **child.spec.env},
            start_new_session=True,
        )
        assert child.process.stdout is not None
        child.log = Log(child.spec.log, child.process.stdout)
        child.started_at = time.monotonic()
        child.restart_at = None
        self._tell(f"+{child.process.pid}")
        return child.process.pid

    def bury(self, child: Child) -> int | None:
        """The exit status of a child that died, its group cleaned up; None while it lives."""
        process = child.process
        if process is None or (code := process.poll()) is None:
            return None
        reaper.signal_groups({process.pid}, signal.SIGKILL)
        self._tell(f"-{process.pid}")
        if child.log is not None:
            child.log.end(_PIPE_S)
        child.process = None
        return code

    def end(self, children: Iterable[Child], *, grace_s: float) -> dict[str, int]:
        """SIGTERM, then SIGKILL after `grace_s`, to the groups of running children; exit codes."""
        left = [child for child in children if child.running]
        for child in left:
            assert child.process is not None
            reaper.signal_groups({child.process.pid}, signal.SIGTERM)
        codes = self.await_all(left, timeout_s=grace_s)
        for child in left:
            if child.process is not None:
                reaper.signal_groups({child.process.pid}, signal.SIGKILL)
        return codes | self.await_all(left, timeout_s=10.0)

    def await_all(self, children: Iterable[Child], *, timeout_s: float) -> dict[str, int]:
        """Wait for running children to leave by themselves; exit codes of those that did."""
        left = [child for child in children if child.running]
        codes: dict[str, int] = {}
        deadline = time.monotonic() + timeout_s
        while left:
            for child in list(left):
                code = self.bury(child)
                if code is not None:
                    codes[child.spec.name] = code
                    left.remove(child)
            if time.monotonic() >= deadline:
                break
            if left:
                time.sleep(0.05)
        return codes

    def _tell(self, line: str) -> None:
        assert self._pipe is not None
        self._pipe.write(f"{line}\n".encode())
        self._pipe.flush()
