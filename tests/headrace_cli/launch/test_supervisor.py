"""The supervisor with real processes that follow a script: order, restarts, causes, no orphans."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headrace.host.process_reaper import ProcessReaper
from headrace.host.shared_memory import FOLDER
from headrace.run_files.checked_lines import whole_lines
from headrace_cli.launch.plan import ADDRESS, ProcessSpec, RestartPolicy, SpecRole
from headrace_cli.launch.process import ChildProcess, ProcessLauncher
from headrace_cli.launch.supervisor import OURS, RunOutcome, Supervisor, SupervisorDeadlines
from tests.documented import is_documented
from tests.headrace_cli.launch import scripted_role
from tests.small_disk import small_disk

SCRIPT = str(Path(scripted_role.__file__))
ROOT = Path(__file__).resolve().parents[3]
QUICK = SupervisorDeadlines(start_s=60.0, stop_s=5.0, leave_s=0.3, kill_s=1.0, poll_s=0.01)
ONCE = RestartPolicy(limit=1, delay_s=0.01)
NEVER = RestartPolicy()


class Script:
    """A `RunController` that does something when a condition holds."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.stop_file = run_dir / "stop"
        self.notes: list[str] = []
        self.addresses: list[str] = []
        self.stops = 0
        self.obeys = True
        self.stalled = False
        self.lost = ""
        self.moved_s = float("inf")
        self.far = "learner-0 update 9: step 3 of 8; the newest checkpoint is of update 6"
        self.steps: list[tuple[Callable[[], bool], Callable[[], None]]] = []

    def when(self, condition: Callable[[], bool], action: Callable[[], None]) -> None:
        self.steps.append((condition, action))

    def finish(self) -> None:
        self.stop_file.write_text("")

    def connect(self, address: str) -> None:
        self.addresses.append(address)

    def tick(self) -> None:
        if self.steps and self.steps[0][0]():
            self.steps.pop(0)[1]()

    def note(self, text: str) -> None:
        self.notes.append(text)

    def run_progress(self) -> tuple[str, float]:
        return self.far, self.moved_s

    def request_stop(self) -> None:
        self.stops += 1
        if self.obeys:
            self.finish()

    def events(self, name: str) -> list[str]:
        """What supervisor.jsonl says of one process."""
        return [row["event"] for row in self.rows() if row["name"] == name]

    def rows(self) -> list[dict[str, Any]]:
        return list(whole_lines(self.run_dir / "supervisor.jsonl"))


@pytest.fixture
def script(tmp_path: Path) -> Script:
    return Script(tmp_path)


def spec(
    script: Script,
    name: str,
    role: SpecRole,
    *words: object,
    restarts: RestartPolicy = NEVER,
    needed: bool = True,
) -> ProcessSpec:
    argv = (sys.executable, SCRIPT, *map(str, words))
    log = script.run_dir / "logs" / f"{name}.log"
    return ProcessSpec(name, role, argv, {}, log, restarts=restarts, needed=needed)


def coordinator(script: Script, deaths: int = 0, limit: int = 1) -> ProcessSpec:
    """`deaths`: so often it is killed while it takes the run over."""
    words = ("coordinator", script.run_dir, script.stop_file, deaths)
    restarts = RestartPolicy(limit=limit, delay_s=0.01)
    return spec(script, "coordinator", "coordinator", *words, restarts=restarts)


def run(script: Script, *specs: ProcessSpec, deadlines: SupervisorDeadlines = QUICK) -> RunOutcome:
    """How the run ended; all that the user was told meanwhile is on the page of operations."""
    whole = [coordinator(script), *specs]
    outcome = Supervisor(script.run_dir, whole, script, deadlines=deadlines).run()
    assert [note for note in script.notes if not is_documented(note)] == []
    if outcome.code == OURS:
        assert is_documented(f"error: {outcome.cause}; logs in {script.run_dir / 'logs'}")
    return outcome


def gone(pid: int) -> bool:
    """Whether a process has ended (a zombie that nobody has waited for counts)."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state == "Z"


def written(path: Path) -> bool:
    """Whether a process has said its id."""
    return path.exists() and bool(path.read_text())


def soon(condition: Callable[[], bool], timeout_s: float = 20.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return False


def test_a_run_that_ends_by_itself(script: Script) -> None:
    pid_file = script.run_dir / "pid"
    script.when(partial(written, pid_file), script.finish)
    outcome = run(script, spec(script, "reward-0", "reward", "stay", pid_file))
    assert outcome == RunOutcome(0)
    assert script.addresses == ["tcp://127.0.0.1:1"]
    assert gone(int(pid_file.read_text()))
    rows = script.rows()
    assert [row["name"] for row in rows[:2]] == ["coordinator", "reward-0"]
    assert rows[-1] == {"at": rows[-1]["at"], "event": "ended", "name": "supervisor", "code": 0}


def test_the_address_reaches_the_others(script: Script) -> None:
    mark = script.run_dir / "mark"
    argv = (sys.executable, "-c", f"open({str(mark)!r}, 'w').write({ADDRESS!r})")
    log = script.run_dir / "logs" / "generator-0.log"
    script.when(lambda: mark.exists() and bool(mark.read_text()), script.finish)
    run(script, ProcessSpec("generator-0", "generator", argv, {}, log))
    assert mark.read_text() == "tcp://127.0.0.1:1"


def test_a_generator_that_dies_is_started_again(script: Script) -> None:
    mark = script.run_dir / "mark"
    generator = spec(script, "generator-0", "generator", "die-once", mark, 1, restarts=ONCE)
    script.when(lambda: "restarted" in script.events("generator-0"), script.finish)
    assert run(script, generator).code == 0
    assert script.events("generator-0")[:3] == ["started", "died", "restarted"]
    assert any("generator-0 died (exit code 1)" in note for note in script.notes)


def test_a_judge_that_was_asked_to_end_before_the_run_is_started_again(script: Script) -> None:
    words = ("die-once", script.run_dir / "mark", 0)
    judge = spec(script, "judge-fair", "judge", *words, restarts=ONCE)
    script.when(lambda: "restarted" in script.events("judge-fair"), script.finish)
    assert run(script, replace(judge, leaves=False)).code == 0
    assert script.events("judge-fair")[:3] == ["started", "died", "restarted"]


def test_restarts_are_bounded_and_the_first_cause_is_named(script: Script) -> None:
    reward = spec(script, "reward-0", "reward", "die", 1, restarts=ONCE)
    outcome = run(script, reward, spec(script, "generator-0", "generator", "stay"))
    assert outcome.code == 1
    assert outcome.cause == "reward-0 died 2 times (exit code 1): something is wrong here"
    assert "something is wrong here" in outcome.tail
    assert script.events("reward-0") == ["started", "died", "restarted", "died", "gave_up"]


def test_a_run_of_several_generators_goes_on_without_one_that_cannot_live(script: Script) -> None:
    dies = spec(script, "generator-0", "generator", "die", 1, restarts=ONCE)
    script.when(lambda: "gave_up" in script.events("generator-0"), script.finish)
    assert run(script, dies, spec(script, "generator-1", "generator", "stay")) == RunOutcome(0)
    assert any("generator-0 stays away and the run goes on" in note for note in script.notes)


def test_a_run_without_any_generator_that_can_live_ends(script: Script) -> None:
    words = ("generator", "die", 1)
    both = [spec(script, f"generator-{n}", *words, restarts=ONCE) for n in (0, 1)]  # type: ignore[arg-type]
    outcome = run(script, *both)
    assert outcome.code == 1
    assert outcome.cause.endswith("died 2 times (exit code 1): something is wrong here")
    gave_up = [row["name"] for row in script.rows() if row["event"] == "gave_up"]
    assert sorted(gave_up) == ["generator-0", "generator-1"]


class FullHost(ProcessLauncher):
    """Has no room for the first generator at the first attempts."""

    def __init__(self, attempts: int) -> None:
        super().__init__()
        self.attempts = attempts

    def start(self, child: ChildProcess, placeholders: Mapping[str, str], *extra: str) -> int:
        if child.spec.name == "generator-0" and self.attempts:
            self.attempts -= 1
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        return super().start(child, placeholders, *extra)


@pytest.mark.parametrize(
    ("attempts", "cause"),
    [
        (1, ""),
        (
            2,
            "generator-0 died 2 times (exit code 1): it cannot be started: [Errno 11] Resource "
            "temporarily unavailable",
        ),
    ],
)
def test_what_a_full_host_cannot_start_is_started_later(
    script: Script, attempts: int, cause: str
) -> None:
    (script.run_dir / "logs").mkdir()
    pid_file = script.run_dir / "pid"
    script.when(partial(written, pid_file), script.finish)
    generator = spec(script, "generator-0", "generator", "stay", pid_file, restarts=ONCE)
    whole, launcher = [coordinator(script), generator], FullHost(attempts)
    supervisor = Supervisor(script.run_dir, whole, script, deadlines=QUICK, launcher=launcher)
    assert supervisor.run().cause == cause
    assert script.events("generator-0")[:2] == ["died", "died" if cause else "restarted"]
    assert [note for note in script.notes if not is_documented(note)] == []


def test_what_a_full_host_cannot_start_and_a_run_can_do_without_is_left_alone(
    script: Script,
) -> None:
    generators = [
        spec(script, f"generator-{number}", "generator", "stay", restarts=ONCE) for number in (0, 1)
    ]
    script.when(lambda: "gave_up" in script.events("generator-0"), lambda: None)
    for _ in range(20):
        script.when(lambda: True, lambda: None)
    script.when(lambda: True, script.finish)
    whole, launcher = [coordinator(script), *generators], FullHost(9)
    supervisor = Supervisor(script.run_dir, whole, script, deadlines=QUICK, launcher=launcher)
    assert supervisor.run() == RunOutcome(0)
    assert launcher.attempts == 7
    assert script.events("generator-0") == ["died", "died", "gave_up"]


def test_the_users_mistake_in_a_role_is_one_line(script: Script) -> None:
    outcome = run(script, spec(script, "generator-0", "generator", "die", 2, restarts=ONCE))
    assert outcome == RunOutcome(2, "something is wrong here")
    assert script.events("generator-0") == ["started", "died", "gave_up"]


def test_all_learner_ranks_come_back_together(script: Script) -> None:
    mark = script.run_dir / "mark"
    first = spec(script, "learner-0", "learner", "stay", restarts=ONCE)
    second = spec(script, "learner-1", "learner", "die-once", mark, 1, restarts=ONCE)
    script.when(
        lambda: all("restarted" in script.events(f"learner-{rank}") for rank in (0, 1)),
        script.finish,
    )
    assert run(script, first, second).code == 0


def test_the_users_mistake_in_a_rank_is_not_lost_behind_another_ranks_death(script: Script) -> None:
    """Rank 0 loses its connection to rank 1, and both have ended at the supervisor's next look."""
    first = spec(script, "learner-0", "learner", "die", 1, restarts=ONCE)
    second = spec(script, "learner-1", "learner", "die", 2, restarts=ONCE)

    def await_both() -> None:
        while not all(gone(row["pid"]) for row in script.rows() if "learner" in row["name"]):
            time.sleep(0.01)

    script.when(lambda: bool(script.events("learner-1")), await_both)
    outcome = run(script, first, second)
    assert outcome == RunOutcome(2, "something is wrong here")
    assert script.events("learner-1") == ["started", "died", "gave_up"]


def test_a_run_goes_on_without_its_page(script: Script) -> None:
    page = spec(script, "dashboard", "dashboard", "die", 1, restarts=ONCE, needed=False)
    script.when(lambda: any("stays away" in note for note in script.notes), script.finish)
    assert run(script, page).code == 0


@pytest.mark.parametrize(("code", "starts"), [(1, 2), (2, 1)])
def test_a_run_goes_on_without_what_it_does_not_need_and_says_so(
    script: Script, code: int, starts: int
) -> None:
    words = ("die", code)
    judge = spec(script, "judge-fair", "judge", *words, restarts=ONCE, needed=False)
    script.when(lambda: "gave_up" in script.events("judge-fair"), script.finish)
    assert run(script, judge) == RunOutcome(0)
    events = script.events("judge-fair")
    assert (events.count("died"), events[-1]) == (starts, "gave_up")
    (said,) = [row for row in script.rows() if row["event"] == "gave_up"]
    assert said["detail"].endswith("; the run goes on without it")
    assert any("judge-fair stays away" in note for note in script.notes)


def test_the_page_stays_while_it_is_wanted(script: Script) -> None:
    reward_pid, page_pid = script.run_dir / "reward", script.run_dir / "page"
    script.when(lambda: written(reward_pid) and written(page_pid), script.finish)
    asked: list[bool] = []

    def at_end(outcome: RunOutcome) -> Callable[[], bool]:
        assert outcome == RunOutcome(0)
        assert script.rows()[-1]["event"] == "ended"
        assert gone(int(reward_pid.read_text()))

        def is_wanted() -> bool:
            asked.append(not gone(int(page_pid.read_text())))
            return len(asked) < 3

        return is_wanted

    specs = [
        coordinator(script),
        spec(script, "reward-0", "reward", "stay", reward_pid),
        spec(script, "dashboard", "dashboard", "stay", page_pid, needed=False),
    ]
    run_dir = script.run_dir
    outcome = Supervisor(run_dir, specs, script, deadlines=QUICK, at_end=at_end).run()
    assert outcome == RunOutcome(0)
    assert asked == [True] * 3
    assert gone(int(page_pid.read_text()))


def test_ctrl_c_ends_the_page_that_stays(script: Script) -> None:
    page_pid = script.run_dir / "page"
    script.when(lambda: written(page_pid), script.finish)

    def is_wanted() -> bool:
        interrupt()
        return True

    def at_end(outcome: RunOutcome) -> Callable[[], bool]:
        return is_wanted

    specs = [coordinator(script), spec(script, "dashboard", "dashboard", "stay", page_pid)]
    run_dir = script.run_dir
    outcome = Supervisor(run_dir, specs, script, deadlines=QUICK, at_end=at_end).run()
    assert outcome == RunOutcome(0)
    assert gone(int(page_pid.read_text()))


def test_a_coordinator_that_gives_up_ends_the_run(script: Script) -> None:
    words = (sys.executable, SCRIPT, "die", "1")
    log = script.run_dir / "logs" / "coordinator.log"
    broken = ProcessSpec("coordinator", "coordinator", words, {}, log, restarts=ONCE)
    outcome = Supervisor(script.run_dir, [broken], script, deadlines=QUICK).run()
    assert outcome.code == 1
    assert outcome.cause == "something is wrong here"


def test_a_full_disk_hides_no_cause(tmp_path: Path) -> None:
    """Logs and events cannot be written: why the run ended is told all the same."""
    with small_disk(tmp_path / "disk", "1m") as disk:
        script = Script(disk.path)
        reward = spec(script, "reward-0", "reward", "die", 1)
        words = ("coordinator", tmp_path, tmp_path / "stop")
        whole = spec(script, "coordinator", "coordinator", *words)
        (disk.path / "logs").mkdir()
        disk.fill()
        outcome = Supervisor(tmp_path, [whole, reward], script, deadlines=QUICK).run()
        assert outcome.cause == "reward-0 died (exit code 1): something is wrong here"
        assert "something is wrong here" in outcome.tail
        assert not [path for path in (disk.path / "logs").iterdir() if path.stat().st_size]


def test_a_coordinator_without_an_address_is_not_waited_for_for_ever(script: Script) -> None:
    words = (sys.executable, SCRIPT, "stay")
    log = script.run_dir / "logs" / "coordinator.log"
    mute = ProcessSpec("coordinator", "coordinator", words, {}, log)
    brief = SupervisorDeadlines(start_s=0.2, kill_s=1.0, poll_s=0.01)
    outcome = Supervisor(script.run_dir, [mute], script, deadlines=brief).run()
    assert outcome.code == 1
    assert outcome.cause == "coordinator has no address, and said nothing for 0 s"
    assert is_documented(f"error: {outcome.cause}; logs in here")


def run_of_a_slow_start(script: Script, whole: ProcessSpec, start_s: float) -> RunOutcome:
    """Where the coordinator has so much time from its first line on; until then its interpreter
    starts."""
    supervisor = Supervisor(script.run_dir, [whole], script, deadlines=QUICK)
    brief = replace(QUICK, start_s=start_s)
    script.when(lambda: written(whole.log), partial(setattr, supervisor, "_deadlines", brief))
    script.when(lambda: bool(script.addresses), script.finish)
    return supervisor.run()


def test_a_coordinator_that_reads_for_long_and_says_so_is_waited_for(script: Script) -> None:
    words = ("reads", script.run_dir, script.stop_file, 15)
    reads = spec(script, "coordinator", "coordinator", *words)
    assert run_of_a_slow_start(script, reads, 1.5) == RunOutcome(0)


def test_a_coordinator_that_waits_for_a_disk_is_waited_for(script: Script) -> None:
    words = ("waits", script.run_dir, script.stop_file, 2)
    waits = spec(script, "coordinator", "coordinator", *words)
    assert run_of_a_slow_start(script, waits, 1.0) == RunOutcome(0)
    room = "room for 1,024 bytes in /some/where, and 0 are free"
    assert script.notes == [f"coordinator waits: {room}", "coordinator goes on"]
    assert [note for note in script.notes if not is_documented(note)] == []


def test_a_killed_coordinator_resumes_and_the_others_follow_to_its_new_address(
    script: Script,
) -> None:
    script.when(
        lambda: "started" in script.events("generator-0"), partial(kill_coordinator, script)
    )
    script.when(lambda: "restarted" in script.events("generator-0"), script.finish)
    outcome = run(script, spec(script, "generator-0", "generator", "stay", restarts=ONCE))
    assert outcome.code == 0
    assert script.addresses == ["tcp://127.0.0.1:1", "tcp://127.0.0.1:2"]
    assert script.events("coordinator")[:3] == ["started", "died", "restarted"]


def kill_coordinator(script: Script) -> None:
    found = json.loads((script.run_dir / "coordinator.json").read_text())
    os.kill(found["pid"], signal.SIGKILL)


def test_a_coordinator_that_is_killed_while_it_takes_over_is_followed_by_another(
    script: Script,
) -> None:
    script.when(
        lambda: "started" in script.events("generator-0"), partial(kill_coordinator, script)
    )
    script.when(lambda: len(script.addresses) == 2, script.finish)
    whole = [
        coordinator(script, deaths=2, limit=3),
        spec(script, "generator-0", "generator", "stay"),
    ]
    assert Supervisor(script.run_dir, whole, script, deadlines=QUICK).run() == RunOutcome(0)
    deaths = ["died", "restarted"] * 3
    assert script.events("coordinator")[:7] == ["started", *deaths]
    killed = "coordinator was killed by SIGKILL: starting it again from its journal"
    assert script.notes.count(killed) == 3


def test_a_coordinator_that_is_killed_too_often_ends_the_run(script: Script) -> None:
    script.when(
        lambda: "started" in script.events("generator-0"), partial(kill_coordinator, script)
    )
    whole = [coordinator(script, deaths=2), spec(script, "generator-0", "generator", "stay")]
    outcome = Supervisor(script.run_dir, whole, script, deadlines=QUICK).run()
    assert (outcome.code, outcome.cause) == (1, "coordinator died 2 times (killed by SIGKILL)")


def test_a_coordinator_that_takes_over_is_asked_to_stop_where_the_one_before_was(
    script: Script,
) -> None:
    """The first one is killed after the Ctrl-C and before it has ended the run."""
    script.obeys = False
    script.when(lambda: "started" in script.events("generator-0"), interrupt)

    def kill() -> None:
        script.obeys = True
        kill_coordinator(script)

    script.when(lambda: script.stops == 1, kill)
    assert run(script, spec(script, "generator-0", "generator", "stay")) == RunOutcome(130)
    assert script.stops == 2


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_asks_the_coordinator_to_stop(script: Script, number: signal.Signals) -> None:
    pid_file = script.run_dir / "pid"
    script.when(partial(written, pid_file), lambda: os.kill(os.getpid(), number))
    outcome = run(script, spec(script, "reward-0", "reward", "stay", pid_file))
    assert outcome == RunOutcome(130)
    assert script.stops == 1
    assert gone(int(pid_file.read_text()))


def test_a_second_interrupt_ends_at_once(script: Script) -> None:
    script.obeys = False
    script.when(lambda: bool(script.addresses), interrupt)
    script.when(lambda: script.stops == 1, interrupt)
    outcome = run(script, deadlines=SupervisorDeadlines(stop_s=600.0, kill_s=1.0, poll_s=0.01))
    assert outcome == RunOutcome(130)
    asked, ended = script.notes
    assert asked.endswith(script.far)
    lost = "and what was trained since is lost"
    assert ended == f"ending at once: {script.far}, {lost}"


def test_a_stop_that_makes_progress_is_waited_for(script: Script) -> None:
    """For much longer than one that makes none."""
    script.obeys, script.moved_s = False, 0.0
    script.when(lambda: bool(script.addresses), interrupt)
    asked_at = time.monotonic()
    script.when(lambda: script.stops == 1 and time.monotonic() > asked_at + 1, script.finish)
    brief = SupervisorDeadlines(stop_s=0.1, leave_s=0.1, kill_s=1.0, poll_s=0.01)
    assert run(script, deadlines=brief) == RunOutcome(130)
    assert len(script.notes) == 1


def test_a_stop_that_is_not_obeyed_has_a_deadline(script: Script) -> None:
    script.obeys = False
    script.when(lambda: bool(script.addresses), interrupt)
    brief = SupervisorDeadlines(stop_s=0.1, leave_s=0.1, kill_s=1.0, poll_s=0.01)
    assert run(script, deadlines=brief) == RunOutcome(130)
    assert any("ending processes" in note for note in script.notes)


def test_what_a_killed_learner_published_goes_with_the_run(script: Script) -> None:
    """It is memory, and the run may never be resumed."""
    weights = f"headrace-{script.run_dir.name}-*/v1.safetensors"
    code = (
        "import os, pathlib, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "file = pathlib.Path(sys.argv[1].replace('*', str(os.getpid())))\n"
        "file.parent.mkdir()\n"
        "file.touch()\n"
        "time.sleep(60)\n"
    )
    argv = (sys.executable, "-c", code, str(FOLDER / weights))
    log = script.run_dir / "logs" / "learner-0.log"
    script.when(lambda: any(FOLDER.glob(weights)), script.finish)
    assert run(script, ProcessSpec("learner-0", "learner", argv, {}, log)).code == 0
    assert list(FOLDER.glob(weights)) == []


def test_what_ignores_sigterm_is_killed_with_its_children(script: Script) -> None:
    pid_file = script.run_dir / "pids"
    script.when(lambda: pid_file.exists() and " " in pid_file.read_text(), script.finish)
    run(script, spec(script, "generator-0", "generator", "stubborn", pid_file))
    assert all(soon(partial(gone, int(pid))) for pid in pid_file.read_text().split())


SUPERVISE = """
import sys
from pathlib import Path
from tests.headrace_cli.launch.test_supervisor import Script, coordinator, spec, run
script = Script(Path(sys.argv[1]))
run(script, spec(script, "generator-0", "generator", "stubborn", script.run_dir / "pids"),
    spec(script, "reward-0", "reward", "stay", script.run_dir / "pid"))
"""


def test_nobody_outlives_a_killed_supervisor(tmp_path: Path) -> None:
    supervisor = subprocess.Popen([sys.executable, "-c", SUPERVISE, str(tmp_path)], cwd=ROOT)
    files = (tmp_path / "pids", tmp_path / "pid", tmp_path / "coordinator.json")
    try:
        assert soon(lambda: all(path.exists() and path.read_text() for path in files))
        pids = [int(pid) for path in files[:2] for pid in path.read_text().split()]
        pids.append(json.loads(files[2].read_text())["pid"])
        assert len(pids) == 4
        assert not any(gone(pid) for pid in pids)
    finally:
        supervisor.kill()
        supervisor.wait()
    assert all(soon(partial(gone, pid)) for pid in pids)


SUPERVISE_TWICE = """
import sys
from pathlib import Path
from headrace_cli.launch.process import ProcessLauncher
from headrace_cli.launch.supervisor import Supervisor
from tests.headrace_cli.launch.test_supervisor import QUICK, Script, coordinator, spec, written
script, launcher = Script(Path(sys.argv[1])), ProcessLauncher()
pid_file, killed = script.run_dir / "pid", []

def kill():
    killed.append(launcher._reaper._process)
    killed[0].kill()

script.when(lambda: written(pid_file), kill)
script.when(lambda: launcher._reaper._process is not killed[0],
            lambda: (script.run_dir / "renewed").write_text("1"))
specs = [coordinator(script), spec(script, "reward-0", "reward", "stay", pid_file)]
Supervisor(script.run_dir, specs, script, deadlines=QUICK, launcher=launcher).run()
"""


def test_nobody_outlives_a_killed_supervisor_whose_reaper_was_killed_before(tmp_path: Path) -> None:
    supervisor = subprocess.Popen([sys.executable, "-c", SUPERVISE_TWICE, str(tmp_path)], cwd=ROOT)
    try:
        assert soon(lambda: written(tmp_path / "renewed"))
        pid = int((tmp_path / "pid").read_text())
        coordinator_pid = json.loads((tmp_path / "coordinator.json").read_text())["pid"]
        assert not gone(pid)
    finally:
        supervisor.kill()
        supervisor.wait()
    assert soon(partial(gone, pid))
    assert soon(partial(gone, coordinator_pid))


def test_a_reaper_that_was_killed_still_ends_what_it_watched() -> None:
    reaper = ProcessReaper()
    sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
    child = subprocess.Popen(sleep, start_new_session=True)
    try:
        reaper.register(child.pid)
        reaper._process.kill()
        reaper._process.wait()
        reaper.close()
        assert child.wait(20) == -signal.SIGTERM
    finally:
        child.kill()
        child.wait()


def test_the_stacks_are_asked_for_once_a_stall(script: Script) -> None:
    """A run that goes on and stalls again writes its stacks again."""
    for stalled in (True, True, False, True):
        script.when(lambda: bool(script.addresses), partial(setattr, script, "stalled", stalled))
    script.when(lambda: True, script.finish)
    assert run(script).code == 0
    assert script.events("coordinator").count("stacks") == 2


def test_a_coordinator_that_lives_and_does_not_answer_ends_the_run(script: Script) -> None:
    pid_file = script.run_dir / "pid"
    stays = spec(script, "generator-0", "generator", "listens", pid_file)
    lost = "the coordinator has not answered for 301 s"
    script.when(partial(written, pid_file), lambda: setattr(script, "lost", lost))
    outcome = run(script, stays)
    assert (outcome.code, outcome.cause) == (1, lost)
    assert "stacks" in script.events("generator-0")
    assert gone(int(pid_file.read_text()))


def test_processes_of_a_run_that_stalls_write_down_what_they_do(script: Script) -> None:
    pid_file = script.run_dir / "pid"
    stays = spec(script, "generator-0", "generator", "listens", pid_file)
    script.when(partial(written, pid_file), lambda: setattr(script, "stalled", True))
    script.when(lambda: stays.log.exists() and "forever" in stays.log.read_text(), script.finish)
    assert run(script, stays).code == 0
    asked = [row["name"] for row in script.rows() if row["event"] == "stacks"]
    assert asked == ["coordinator", "generator-0"]
    assert sum("stands in its log" in note for note in script.notes) == 1


def test_a_hangup_that_nohup_has_ignored_stays_ignored(script: Script) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        script.when(lambda: bool(script.addresses), lambda: os.kill(os.getpid(), signal.SIGHUP))
        script.when(lambda: True, script.finish)
        assert run(script) == RunOutcome(0)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert script.stops == 0


def test_a_terminal_that_goes_hangs_up_twice_and_ends_nothing_at_once(script: Script) -> None:
    """By its shell, and by the kernel when that ends: nobody gave up what was trained."""
    script.obeys = False
    hang_up = partial(os.kill, os.getpid(), signal.SIGHUP)
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        script.when(lambda: bool(script.addresses), hang_up)
        script.when(lambda: script.stops == 1, hang_up)
        script.when(lambda: True, script.finish)
        assert run(script) == RunOutcome(130)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert [note.partition(":")[0] for note in script.notes] == ["stopping"]
