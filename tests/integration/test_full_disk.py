"""Whole runs on disks that fill up, close, and lose what was written."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from storage.audit import audit_run
from storage.journal.record_batches import SegmentWalk
from storage.journal.segments import segment_paths
from tests.integration.runs import Run, headrace
from tests.small_disk import SmallDisk, small_disk

FAKE = (
    "generator.engine=fake",
    "evaluation.before=false",
    "evaluation.after=false",
    "checkpoint.every_updates=2",
)
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def checkpoints(run: Run) -> list[int]:
    """Updates of the checkpoints that are whole."""
    found = run.root.glob("*/checkpoints/step_*/manifest.json")
    return sorted(int(path.parent.name.removeprefix("step_")) for path in found)


def journal_bytes(run: Run) -> int:
    return sum(path.stat().st_size for path in segment_paths(run.run_dir / "journal"))


def assert_sound(run_dir: Path) -> None:
    report = audit_run(run_dir)
    assert report.findings == []
    assert report.balanced
    assert report.counts["trained_policy"] > 0


def test_a_full_disk_pauses_a_run_and_room_lets_it_go_on(tmp_path: Path) -> None:
    """Everything of the run is on one disk: journal, SQL, checkpoints, logs. All the while nobody
    lets a second coordinator in, though it asks the folder and not the launcher. When the disk is
    full again the coordinator is killed, and the next one waits for room as well."""
    with small_disk(tmp_path / "disk", "96m") as disk:
        run = Run(disk.path / "runs", *FAKE, "stop.updates=100000", shown=tmp_path)
        try:
            run.until(lambda: bool(checkpoints(run)))
            second = coordinator_beside(run)
            fill_until(run, disk, lambda: "the journal waits: room for" in run.text())
            line = next(x for x in run.text().splitlines() if "the journal waits: room for" in x)
            # A batch goes into both folders: which of them the full disk meets first is chance.
            folder = rf"{re.escape(str(run.run_dir))}/(journal|diagnostics)"
            assert re.search(rf"bytes in {folder}, and 0 are free", line)
            before = journal_bytes(run)
            time.sleep(5)
            assert run.process.poll() is None, run.text()
            assert journal_bytes(run) == before
            make_room(run, disk, "the journal goes on")
            _, printed = second.communicate(timeout=120)
            assert second.returncode == 2
            last = printed.splitlines()[-1]
            assert f"still being written by process {run.supervised('coordinator')}" in last
            assert deaths(run.run_dir) == []

            goes_on = "the journal goes on"
            fill_until(run, disk, lambda: "the journal waits" in run.text().rpartition(goes_on)[2])
            os.kill(run.supervised("coordinator"), signal.SIGKILL)
            fill_until(run, disk, lambda: "coordinator waits: room for" in run.text())
            line = next(x for x in run.text().splitlines() if "coordinator waits: room for" in x)
            assert f"bytes in {run.run_dir}, and 0 are free" in line
            time.sleep(5)
            assert run.process.poll() is None, run.text()
            make_room(run, disk, "coordinator goes on")
            run.interrupt()
            assert run.wait(120) == 130, run.text()
            assert_sound(run.run_dir)
            assert deaths(run.run_dir) == ["coordinator"]
        finally:
            run.end()


def fill_until(run: Run, disk: SmallDisk, condition: Callable[[], bool]) -> None:
    """Take also the room that a checkpoint gives back which did not fit."""

    def filled_and_so() -> bool:
        disk.fill()
        return condition()

    run.until(filled_and_so)


def make_room(run: Run, disk: SmallDisk, said: str) -> None:
    """The run says so, and its next checkpoint comes."""
    seen = checkpoints(run)
    disk.free()
    run.until(lambda: said in run.text())
    run.until(lambda: bool(set(checkpoints(run)) - set(seen)))


def coordinator_beside(run: Run) -> subprocess.Popen[str]:
    """Another one for the same run, which gives up sooner than others do."""
    code = "import sys, coordinator.run as role; role.LAST_WRITER_S = 20.0; sys.exit(role.main())"
    command = [sys.executable, "-c", code, "--resume", "--run-dir", str(run.run_dir)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def deaths(run_dir: Path) -> list[str]:
    """Names of the processes that died."""
    lines = (run_dir / "supervisor.jsonl").read_text().splitlines()
    return [row["name"] for row in map(json.loads, lines) if row["event"] == "died"]


def test_checkpoints_wait_for_a_disk_of_their_own(tmp_path: Path) -> None:
    """Too small at first, then read-only: the learner says so and goes on with the same update."""
    run = Run(tmp_path / "runs", *FAKE, "stop.updates=100000", "checkpoint.every_updates=4")
    try:
        run.until(lambda: any(run.root.glob("*/coordinator.json")))
        with small_disk(run.run_dir / "checkpoints", "512k") as disk:
            run.until(lambda: "learner-0 waits: room for" in run.text())
            assert f"bytes in {disk.path}" in run.text()
            assert not [p for p in disk.path.iterdir() if p.name.startswith("step_")]
            disk.change("size=64m")
            run.until(lambda: "learner-0 goes on" in run.text())
            run.until(lambda: checkpoints(run)[:1] == [4])
            assert list((disk.path / "step_4" / "state").glob("*.safetensors"))
            assert not (disk.path / ".ranks").exists()
            run.until(lambda: close(disk))
            run.until(lambda: "which is read-only, to take" in run.text())
            seen = checkpoints(run)
            disk.change("rw")
            run.until(lambda: bool(set(checkpoints(run)) - set(seen)))
            run.interrupt()
            assert run.wait(120) == 130, run.text()
            assert_sound(run.run_dir)
            last = run.text().rstrip().splitlines()[-6:]
            assert any("look into" in x or "learner-0" in x for x in run.text().splitlines()), last
    finally:
        run.end()


def close(disk: SmallDisk) -> bool:
    """Make it read-only, which works while nobody writes to it."""
    try:
        disk.change("ro")
    except subprocess.CalledProcessError:
        return False
    return True


def test_a_resume_is_refused_where_the_journal_is_not_what_a_checkpoint_rests_on(
    tmp_path: Path,
) -> None:
    """Half of the journal is gone, and SQL with it. Then a damaged checkpoint, which is passed over
    with a word; then damage in the middle, where a repair cuts."""
    run = Run(tmp_path / "runs", *FAKE, "stop.updates=5", "checkpoint.every_updates=1")
    try:
        assert run.wait() == 0, run.text()
    finally:
        run.end()
    name = run.run_dir.name
    (path,) = segment_paths(run.run_dir / "journal")
    whole = path.read_bytes()
    frames = list(SegmentWalk(path))
    path.write_bytes(whole[: frames[len(frames) // 2].end])
    sql = {each: each.read_bytes() for each in run.run_dir.glob("headrace.sqlite*")}
    for each in sql:
        each.unlink()
    again = Run(run.root, "stop.updates=7", resume=name)
    assert again.wait() == 2
    last = again.text().rstrip().splitlines()[-1]
    assert last.startswith("error: ")
    assert "rests on" in last
    assert f"`headrace audit {run.run_dir} --repair`" in last
    # The whole journal comes back, and then a byte of the newest checkpoint changes.
    path.write_bytes(whole)
    weights = run.run_dir / "checkpoints" / "step_5" / "policy" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    onward = Run(run.root, "stop.updates=7", resume=name)
    try:
        assert onward.wait() == 0, onward.text()
        text = "checkpoint step_5 was passed over: policy/model.safetensors is missing or changed"
        assert onward.text().count(text) >= 2  # when it happened, and in the last lines
        shown = onward.show()
        assert shown["updates"] == 7
    finally:
        onward.end()
    assert_sound(run.run_dir)
    # Damage in the middle: the audit names it, the repair cuts there.
    path = segment_paths(run.run_dir / "journal")[0]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    refused = Run(run.root, "stop.updates=9", resume=name)
    assert refused.wait() == 2
    assert f"{path} is damaged at byte" in refused.text().rstrip().splitlines()[-1]
    mended = headrace("audit", str(run.run_dir), "--repair")
    assert "is damaged" in mended.stdout or "no whole batch" in mended.stdout
    assert "lost" in mended.stdout
    assert (run.run_dir / "journal.damaged-1").is_dir()
