"""A job under faults: `headrace train`, disturbed, and resumed when it ended.

In: a test bed, overrides, faults. Out: the applied faults with their times, and the job's history.
Promises: only processes that the job's supervisor started are signalled; nothing of the job
outlives `end`.
"""

import contextlib
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
from benchmarks.robustness.chaos_testbed import Testbed, hold
from headrace.host.install import ROOT
from headrace.protocol.messages.environments import InsertedMessage, PolicyTurn, Step
from headrace.run_files.update_log import read_applied
from headrace_cli.launch.monitor import coordinator_of
from storage.queries.processes import supervisor_events

PATIENCE_S = 150.0
"""Seconds without an update after which the run counts as hung."""
END_S = 150.0
"""Maximum seconds from a Ctrl-C to the end of the run."""
ENDED = (0, 130)
"""Exit codes of a run that ended well by itself or by a Ctrl-C."""
REAP_S = 15.0
"""Seconds after a job's end in which its processes may still exist."""
APPEAR_S = 60.0
"""Maximum seconds that a fault waits for its target."""
MAX_FAILED_RESUMES = 3
"""Consecutive resumes without an update after which a run counts as not resumable."""
RECIPE = ROOT / "recipes" / "quickstart.toml"
SMALL = (
    "schedule.batch_windows=16", "algorithm.value.warmup_updates=1", "dashboard.enabled=false",
    "evaluation.before=false", "evaluation.after=false", "evaluation.every_updates=null",
    "stop.updates=null", f"transport.heartbeat_timeout_s={HEARTBEAT_S:g}",
)  # fmt: skip
"""Settings with short updates and without an end."""
Found = TypeVar("Found")


class ManyTurns:
    """An environment of two to six turns; words and rewards depend on seed and turns."""

    def reset(self, row: Mapping[str, Any], seed: int) -> None:
        self._draw = random.Random(seed)
        self._left = self._draw.randint(2, 6)

    def step(self, turn: PolicyTurn) -> Step:
        """Insert some digits, the last of which depends on the length of the turn's text."""
        self._left -= 1
        text = "".join(self._draw.choices("123456789", k=4)) + str(len(turn.text) % 9)
        messages = [InsertedMessage("user", text)]
        return Step(messages=messages, reward=turn.tokens % 3 / 4, done=not self._left)


def start_process(command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """Start a process of this tree's code in its own session, with output to the log."""
    with log.open("ab") as file:
        return subprocess.Popen(
            command, stdout=file, stderr=file, cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)}, start_new_session=True,
        )  # fmt: skip


class RunFolder:
    """The folder of one run. `root`: the parent of the run's own folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def exists(self) -> bool:
        return any(path.is_dir() for path in self.root.iterdir())

    @property
    def run_dir(self) -> Path:
        (folder,) = [p for p in self.root.iterdir() if p.is_dir() and not p.is_symlink()]
        return folder

    def updates(self) -> list[float]:
        """Return the times at which updates were in the weights."""
        return [line.at for _, line in read_applied(self.run_dir)] if self.exists() else []


@dataclass(frozen=True, slots=True)
class FaultEvent:
    """An applied fault: its begin and end (seconds since 1970), and its process."""

    fault: Fault
    began: float
    over: float
    pid: int


@dataclass
class JobHistory:
    """History of a job. `ends`: its last output when it ended by itself.

    `hangs`: times without an update for `PATIENCE_S`. `orphans`: processes that outlived it."""

    faults: list[FaultEvent] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)
    resumes: int = 0
    hangs: int = 0
    orphans: int = 0
    resumable: bool = True
    last_code: int | None = None


class ChaosJob(RunFolder):
    """One run folder and the supervisor that serves it now."""

    def __init__(self, testbed: Testbed, overrides: Sequence[str]) -> None:
        super().__init__(testbed.root)
        self._testbed, self._overrides = testbed, overrides
        self.history = JobHistory()
        self._process: subprocess.Popen[bytes]
        self._log = testbed.root.parent.parent / "train.log"
        self._failed_resumes = 0
        self._seen: set[psutil.Process] = set()
        """All processes ever sampled in the job, their descendants included."""

    # -- life ----------------------------------------------------------------------------------

    def play(self, faults: Sequence[Fault]) -> JobHistory:
        """Start, apply every fault in time, and end by a Ctrl-C; leave nothing behind."""
        self._start()
        try:
            over = time.time()
            for fault in faults:
                if fault.settled or not self.history.faults:
                    self._await_update(over)
                time.sleep(fault.wait_s)
                if not self._up():
                    break
                if done := self._do(fault):
                    self.history.faults.append(done)
                    over = done.over
            self._await_update(over)
            self._finish()
        finally:
            self.end()
        return self.history

    def _start(self) -> None:
        command = [sys.executable, "-m", "headrace", "train", "--plain"]
        if self.exists():
            command += ["--resume", str(self.run_dir)]
        else:
            command += [str(RECIPE), "--root", str(self.root), *self._overrides]
        self._process = start_process(self._testbed.command(command), self._log)

    def _up(self) -> bool:
        """Resume the job if it ended; return False if it cannot be resumed."""
        code = self._process.poll()
        if code is None:
            return True
        self.history.last_code = code
        lines = self._log.read_text(errors="replace").rstrip().splitlines()
        self.history.ends.append(lines[-1] if lines else f"exit code {code}")
        self._count_orphans()
        return self._resume()

    def _resume(self) -> bool:
        self._failed_resumes += 1
        if self._failed_resumes > MAX_FAILED_RESUMES:
            self.history.resumable = False
            return False
        self.history.resumes += 1
        self._start()
        return True

    def _await_update(self, after: float) -> None:
        """Wait for an update that is in the weights after this moment."""
        deadline = time.monotonic() + PATIENCE_S
        while self.history.resumable:
            if max(self.updates(), default=0.0) > after:
                self._failed_resumes = 0
                return
            if not self._up():
                return
            if time.monotonic() > deadline:
                self.history.hangs += 1
                self._kill_job()
                deadline = time.monotonic() + PATIENCE_S
            self._look()
            time.sleep(0.2)

    def _finish(self) -> None:
        """End by a Ctrl-C; a run that its last faults ended is resumed before."""
        # A learner ends the update that it has while its run is being given up, and no other.
        self._await_update(time.time())
        if self._up():
            self._look()
            self._process.send_signal(signal.SIGINT)
            try:
                self.history.last_code = self._process.wait(END_S)
            except subprocess.TimeoutExpired:
                self.history.hangs += 1
        self.end()
        self._count_orphans()

    def end(self) -> None:
        self._look()
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def _look(self) -> None:
        """Record the present processes of the job."""
        self._seen |= descendants(self._process.pid)

    def _count_orphans(self) -> None:
        """Wait for the processes of a job that ended; count and kill those that remain."""
        if left := wait_until(lambda: living(self._seen), REAP_S, some=False):
            self.history.orphans += len(left)
            for process in left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        self._seen.clear()

    # -- faults --------------------------------------------------------------------------------

    def _do(self, fault: Fault) -> FaultEvent | None:
        """Apply a fault; None where its target does not appear."""
        pid, network = self._process.pid, self._testbed.network
        if fault.role not in ("job", "machine"):
            found = wait_until(lambda: self._victims(fault), APPEAR_S, some=True)
            if not found:
                return None
            pid = found[fault.which % len(found)]
        began, was_done = time.time(), True
        match fault.kind:
            case "kill_job":
                self._kill_job()
            case "disk_full":
                self._testbed.disk_full(fault.seconds)
            case "slow_disk":
                self._testbed.slow_disk(fault.seconds)
            case "freeze_sql" if self._testbed.database:
                self._testbed.database.pause(fault.seconds)
            case "lose_sql" if self._testbed.database:
                self._testbed.database.away(fault.seconds)
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
        """Kill the supervisor, and resume when all its processes are gone."""
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
        """Return the pid of each process by name, from the supervisor's log."""
        rows = supervisor_events(self.run_dir) if self.exists() else []
        return {row["name"]: row["pid"] for row in rows if row.get("pid")}


def _send_signal(pid: int, fault: Fault) -> bool:
    """Kill a process, or stop it for the fault's time; return whether that was done."""
    try:
        if fault.kind in KILLS:
            os.kill(pid, signal.SIGKILL)
            return True
        os.kill(pid, signal.SIGSTOP)
        hold(fault.seconds, lambda: os.kill(pid, signal.SIGCONT))
    except ProcessLookupError:
        # It ended before, or the supervisor replaced it while it was stopped.
        return fault.kind in STOPS
    return True


def descendants(pid: int) -> set[psutil.Process]:
    """Return all descendants of a process, in any process group."""
    try:
        return set(psutil.Process(pid).children(recursive=True))
    except psutil.NoSuchProcess:
        return set()


def is_reaper(process: psutil.Process) -> bool:
    """Return whether a process only ends others when their owner is gone."""
    try:
        return any(word.endswith("process_reaper.py") for word in process.cmdline())
    except psutil.NoSuchProcess:
        return False


def living(processes: set[psutil.Process]) -> list[psutil.Process]:
    """Return those that still run, without other processes that reuse their ids."""
    return [one for one in processes if one.is_running() and is_alive(one.pid)]


def is_alive(pid: int) -> bool:
    """Return whether a process exists and is no zombie."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until(find: Callable[[], list[Found]], seconds: float, *, some: bool) -> list[Found]:
    """Return the findings once there are `some`, or none, or after this many seconds."""
    deadline = time.monotonic() + seconds
    while bool(found := find()) != some and time.monotonic() < deadline:
        time.sleep(0.1)
    return found
