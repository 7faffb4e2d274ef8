"""Two targets of the fuzzer that need a run: the coordinator's intake, and the journal's reader.

What comes in and goes out: as in `fuzz_targets`. The runs are those of the tests, so this needs the
source tree.
"""

import asyncio
import tempfile
from pathlib import Path
from random import Random

from benchmarks.fuzz_targets import KINDS, message_frames, require
from benchmarks.fuzz_values import FLOATS, INTEGERS, TEXTS, damaged
from headrace.errors import UserError
from headrace.protocol import messages as m
from headrace.protocol.identity import identity_of
from storage.journal import Journal, read_journal
from storage.segments import segment_paths
from tests.coordinator.stage import (
    GENERATOR,
    LEARNER,
    MONITOR,
    REWARD,
    Stage,
    assert_sound,
    body_of,
    endless,
    places,
    with_value,
)
from tests.storage.samples import same, small_run

_ENDING = (m.Command, m.Goodbye)
"""What ends a run, or a peer's part in it, when it is said by who may."""
_HARMLESS = tuple(kind for kind in KINDS if kind not in _ENDING)
_NAMES = (GENERATOR, REWARD, LEARNER, MONITOR, "generator-9")
_ENDED = ("draining", "closing", "leaving", "closed")


class IntakeTarget:
    """Messages of every peer, changed or made up, to a real coordinator with its journal and SQL:
    it goes on, and at the end of a block the journal gives the state that it has."""

    block = 2_000

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._runner = asyncio.Runner()
        self._stage: Stage | None = None
        self._recorder: asyncio.Task[None] | None = None
        self._left = self._runs = 0
        self._config = endless()
        self._runner.run(self._begin())

    def attempt(self, random: Random) -> str:
        """See Target."""
        if self._left == 0:
            self._end()
            self._runner.run(self._begin())
        self._left -= 1
        return self._runner.run(self._say(random))

    async def _begin(self) -> None:
        self._runs += 1
        self._left = self.block
        self._stage = Stage(self._config, Path(self._folder.name) / f"run-{self._runs}")
        self._recorder = asyncio.create_task(self._stage.hub.recorder.run())
        await self._stage.begin()

    async def _say(self, random: Random) -> str:
        stage = self._stage
        assert stage is not None
        assert self._recorder is not None
        if self._recorder.done():
            self._recorder.result()
        name, frames = self._input(random, stage)
        identity = stage.identities.get(name) or identity_of(name)
        heard = await stage.send(identity, frames)
        peers = stage.hub.peers
        all_there = peers.learner is not None and {GENERATOR, REWARD} <= peers.identities.keys()
        ended = stage.coordinator.phases.phase in _ENDED or stage.hub.failed is not None
        if ended or not all_there:
            self._left = 0  # Who may end the run, or leave it, has done so.
            return "ended"
        return "taken" if heard else "refused"

    def _input(self, random: Random, stage: Stage) -> tuple[str, list[bytes]]:
        """Who says what: what a peer would honestly say now, that with one value or some bytes
        changed, or any message by anybody."""
        honest = [
            (name, message)
            for name, wanted in (
                (GENERATOR, stage.chunks),
                (GENERATOR, stage.loaded),
                (REWARD, stage.scores),
                (LEARNER, stage.update),
                (LEARNER, stage.notice),
            )
            if (message := wanted()) is not None
        ]
        how = random.randrange(10)
        if how < 3 or not honest:
            kinds = KINDS if random.random() < 0.01 else _HARMLESS
            return random.choice(_NAMES), message_frames(random, kinds)
        name, message = random.choice(honest)
        frames = stage.codec.encode(message)
        if how < 6:
            body, raw = body_of(frames)
            value = random.choice((*INTEGERS, *FLOATS, *TEXTS))
            where = places(body, (str,) if isinstance(value, str) else (int, float))
            if where:
                frames = [*with_value(body, random.choice(where), value), raw]
        elif how == 6:
            frames = [damaged(random, frame) for frame in frames]
        elif how == 7:
            name = random.choice(_NAMES)
        return name, frames

    def _end(self) -> None:
        """The promise of a block."""
        if self._stage is None:
            return
        stage, self._stage = self._stage, None
        try:
            self._runner.run(self._flush(stage))
            assert_sound(stage)
        finally:
            stage.hub.router.close()
            stage.store.close()

    async def _flush(self, stage: Stage) -> None:
        assert self._recorder is not None
        idle = asyncio.create_task(stage.hub.recorder.flush())
        done, _ = await asyncio.wait(
            [self._recorder, idle], return_when=asyncio.FIRST_COMPLETED, timeout=60.0
        )
        require(bool(done), "the recorder stands still")
        for task in done:
            task.result()
        self._recorder.cancel()

    def close(self) -> None:
        """See Target."""
        try:
            self._end()
        finally:
            self._runner.close()
            self._folder.cleanup()


class JournalTarget:
    """A journal whose bytes were changed: UserError, or the records that were written, from the
    first one on; and one that is opened to be written on is read again with what was added. Cut off
    behind a record, a journal looks like a shorter one, which checkpoints know better."""

    block = 1

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        batches = small_run()
        self._journals: list[dict[str, bytes]] = []
        for number, is_closed in enumerate((True, False)):
            folder = Path(self._folder.name) / f"whole-{number}"
            folder.mkdir()
            journal = Journal(folder, run_id="run", segment_mib=0.004)
            for batch in batches:
                journal.append(batch)
            if is_closed:
                journal.close()
            paths = segment_paths(folder)
            self._journals.append({path.name: path.read_bytes() for path in paths})
            # Not quite what was written: diagnostics of updates are elsewhere.
            self._records = [record for batch in read_journal(folder) for _, record in batch]
        self._work = Path(self._folder.name) / "run" / "journal"
        self._work.mkdir(parents=True)

    def attempt(self, random: Random) -> str:
        """See Target."""
        self._write(random)
        outcome, found = self._read()
        if outcome == "taken" and random.random() < 0.5:
            outcome = self._reopen(found)
        return outcome

    def _write(self, random: Random) -> None:
        for path in self._work.iterdir():
            path.unlink()
        files = dict(random.choice(self._journals))
        for _ in range(random.choice((1, 1, 2))):
            name = random.choice(sorted(files))
            match random.randrange(8):
                case 0:
                    files[name] = files[name][: random.randrange(len(files[name]) + 1)]
                case 1:
                    files[name] = files[name] + bytes(random.randrange(200))
                case 2:
                    del files[name]
                case 3:
                    files[name] = files[random.choice(sorted(files))]
                case 4:
                    files[f"segment-{random.randrange(9):06}.arrow"] = files[name]
                case _:
                    files[name] = damaged(random, files[name])
            if not files:
                break
        for name, data in files.items():
            (self._work / name).write_bytes(data)

    def _read(self) -> tuple[str, int]:
        """How far the journal can be read."""
        found = 0
        try:
            for batch in read_journal(self._work):
                for offset, record in batch:
                    require(offset == found, f"record {offset} where {found} is next")
                    require(found < len(self._records), "more records than were written")
                    require(same(record, self._records[found]), f"record {offset} is another one")
                    found += 1
        except UserError:
            return "refused", found
        return "taken", found

    def _reopen(self, found: int) -> str:
        try:
            journal = Journal(self._work, run_id="run", segment_mib=0.004)
        except UserError:
            return "refused"
        written = journal.next_offset
        require(written <= found, f"goes on at {written}, where {found} can be read")
        journal.append(self._records[:1])
        journal.close()
        again = sum(len(batch) for batch in read_journal(self._work))
        require(again == written + 1, f"{again} records after {written} and one more")
        return "taken"

    def close(self) -> None:
        """See Target."""
        self._folder.cleanup()
