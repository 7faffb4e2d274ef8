"""Processes for tests that need what a learner imports: forked from one that has imported it.

These libraries take four seconds of a core; a process of tests has them imported once, by the
`forkserver` of multiprocessing, which has no threads when it forks. What comes in is a function of
a module and its arguments; `Forked` has the face of `subprocess.Popen`.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from multiprocessing import forkserver, get_context
from pathlib import Path
from typing import Any
from unittest.mock import patch

_ROOT = Path(__file__).parents[2]
_ALIKE = {
    "OMP_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "PYTHONPATH": os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
}


class Forked:
    """`function(*arguments)` in a session of its own, what it prints in a file; its exit code is
    what the function returns, 0 for None, and 1 where it raises."""

    def __init__(
        self,
        function: Callable[..., int | None],
        *arguments: Any,
        log: Path,
        env: Mapping[str, str] | None = None,
    ) -> None:
        context = get_context("forkserver")
        context.set_forkserver_preload(["learner.run"])
        with patch.dict(os.environ, _ALIKE):
            forkserver.ensure_running()
        self._log = log
        self._process = context.Process(
            target=_run, args=(function, arguments, str(log), dict(env or {})), daemon=True
        )
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    def poll(self) -> int | None:
        """The exit code, once it has ended."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code. TimeoutExpired where it does not end in time."""
        self._process.join(timeout)
        if (code := self.poll()) is None:
            raise subprocess.TimeoutExpired(str(self._process), timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        """To a process that has not ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()

    def text(self) -> str:
        """What it printed."""
        return self._log.read_text(errors="replace")


def finished(function: Callable[..., int | None], *arguments: Any, log: Path) -> str:
    """What a function printed, in a process that ended well."""
    process = Forked(function, *arguments, log=log)
    assert process.wait(240) == 0, process.text()[-4000:]
    return process.text()


def _run(
    function: Callable[..., int | None],
    arguments: tuple[Any, ...],
    log: str,
    env: dict[str, str],
) -> None:
    os.setsid()
    os.environ.update(env)
    with open(log, "wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.exit(function(*arguments))
