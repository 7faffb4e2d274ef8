"""A coordinator whose store leaves out its work in turns: `python -m
benchmarks.performance.journal_turns OPTIONS`, with the options of `coordinator.run` behind its own.

In: how long turns are. Out: the journal and SQL of an ordinary run; in `turns.json` when each turn
was and what the writer did in it. Promises: records are made, applied, gathered and handed to the
recorder's thread in every turn alike; what a turn leaves out is made up for between two turns,
before the next one is measured, and the last of it at the run's end. So the state sees every
record, and the journal of a run that ended in good order holds them all. A run that trains is
refused: were this coordinator killed, records that it has confirmed could be lost.

- journal   nothing is left out: an ordinary store
- none      records are confirmed at once: not encoded, written, fsynced or put into SQL
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import psutil

from coordinator import run
from headrace.config.sections.run import RunConfig
from headrace.errors import RunFailedError, StorageBlockedError, UserError
from headrace.protocol.records.record_types import ChunkArrived, EvaluationDone, Record
from headrace.run_files.run_folder import write_atomically
from storage.journal.segments import segment_paths
from storage.run_store import RunStore

Kind = Literal["journal", "none"]
KINDS: tuple[Kind, ...] = get_args(Kind)
FILE = "turns.json"
AT_ONCE = 1000
"""Of the records that were left out, so many are made up for with a commit: no commit between two
turns takes long, and leases go on."""


@dataclass(frozen=True)
class Plan:
    """Turns of `turn_s` seconds, each `settle_s` after what the one before left out is made up for.
    Round after round has every kind once, in an order that the seed draws."""

    turn_s: float
    settle_s: float
    seed: int

    def order(self) -> Iterator[Kind]:
        """Kinds of turns, without end."""
        draw = random.Random(self.seed)
        while True:
            yield from draw.sample(KINDS, len(KINDS))


@dataclass
class Work:
    """What the writer has done: commits and their records; seconds of the processor in them; fsyncs
    of the journal and their seconds; bytes that the journal grew by, and that the process wrote to
    files in all."""

    commits: int = 0
    records: int = 0
    cpu_s: float = 0.0
    fsyncs: int = 0
    fsync_s: float = 0.0
    journal_bytes: int = 0
    written_bytes: int = 0

    def since(self, before: "Work") -> "Work":
        """What was done since then."""
        return Work(*(b - a for a, b in zip(astuple(before), astuple(self), strict=True)))


@dataclass(frozen=True)
class Turn:
    """From when to when (seconds since 1970), and what the writer did."""

    kind: Kind
    began: float
    ended: float
    work: Work


class TurnStore(RunStore):
    """An ordinary store until it is told to `follow` a plan, and again behind the evaluation's
    end."""

    def __init__(
        self, run_dir: Path, run_id: str, config: RunConfig, *, wait_s: float = 1.0
    ) -> None:
        self._held: list[Record] = []
        """Confirmed and not in the journal."""
        self._kind: Kind = "journal"
        self._plan: Plan | None = None
        self._is_going = False
        """Chunks come, and the evaluation is not over."""
        self._begins = 0.0
        """When the turn settles no more; 0.0 between turns."""
        self._began: float | None = None
        """When its measurement began."""
        self._work, self._before = Work(), Work()
        self._process = psutil.Process()
        self._turns: list[Turn] = []
        super().__init__(run_dir, run_id, config, wait_s=wait_s)

    def follow(self, plan: Plan) -> None:
        """Take turns from the first chunk on."""
        self._plan, self._order = plan, plan.order()

    @property
    def wants_snapshot(self) -> bool:
        """Not while the journal lacks records: a snapshot tells where in it they are."""
        return not self._held and super().wants_snapshot

    def append(self, records: Sequence[Record]) -> None:
        """As the turn says. Behind it the turn may be over: the next commit is another one's."""
        now = time.time()
        cpu = time.thread_time()
        self._keep(records)
        work = self._work
        work.commits += 1
        work.records += len(records)
        work.cpu_s += time.thread_time() - cpu
        for record in records:
            if isinstance(record, ChunkArrived):
                self._is_going = True
            elif isinstance(record, EvaluationDone):
                self._plan = None
        self._take_turns(now)

    def close(self) -> None:
        """Make up for all that was left out, and write down the turns."""
        self._plan, self._kind = None, "journal"
        while self._held:
            self._keep([])
        turns = [asdict(turn) for turn in self._turns]
        write_atomically(self._run_dir / FILE, json.dumps(turns))
        super().close()

    def _keep(self, records: Sequence[Record]) -> None:
        self._held += records
        if self._kind == "none":
            return
        count = AT_ONCE + len(records)
        now, self._held = self._held[:count], self._held[count:]
        try:
            super().append(now)
        except StorageBlockedError as error:
            raise RunFailedError(f"nothing can be measured: the run needs {error}") from error

    def _sync(self, file: int) -> None:
        began = time.perf_counter()
        super()._sync(file)
        self._work.fsyncs += 1
        self._work.fsync_s += time.perf_counter() - began

    def _take_turns(self, now: float) -> None:
        """A commit that began now is written: does it begin the measurement, or end the turn?"""
        if self._plan is None or not self._is_going:
            self._kind = "journal"
        elif self._begins == 0.0:
            self._begin(self._plan, now)
        elif self._began is None:
            if now >= self._begins:
                self._began, self._before = now, self._done()
        elif now >= self._began + self._plan.turn_s:
            work = self._done().since(self._before)
            self._turns.append(Turn(self._kind, self._began, now, work))
            self._kind, self._begins, self._began = "journal", 0.0, None

    def _begin(self, plan: Plan, now: float) -> None:
        """The next turn, where nothing of the one before is left."""
        if not self._held:
            self._kind, self._begins = next(self._order), now + plan.settle_s

    def _done(self) -> Work:
        """All work so far."""
        paths = segment_paths(self._run_dir / "journal")
        return replace(
            self._work,
            journal_bytes=sum(path.stat().st_size for path in paths),
            written_bytes=self._process.io_counters().write_chars,
        )


def new_store(plan: Plan, run_dir: Path, run_id: str, config: RunConfig) -> TurnStore:
    """The store of a new run that follows a plan. UserError where the run trains."""
    if not config.evaluation.only:
        raise UserError(
            "turns without a journal are for runs that evaluate alone (evaluation.only): of a run "
            "that trains, records would be lost"
        )
    store = TurnStore.create(run_dir, run_id, config)
    store.follow(plan)
    return store


def read_turns(run_dir: Path) -> list[Turn]:
    """The turns that a run's store wrote down."""
    rows: list[dict[str, Any]] = json.loads((run_dir / FILE).read_text())
    return [Turn(**row | {"work": Work(**row["work"])}) for row in rows]


def options_of(plan: Plan) -> list[str]:
    """The plan as options of this program."""
    return ["--plan", json.dumps(asdict(plan))]


def serve(argv: Sequence[str]) -> int:
    """Run a coordinator."""
    parser = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
    parser.add_argument("--plan", type=json.loads, required=True, help="of the turns, as JSON")
    options, rest = parser.parse_known_args(argv)
    plan = Plan(**options.plan)
    return run.main(
        rest, create=lambda run_dir, run_id, config: new_store(plan, run_dir, run_id, config)
    )


if __name__ == "__main__":
    sys.exit(serve(sys.argv[1:]))
