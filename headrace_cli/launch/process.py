"""Processes of a supervisor: each in a session of its own, each with a log.

A `ChildProcess` is one `ProcessSpec` and its life so far. `ProcessLauncher` starts children,
signals them, collects their exit codes and keeps the reaper informed, so that none outlives the
supervisor. It signals process groups of its own children only. `RayLauncher` starts them on other
hosts.
"""

import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping
from typing import Any

from headrace.host import shared_memory, stack_dumps
from headrace.host.process_reaper import ProcessReaper, signal_groups
from headrace_cli.launch.logs import ProcessLog, log_tail
from headrace_cli.launch.plan import ProcessSpec

TAIL_LINES = 15
_PIPE_TIMEOUT_S = 2.0
"""Maximum seconds for the rest of a dead process's output in its pipe."""


class ChildProcess:
    """One process of the run and its history."""

    def __init__(self, spec: ProcessSpec) -> None:
        self.spec = spec
        self.process: subprocess.Popen[bytes] | None = None
        """On this host."""
        self.remote: Any = None
        """Elsewhere: its launcher's handle of it."""
        self.started_at = 0.0
        self.deaths = 0
        self.restart_at: float | None = None
        self.gave_up = False
        self.log: ProcessLog | None = None

    @property
    def running(self) -> bool:
        """Return whether it was started and not yet found dead."""
        return self.process is not None or self.remote is not None

    def tail(self, lines: int = TAIL_LINES) -> str:
        """The last lines that it printed: on this host in its last life, elsewhere in its log."""
        return log_tail(self.spec.log, lines) if self.log is None else self.log.tail(lines)


def describe_exit(code: int) -> str:
    """An exit status in words."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def fill_placeholders(argv: Iterable[str], placeholders: Mapping[str, str]) -> list[str]:
    words = list(argv)
    for placeholder, value in placeholders.items():
        words = [word.replace(placeholder, value) for word in words]
    return words


class ProcessLauncher:
    """Starts and ends children; as a context manager it leaves no child running."""

    def __init__(self) -> None:
        self._reaper: ProcessReaper | None = None

    def __enter__(self) -> "ProcessLauncher":
        self._reaper = ProcessReaper()
        return self

    def __exit__(self, *exc: object) -> None:
        assert self._reaper is not None
        self._reaper.close()

    def start(self, child: ChildProcess, placeholders: Mapping[str, str], *extra: str) -> int:
        """Start a child; returns its pid, which is also its process group."""
        argv = fill_placeholders((*child.spec.argv, *extra), placeholders)
        child.process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **child.spec.env},
            start_new_session=True,
        )
        assert child.process.stdout is not None
        child.log = ProcessLog(child.spec.log, child.process.stdout)
        child.started_at = time.monotonic()
        assert self._reaper is not None
        self._reaper.register(child.process.pid)
        return child.process.pid

    def pid(self, child: ChildProcess) -> int:
        """The process id of a child on its host; 0 where it is not known yet or not running."""
        return child.process.pid if child.process is not None else 0

    def signal(self, child: ChildProcess, number: int) -> None:
        """Signal the group of a running child."""
        assert child.process is not None
        signal_groups({child.process.pid}, number)

    def ask_for_stacks(self, child: ChildProcess) -> None:
        """Have a running child, and what it started, write down what each thread is doing."""
        assert child.process is not None
        stack_dumps.ask({child.process.pid})

    def reap(self, child: ChildProcess) -> int | None:
        """Return a dead child's exit status and clean up its group and shared memory, else None."""
        process = child.process
        if process is None or (code := process.poll()) is None:
            return None
        signal_groups({process.pid}, signal.SIGKILL)
        shared_memory.sweep()
        assert self._reaper is not None
        self._reaper.unregister(process.pid)
        if child.log is not None:
            child.log.end(_PIPE_TIMEOUT_S)
        child.process = None
        return code

    def renew_reaper(self) -> None:
        """Start another reaper if it was killed. Callers call this periodically."""
        if self._reaper is not None:
            self._reaper.renew()

    def end(self, children: Iterable[ChildProcess], *, grace_s: float) -> dict[str, int]:
        """SIGTERM, then SIGKILL after `grace_s`, to the groups of running children; exit codes."""
        left = [child for child in children if child.running]
        for child in left:
            self.signal(child, signal.SIGTERM)
        codes = self.await_all(left, timeout_s=grace_s)
        for child in left:
            if child.running:
                self.signal(child, signal.SIGKILL)
        return codes | self.await_all(left, timeout_s=10.0)

    def await_all(self, children: Iterable[ChildProcess], *, timeout_s: float) -> dict[str, int]:
        """Wait for running children to leave by themselves; exit codes of those that did."""
        left = [child for child in children if child.running]
        codes: dict[str, int] = {}
        deadline = time.monotonic() + timeout_s
        while left:
            for child in list(left):
                code = self.reap(child)
                if code is not None:
                    codes[child.spec.name] = code
                    left.remove(child)
            if time.monotonic() >= deadline:
                break
            if left:
                time.sleep(0.05)
        return codes
