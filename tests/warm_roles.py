"""Roles of a run for tests, forked from a process that has imported their libraries.

These imports are two thirds of what a short run takes. In: a command as `subprocess.Popen` takes
it. Out: a process in a session of its own with the command's environment, folder and output; only
the imports are shared. `python -m tests.warm_roles SOCKET` is the process that forks: it has no
threads, and ends with its standard input. Runs that are about their start begin cold.
"""

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NoReturn
from unittest.mock import patch

from headrace.host.hardware import has_gpu
from headrace_cli.launch import process
from headrace_cli.launch.plan import OPENMP_SPIN_COUNT

ROOT = Path(__file__).parents[1]
SOCKET = "HEADRACE_WARM_ROLES"
"""Variable with the forking process's address, for the supervisors that it forks."""
COMMAND = "headrace_cli.cli"
SLOW = "tests.integration.slow_role"
"""It runs the module that its first argument names."""
ROLES = (
    *("coordinator.run", "learner.run", "generators.run", "rewards.run", "environments.run"),
    "generators.serving.judge", SLOW,
)  # fmt: skip
IMPORTED = (
    *(*ROLES, COMMAND, "generators.engines.torch_engine", "headrace_cli.launch.supervisor"),
    *("vllm.entrypoints.launchers.api_server.entry", "vllm.v1.worker.cpu_worker"),
)


class WarmProcess:
    """`module.main(argv)` in a process of its own, with the face of `subprocess.Popen`."""

    def __init__(
        self,
        address: str,
        module: str,
        argv: Sequence[str],
        *,
        stdout: IO[Any] | int,
        stderr: IO[Any] | int = subprocess.STDOUT,
        env: Mapping[str, str],
        cwd: Path | None = None,
    ) -> None:
        """`stdout`: a file or `subprocess.PIPE`. `stderr`: a file, or where `stdout` goes."""
        self.stdout: IO[bytes] | None = None
        self.returncode: int | None = None
        if isinstance(stdout, int):
            reader, writer = os.pipe()
            self.stdout = os.fdopen(reader, "rb")
        else:
            writer = os.dup(stdout.fileno())
        errors = os.dup(writer if isinstance(stderr, int) else stderr.fileno())
        request = {
            "module": module,
            "argv": list(argv),
            "env": dict(env),
            "cwd": str(cwd or Path.cwd()),
        }
        data = json.dumps(request).encode()
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.connect(address)
        socket.send_fds(self._connection, [len(data).to_bytes(4, "big")], [writer, errors])
        self._connection.sendall(data)
        os.close(writer)
        os.close(errors)
        self.pid = int.from_bytes(_exactly(self._connection, 4), "big")

    def poll(self) -> int | None:
        """The exit code, once it has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0.0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """The exit code. TimeoutExpired where it does not end in time."""
        if self.returncode is None:
            if not select.select([self._connection], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            status = int.from_bytes(_exactly(self._connection, 4), "big")
            self.returncode = os.waitstatus_to_exitcode(status)
            self._connection.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """To a process that has not ended."""
        if self.poll() is None:
            os.kill(self.pid, number)


@functools.cache
def warm_address() -> str:
    """Address of this process's forking process, which is started by the first call."""
    folder = tempfile.mkdtemp(prefix="headrace-warm-")
    path = os.path.join(folder, "socket")
    alike = {
        "OMP_NUM_THREADS": "1", "GOMP_SPINCOUNT": str(OPENMP_SPIN_COUNT),
        "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_LOGGING_STREAM": "ext://sys.stderr",
    }  # fmt: skip
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.warm_roles", path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "TOKENIZERS_PARALLELISM": "false", "CUDA_VISIBLE_DEVICES": "", **alike},
        cwd=ROOT,
    )
    assert server.stdout is not None
    assert server.stdout.readline() == b"ready\n"

    def end() -> None:
        assert server.stdin is not None
        server.stdin.close()
        server.wait(10)

    atexit.register(end)
    return path


Started = WarmProcess | subprocess.Popen[bytes]


def warm(
    argv: Sequence[str],
    *,
    stdout: IO[Any],
    stderr: IO[Any] | int = subprocess.STDOUT,
    slow: bool = False,
    cold: bool = False,
) -> Started:
    """Start `headrace` with these arguments; the roles of its run begin warm as well, by way of
    `slow_role` where they are `slow`.

    `cold`: as a user starts it, in a session of its own. So it begins where a GPU is, too: the
    shared imports do not see it, and DeepSpeed keeps the CPU that it saw."""
    outputs: dict[str, Any] = {"stdout": stdout, "stderr": stderr}
    if cold or (has_gpu() and not slow):
        command = [sys.executable, "-m", "headrace", *argv]
        return subprocess.Popen(command, **outputs, start_new_session=True, cwd=ROOT)
    env = {**os.environ, SOCKET: warm_address()}
    module, *first = [SLOW, COMMAND] if slow else [COMMAND]
    return WarmProcess(env[SOCKET], module, [*first, *argv], **outputs, env=env, cwd=ROOT)


def warm_role(module: str, *argv: str, log: IO[Any] | int) -> WarmProcess:
    """Start a role on its own, in the repository."""
    return WarmProcess(warm_address(), module, argv, stdout=log, env=os.environ, cwd=ROOT)


def warm_subprocess(address: str) -> Any:
    """The module `subprocess` for a supervisor, in which roles are forked."""

    def start(argv: Sequence[str], **options: Any) -> Any:
        if argv[1] == "-m" and argv[2] in ROLES:
            shown = {name: options[name] for name in ("stdout", "env")}
            return WarmProcess(address, argv[2], argv[3:], **shown)
        return subprocess.Popen(argv, **options)

    class Subprocess:
        Popen = staticmethod(start)

        def __getattr__(self, name: str) -> Any:
            return getattr(subprocess, name)

    return Subprocess()


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise ConnectionError("the forking process has ended")
        data += piece
    return data


def _serve(path: str) -> None:
    """Fork a child for each connection, and say there how it ended."""
    for name in IMPORTED:
        importlib.import_module(name)
    assert threading.active_count() == 1, threading.enumerate()
    gc.collect()
    gc.freeze()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(64)
    woken, wake = socket.socketpair()
    for end in (woken, wake):
        end.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake.fileno())
    asked: dict[int, socket.socket] = {}
    print("ready", flush=True)
    while True:
        ready, _, _ = select.select([sys.stdin, listener, woken], [], [])
        if sys.stdin in ready:
            return
        if woken in ready:
            woken.recv(4096)
            _tell_ends(asked)
        if listener in ready:
            connection, _ = listener.accept()
            head, outputs, _, _ = socket.recv_fds(connection, 4, 2)
            request = json.loads(_exactly(connection, int.from_bytes(head, "big")))
            if (pid := os.fork()) == 0:
                signal.set_wakeup_fd(-1)
                for other in (listener, woken, wake, connection, *asked.values()):
                    other.close()
                _become(request, outputs)
            for output in outputs:
                os.close(output)
            connection.sendall(pid.to_bytes(4, "big"))
            asked[pid] = connection


def _tell_ends(asked: dict[int, socket.socket]) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        with asked.pop(pid) as connection, contextlib.suppress(OSError):
            connection.sendall(status.to_bytes(4, "big"))  # OSError: nobody waits any more


def _become(request: Mapping[str, Any], outputs: Sequence[int]) -> NoReturn:
    """Be what was asked for, and end."""
    code = 1
    try:
        os.setsid()
        for number, output in enumerate(outputs, 1):
            os.dup2(output, number)
            os.close(output)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.chdir(request["cwd"])
        os.environ.clear()
        os.environ.update(request["env"])
        module, argv = request["module"], request["argv"]
        sys.argv = [module, *argv]
        if COMMAND in sys.argv[:2]:
            patch.object(process, "subprocess", warm_subprocess(os.environ[SOCKET])).start()
        code = importlib.import_module(module).main(argv) or 0
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else int(ending.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    _serve(sys.argv[1])
    os._exit(0)
