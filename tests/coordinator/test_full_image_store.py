"""A disk that takes no images: prompts wait, as records do, and the run goes on when there is
room."""

import asyncio
import hashlib
from pathlib import Path

import pytest

from headrace.host.install import ROOT
from headrace.protocol.records.record_types import GroupIssued, Incident
from headrace.run_files.run_folder import MEDIA
from storage.journal.store import read_journal
from tests.coordinator.peers import (
    CoordinatorProcess,
    ScriptedGenerator,
    ScriptedLearner,
    ScriptedReward,
    until,
)
from tests.coordinator.test_loop import records_of, run_config
from tests.learner.models.pictures import lacks
from tests.small_disk import small_disk

pytestmark = pytest.mark.skipif(bool(lacks()), reason=lacks())
MODEL = ROOT / "recipes" / "models" / "shapes-cold"
WAITS = "the store of images waits: room for"


def told(run_dir: Path) -> list[str]:
    """What the history says of the disk."""
    records = [record for batch in read_journal(run_dir / "journal") for _, record in batch]
    return [r.text for r in records if isinstance(r, Incident) and r.kind == "disk"]


async def test_prompts_wait_for_room_for_their_images(tmp_path: Path) -> None:
    """The self-test and the first evaluation find the disk full, and training finds it full again.
    No group is journaled whose image is not stored, and no part of a file is left."""
    config = run_config(
        model={"path": str(MODEL)},
        task={
            "kind": "shapes", "max_terms": 4, "max_prompt_length": 64, "max_response_length": 12,
        },
        reward={"kind": "number"},
        stop={"updates": 12},
        transport={
            "heartbeat_s": 0.2, "heartbeat_timeout_s": 30.0, "stall_timeout_s": 6.0,
            "self_test_s": 20.0,
        },
    )  # fmt: skip
    run_dir = tmp_path / "run-1"
    with small_disk(run_dir / MEDIA, "1m") as disk:
        left = disk.path / ".part-of-a-writer-that-was-killed"
        left.write_bytes(b"half")
        coordinator = CoordinatorProcess(run_dir, config)
        disk.fill()
        address = coordinator.start()
        assert not left.exists()
        learner = ScriptedLearner(address, "learner-0")
        peers = [
            ScriptedGenerator(address, "generator-0", capacity=8),
            ScriptedReward(address, "reward-0"),
            learner,
        ]
        run = asyncio.gather(*(peer.run() for peer in peers))
        try:
            for again in (1, 2):
                await until(lambda n=again: len(told(run_dir)) == 2 * n - 1)
                assert told(run_dir)[-1].startswith(WAITS)
                assert coordinator.process is not None
                await asyncio.sleep(1)
                assert coordinator.process.poll() is None
                disk.free()
                await until(lambda n=again: len(told(run_dir)) == 2 * n)
                assert told(run_dir)[-1] == "the store of images goes on"
                if again == 1:
                    await until(lambda: any(type(s).__name__ == "Batch" for s in learner.seen))
                    disk.fill()
            await asyncio.wait_for(run, 90)
            assert coordinator.wait() == 0
        finally:
            coordinator.end()
        groups = [r for r in records_of(run_dir) if isinstance(r, GroupIssued)]
        named = {each.digest for group in groups for each in group.media}
        stored = {path.name: path.read_bytes() for path in disk.path.iterdir()}
        assert set(stored) == named
        assert all(hashlib.sha256(data).hexdigest() == name for name, data in stored.items())
