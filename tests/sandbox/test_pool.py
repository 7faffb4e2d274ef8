"""Programs in real cells: what comes out, what is bounded, what is left behind."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from headrace.errors import RunFailedError, UserError
from sandbox import isolation_check
from sandbox.cell import CONNECTIONS, Cell
from sandbox.interpreter import interpreter
from sandbox.limits import MIB, Checks, Limits, Program, ProgramResult
from sandbox.pool import Sandbox
from tests.sandbox.layers import each_layer, need

ROOT = Path(__file__).resolve().parents[2]
SMALL = Limits(seconds=20.0, memory_bytes=64 * MIB, output_bytes=1000, processes=4)


def run(layer: str, *programs: Program, limits: Limits = SMALL) -> list[ProgramResult]:
    """The results of programs that run in one pool."""

    need(layer)

    async def all_of_them() -> list[ProgramResult]:
        async with Sandbox(limits, parallel=2, layer=layer) as sandbox:
            return await asyncio.gather(*map(sandbox.run, programs))

    return asyncio.run(all_of_them())


def mounts() -> list[str]:
    """What is mounted here, but for the disks that tests beside this one have in their folders."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line for line in lines if "/pytest-of-" not in line]


def eventually(holds: Callable[[], bool]) -> bool:
    """Whether something becomes true within half a minute."""
    for _ in range(600):
        if holds():
            return True
        time.sleep(0.05)
    return False


@each_layer
def test_a_program_ends_as_python_would_end_it(layer: str) -> None:
    done, failed, exited, killed = run(
        layer,
        Program("import sys\nprint(input())\nprint('err', file=sys.stderr)", stdin="line\n"),
        Program("def f():\n    return 1 / 0\nf()"),
        Program("import atexit, sys\natexit.register(print, 'bye')\nsys.exit(3)"),
        Program("import ctypes\nctypes.string_at(0)"),
    )
    assert (done.status, done.exit_code) == ("ok", 0)
    assert (done.stdout, done.stderr) == ("line\n", "err\n")
    assert (failed.status, failed.exit_code) == ("failed", 1)
    assert "return 1 / 0" in failed.stderr
    assert failed.stderr.endswith("ZeroDivisionError: division by zero\n")
    assert (exited.status, exited.exit_code, exited.stdout) == ("failed", 3, "bye\n")
    assert (killed.status, killed.exit_code) == ("killed", -signal.SIGSEGV)


@each_layer
def test_bounds_hold(layer: str) -> None:
    late, large, grown, loud = run(
        layer,
        Program("while True: pass", seconds=0.5),
        Program("x = bytearray(1 << 32)"),
        Program("x = []\nwhile True: x.append(bytearray(1 << 20))"),
        Program("print('x' * 5000)"),
    )
    assert (late.status, late.exit_code) == ("timeout", None)
    assert late.seconds >= 0.5
    assert (large.status, large.exit_code) == ("failed", 1)
    assert "MemoryError" in large.stderr
    assert grown.status == "memory" or "MemoryError" in grown.stderr
    assert (loud.status, len(loud.stdout), loud.cut) == ("ok", 1000, True)


@each_layer
def test_cells_know_nothing_of_each_other(layer: str) -> None:
    leave = Program("import builtins\nbuiltins.left = 1\nopen('/tmp/left', 'w').write('1')")
    look = Program(
        "import builtins, os\nprint(hasattr(builtins, 'left'), os.path.exists('/tmp/left'))"
    )
    results = run(layer, leave, look, leave, look)
    assert [each.stdout for each in results if each.stdout] == ["False False\n"] * 2


@each_layer
def test_checks_are_counted(layer: str) -> None:
    source = "class Node:\n    def __init__(self, value): self.value = value\n"
    source += "def twice(x): return 2 * x\ndef total(node): return node.value + 1\n"
    checks = Checks(
        ("assert twice(4) == 8", "assert twice(4) == 9, 'no'", "assert total(n) == 6", "oops()"),
        setup="n = Node(5)",
    )
    broken = Checks(("assert twice(1) == 2",))
    result, unloadable, ended = run(
        layer,
        Program(source, checks=checks),
        Program("def twice(x) return", checks=broken),
        Program("import os\ndef twice(x): os._exit(0)", checks=broken),
    )
    assert (result.status, result.passed, result.total) == ("failed", 2, 4)
    assert result.errors == ("AssertionError: no", "NameError: name 'oops' is not defined")
    assert (unloadable.status, unloadable.passed) == ("failed", 0)
    assert "does not load: SyntaxError" in unloadable.errors[0]
    assert (ended.status, ended.passed) == ("failed", 0)
    assert ended.errors == ("ProgramEndedError: the program ended",)


@each_layer
def test_checks_that_held_before_the_deadline_count(layer: str) -> None:
    checks = Checks(("assert f(0) == 0", "assert f(9) == 9", "assert f(0) == 0"))
    source = "import time\ndef f(x):\n    time.sleep(x)\n    return x"
    (result,) = run(layer, Program(source, checks=checks, seconds=1.0))
    assert (result.status, result.passed, result.total) == ("timeout", 1, 3)
    assert result.errors == ("not reached", "not reached")


def test_a_program_that_is_not_waited_for_any_more_ends() -> None:
    layer = need("namespaces")

    before = set(psutil.Process().children(recursive=True))

    async def abandon() -> set[psutil.Process]:
        async with Sandbox(SMALL, parallel=1, layer=layer) as sandbox:
            task = asyncio.create_task(sandbox.run(Program("while True: pass")))
            await asyncio.sleep(0.5)
            async with asyncio.timeout(30):  # The launcher may still be importing.
                while len(family := set(psutil.Process().children(recursive=True)) - before) < 4:
                    await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        return family

    family = asyncio.run(abandon())
    assert not [each for each in family if each.is_running()]


def test_a_launcher_that_is_killed_is_replaced() -> None:
    layer = need("namespaces")

    before = set(psutil.Process().children(recursive=True))

    def family() -> set[psutil.Process]:
        return set(psutil.Process().children(recursive=True)) - before

    async def kill_and_run() -> ProgramResult:
        async with Sandbox(SMALL, parallel=2, layer=layer) as sandbox:
            await sandbox.run(Program("pass"))
            made = family()
            (launcher,) = made & set(psutil.Process().children())
            launcher.kill()
            # Its cells are no descendants any more while they end.
            assert await asyncio.to_thread(eventually, lambda: not any(map(alive, made | family())))
            return await sandbox.run(Program("print(1)"))

    assert asyncio.run(kill_and_run()).stdout == "1\n"


def test_a_cell_whose_launcher_went_before_its_program_came_is_broken() -> None:
    """The write fails, and asyncio says so to whoever reads."""

    async def run() -> None:
        pairs = {name: socket.socketpair() for name in CONNECTIONS}
        lines = {
            name: await asyncio.open_connection(sock=ours) for name, (ours, _) in pairs.items()
        }
        for _, theirs in pairs.values():
            theirs.close()
        await Cell(SMALL, lines).run(Program("pass"))

    with pytest.raises(RunFailedError, match="the launcher is gone"):
        asyncio.run(run())


def test_cells_in_the_making_outlive_their_launcher() -> None:
    layer = need("namespaces")
    before = set(psutil.Process().children())

    async def kill_and_run() -> ProgramResult:
        async with Sandbox(SMALL, parallel=2, layer=layer) as sandbox:
            while not (launchers := set(psutil.Process().children()) - before):
                await asyncio.sleep(0)
            launchers.pop().kill()
            return await sandbox.run(Program("print(1)"))

    for _ in range(5):
        assert asyncio.run(kill_and_run()).stdout == "1\n"


def test_a_run_given_up_while_its_cell_is_made_leaves_the_next_its_sockets(
    recwarn: pytest.WarningsRecorder,
) -> None:
    """A loop that goes on to watch closed descriptors never hears those of the same number."""
    layer = need("namespaces")

    async def give_up_and_run() -> None:
        sandbox = Sandbox(SMALL, parallel=2, layer=layer)
        try:
            await sandbox.run(Program("pass"))
            for steps in range(30):
                given_up = asyncio.create_task(sandbox.run(Program("pass")))
                for _ in range(steps):
                    await asyncio.sleep(0)
                given_up.cancel()
                async with asyncio.timeout(30):
                    assert (await sandbox.run(Program("print(1)"))).stdout == "1\n"
        finally:
            await sandbox.close()

    asyncio.run(give_up_and_run())
    assert not [each for each in recwarn if "unclosed <StreamWriter" in str(each.message)]


HOST = """
import asyncio, sys
from sandbox.limits import Program
from sandbox.pool import Sandbox

async def main():
    async with Sandbox(parallel=1, layer=sys.argv[1]) as sandbox:
        task = asyncio.create_task(sandbox.run(Program("while True: pass")))
        await asyncio.sleep(0.5)
        print("running", flush=True)
        await task

asyncio.run(main())
"""


@each_layer
@pytest.mark.parametrize("target", ["host", "launcher"])
def test_kills_leave_nothing(layer: str, target: str) -> None:
    before = mounts()
    host = subprocess.Popen(
        [sys.executable, "-c", HOST, need(layer)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert host.stdout is not None
    host.stdout.readline()
    assert eventually(lambda: len(psutil.Process(host.pid).children(recursive=True)) >= 4)
    family = psutil.Process(host.pid).children(recursive=True)
    launchers = psutil.Process(host.pid).children()
    victims = [host.pid] if target == "host" else [each.pid for each in launchers]
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: not [each for each in family if alive(each)])
    host.kill()
    host.wait()
    host.stdout.close()
    assert mounts() == before


def alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_without_a_layer_programs_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    async def no_layer(layer: str, python: object) -> isolation_check.LayerTrial:
        if layer == "landlock":
            return isolation_check.LayerTrial(layer, tried=3, escaped=("mount: ESCAPED",))
        return isolation_check.LayerTrial(layer, refused="not here")

    monkeypatch.setattr(isolation_check, "try_layer", no_layer)
    with pytest.raises(UserError, match=r"not to be had: not here; landlock 1 of 3 escapes"):
        asyncio.run(Sandbox().open())
    assert list(tmp_path.rglob("*.json")) == [], "failure is not remembered"


def test_success_is_forgotten_when_any_file_of_the_sandbox_changes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(isolation_check, "__file__", str(tmp_path / "isolation_check.py"))
    seen = {isolation_check._fingerprint(interpreter())}
    for name in ("isolation_check.py", "isolation/kernel.py", "escape_tests/attempts/mount.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("changed")
        seen.add(isolation_check._fingerprint(interpreter()))
    assert len(seen) == 4


def test_a_loop_that_stood_still_has_the_cell_that_came_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A scoring child's loop runs for each program alone, minutes apart."""
    with asyncio.Runner() as runner:
        sandbox = runner.run(Sandbox(SMALL, parallel=1).open())
        try:
            for number in range(4):
                if number:  # The factory, which takes long to start, is there.
                    monkeypatch.setattr("sandbox.cell.MAKE_TIMEOUT_S", 1.0)
                    time.sleep(1.2)
                assert runner.run(sandbox.run(Program("x = 1"))).status == "ok"
        finally:
            runner.run(sandbox.close())


def test_a_loop_that_stood_still_has_the_report_that_came_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its process got no processor, or was stopped, for longer than the program's deadline."""
    feed = Cell._feed

    async def feed_and_stand_still(self: Cell, program: Program) -> None:
        await feed(self, program)
        time.sleep(3.0)

    async def result() -> ProgramResult:
        async with Sandbox(SMALL, parallel=1) as sandbox:
            return await sandbox.run(Program("x = 1", seconds=2.0))

    monkeypatch.setattr(Cell, "_feed", feed_and_stand_still)
    found = asyncio.run(result())
    assert found.status == "ok"
    assert found.seconds < 2.0
