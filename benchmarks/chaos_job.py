"""A job that faults are done to: `headrace train`, started, hurt, and resumed when it ended.

In: a place, overrides, faults. Out: what was done when, and how the job answered. Promises: only
processes that the job's supervisor started are signalled; nothing of the job outlives `end`.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import psutil

from benchmarks.chaos_faults import KILLS, STOPS, WITH_CHILDREN, Fault
from benchmarks.chaos_place import Place
from headrace.applied import read_applied
from headrace.install import ROOT
from headrace.processes.monitor import coordinator_of

PATIENCE_S = 150.0
"""The run hangs when there is no update for so long."""
END_S = 150.0
"""How long a Ctrl-C may take to end the run."""
REAP_S = 15.0
"""How long after a job's end its processes may still be there."""
APPEAR_S = 60.0
"""How long a fault waits for whom it is to be done to."""
MOST_RESUMES = 3
"""So many resumes in a row without an update, and the run counts as one that cannot be resumed."""
RECIPE = ROOT / "recipes" / "quickstart.toml"


Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class Done:
    """A fault that was done: from when to when (seconds since 1970), and to which process."""

    fault: Fault
    began: float
    over: float
    pid: int


@dataclass
class Course:
    """What happened to a job. `ends`: how it ended by itself, in words. `hangs`: how often there
    was no update for `PATIENCE_S`. `orphans`: processes that outlived their job."""

    done: list[Done] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)
    resumes: int = 0
    hangs: int = 0
    orphans: int = 0
    resumable: bool = True
    last_code: int | None = None


class Job:
    """One run folder and the supervisor that serves it now."""

    def __init__(self, place: Place, overrides: Sequence[str]) -> None:
        self._place, self._overrides = place, overrides
        self.course = Course()
        self._process: subprocess.Popen[bytes] | None = None
        self._log = place.root.parent.parent / "train.log"
        self._failed_resumes = 0
        self._seen: set[psutil.Process] = set()
        """Whoever was seen among the job's processes, what they started included."""

    # -- life ----------------------------------------------------------------------------------

    def play(self, faults: Sequence[Fault]) -> Course:
        """Start, do every fault at its moment, and end by a Ctrl-C. Leaves nothing behind when it
        is broken off."""
        try:
            self._start()
            self._faults(faults)
            self._finish()
        finally:
            self.end()
        return self.course

    def _faults(self, faults: Sequence[Fault]) -> None:
        over = time.time()
        for fault in faults:
            if fault.settled or not self.course.done:
                self._await_update(over)
            time.sleep(fault.wait_s)
            if not self._up():
                break
            done = self._do(fault)
            if done is not None:
                self.course.done.append(done)
                over = done.over
        if self.course.resumable:
            self._await_update(over)

    def _start(self) -> None:
        command = [sys.executable, "-m", "headrace", "train", "--plain"]
        if self._folders():
            command += ["--resume", str(self.run_dir)]
        else:
            command += [str(RECIPE), "--root", str(self._place.root), *self._overrides]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._place.command(command), stdout=log, stderr=log, cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)}, start_new_session=True,
            )  # fmt: skip

    def _up(self) -> bool:
        """See to it that a job runs; False where the run cannot be resumed."""
        assert self._process is not None
        code = self._process.poll()
        if code is None:
            return True
        self.course.last_code = code
        self.course.ends.append(self._last_line() or f"exit code {code}")
        self._count_orphans()
        return self._resume()

    def _resume(self) -> bool:
        self._failed_resumes += 1
        if self._failed_resumes > MOST_RESUMES:
            self.course.resumable = False
            return False
        self.course.resumes += 1
        self._start()
        return True

    def _await_update(self, after: float) -> None:
        """Until an update is in the weights that began its life after this moment."""
        deadline = time.monotonic() + PATIENCE_S
        while self.course.resumable:
            if self.newest_update() > after:
                self._failed_resumes = 0
                return
            if not self._up():
                return
            if time.monotonic() > deadline:
                self.course.hangs += 1
                self._kill_job()
                deadline = time.monotonic() + PATIENCE_S
            self._look()
            time.sleep(0.2)

    def _finish(self) -> None:
        assert self._process is not None
        self._look()
        if self._process.poll() is None:
            os.kill(self._process.pid, signal.SIGINT)
            try:
                self.course.last_code = self._process.wait(END_S)
            except subprocess.TimeoutExpired:
                self.course.hangs += 1
        self.end()
        self._count_orphans()

    def end(self) -> None:
        """Whatever happened: leave nothing behind."""
        if self._process is None:
            return
        self._look()
        if self._process.poll() is None:
            os.kill(self._process.pid, signal.SIGKILL)
            self._process.wait()

    # -- faults --------------------------------------------------------------------------------

    def _do(self, fault: Fault) -> Done | None:
        """Do a fault; None where nobody comes to whom it could be done."""
        assert self._process is not None
        pid = self._process.pid
        if fault.role not in ("job", "machine"):
            found = waited_for(lambda: self._victims(fault), APPEAR_S)
            if not found:
                return None
            pid = found[fault.which % len(found)]
        began = time.time()
        match fault.kind:
            case "kill_job":
                self._kill_job()
            case "disk_full":
                self._place.disk_full(fault.seconds)
            case "slow_disk":
                self._place.slow_disk(fault.seconds)
            case "cut_network":
                self._place.cut_network(pid, fault.seconds)
            case "slow_network":
                self._place.slow_network(pid, fault.seconds)
            case "reset":
                if not self._reset(pid, fault.seconds):
                    return None
            case "kill" | "stop" | "kill_child" | "stop_child":
                if not self._signal(pid, fault):
                    return None
        return Done(fault, began, time.time(), pid)

    def _kill_job(self) -> None:
        """SIGKILL to the supervisor, and a resume when all its processes are gone."""
        self.end()
        self._count_orphans()
        self._resume()

    def _victims(self, fault: Fault) -> list[int]:
        named = sorted(self._newest().items())
        alive = [pid for name, pid in named if name.startswith(fault.role) and is_alive(pid)]
        if fault.kind not in ("kill_child", "stop_child"):
            return alive
        assert fault.role in WITH_CHILDREN
        started = [child for pid in alive for child in descendants(pid)]
        return sorted(child.pid for child in started if not is_reaper(child))

    def _reset(self, pid: int, seconds: float) -> bool:
        found = coordinator_of(self.run_dir)
        if found is None:
            return False
        try:
            self._place.reset(pid, int(found[0].rsplit(":", 1)[1]), seconds)
        except subprocess.CalledProcessError:
            return is_alive(pid)  # It ended meanwhile, and its network with it.
        return True

    def _signal(self, pid: int, fault: Fault) -> bool:
        try:
            if fault.kind in KILLS:
                os.kill(pid, signal.SIGKILL)
                return True
            os.kill(pid, signal.SIGSTOP)
            time.sleep(fault.seconds)
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            # It ended before, or the supervisor replaced it while it was stopped.
            return fault.kind in STOPS
        return True

    # -- what the run folder says --------------------------------------------------------------

    @property
    def run_dir(self) -> Path:
        """The only run folder of the place."""
        (folder,) = self._folders()
        return folder

    def newest_update(self) -> float:
        """When the newest update was in the weights; 0.0 before the first."""
        if not self._folders():
            return 0.0
        return max((line.at for _, line in read_applied(self.run_dir)), default=0.0)

    def _folders(self) -> list[Path]:
        return [p for p in self._place.root.iterdir() if p.is_dir() and not p.is_symlink()]

    def _rows(self) -> list[dict[str, object]]:
        path = self.run_dir / "supervisor.jsonl" if self._folders() else None
        if path is None or not path.exists():
            return []
        found = []
        for line in path.read_text(errors="replace").splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                continue  # Cut off when its supervisor was killed.
        return found

    def _newest(self) -> dict[str, int]:
        """The pid of each process by name."""
        rows = self._rows()
        return {str(row["name"]): int(str(row["pid"])) for row in rows if row.get("pid")}

    def _look(self) -> None:
        """Remember who belongs to the job now."""
        assert self._process is not None
        self._seen |= descendants(self._process.pid)

    def _count_orphans(self) -> None:
        """Wait for the processes of a job that ended; count and kill those that stay."""
        if left := waited(lambda: living(self._seen), REAP_S):
            self.course.orphans += len(left)
            for process in left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        self._seen.clear()

    def _last_line(self) -> str:
        lines = self._log.read_text(errors="replace").rstrip().splitlines()
        return lines[-1] if lines else ""


def descendants(pid: int) -> set[psutil.Process]:
    """What a process started, and what that started, in whatever process group."""
    try:
        return set(psutil.Process(pid).children(recursive=True))
    except psutil.NoSuchProcess:
        return set()


def is_reaper(process: psutil.Process) -> bool:
    """Whether a process is there only to end others when their owner is gone."""
    try:
        return any(word.endswith("reaper.py") for word in process.cmdline())
    except psutil.NoSuchProcess:
        return False


def living(processes: set[psutil.Process]) -> list[psutil.Process]:
    """Those that still run: the same ones, and not others that have their ids now."""
    return [one for one in processes if one.is_running() and is_alive(one.pid)]


def is_alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def waited_for(find: Callable[[], list[Found]], seconds: float) -> list[Found]:
    """What is found within so many seconds, as soon as something is."""
    deadline = time.monotonic() + seconds
    while not (found := find()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


def waited(find: Callable[[], list[Found]], seconds: float) -> list[Found]:
    """What is still found after so many seconds; empty as soon as nothing is."""
    deadline = time.monotonic() + seconds
    while (found := find()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found
