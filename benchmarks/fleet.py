"""Claim: how many generators, and how many ranks, one coordinator serves, and what ends it.

Scripted generators, a scripted reward worker and a scripted learner, all in one process on a core
of their own, bring answers through a real coordinator on the other: lease, chunk, score, batch,
update. Answers are short and come at once, so what is measured is the most that the coordinator
does, not what an engine generates. In: sizes. Out: a table; with --json, as the last line, one JSON
object. For each number of generators: `trajectories_per_s`; `coordinator_busy`, its share of its
core; `peers_busy`, that of the process with all the peers (near 1 it is the peers that bind, and
the coordinator could do more); `loop_s`, `recorder_s`, `sockets_s`, the coordinator's processor
seconds per 1,000 trajectories. `ends_at`: the first size at which it brings less than half of what
the smallest brings, or a peer is lost; None: it was not reached.
"""

import asyncio
import contextlib
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import zmq.asyncio

from benchmarks import made_runs
from benchmarks.command_line import command_line, offer_row
from benchmarks.coordinator import cpu_seconds, on_core
from benchmarks.rows import keep, result_line
from headrace.config.run import RunConfig
from headrace.protocol import messages as m
from headrace.protocol.records import ProcessChanged
from storage.journal import read_journal
from tests.coordinator.peers import (
    CoordinatorProcess,
    ScriptedGenerator,
    ScriptedLearner,
    ScriptedPeer,
    ScriptedReward,
)

FILES = 16
"""Descriptors of a peer, and some."""
WARM_UP = 0.2
"""Share of a measurement that is not counted: files are made, peers join."""
PATIENCE_S = 120.0


class CountingReward(ScriptedReward):
    """Counts what it scored."""

    scored = 0

    async def answer(self, message: m.Message) -> None:
        await super().answer(message)
        if isinstance(message, m.ScoreRequest):
            self.scored += len(message.items)


def config(*, generators: int, ranks: int, capacity: int, every_updates: int) -> RunConfig:
    """A stream of short answers in which every generator always has something to do."""
    batch = max(256, generators * capacity // 4)
    return made_runs.stream(
        task={"max_prompt_length": 80, "max_response_length": 12},
        algorithm={"value": {"warmup_updates": 0}},
        schedule={"window": 8, "batch_windows": batch, "max_staleness": 8},
        learner={"ranks": ranks},
        evaluation={"before": False, "after": False},
        checkpoint={"every_updates": every_updates},
        storage={"token_diagnostics": False},
        transport={"heartbeat_timeout_s": 60.0, "stall_timeout_s": 600.0},
    )


class Fleet:
    """A real coordinator in `folder` and its scripted peers."""

    def __init__(self, folder: Path, config: RunConfig, *, generators: int, capacity: int) -> None:
        self._folder, self._process = folder, CoordinatorProcess(folder, config)
        self._generators, self._capacity = generators, capacity
        self._heartbeat_s = config.transport.heartbeat_s
        self._peers: list[ScriptedPeer] = []
        self.reward: CountingReward

    def start(self, *, core: int, resume: bool = False) -> str:
        """Begin the coordinator's process on a core of its own; its address."""
        with on_core(core):
            return self._process.start(resume=resume)

    def kill(self) -> None:
        """SIGKILL to the coordinator."""
        self._process.kill()

    @property
    def seen(self) -> psutil.Process:
        """The coordinator's process."""
        assert self._process.process is not None
        return psutil.Process(self._process.process.pid)

    @contextlib.asynccontextmanager
    async def peers(self, address: str) -> AsyncIterator[None]:
        """All peers, as long as the body runs; one that fails ends it."""
        context = zmq.asyncio.Context()
        context.max_sockets = self._generators + 16
        self.reward = CountingReward(address, "reward-0", context=context)
        learner = ScriptedLearner(address, "learner-0", context=context)
        self._peers = [learner, self.reward]
        for number in range(self._generators):
            name, capacity = f"generator-{number}", self._capacity
            self._peers.append(ScriptedGenerator(address, name, capacity=capacity, context=context))
        body = asyncio.current_task()
        tasks = [asyncio.create_task(peer.run()) for peer in self._peers]
        tasks.append(asyncio.create_task(self._live()))
        for task in tasks:
            task.add_done_callback(lambda done: _end_with(done, body))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for peer in self._peers:
                peer.dealer.close()
            context.destroy(linger=0)

    async def _live(self) -> None:
        """Signs of life of everybody; what peers remember is let go."""
        while True:
            for peer in self._peers:
                await peer.dealer.send(m.Heartbeat())
                peer.seen.clear()
            await asyncio.sleep(self._heartbeat_s)

    async def scored(self, goal: int) -> None:
        """Wait until so many answers were scored; RuntimeError when none comes."""
        last, since = self.reward.scored, time.monotonic()
        while self.reward.scored < goal:
            await asyncio.sleep(0.05)
            if self.reward.scored != last:
                last, since = self.reward.scored, time.monotonic()
            if time.monotonic() - since > PATIENCE_S:
                raise RuntimeError(f"no answer was scored for {PATIENCE_S:g} seconds")

    def lost(self) -> int:
        """How often the coordinator took a peer for dead."""
        records = (each for batch in read_journal(self._folder / "journal") for _, each in batch)
        return sum(isinstance(one, ProcessChanged) and one.state == "lost" for one in records)


def _end_with(done: "asyncio.Task[None]", body: "asyncio.Task[Any] | None") -> None:
    if not done.cancelled() and body is not None:
        body.cancel(f"a peer ended: {done.exception()!r}")


@dataclass(frozen=True)
class Load:
    """Processor seconds so far: the coordinator's event loop, recorder and sockets, the peers'."""

    at: float
    loop: float
    recorder: float
    sockets: float
    peers: float

    @classmethod
    def of(cls, coordinator: psutil.Process) -> "Load":
        """Now."""
        own = os.times()
        return cls(time.perf_counter(), *cpu_seconds(coordinator), own.user + own.system)


async def measure(
    folder: Path, *, generators: int, ranks: int, trajectories: int, core: int
) -> dict[str, Any]:
    """One size."""
    capacity = max(4, 4096 // generators)
    run = config(generators=generators, ranks=ranks, capacity=capacity, every_updates=50)
    fleet = Fleet(folder, run, generators=generators, capacity=capacity)
    address = fleet.start(core=core)
    try:
        async with fleet.peers(address):
            warm = round(trajectories * WARM_UP)
            await fleet.scored(warm)
            first, before = fleet.reward.scored, Load.of(fleet.seen)
            await fleet.scored(trajectories)
            count, after = fleet.reward.scored - first, Load.of(fleet.seen)
    finally:
        fleet.kill()
    wall = after.at - before.at
    own = {
        name: getattr(after, name) - getattr(before, name)
        for name in ("loop", "recorder", "sockets")
    }
    return {
        "generators": generators,
        "ranks": ranks,
        "trajectories_per_s": round(count / wall, 1),
        "coordinator_busy": round(sum(own.values()) / wall, 3),
        "peers_busy": round((after.peers - before.peers) / wall, 3),
        **{f"{name}_s": round(seconds / count * 1000, 4) for name, seconds in own.items()},
        "lost": fleet.lost(),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, end."""
    parser = command_line("fleet", __doc__)
    parser.add_argument(
        "--generators",
        type=int,
        nargs="+",
        default=[16, 64, 256, 1000],
        help="how many at once, each counted",
    )
    parser.add_argument("--ranks", type=int, default=64, help="of the learner")
    parser.add_argument("--trajectories", type=int, default=200_000, help="a measurement")
    parser.add_argument("--repeats", type=int, default=3, help="measurements of each")
    offer_row(parser)
    args = parser.parse_args(argv)
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        parser.error("coordinator and peers need a core each")
    allow_files(max(args.generators) * FILES)
    found: dict[int, list[dict[str, Any]]] = {size: [] for size in args.generators}
    print(f"{'generators':>10} {'answers/s':>10} {'coordinator':>11} {'peers':>6} {'lost':>5}")
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as root, on_core(cores[1]):
        for repeat in range(args.repeats):
            for size in args.generators if repeat % 2 == 0 else reversed(args.generators):
                one = asyncio.run(
                    measure(
                        Path(root) / f"{repeat}-{size}",
                        generators=size,
                        ranks=args.ranks,
                        trajectories=args.trajectories,
                        core=cores[0],
                    )
                )
                found[size].append(one)
                print(
                    f"{size:>10} {one['trajectories_per_s']:>10.0f} "
                    f"{one['coordinator_busy']:>11.0%} {one['peers_busy']:>6.0%} {one['lost']:>5}",
                    flush=True,
                )
    result = {"benchmark": "fleet", "trajectories": args.trajectories, **summary(found)}
    keep(args.rows, result)
    if args.json:
        print(result_line(result))
    return 0


def allow_files(wanted: int) -> None:
    """Let this process open so many files, as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))


def summary(found: dict[int, list[dict[str, Any]]]) -> dict[str, Any]:
    """Medians by size, and where it ends."""
    sizes = {}
    for size, rows in sorted(found.items()):
        numbers = [name for name in rows[0] if name != "generators"]
        sizes[str(size)] = {name: statistics.median(row[name] for row in rows) for name in numbers}
    first = next(iter(sizes.values()))["trajectories_per_s"]
    ends = [
        int(size)
        for size, one in sizes.items()
        if one["lost"] or one["trajectories_per_s"] < first / 2
    ]
    return {"sizes": sizes, "ends_at": min(ends, default=None)}


if __name__ == "__main__":
    sys.exit(main())
