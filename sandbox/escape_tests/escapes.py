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
import time
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

import psutil

from sandbox.cell import Cell
from sandbox.escape_tests.environment import EscapeEnvironment
from sandbox.interpreter import Interpreter
from sandbox.isolation.factory_client import CellFactoryClient
from sandbox.isolation.init_process import resident_bytes
from sandbox.limits import MIB, Checks, Limits, Program, ProgramResult

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
    """Return the names of all escapes."""
    return sorted(path.stem for path in FOLDER.glob("*.txt"))


def meaning(name: str) -> str:
    """Return the escape's description: what would count as escaped."""
    lines = (FOLDER / f"{name}.txt").read_text(encoding="ascii").splitlines()
    comments = takewhile(lambda line: line.startswith("#"), lines)
    return " ".join(line.removeprefix("#").strip() for line in comments)


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
    """Try one escape."""
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
