"""Programs that try to get out, and the checks of whether one did.

Each is a text in `attempts/` (Python, kept from being imported by its suffix), which says in its
first lines what would count as escaped. Out: what escaped, judged from outside. Programs do no harm
beyond the environment that they are pointed at, also where nothing holds them.

The same is looked at after every program: nobody outside was signalled, slowed or limited, no
listener heard anything, no file changed, no secret is in what it wrote, it ended in time, took no
more processes and memory than allowed, nothing of it is left, and its checks do not hold. Where
only the kernel's answer shows an escape (a mount, a key), the program prints ESCAPED.
"""

import asyncio
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
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import psutil

from sandbox.cell import Cell
from sandbox.interpreter import Interpreter
from sandbox.isolation.factory_client import CellFactoryClient
from sandbox.isolation.init_process import resident_bytes
from sandbox.limits import MIB, ONE_THREAD, Checks, Limits, Program, ProgramResult

FOLDER = Path(__file__).parent / "attempts"
CHECKS_MARK = "# --- checks\n"
LIMITS = Limits(
    seconds=2.0, memory_bytes=96 * MIB, processes=8, file_bytes=4 * MIB, disk_bytes=8 * MIB,
    files=64,
)  # fmt: skip
GRACE_S = 2.0
"""Seconds over the deadline that taking a program down may last on a busy machine."""
MEMORY_GRACE = 3
"""Multiple of the memory limit that may be seen, since it is summed 20 times per second."""
OWN_PROCESSES = 4
"""Processes of a cell beside the program: parent, checker, one being forked or reaped."""
TOGETHER = 4
LOOK_EVERY_S = 0.04


@dataclass(frozen=True)
class EscapeResult:
    """Result of one escape."""

    name: str
    escaped: tuple[str, ...]
    """The failures; empty where it was held."""
    result: ProgramResult


def names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.txt"))


async def try_all(layer: str, python: Interpreter | None = None) -> list[EscapeResult]:
    """Try every escape; RunFailedError where the layer cannot be had."""
    free = asyncio.Semaphore(TOGETHER)
    factory = await CellFactoryClient.start(python)

    async def one(name: str) -> EscapeResult:
        async with free:
            return await attempt(name, layer, factory)

    try:
        first, *others = names()
        return [await one(first), *await asyncio.gather(*map(one, others))]
    finally:
        await factory.close()


async def attempt(name: str, layer: str, factory: CellFactoryClient) -> EscapeResult:
    text = (FOLDER / f"{name}.txt").read_text(encoding="ascii")
    source, _, checks = text.partition(CHECKS_MARK)
    with EscapeEnvironment() as environment:
        facts = environment.facts(LIMITS, factory.python)
        program = Program(
            facts + source,
            stdin="",
            checks=Checks((checks,), setup=f"TOKEN = {environment.token!r}") if checks else None,
        )
        cell = await Cell.make(factory, layer, LIMITS)
        watch = CellMonitor(cell.pid)
        watching = asyncio.create_task(watch.look())
        began = time.monotonic()
        try:
            result = await cell.run(program)
        finally:
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching
        took = time.monotonic() - began
        found = [*environment.harm(), *watch.harm(LIMITS), *_judge(result, took, environment.token)]
    return EscapeResult(name, tuple(found), result)


def _judge(result: ProgramResult, took: float, token: str) -> list[str]:
    written = result.stdout + result.stderr + "".join(result.errors)
    found = []
    if "ESCAPED" in result.stdout:
        line = next(line for line in result.stdout.splitlines() if "ESCAPED" in line)
        found.append(line.strip()[:200])
    if token in written:
        found.append("it wrote a secret")
    if result.passed:
        found.append("its checks hold")
    if max(result.seconds, took - GRACE_S) > LIMITS.seconds + GRACE_S:
        found.append(f"it took {took:.1f} s")
    if max(len(result.stdout), len(result.stderr)) > LIMITS.output_bytes:
        found.append("more of its output was kept than may be")
    return found


class CellMonitor:
    """Processes and memory of a cell, seen from outside."""

    def __init__(self, parent: int) -> None:
        self._parent = psutil.Process(parent)
        self._seen: dict[int, psutil.Process] = {}
        self._tasks = 0
        self._bytes = 0

    async def look(self) -> None:
        """Look until it is cancelled or the cell is gone."""
        processes = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
        try:
            with contextlib.suppress(psutil.Error):
                while True:
                    members = self._parent.children(recursive=True)
                    self._seen |= {each.pid: each for each in members}
                    self._tasks = max(self._tasks, sum(map(_threads, members)))
                    held = resident_bytes(processes, [each.pid for each in members])
                    self._bytes = max(self._bytes, held)
                    await asyncio.sleep(LOOK_EVERY_S)
        finally:
            os.close(processes)

    def harm(self, limits: Limits) -> list[str]:
        """Return what was too much, and what is left."""
        found = []
        if self._tasks > limits.processes + OWN_PROCESSES:
            found.append(f"{self._tasks} processes and threads at a time")
        if self._bytes > MEMORY_GRACE * limits.memory_bytes:
            found.append(f"{self._bytes // MIB} MiB at a time")
        left = [pid for pid, process in self._seen.items() if process.is_running()]
        if left:
            found.append(f"processes are left: {left}")
        return found


def _threads(process: psutil.Process) -> int:
    with contextlib.suppress(psutil.Error):
        return int(process.num_threads())
    return 0


# -- the surroundings ------------------------------------------------------------------------------

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
    """The surroundings of one escape, which must stay as they are while it is tried.

    A bystander process with a secret in its environment, listeners on every kind of socket, a
    folder with a secret and with files that anybody may write, the clock and the machine's name.
    `facts` gives a program the places of all this; `harm` lists what changed."""

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
        modules = dict(python.modules)
        listed = {name.partition(".")[0] for path in python.paths for name in os.listdir(path)}
        shown = [*python.paths, *modules.values()]
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
            "VISIBLE": sorted(listed | modules.keys()),
            "WAY": sorted({part for path in shown for part in Path(path).parts}),
            "GIVEN": sorted(ONE_THREAD) if shown else [],
        }
        return "; ".join(f"{name} = {value!r}" for name, value in values.items()) + "\n"

    def harm(self) -> list[str]:
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


def _was_reached(listener: socket.socket) -> bool:
    with contextlib.suppress(BlockingIOError):
        if listener.type == socket.SOCK_STREAM:
            listener.accept()[0].close()
        else:
            listener.recv(1)
        return True
    return False
