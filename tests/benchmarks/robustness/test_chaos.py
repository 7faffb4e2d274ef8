"""Chaos: faults are drawn by the seed alone, and figures say what the records say."""

import hashlib
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import get_args

import numpy as np
import psycopg
import pytest

from benchmarks.robustness import chaos_testbed
from benchmarks.robustness.chaos_faults import KILLS, ROLES, Fault, Kind, draw
from benchmarks.robustness.chaos_figures import (
    ended_badly,
    recoveries,
    stored_images,
    total_figures,
    trained_again,
)
from benchmarks.robustness.chaos_job import (
    ChaosJob,
    FaultEvent,
    descendants,
    is_reaper,
    living,
    wait_until,
)
from benchmarks.robustness.chaos_testbed import open_testbed
from headrace.data.media import MediaStore
from headrace.protocol.records.record_types import (
    ClosedWindow,
    GroupIssued,
    LineageBegan,
    Record,
    UpdateCommitted,
    WindowsClosed,
    WindowsDropped,
)
from headrace.protocol.token_spans import MediaRun

KINDS: list[Kind] = list(get_args(Kind))


def test_a_seed_draws_the_same_faults_and_another_one_others() -> None:
    first = draw(3, 50, KINDS, children=("reward",))
    assert first == draw(3, 50, KINDS, children=("reward",))
    assert first != draw(4, 50, KINDS, children=("reward",))


def test_every_fault_reaches_every_role_and_only_what_can_be_made_is_drawn() -> None:
    faults = draw(0, 2000, KINDS, children=("reward",))
    assert set(Counter(fault.kind for fault in faults)) == set(KINDS)
    assert {fault.role for fault in faults if fault.kind == "kill"} == set(ROLES)
    assert {fault.role for fault in faults if fault.kind == "reset"} == set(ROLES)
    assert {fault.role for fault in faults if fault.kind == "kill_child"} == {"reward"}
    stops = [fault.seconds for fault in faults if fault.kind == "stop"]
    assert min(stops) < 5.0 < max(stops)
    few: list[Kind] = ["kill", "stop"]
    assert {fault.kind for fault in draw(0, 200, few, children=("reward",))} == {"kill", "stop"}


def _fault(kind: Kind, role: str, began: float, over: float) -> FaultEvent:
    return FaultEvent(Fault(kind, role, 0, over - began, settled=True, wait_s=0.0), began, over, 1)


def test_a_recovery_is_from_a_kill_or_from_the_end_of_a_stop_to_the_next_update() -> None:
    done = [
        _fault("kill", "learner", 10.0, 10.0),
        _fault("stop", "generator", 20.0, 24.0),
        _fault("kill", "coordinator", 30.0, 30.0),
        _fault("kill", "learner", 31.0, 31.0),
    ]
    updates = [9.0, 13.5, 22.0, 25.0, 33.0]
    # The coordinator's recovery was broken off by the next kill: nothing is known of it.
    assert recoveries(done, updates) == {"learner": [3.5, 2.0], "generator": [1.0]}
    assert recoveries(done, updates, of=KILLS) == {"learner": [3.5, 2.0]}
    assert recoveries([], updates) == {}


def _closed(key: int, tokens: int) -> WindowsClosed:
    window = ClosedWindow(
        window_id=key, trajectory_id=key, index=0, start=0, end=tokens, tokens=tokens,
        min_version=0, max_version=0,
    )  # fmt: skip
    return WindowsClosed(at=0.0, windows=[window])


def _committed(update: int, *windows: int) -> UpdateCommitted:
    return UpdateCommitted(
        at=0.0, update=update, lineage=0, version=update, train_time_s=0.0, trained_tokens=0,
        window_ids=list(windows), value_trajectories=[], metrics={}, diagnostics=[],
    )  # fmt: skip


def test_of_rolled_back_tokens_those_in_the_surviving_weights_count() -> None:
    records: list[Record] = [
        *(_closed(key, 10 * key) for key in (1, 2, 3, 4)),
        _committed(1, 1),
        _committed(2, 2, 3, 4),
        LineageBegan(
            at=0.0, lineage=1, update=1, version=3, reason="", window_ids=[2, 3, 4],
            value_trajectories=[],
        ),
        _committed(2, 2),
        WindowsDropped(at=0.0, window_ids=[3], reason="stale"),
    ]  # fmt: skip
    # 4 waits for an update: neither trained again nor lost to it.
    assert trained_again(records) == (50, 20)


def test_files_beside_the_images_of_prompts_are_astray(tmp_path: Path) -> None:
    """Parts of files, damaged ones, and images of no prompt: but one group, which was drawn when
    its coordinator died, may have been lost with its record."""

    def group(*images: bytes) -> GroupIssued:
        digests = [hashlib.sha256(image).hexdigest() for image in images]
        return GroupIssued(
            at=0.0, group_id=0, prompt_id="p", position=0, purpose="train", prompt="", answer="",
            prompt_ids=np.zeros(9, np.int32), trajectory_ids=[0], seeds=[0], info="",
            media=[MediaRun(digest, at, at + 1) for at, digest in enumerate(digests)],
        )  # fmt: skip

    def stored() -> tuple[int, int]:
        return stored_images(folder, [group(b"a", b"b"), group(b"b")])

    folder = tmp_path / "media"
    assert stored() == (2, 0)
    store = MediaStore(folder)
    for image in (b"a", b"b", b"drawn", b"with it"):
        store.put(image)
    assert stored() == (2, 0)
    store.put(b"of no prompt")
    assert stored() == (2, 1)
    (folder / ".part-0").touch()
    store.path(hashlib.sha256(b"a").hexdigest()).write_bytes(b"damaged")
    assert stored() == (2, 3)


def test_runs_are_counted_together() -> None:
    row = {
        "faults": 3, "kills": 2, "stops": 1, "lost": 0, "doubled": 0, "doubled_in_weights": 0,
        "orphans": 0, "hangs": 0, "unresumable": 0, "ledger_error_tokens": 0, "died": 5,
        "generated": 10, "trained": 5, "updates": 4, "resumes": 1, "rolled_back": 50,
        "trained_again": 49, "recovery_s": {"learner": [1.0, 4.0]}, "exit_code": 130,
        "dropped": {"stale": 4, "value_warmup": 1},
    }  # fmt: skip
    both = total_figures([row, row | {"recovery_s": {"learner": [2.0]}, "lost": 1, "exit_code": 1}])
    assert (both["failed_ends"], both["stale_share"]) == (1, 0.4)
    assert (both["runs"], both["faults"], both["lost"], both["resumes"]) == (2, 6, 1, 2)
    assert both["rolled_back_trained_again"] == 0.98
    assert both["recovery_s"] == {"learner": {"median": 2.0, "max": 4.0, "count": 3}}
    assert total_figures([row | {"rolled_back": 0}])["rolled_back_trained_again"] is None


_SUPERVISOR = """
import signal, sys
signal.signal(signal.SIGINT, lambda *_: sys.exit(int(sys.argv[1])))
print(flush=True)
signal.pause()
"""


class _ScriptedJob(ChaosJob):
    """A job that trains all the time; its first Ctrl-C ends with exit code 1, others well."""

    def updates(self) -> list[float]:
        return [time.time()]

    def _start(self) -> None:
        code = "130" if self.history.resumes else "1"
        self._process = subprocess.Popen(
            [sys.executable, "-c", _SUPERVISOR, code], stdout=subprocess.PIPE
        )
        assert self._process.stdout is not None
        with self._process.stdout as said:
            said.readline()


def test_a_ctrl_c_that_ends_with_a_failure_is_not_tried_again(tmp_path: Path) -> None:
    root = tmp_path / "disk" / "runs"
    root.mkdir(parents=True)
    (tmp_path / "train.log").touch()
    history = _ScriptedJob(chaos_testbed.Testbed(root, None), ()).play([])
    assert (history.last_code, history.resumes) == (1, 0)
    assert ended_badly({"exit_code": history.last_code})


def test_what_a_process_started_is_found_in_whatever_group_it_is() -> None:
    """Children that score have process groups of their own."""
    code = (
        "import subprocess, sys, time; "
        "subprocess.Popen(['sleep', '60'], process_group=0); print(flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            (child,) = descendants(process.pid)
            assert living({child}) == [child]
        finally:
            process.kill()
    # It outlived its parent.
    assert living({child}) == [child]
    assert not is_reaper(child)
    child.kill()
    assert wait_until(lambda: living({child}), 10.0, some=False) == []


_TALKERS = """
import socket, sys
server = socket.create_server(("127.0.0.1", 0))
port = server.getsockname()[1]
told = socket.create_connection(("127.0.0.1", port))
other = socket.create_server(("127.0.0.1", 0))
kept = socket.create_connection(other.getsockname())
print(port, flush=True)
sys.stdin.readline()
told.settimeout(10.0)
kept.settimeout(0.1)
for connection in (told, kept):
    try:
        print(connection.recv(1), flush=True)
    except OSError as error:
        print(type(error).__name__, flush=True)
"""


def test_a_frozen_server_answers_again_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    with open_testbed() as testbed:
        if testbed.database is None:
            pytest.skip(testbed.missing["freeze_sql"])
        url = testbed.database.url.replace("+psycopg", "")
        frozen, freeze = threading.Event(), testbed.database.freeze

        def freeze_and_say() -> None:
            freeze()
            frozen.set()

        monkeypatch.setattr(testbed.database, "freeze", freeze_and_say)
        freezer = threading.Thread(target=testbed.database.pause, args=(1.5,))
        began = time.monotonic()
        freezer.start()
        assert frozen.wait(20)
        with psycopg.connect(url, connect_timeout=20) as connection:
            assert connection.execute("select 1").fetchone() == (1,)
        assert time.monotonic() - began > 1.5
        freezer.join()


def test_connections_with_a_port_are_reset_and_others_stay() -> None:
    with open_testbed() as testbed:
        if "reset" in testbed.missing:
            pytest.skip(testbed.missing["reset"])
        command = testbed.command([sys.executable, "-c", _TALKERS])
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            port = int(process.stdout.readline())
            assert testbed.network is not None
            testbed.network.reset(process.pid, port, 0.0)
            process.stdin.write("\n")
            process.stdin.flush()
            said = process.stdout.read().split()
    assert said[0] in ("ConnectionResetError", "ConnectionAbortedError")
    assert said[1] == "TimeoutError"
