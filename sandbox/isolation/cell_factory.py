"""Creation of cells: `python -S cell_factory.py CONTROL PARENT`, by `factory_client.py`.

In: an order for each cell, with six sockets: the program's standard files; `orders`, where its
source comes in and reports go out; `verdict`, the same for the checks; `life`, whose end outside
ends the cell, and whose end inside says that nothing of the cell is left. Both processes of a cell
exist before program or checks come in; the one that will run the program never has the other's
socket, nor memory that held a check. Dies with who started it, and its cells with it.
"""

import gc
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from sandbox import checker, program_process
from sandbox.channel import read_frame
from sandbox.isolation import init_process, kernel, landlock, namespaces, privileges
from sandbox.isolation.syscall_filter import instructions
from sandbox.limits import ONE_THREAD, Limits

if __name__ == "__main__":
    del sys.path[0]

MAX_ORDER_BYTES = 1 << 16
NUM_SOCKETS = 6

Lock = Callable[[], None]


class CellSetup:
    """Settings and sockets of the processes of a cell."""

    def __init__(self, settings: dict[str, Any], sockets: list[int]) -> None:
        self.limits = Limits(**settings["limits"])
        self.layer: str = settings["layer"]
        self.readable: list[str] = settings["readable"]
        self.covered: list[str] = settings["covered"]
        self.paths: list[str] = settings["paths"]
        self.modules: dict[str, str] = dict(settings["modules"])
        for descriptor in range(3):
            os.dup2(sockets[descriptor], descriptor)
            os.close(sockets[descriptor])
        self.orders, self.verdict, self.life = (socket.socket(fileno=n) for n in sockets[3:])
        self.process = os.getpid()
        self.processes = -1
        """An open /proc, where one is held."""

    def give_up(self, error: OSError) -> int:
        """Report that no cell could be made; return the exit code."""
        init_process.report(self.orders, {"broken": str(error)})
        return 1

    def lock(self, user: int | None, *, single: bool) -> None:
        """Give up everything; what comes after can only compute."""
        assert kernel.MACHINE is not None
        # Without a user of its own, in a namespace, the process above is counted too.
        privileges.limit_resources(self.limits, 0 if user is not None else 1)
        privileges.drop(user)
        # A change of user clears it.
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        kernel.install_filter(instructions(kernel.MACHINE, single=single))


class Importer:
    """Finds modules that a cell may see but whose folder it may not list, as the last one.

    Each by its file, or by its folder where it has no `__init__.py`."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self._files = files

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: object = None
    ) -> ModuleSpec | None:
        """Return where a module is; None for other modules."""
        file = self._files.get(name)
        if file is None:
            return None
        if os.path.isdir(file):
            found = ModuleSpec(name, None, is_package=True)
            found.submodule_search_locations = [file]
            return found
        folder, _, last = file.rpartition("/")
        inner = [folder] if last == "__init__.py" else None
        return spec_from_file_location(name, file, submodule_search_locations=inner)


def main() -> int:
    """Create cells until nobody orders any more.

    Returns in a program's own process, too, when it has run, so that it ends like any other."""
    control, parent = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # reaps by itself
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return 1
    os.environ.clear()
    os.umask(0o022)
    gc.freeze()
    while True:
        order, sockets, _, _ = socket.recv_fds(control, MAX_ORDER_BYTES, NUM_SOCKETS)
        if not order:
            return 0
        if os.fork() == 0:
            control.close()
            return _make(CellSetup(json.loads(order), list(sockets)))
        for each in sockets:
            os.close(each)


def _make(cell: CellSetup) -> int:
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, init_process.WAITED_FOR)
    try:
        return {"namespaces": _namespaced, "landlock": _landlocked}[cell.layer](cell)
    except OSError as error:
        return cell.give_up(error)


def _namespaced(cell: CellSetup) -> int:
    inner = namespaces.separate_processes()
    user = None if inner else privileges.cell_user(cell.process)
    first = os.fork()
    if first == 0:
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        cell.life.close()
        os.setsid()
        cell.processes = namespaces.separate_everything(cell.readable, cell.covered, cell.limits)
        cell.lock(user, single=False)
        return _populate(cell, lambda: None)
    cell.orders.close()
    cell.verdict.close()
    _use_null(0, 1, 2)
    ended = os.pidfd_open(first)
    line = select.poll()
    line.register(ended, select.POLLIN)
    line.register(cell.life, select.POLLIN)
    if ended not in dict(line.poll()):
        os.kill(first, signal.SIGKILL)
    # Returns only when every process of the namespace is gone.
    os.waitpid(first, 0)
    os._exit(0)


def _landlocked(cell: CellSetup) -> int:
    landlock.version()
    user = None
    if os.geteuid() == 0 and landlock.open_to_all(cell.readable):
        user = privileges.cell_user(cell.process)
    cell.processes = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)

    def lock() -> None:
        cell.life.close()
        os.setsid()
        landlock.restrict_files(cell.readable, cell.covered)
        cell.lock(user, single=True)

    return _populate(cell, lock, alone=True)


def _populate(cell: CellSetup, lock: Lock, *, alone: bool = False) -> int:
    """Fork checker and program process, and wait until one has done.

    Returns only in the program's process, after it has run. `alone`: nothing else is to take
    down."""
    asking, asked = socket.socketpair()
    examining = os.fork()
    if examining == 0:
        os._exit(_run_checker(cell, lock, asking, asked))
    running = os.fork()
    if running == 0:
        return _run_program(cell, lock, asking, asked)
    for held in (cell.verdict, asking, asked):
        held.close()
    _use_null(0, 1, 2)
    init_process.report(cell.orders, {"ready": cell.process})
    outcome = init_process.keep(
        cell.orders, examining, running, processes=cell.processes,
        watched=[examining, running] if alone else None, memory_bytes=cell.limits.memory_bytes,
    )  # fmt: skip
    if alone:
        for process in (examining, running):
            if outcome["exit" if process == running else "examiner"] is None:
                os.kill(process, signal.SIGKILL)
                os.waitpid(process, 0)
    init_process.report(cell.orders, outcome)
    os._exit(0)


def _begin(cell: CellSetup, lock: Lock) -> None:
    os.close(cell.processes)
    if cell.paths or cell.modules:
        sys.path.extend(cell.paths)
        sys.meta_path.append(Importer(cell.modules))
        os.environ.update(ONE_THREAD)
    privileges.limit_processor(cell.limits)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, init_process.WAITED_FOR)
    try:
        lock()
    except OSError as error:
        os._exit(cell.give_up(error))


def _run_checker(cell: CellSetup, lock: Lock, asking: socket.socket, asked: socket.socket) -> int:
    _use_null(0, 1, 2)
    _begin(cell, lock)
    asked.close()
    cell.orders.close()
    return checker.examine(cell.verdict, asking)


def _run_program(cell: CellSetup, lock: Lock, asking: socket.socket, asked: socket.socket) -> int:
    _begin(cell, lock)
    asking.close()
    cell.verdict.close()
    order = read_frame(cell.orders)
    cell.orders.close()
    if order is None:
        return 0
    for name in [name for name in sys.modules if name.partition(".")[0] == "sandbox"]:
        del sys.modules[name]
    sys.argv = [program_process.NAME]
    if order["checked"]:
        return program_process.answer(order["source"], asked)
    asked.close()
    return program_process.run(order["source"])


def _use_null(*descriptors: int) -> None:
    """Replace standard files by /dev/null."""
    null = os.open("/dev/null", os.O_RDWR)
    for descriptor in descriptors:
        os.dup2(null, descriptor)
    os.close(null)


if __name__ == "__main__":
    sys.exit(main())
