"""Removal of /dev/shm files that killed processes leave behind.

No signal removes them, and a resource tracker only those that it knows, if it is not killed as
well. In: the engine processes, once they are up (`EngineMemory`); a run, for what its learners
published. Out: nothing. Promises: what is removed of an engine was mapped by one of its processes
when it was recorded, and no living process maps it. The record is a file beside them that its owner
locks for as long as it lives. The holder of the lock removes what it names: a program that the
owner starts in a session of its own (`python -I -S shared_memory.py RECORD`), a supervisor that
reaps a process, the next owner. Standard library alone.
"""

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

FOLDER = Path("/dev/shm")
RECORD_PREFIX = "headrace-engine-"
"""So the name of each record begins."""
_PATIENCE_S = 10.0
_SWEEP_S = 1.0


class EngineMemory:
    """The record of one owner's engine processes, until `close`."""

    def __init__(self, pids: Iterable[int]) -> None:
        """Record what these processes map; remove what dead owners left."""
        sweep()
        mapped = _mapped(Path("/proc", str(pid)) for pid in pids)
        files = [(_identity(file), file.name) for file in FOLDER.glob("*")]
        found = [f"{identity} {name}\n" for identity, name in files if identity in mapped]
        self._survivor: subprocess.Popen[bytes] | None = None
        if not found:
            return
        descriptor, path = tempfile.mkstemp(prefix=RECORD_PREFIX, dir=FOLDER)
        self._file = os.fdopen(descriptor, "w", encoding="utf-8")
        fcntl.flock(self._file, fcntl.LOCK_EX)
        self._file.writelines(found)
        self._file.flush()
        self._survivor = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, path],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def close(self) -> None:
        """The engine processes have ended: remove what they left."""
        if self._survivor is not None:
            self._file.close()
            self._survivor.wait()
            sweep()


def weights_name(run_id: str, pid: object) -> str:
    """Return the name of the folder with the weights that a learner of a run publishes."""
    return f"headrace-{run_id}-{pid}"


def remove_weights(run_id: str, shared: Path = FOLDER) -> None:
    """Remove what learners of a run published that were killed, or have the caller's number."""
    for folder in shared.glob(weights_name(run_id, "*")):
        pid = folder.name.removeprefix(weights_name(run_id, ""))
        # One of our number was there before this container was started again.
        if pid == str(os.getpid()) or (pid.isdigit() and not Path(f"/proc/{pid}").exists()):
            shutil.rmtree(folder, ignore_errors=True)


def sweep() -> None:
    """Remove files of dead owners that no process maps any longer."""
    for record in FOLDER.glob(f"{RECORD_PREFIX}*"):
        _clear(record, fcntl.LOCK_EX | fcntl.LOCK_NB, _SWEEP_S)


def _clear(record: Path, lock: int, patience_s: float) -> None:
    """Take a dead owner's record, and remove its files once no process maps them."""
    try:
        file = os.fdopen(os.open(record, os.O_RDWR | os.O_NOFOLLOW), encoding="utf-8")
    except OSError:  # it is gone, or another user's
        return
    with file:
        if os.fstat(file.fileno()).st_uid != os.getuid():
            return
        try:
            fcntl.flock(file, lock)
        except BlockingIOError:  # its owner lives
            return
        left = dict(line.split(maxsplit=1) for line in file.read().splitlines())
        if not left:  # its owner is about to lock and write it
            return
        deadline = time.monotonic() + patience_s
        while True:
            left = {key: name for key, name in left.items() if _identity(FOLDER / name) == key}
            mapped = _mapped(Path("/proc").glob("[0-9]*")) if left else set()
            for key in left.keys() - mapped:
                (FOLDER / left.pop(key)).unlink(missing_ok=True)
            if not left or time.monotonic() > deadline:
                break
            time.sleep(0.05)
        if not left:
            record.unlink(missing_ok=True)


def _mapped(processes: Iterable[Path]) -> set[str]:
    """Return the files of /dev/shm that these processes (folders in /proc) map, as DEVICE:INODE.

    A path in /proc does not identify a file: a semaphore is mapped under a name that no longer
    exists.
    """
    found = set()
    for process in processes:
        try:
            lines = (process / "maps").read_text(errors="replace").splitlines()
        except OSError:
            continue
        fields = (line.split(maxsplit=5) for line in lines if f" {FOLDER}/" in line)
        found |= {f"{device}:{inode}" for _, _, _, device, inode, _ in fields}
    return found


def _identity(file: Path) -> str:
    """DEVICE:INODE of a file; empty where it is gone."""
    try:
        stat = file.lstat()
    except OSError:
        return ""
    return f"{os.major(stat.st_dev):02x}:{os.minor(stat.st_dev):02x}:{stat.st_ino}"


if __name__ == "__main__":
    _clear(Path(sys.argv[1]), fcntl.LOCK_EX, _PATIENCE_S)
