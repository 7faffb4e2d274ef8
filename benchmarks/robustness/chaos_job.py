"""A job that faults are done to: `headrace train`, started, hurt, and resumed when it ended.

In: a place, overrides, faults. Out: what was done when, and how the job answered. Promises: only
processes that the job's supervisor started are signalled; nothing of the job outlives `end`.
"""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import psutil

from benchmarks.robustness.chaos_faults import HEARTBEAT_S, KILLS, STOPS, WITH_CHILDREN, Fault
from benchmarks.robustness.chaos_testbed import Testbed
from headrace.host.install import ROOT
from headrace.protocol.messages.environments import InsertedMessage, PolicyTurn, Step
from headrace.run_files.update_log import read_applied
from headrace_cli.launch.monitor import coordinator_of

PATIENCE_S = 150.0
"""The run hangs when there is no update for so long."""
END_S = 150.0
"""How long a Ctrl-C may take to end the run."""
ENDED = (0, 130)
"""Exit codes of a run that ended well by itself or by a Ctrl-C."""
REAP_S = 15.0
"""How long after a job's end its processes may still be there."""
APPEAR_S = 60.0
"""How long a fault waits for whom it is to be done to."""
MOST_RESUMES = 3
"""Consecutive resumes without an update after which a run counts as not resumable."""
RECIPE = ROOT / "recipes" / "quickstart.toml"
SMALL = (
    "schedule.batch_windows=16", "algorithm.value.warmup_updates=1", "dashboard.enabled=false",
    "evaluation.before=false", "evaluation.after=false", "evaluation.every_updates=null",
    "stop.updates=null", f"transport.heartbeat_timeout_s={HEARTBEAT_S:g}",
)  # fmt: skip
"""Updates follow soon upon each other, and no end is set."""
Found = TypeVar("Found")


class ManyTurns:
    """An environment of two to six turns, whose words and rewards follow from seed and turns."""

    def reset(self, row: Mapping[str, Any], seed: int) -> None:
        """Begin."""
        self._draw = random.Random(seed)
        self._left = self._draw.randint(2, 6)

    def step(self, turn: PolicyTurn) -> Step:
        """Some digits, the last of which counts what was said."""
        self._left -= 1
        said = "".join(self._draw.choices("123456789", k=4)) + str(len(turn.text) % 9)
        messages = [InsertedMessage("user", said)]
        return Step(messages=messages, reward=turn.tokens % 3 / 4, done=not self._left)


def start_process(command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """A process of this tree's code in a session of its own; what it says goes behind the log."""
    with log.open("ab") as file:
        return subprocess.Popen(
            command, stdout=file, stderr=file, cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)}, start_new_session=True,
        )  # fmt: skip


class RunFolder:
    """The folder of one run, as files say of it. `root`: where the run's own folder is or will
    be."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def begun(self) -> bool:
        """Whether there is a run folder."""
        return any(path.is_dir() for path in self.root.iterdir())

    @property
    def run_dir(self) -> Path:
        """The only run folder."""
        (folder,) = [p for p in self.root.iterdir() if p.is_dir() and not p.is_symlink()]
        return folder

    def updates(self) -> list[float]:
        """When each update was in the weights."""
        return [line.at for _, line in read_applied(self.run_dir)] if self.begun() else []


@dataclass(frozen=True, slots=True)
class FaultEvent:
    """A fault that was done: from when to when (seconds since 1970), and to which process."""

    fault: Fault
    began: float
    over: float
    pid: int


@dataclass
class JobHistory:
    """What happened to a job. `ends`: how it ended by itself, in words. `hangs`: how often there
    was no update for `PATIENCE_S`. `orphans`: processes that outlived their job."""

    done: list[FaultEvent] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)
    resumes: int = 0
    hangs: int = 0
    orphans: int = 0
    resumable: bool = True
    last_code: int | None = None


class ChaosJob(RunFolder):
    """One run folder and the supervisor that serves it now."""

    def __init__(self, place: Testbed, overrides: Sequence[str]) -> None:
        super().__init__(place.root)
        self._place, self._overrides = place, overrides
        self.course = JobHistory()
        self._process: subprocess.Popen[bytes]
        self._log = place.root.parent.parent / "train.log"
        self._failed_resumes = 0
        self._seen: set[psutil.Process] = set()
        """All processes seen in the job, their descendants included."""

    # -- life ----------------------------------------------------------------------------------

    def play(self, faults: Sequence[Fault]) -> JobHistory:
        """Start, do every fault at its moment, and end by a Ctrl-C. Leaves nothing behind when it
        is broken off."""
        self._start()
        try:
            over = time.time()
            for fault in faults:
                if fault.settled or not self.course.done:
                    self._await_update(over)
                time.sleep(fault.wait_s)
                if not self._up():
                    break
                if done := self._do(fault):
                    self.course.done.append(done)
                    over = done.over
            self._await_update(over)
            self._finish()
        finally:
            self.end()
        return self.course

    def _start(self) -> None:
        command = [sys.executable, "-m", "headrace", "train", "--plain"]
        if self.begun():
            command += ["--resume", str(self.run_dir)]
        else:
            command += [str(RECIPE), "--root", str(self.root), *self._overrides]
        self._process = start_process(self._place.command(command), self._log)

    def _up(self) -> bool:
        """See to it that a job runs; False where the run cannot be resumed."""
        code = self._process.poll()
        if code is None:
            return True
        self.course.last_code = code
        lines = self._log.read_text(errors="replace").rstrip().splitlines()
        self.course.ends.append(lines[-1] if lines else f"exit code {code}")
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
            if max(self.updates(), default=0.0) > after:
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
        """End by a Ctrl-C. A run that its last faults ended meanwhile is resumed as after any
        other."""
        while self._up():
            self._look()
            self._process.send_signal(signal.SIGINT)
            try:
                code = self.course.last_code = self._process.wait(END_S)
            except subprocess.TimeoutExpired:
                self.course.hangs += 1
                break
            if code in ENDED:
                break
            if self._up():
                self._await_update(time.time())
        self.end()
        self._count_orphans()

    def end(self) -> None:
        """Whatever happened: leave nothing behind."""
        self._look()
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def _look(self) -> None:
        """Remember who belongs to the job now."""
        self._seen |= descendants(self._process.pid)

    def _count_orphans(self) -> None:
        """Wait for the processes of a job that ended; count and kill those that stay."""
        if left := wait_for_none(lambda: living(self._seen), REAP_S):
            self.course.orphans += len(left)
            for process in left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        self._seen.clear()

    # -- faults --------------------------------------------------------------------------------

    def _do(self, fault: Fault) -> FaultEvent | None:
        """Do a fault; None where nobody comes to whom it could be done."""
        pid, network = self._process.pid, self._place.network
        if fault.role not in ("job", "machine"):
            found = wait_for_some(lambda: self._victims(fault), APPEAR_S)
            if not found:
                return None
            pid = found[fault.which % len(found)]
        began, was_done = time.time(), True
        match fault.kind:
            case "kill_job":
                self._kill_job()
            case "disk_full":
                self._place.disk_full(fault.seconds)
            case "slow_disk":
                self._place.slow_disk(fault.seconds)
            case "freeze_sql" if self._place.database:
                self._place.database.freeze(fault.seconds)
            case "lose_sql" if self._place.database:
                self._place.database.away(fault.seconds)
            case "cut_network" if network:
                network.cut(0, fault.seconds)
            case "slow_network" if network:
                network.slow(0, fault.seconds)
            case "reset" if network:
                coordinator = coordinator_of(self.run_dir)
                was_done = coordinator is not None
                if coordinator is not None:
                    network.reset(pid, int(coordinator[0].rsplit(":", 1)[1]), fault.seconds)
            case "kill" | "kill_child" | "stop" | "stop_child":
                was_done = _send_signal(pid, fault)
            case _:
                was_done = False
        return FaultEvent(fault, began, time.time(), pid) if was_done else None

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
        children = [child for pid in alive for child in descendants(pid)]
        return sorted(child.pid for child in children if not is_reaper(child))

    def _newest(self) -> dict[str, int]:
        """The pid of each process by name, as the supervisor's own account has it."""
        path = self.run_dir / "supervisor.jsonl" if self.begun() else None
        found: dict[str, int] = {}
        for line in path.read_text(errors="replace").splitlines() if path and path.exists() else ():
            with contextlib.suppress(ValueError):  # Cut off when its supervisor was killed.
                row = json.loads(line)
                if row.get("pid"):
                    found[str(row["name"])] = int(row["pid"])
        return found


def _send_signal(pid: int, fault: Fault) -> bool:
    """Kill a process, or stop it for as long as the fault lasts; whether that was done."""
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


def descendants(pid: int) -> set[psutil.Process]:
    """What a process started, and what that started, in whatever process group."""
    try:
        return set(psutil.Process(pid).children(recursive=True))
    except psutil.NoSuchProcess:
        return set()


def is_reaper(process: psutil.Process) -> bool:
    """Whether a process is there only to end others when their owner is gone."""
    try:
        return any(word.endswith("process_reaper.py") for word in process.cmdline())
    except psutil.NoSuchProcess:
        return False


def living(processes: set[psutil.Process]) -> list[psutil.Process]:
    """Those that still run: the same ones, and not others that have their ids now."""
    return [one for one in processes if one.is_running() and is_alive(one.pid)]


def is_alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_for_some(find: Callable[[], list[Found]], seconds: float) -> list[Found]:
    """The first findings within this many seconds."""
    deadline = time.monotonic() + seconds
    while not (found := find()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


def wait_for_none(find: Callable[[], list[Found]], seconds: float) -> list[Found]:
    """The findings left after this many seconds; empty as soon as there are none."""
    deadline = time.monotonic() + seconds
    while (found := find()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found
