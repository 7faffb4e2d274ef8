"""What waits for the disk waits in order, and is told; what a user should know is told once."""

import asyncio
import threading
from typing import cast

import pytest

from coordinator.incidents.alerts import DAY_S, KEPT, MOST, Incidents
from coordinator.persistence import recorder as module
from coordinator.persistence.recorder import Recorder
from headrace.errors import StorageBlockedError
from headrace.protocol.messages.control import JournalEnd
from headrace.protocol.records.record_types import Incident, Record
from storage.run_store import RunStore


def incident(text: str) -> Incident:
    return Incident(at=1.0, level="info", kind="k", text=text)


class Disk:
    """A store that can be full or slow."""

    def __init__(self) -> None:
        self.kept: list[Record] = []
        self.is_full, self.may_write = False, threading.Event()
        self.may_write.set()
        self.behind, self.place = "", "the disk of /run/journal"
        self.behind_s = 0.0
        self.wants_snapshot = False

    @property
    def end(self) -> JournalEnd:
        return JournalEnd(len(self.kept), "")

    def append(self, records: list[Record]) -> None:
        assert self.may_write.wait(60)
        if self.is_full:
            raise StorageBlockedError("room for 9 bytes in /run/journal")
        self.kept += records


async def until(recorder: Recorder, waits: bool) -> None:
    async with asyncio.timeout(60):
        while bool(recorder.waits_for) != waits:
            await asyncio.sleep(0.005)


async def test_a_full_disk_holds_effects_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DISK_RETRY_S", 0.01)
    disk, seen = Disk(), list[tuple[str, int]]()
    recorder = Recorder(cast(RunStore, disk), interval_s=0.001)

    def effect(name: str) -> module.Effect:
        async def run() -> None:
            seen.append((name, recorder.end.records))

        return run

    task = asyncio.create_task(recorder.run())
    disk.is_full = True
    recorder.write(incident("one"))
    recorder.after(effect("one"))
    await until(recorder, waits=True)
    assert recorder.waits_for == "room for 9 bytes in /run/journal"
    recorder.write(incident("two"))
    recorder.after(effect("two"))
    await asyncio.sleep(0.05)
    assert (seen, recorder.end.records) == ([], 0)
    disk.is_full = False
    await until(recorder, waits=False)
    await recorder.flush()
    task.cancel()
    assert [r.text for r in disk.kept if isinstance(r, Incident)] == ["one", "two"]
    assert seen == [("one", 1), ("two", 2)]


async def test_a_snapshot_follows_all_that_was_written(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk()
    recorder = Recorder(cast(RunStore, disk), interval_s=0.001)

    def snapshot() -> None:
        disk.wants_snapshot = False
        recorder.write(incident("snapshot"))

    recorder.snapshot = snapshot

    async def more() -> None:
        recorder.write(incident("more"))

    task = asyncio.create_task(recorder.run())
    disk.wants_snapshot = True
    recorder.write(incident("one"))
    recorder.after(more)
    await recorder.flush()
    task.cancel()
    assert [r.text for r in disk.kept if isinstance(r, Incident)] == ["one", "snapshot", "more"]


async def test_a_slow_disk_is_told_while_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SLOW_S", 0.02)
    disk = Disk()
    disk.may_write.clear()
    recorder = Recorder(cast(RunStore, disk), interval_s=0.001)
    task = asyncio.create_task(recorder.run())
    recorder.write(incident("one"))
    await until(recorder, waits=True)
    assert "the disk of /run/journal to take 1 records" in recorder.waits_for
    disk.may_write.set()
    await recorder.flush()
    assert recorder.waits_for == ""
    assert len(disk.kept) == 1
    task.cancel()


def test_troubles_are_told_once_and_bounded() -> None:
    written: list[tuple[str, str, str]] = []
    troubles = Incidents(lambda *each: written.append(each))
    troubles.report("checkpoint_skipped", "step_3 was passed over")
    troubles.report("checkpoint_skipped", "step_3 was passed over")
    for _ in range(2):
        troubles.set_wait("learner-0", "disk", "room for 9 bytes")
        troubles.set_wait("learner-0", "disk", "room for 9 bytes, and 3 are free")
        assert troubles.waits["learner-0"].text.endswith("3 are free")
        troubles.set_wait("learner-0", "disk", "")
        assert not troubles.waits
    assert written == [
        ("warning", "checkpoint_skipped", "step_3 was passed over"),
        *[
            ("error", "disk", "learner-0 waits: room for 9 bytes"),
            ("info", "disk", "learner-0 goes on"),
        ] * 2,
    ]  # fmt: skip
    for number in range(2 * MOST):
        troubles.report("k", f"text {number}")
        troubles.set_wait("learner-0", "disk", "room" if number % 2 else "")
    assert len(written) == MOST
    assert len(troubles.newest) == KEPT


def test_troubles_are_told_on_the_next_day_too() -> None:
    """The waits for a large model's checkpoints are more than a thousand in a week."""
    written: list[str] = []
    troubles = Incidents(lambda _level, _kind, text: written.append(text))
    for number in range(2 * MOST):
        troubles.set_wait("learner-0", "disk", "" if number % 2 else "room")
    troubles.report("k", "text")
    assert len(written) == MOST
    troubles._began -= DAY_S
    for _ in range(2):
        troubles.report("k", "text")
    assert written[MOST:] == ["text"]


@pytest.mark.parametrize("ticks", range(5))
async def test_a_cancellation_right_behind_a_hurry_ends_it(ticks: int) -> None:
    """`asyncio.wait_for` of Python 3.11 drops one that comes just as its own wait ends."""
    recorder = Recorder(cast(RunStore, Disk()), interval_s=60.0)
    task = asyncio.create_task(recorder.run())
    recorder.write(incident("one"))
    await asyncio.sleep(0.02)
    recorder.after(lambda: asyncio.sleep(0), hurry=True)
    for _ in range(ticks):
        await asyncio.sleep(0)
    task.cancel()
    ended, _ = await asyncio.wait((task,), timeout=60)
    assert ended
