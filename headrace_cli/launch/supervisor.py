"""The supervisor of a run: starts, restarts and ends its processes in order.

In: `ProcessSpec`s and a `RunController` (how to ask the coordinator to stop, and what to show).
Out: a `RunOutcome`, `supervisor.jsonl` with every start and death, `logs/NAME.log`.

Promises: no process outlives the supervisor (see `process_reaper.py`); only process groups of the
run are signalled; the first cause of a failure is what `RunOutcome` names; a coordinator that lives
and does not answer ends the run. The coordinator comes first, the rest once it has an address. The
page may stay a while after the others (see `AtEnd`). Ctrl-C or SIGTERM asks the coordinator to stop
(drain, checkpoint, end) and waits while that makes progress; a second one, or none for too long,
ends the groups by SIGTERM and then SIGKILL. Where nobody makes progress, or a stop comes to no end,
every process writes its stacks into its log first.
"""

import contextlib
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Protocol

from headrace.host.disk import WAIT_PREFIX
from headrace.host.hardware import free_port
from headrace.host.shared_memory import remove_weights
from headrace.run_files.checked_lines import checked_line, cut_torn
from headrace.run_files.run_folder import EVENTS_FILE
from headrace_cli.launch.logs import append_some, first_cause
from headrace_cli.launch.monitor import announced_at, coordinator_of
from headrace_cli.launch.plan import ADDRESS, MASTER_ADDRESS, MASTER_PORT, ProcessSpec
from headrace_cli.launch.process import ChildProcess, ProcessLauncher, describe_exit

DONE, OURS, USER, INTERRUPTED = 0, 1, 2, 130
_CAUSE_LINES = 400
"""Number of last log lines that are searched for the reason of a process's end."""


@dataclass(frozen=True)
class SupervisorDeadlines:
    """Seconds: of a silent coordinator without an address; without progress from a stop request to
    SIGTERM; from the coordinator's end to the others'; from SIGTERM to SIGKILL; between two
    looks."""

    start_s: float = 120.0
    stop_s: float = 120.0
    leave_s: float = 20.0
    kill_s: float = 10.0
    poll_s: float = 0.1


@dataclass(frozen=True)
class RunOutcome:
    """Result of a run: exit code, and the first cause where it failed (with the tail of a log)."""

    code: int
    cause: str = ""
    tail: str = ""


AtEnd = Callable[[RunOutcome], Callable[[], bool]]
"""Called when all but the page have ended; the returned function is polled while it says that the
page is wanted."""


class RunController(Protocol):
    """Interface of the supervisor's observer of a run."""

    def connect(self, address: str) -> None:
        """The coordinator can be reached here (again)."""

    def tick(self) -> None:
        """Called about ten times a second."""

    def note(self, text: str) -> None:
        """Something the user should read now."""

    def request_stop(self) -> None:
        """Ask the coordinator to drain, write a checkpoint and end."""

    def run_progress(self) -> tuple[str, float]:
        """Return the processes' progress with the newest checkpoint, and the seconds since the run
        made progress; infinite where that is not known."""

    @property
    def stalled(self) -> bool:
        """Return whether nobody makes progress and the coordinator is about to give up."""

    @property
    def lost(self) -> str:
        """Return why a coordinator that lives counts as lost; empty where it does not."""


class Supervisor:
    """One run's processes. Use `run()` once, in the main thread."""

    def __init__(
        self,
        run_dir: Path,
        specs: Sequence[ProcessSpec],
        controller: RunController,
        *,
        resume: bool = False,
        deadlines: SupervisorDeadlines = SupervisorDeadlines(),
        launcher: ProcessLauncher | None = None,
        at_end: AtEnd | None = None,
    ) -> None:
        """`launcher`: what starts the processes; None: they are processes of this host."""
        self._run_dir, self._controller, self._at_end = run_dir, controller, at_end
        self._resume, self._deadlines = resume, deadlines
        self._children = [ChildProcess(spec) for spec in specs]
        self._coordinator, *self._others = self._children
        self._launcher = launcher or ProcessLauncher()
        self._address = ""
        self._master_port: int | None = None
        self._cause: RunOutcome | None = None
        self._interrupts = 0
        self._stop_asked_at: float | None = None
        self._asked_for_stacks = False
        self._unwritten = b""

    def run(self) -> RunOutcome:
        with contextlib.suppress(OSError):  # a disk that takes nothing
            cut_torn(self._run_dir / EVENTS_FILE)
        with signal_handler(self._interrupted, *stop_signals()), self._launcher:
            try:
                self._live()
                roles = [child for child in self._children if child.spec.role != "dashboard"]
                self._launcher.end(roles, grace_s=self._deadlines.kill_s)
                remove_weights(self._run_dir.name)  # a learner may have been killed
                outcome = self._cause or RunOutcome(INTERRUPTED if self._interrupts else DONE)
                self._event("ended", "supervisor", code=outcome.code, detail=outcome.cause)
                self._keep_page(outcome)
            finally:
                self._launcher.end(self._children, grace_s=self._deadlines.kill_s)
        return outcome

    def _live(self) -> None:
        """From the start of the coordinator to its end, or to what ends the run before."""
        with contextlib.suppress(_EndRunError):
            self._start_coordinator(*(("--resume",) if self._resume else ()))
            for child in self._others:
                self._check_interrupt()
                self._start(child)
            self._watch()

    # -- life ----------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Watch until the coordinator has ended in good order, or something else ends the run."""
        while self._coordinator.running:
            self._check_interrupt()
            self._launcher.renew_reaper()
            self._controller.tick()
            if self._controller.stalled:
                self._ask_for_stacks()
            else:
                self._asked_for_stacks = False  # It went on: a next stall dumps again.
            if lost := self._controller.lost:
                self._ask_for_stacks()
                self._cause = RunOutcome(OURS, lost, self._coordinator.tail())
                raise _EndRunError
            # All before any: a learner rank ends the others, whose own causes would be lost.
            dead = [(child, self._launcher.reap(child)) for child in self._children]
            for child, code in dead:
                if code is not None:
                    self._died(child, code)
            now = time.monotonic()
            for child in self._others:
                if child.restart_at is not None and now >= child.restart_at:
                    self._start(child)
            time.sleep(self._deadlines.poll_s)
        codes = self._launcher.await_all(
            [child for child in self._others if child.spec.needed and child.spec.leaves],
            timeout_s=self._deadlines.leave_s,
        )
        for name, code in codes.items():
            self._event("left", name, code=code)

    def _died(self, child: ChildProcess, code: int) -> None:
        name, spec = child.spec.name, child.spec
        if code == 0 and spec.leaves:
            self._event("left", name, code=0)
            return
        detail = self._note_death(child, code)
        if self._stop_asked_at is not None and child is not self._coordinator:
            return
        if self._may_take_over(child, code):
            self._restart_coordinator(detail)
        elif child is self._coordinator or code == USER or child.deaths > spec.restarts.limit:
            self._give_up(child, code, detail)
        else:
            delay = spec.restarts.delay_s * 2 ** (child.deaths - 1)
            self._controller.note(f"{name} died ({detail}): starting it again in {delay:.0f} s")
            self._restart_later(child, delay)

    def _note_death(self, child: ChildProcess, code: int) -> str:
        """Count a death and write it down; returns how the process ended."""
        detail = describe_exit(code)
        self._event("died", child.spec.name, code=code, detail=detail)
        lived = time.monotonic() - child.started_at
        child.deaths = 1 if lived > child.spec.restarts.forgive_s else child.deaths + 1
        return detail

    def _may_take_over(self, child: ChildProcess, code: int) -> bool:
        """Return whether a killed coordinator may restart from its journal, below its limit."""
        return child is self._coordinator and code < 0 and child.deaths <= child.spec.restarts.limit

    def _restart_later(self, child: ChildProcess, delay_s: float) -> None:
        """A learner comes back with all its ranks, from its last checkpoint."""
        at = time.monotonic() + delay_s
        peers = [child]
        if child.spec.role == "learner":
            peers = [other for other in self._others if other.spec.role == "learner"]
            self._launcher.end(peers, grace_s=self._deadlines.kill_s)
            self._master_port = None
        for peer in peers:
            peer.restart_at = at

    def _give_up(self, child: ChildProcess, code: int, detail: str) -> None:
        name = child.spec.name
        why = first_cause(child.tail(_CAUSE_LINES)) if code > 0 else ""
        user, cause = code == USER and why, why
        # A coordinator that ends a run says why; other processes are named.
        if not user and not (why and child is self._coordinator):
            times = f" {child.deaths} times" if child.deaths > 1 else ""
            cause = f"{name} died{times} ({detail})" + (f": {why}" if why else "")
        child.gave_up = True
        if not self._is_needed(child, code):
            self._controller.note(
                f"{name} stays away and the run goes on: {cause}; {child.spec.log}"
            )
            self._event("gave_up", name, code=code, detail=f"{cause}; the run goes on without it")
            return
        self._cause = RunOutcome(USER if user else OURS, cause, "" if user else child.tail())
        self._event("gave_up", name, code=code, detail=cause)
        raise _EndRunError

    def _is_needed(self, child: ChildProcess, code: int) -> bool:
        """Return whether the run ends without this process. Of several generators one that cannot
        live is not needed, unless by a mistake that all of them share."""
        if child.spec.role != "generator" or code == USER:
            return child.spec.needed
        return all(each.gave_up for each in self._others if each.spec.role == "generator")

    # -- starting ------------------------------------------------------------------------------

    def _start(self, child: ChildProcess, *extra: str) -> None:
        if child.spec.role == "learner" and self._master_port is None:
            self._master_port = free_port()
        values = {
            ADDRESS: self._address,
            MASTER_ADDRESS: "127.0.0.1",
            MASTER_PORT: str(self._master_port),
        }
        first, child.restart_at = child.started_at == 0.0, None
        try:
            pid = self._launcher.start(child, values, *extra)
        except OSError as error:  # The host has no process or memory left.
            if child.running:
                raise  # It is the reaper that cannot be had.
            with contextlib.suppress(OSError):
                append_some(child.spec.log, f"error: it cannot be started: {error}\n".encode())
            child.log, child.started_at = None, time.monotonic()
            return self._died(child, OURS)
        self._event("started" if first else "restarted", child.spec.name, pid=pid)

    def _start_coordinator(self, *extra: str) -> None:
        """Start the coordinator and wait for its address while it prints anything or waits for a
        disk; start another if it is killed during a takeover."""
        child = self._coordinator
        before, said = announced_at(self._run_dir), child.tail(1)
        self._start(child, *extra)
        heard, waits, waited = time.monotonic(), False, False
        while True:
            # Hosts give the same process ids: the file of the one before may have this one's.
            is_new = announced_at(self._run_dir) != before
            found = coordinator_of(self._run_dir)
            if found and is_new and found[1] == self._launcher.pid(child):
                break
            code = self._launcher.reap(child)
            if code is not None:
                detail = self._note_death(child, code)
                if not (extra and self._may_take_over(child, code)):
                    self._give_up(child, code, detail)
                self._note_restart(detail)
                return self._start_coordinator(*extra)
            if (line := child.tail(1)) != said:
                heard, said, waits = time.monotonic(), line, line.startswith(WAIT_PREFIX)
                if waits and not waited:
                    self._controller.note(f"coordinator {line}")
                    waited = True
            if not waits and time.monotonic() - heard > self._deadlines.start_s:
                silent = f"has no address, and said nothing for {self._deadlines.start_s:.0f} s"
                self._cause = RunOutcome(OURS, f"coordinator {silent}", child.tail())
                raise _EndRunError
            self._check_interrupt()
            self._launcher.renew_reaper()
            self._controller.tick()
            time.sleep(self._deadlines.poll_s)
        if waited:
            self._controller.note("coordinator goes on")
        self._address = found[0]
        self._controller.connect(self._address)

    def _note_restart(self, detail: str) -> None:
        self._controller.note(f"coordinator was {detail}: starting it again from its journal")

    def _restart_coordinator(self, detail: str) -> None:
        before = self._address
        self._note_restart(detail)
        self._start_coordinator("--resume", "--patient")
        if self._stop_asked_at is not None:
            self._controller.request_stop()  # The one that was asked is gone.
        if self._address == before:
            return
        roles = [child for child in self._others if child.spec.role not in ("dashboard", "judge")]
        self._launcher.end(roles, grace_s=self._deadlines.kill_s)
        for child in roles:
            child.restart_at = time.monotonic()

    # -- ending --------------------------------------------------------------------------------

    def _keep_page(self, outcome: RunOutcome) -> None:
        """Say that the run has ended; keep the page up as long as it is wanted, or until Ctrl-C."""
        if self._at_end is None:
            return
        interrupts = self._interrupts
        is_wanted = self._at_end(outcome)
        pages = [child for child in self._others if child.spec.role == "dashboard"]
        while any(page.running for page in pages) and self._interrupts == interrupts:
            if not is_wanted():
                return
            for page in pages:
                self._launcher.reap(page)
            time.sleep(self._deadlines.poll_s)

    def _check_interrupt(self) -> None:
        """Pass a Ctrl-C on to the coordinator; end at once on a second one or at the deadline."""
        if self._interrupts == 0:
            return
        if not self._address:
            raise _EndRunError
        standing, still_s = self._controller.run_progress()
        if self._interrupts > 1:
            self._controller.note(f"ending at once: {standing}, and what was trained since is lost")
            raise _EndRunError
        now = time.monotonic()
        if self._stop_asked_at is None:
            self._stop_asked_at = now
            self._event("stopping", "supervisor")
            self._controller.note(
                "stopping: draining and writing a checkpoint (Ctrl-C again ends at once); "
                + standing
            )
            self._controller.request_stop()
            for child in self._others:
                child.restart_at = None
        elif min(now - self._stop_asked_at, still_s) > (stop_s := self._deadlines.stop_s):
            self._controller.note(f"no progress for {stop_s:.0f} s: ending processes; {standing}")
            self._ask_for_stacks()
            raise _EndRunError

    def _ask_for_stacks(self) -> None:
        """Have every process write its stacks into its log, once, before they are ended."""
        if self._asked_for_stacks:
            return
        self._asked_for_stacks = True
        for child in self._children:
            if child.running:
                self._launcher.ask_for_stacks(child)
                self._event("stacks", child.spec.name)
        logs = self._coordinator.spec.log.parent
        self._controller.note(f"what each process was doing stands in its log in {logs}")

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        # When a terminal closes its shell sends SIGHUP, and then the kernel does.
        if number != signal.SIGHUP or not self._interrupts:
            self._interrupts += 1

    def _event(
        self, event: str, name: str, *, pid: int = 0, code: int | None = None, detail: str = ""
    ) -> None:
        """One line of supervisor.jsonl."""
        row = {"at": time.time(), "event": event, "name": name}
        row |= {"pid": pid} if pid else {}
        row |= {"code": code} if code is not None else {}
        row |= {"detail": detail} if detail else {}
        self._unwritten += checked_line(row)
        with contextlib.suppress(OSError):  # a disk that takes nothing: with the next event
            self._unwritten = append_some(self._run_dir / EVENTS_FILE, self._unwritten)


def stop_signals() -> list[int]:
    """Return the signals that ask for an orderly end: also a terminal's that closes, unless it is
    ignored, as it is under nohup."""
    heard = signal.getsignal(signal.SIGHUP) != signal.SIG_IGN
    return [signal.SIGINT, signal.SIGTERM, *[signal.SIGHUP] * heard]


@contextlib.contextmanager
def signal_handler(
    handler: Callable[[int, FrameType | None], None], *numbers: int
) -> Iterator[None]:
    """Inside, these signals go to a handler; afterwards to those of before."""
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


class _EndRunError(Exception):
    """Raised to leave the watch and end everything now."""
