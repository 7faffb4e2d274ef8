"""Processor time by role and of others: on made trees, and on processes of this machine."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.kit.machine_state import (
    REST,
    CpuTime,
    MachineSample,
    MachineWatch,
    ProcessKey,
    ProcessTree,
    roles_in,
)
from headrace.run_files.checked_lines import checked_line

BENCH, TRAIN, LEARNER, ENGINE = (1, 0.0), (2, 1.0), (3, 2.0), (4, 3.0)
PARENTS: dict[ProcessKey, ProcessKey | None] = {
    BENCH: None,
    TRAIN: BENCH,
    LEARNER: TRAIN,
    ENGINE: LEARNER,
}
NAMES = {2: "supervisor", 3: "learner-0"}


def test_what_runs_below_a_role_is_the_roles() -> None:
    tree = ProcessTree()
    used = {
        BENCH: CpuTime(1, 0),
        TRAIN: CpuTime(2, 0),
        LEARNER: CpuTime(10, 0),
        ENGINE: CpuTime(30, 0),
    }
    tree.record_processes(used, PARENTS)
    assert tree.seconds(NAMES) == {REST: 1, "supervisor": 2, "learner-0": 40}
    assert tree.seconds() == {REST: 43}


def test_a_child_that_ended_is_counted_once() -> None:
    tree = ProcessTree()
    tree.record_processes(
        {BENCH: CpuTime(1, 0), TRAIN: CpuTime(2, 0), LEARNER: CpuTime(10, 0)}, PARENTS
    )
    # The learner ended with 12 s, of which the last look had seen 10, and its parent waited.
    tree.record_processes({BENCH: CpuTime(1, 0), TRAIN: CpuTime(2, 12)}, PARENTS)
    assert tree.seconds(NAMES) == {REST: 1, "supervisor": 2 + 2, "learner-0": 10}


def test_a_child_that_nobody_waited_for_is_not_lost() -> None:
    tree = ProcessTree()
    tree.record_processes(
        {BENCH: CpuTime(1, 0), TRAIN: CpuTime(2, 0), LEARNER: CpuTime(10, 3)}, PARENTS
    )
    tree.record_processes({BENCH: CpuTime(1, 0), TRAIN: CpuTime(2, 0)}, PARENTS)
    assert tree.seconds(NAMES) == {REST: 1, "supervisor": 2, "learner-0": 13}


def test_an_orphan_stays_where_it_was_born() -> None:
    tree = ProcessTree()
    used = {
        BENCH: CpuTime(0, 0),
        TRAIN: CpuTime(0, 0),
        LEARNER: CpuTime(5, 0),
        ENGINE: CpuTime(5, 0),
    }
    tree.record_processes(used, PARENTS)
    tree.record_processes(
        {BENCH: CpuTime(0, 0), TRAIN: CpuTime(0, 5), ENGINE: CpuTime(9, 0)}, {ENGINE: BENCH}
    )
    assert tree.seconds(NAMES)["learner-0"] == 5 + 9


def test_a_pid_that_is_used_again_is_another_process() -> None:
    tree, again = ProcessTree(), (3, 50.0)
    tree.record_processes(
        {BENCH: CpuTime(0, 0), LEARNER: CpuTime(5, 0)}, {**PARENTS, LEARNER: BENCH}
    )
    tree.record_processes({BENCH: CpuTime(0, 5), again: CpuTime(1, 0)}, {**PARENTS, again: BENCH})
    assert sum(tree.seconds().values()) == 6


def watched(*looks: MachineSample) -> MachineWatch:
    watch = MachineWatch()
    watch.samples = list(looks)
    return watch


def test_others_are_what_is_busy_and_not_ones_own() -> None:
    watch = watched(
        MachineSample(100.0, 1000.0, 5.0, 50.0), MachineSample(200.0, 1180.0, 6.0, 220.0)
    )
    state = watch.state({})
    assert state == {
        "wall_s": 100.0, "others_cpu_share": 0.1, "steal_share": 0.01, "disturbed": True,
        "cpu_s": {},
    }  # fmt: skip
    calm = watched(MachineSample(0.0, 0.0, 0.0, 0.0), MachineSample(10.0, 0.5, 5.0, 0.0))
    assert not calm.state({})["disturbed"]
    little = watched(MachineSample(0.0, 0.0, 0.0, 0.0), MachineSample(10.0, 0.12345, 0.0, 0.0))
    assert little.state({})["others_cpu_share"] == 0.0123


def test_own_seconds_between_two_times() -> None:
    watch = watched(
        MachineSample(0.0, 0, 0, 10.0),
        MachineSample(10.0, 0, 0, 20.0),
        MachineSample(20.0, 0, 0, 50.0),
    )
    assert watch.own_between(5.0, 15.0) == pytest.approx(5.0 + 15.0)
    assert watch.own_between(-5.0, 25.0) == pytest.approx(40.0)


WORK = """
import subprocess, sys, time
def spin(seconds):
    while time.process_time() < seconds:
        pass
if len(sys.argv) > 1:
    spin(0.4)
else:
    subprocess.run([sys.executable, __file__, "child"], check=True)
    spin(0.4)
    print("spun", flush=True)
    time.sleep(60)
"""


def test_real_processes_are_counted_to_the_second(tmp_path: Path) -> None:
    """A process that worked for 0.4 s, and a child of it that did so and ended."""
    script = tmp_path / "work.py"
    script.write_text(WORK)
    with MachineWatch(every_s=0.05) as watch:
        process = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE)
        assert process.stdout is not None
        try:
            process.stdout.readline()
            looks = len(watch.samples)
            while len(watch.samples) < looks + 2:  # the second one began after it spun
                time.sleep(0.01)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
    found = watch.state({process.pid: "role"})["cpu_s"]
    # Starting two interpreters takes some time of its own.
    assert 0.75 <= found["role"] <= 2.0
    assert watch.samples[-1].own - watch.samples[0].own == pytest.approx(
        sum(found.values()), abs=0.05
    )


def test_roles_are_those_that_the_supervisor_started(tmp_path: Path) -> None:
    assert roles_in(tmp_path) == {}
    lines = [
        {"event": "started", "name": "learner-0", "pid": 7},
        {"event": "died", "name": "learner-0", "code": 1},
        {"event": "restarted", "name": "learner-0", "pid": 9},
    ]
    (tmp_path / "supervisor.jsonl").write_bytes(b"".join(map(checked_line, lines)))
    assert roles_in(tmp_path) == {7: "learner-0", 9: "learner-0"}
