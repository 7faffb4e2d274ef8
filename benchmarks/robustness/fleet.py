"""Claim: the number of generators and ranks that a coordinator serves.

Scripted generators, a scripted reward worker and a scripted learner, all in one process on a core
of their own, send answers through a real coordinator on the other: lease, chunk, score, batch,
update. Answers are short and come at once, so this measures the maximum throughput of the
coordinator, not of an engine. In: sizes. Out: a table; with --json, as the last line, one JSON
object. For each number of generators: `trajectories_per_s`; `coordinator_busy`, its share of its
core; `peers_busy`, that of the process with all the peers (near 1 the peers are the bottleneck);
`loop_s`, `recorder_s`, `sockets_s`, the coordinator's processor seconds per 1,000 trajectories.
`ends_at`: the first size with less than half the throughput of the smallest, or with a lost peer;
None: it was not reached.
"""

import asyncio
import contextlib
import statistics
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.kit.command_line import add_rows_option, command_line
from benchmarks.kit.pinned_coordinator import PinnedCoordinator, allow_files, bench_folder
from benchmarks.kit.rows import report_result
from benchmarks.kit.synthetic_runs import stream
from headrace.protocol.messages import control as m
from headrace.protocol.records.record_types import ProcessChanged
from storage.journal.store import read_journal
from tests.coordinator.peers import ScriptedGenerator, ScriptedLearner, ScriptedReward

WARM_UP = 0.2
"""Share of a measurement that is not counted: files are created, peers join."""
PATIENCE_S = 120.0


class CountingReward(ScriptedReward):
    """Scripted reward worker that counts the scored answers."""

    scored = 0

    async def answer(self, message: m.Message) -> None:
        await super().answer(message)
        if isinstance(message, m.ScoreRequest):
            self.scored += len(message.items)

    async def until(self, goal: int) -> None:
        """Wait until this many answers are scored; RuntimeError when none comes."""
        last, since = self.scored, time.monotonic()
        while self.scored < goal:
            await asyncio.sleep(0.05)
            if self.scored != last:
                last, since = self.scored, time.monotonic()
            if time.monotonic() - since > PATIENCE_S:
                raise RuntimeError(f"no answer was scored for {PATIENCE_S:g} seconds")


@contextlib.asynccontextmanager
async def fleet(
    folder: Path, *, generators: int, ranks: int, every_updates: int, core: int
) -> AsyncIterator[tuple[PinnedCoordinator, CountingReward]]:
    """Start a coordinator and all its peers, until the block ends, which kills it.

    It streams short answers, and every generator always has work."""
    capacity = max(4, 4096 // generators)
    config = stream(
        task={"max_prompt_length": 80, "max_response_length": 12},
        algorithm={"value": {"warmup_updates": 0}},
        schedule={
            "window": 8,
            "batch_windows": max(256, generators * capacity // 4),
            "max_staleness": 8,
        },
        learner={"ranks": ranks},
        evaluation={"before": False, "after": False},
        checkpoint={"every_updates": every_updates},
        storage={"token_diagnostics": False},
        transport={"heartbeat_timeout_s": 60.0, "stall_timeout_s": 600.0},
    )
    server = PinnedCoordinator(folder, config, core=core)
    with server.started(generators + 2) as at:
        reward = CountingReward(name="reward-0", **at)
        peers = [ScriptedLearner(name="learner-0", **at), reward]
        for number in range(generators):
            peers.append(ScriptedGenerator(name=f"generator-{number}", capacity=capacity, **at))
        async with server.joined(peers):
            yield server, reward


async def measure(
    folder: Path, *, generators: int, ranks: int, trajectories: int, core: int
) -> dict[str, Any]:
    """Measure one size."""
    settings = {"generators": generators, "ranks": ranks}
    async with fleet(folder, **settings, every_updates=50, core=core) as (server, reward):
        await reward.until(round(trajectories * WARM_UP))
        first, before = reward.scored, server.used()
        await reward.until(trajectories)
        count, used = reward.scored - first, server.used().since(before)
    records = (each for batch in read_journal(folder / "journal") for _, each in batch)
    return {
        **settings,
        "trajectories_per_s": round(count / used.wall_s, 1),
        "coordinator_busy": round(used.cpu_s / used.wall_s, 3),
        "peers_busy": round(used.peers_s / used.wall_s, 3),
        **{
            name: round(getattr(used, name) / count * 1000, 4)
            for name in ("loop_s", "recorder_s", "sockets_s")
        },
        "lost": sum(isinstance(one, ProcessChanged) and one.state == "lost" for one in records),
    }


def summary(found: Mapping[int, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """Return medians by size, and the size at which it ends."""
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


def main(argv: Sequence[str]) -> int:
    """Measure and print."""
    parser = command_line("fleet", __doc__)
    sizes = [16, 64, 256, 1000]
    parser.add_argument("--generators", type=int, nargs="+", default=sizes, help="each counted")
    parser.add_argument("--ranks", type=int, default=64, help="of the learner")
    parser.add_argument("--trajectories", type=int, default=200_000, help="a measurement")
    parser.add_argument("--repeats", type=int, default=3, help="measurements of each")
    add_rows_option(parser)
    args = parser.parse_args(argv)
    allow_files(max(args.generators))
    found: dict[int, list[dict[str, Any]]] = {size: [] for size in args.generators}
    print(f"{'generators':>10} {'answers/s':>10} {'coordinator':>11} {'peers':>6} {'lost':>5}")
    with bench_folder(parser) as (root, core):
        for repeat in range(args.repeats):
            for size in args.generators[:: -1 if repeat % 2 else 1]:
                settings = {"generators": size, "ranks": args.ranks, "core": core}
                folder = root / f"{repeat}-{size}"
                one = asyncio.run(measure(folder, trajectories=args.trajectories, **settings))
                found[size].append(one)
                print(
                    f"{size:>10} {one['trajectories_per_s']:>10.0f} "
                    f"{one['coordinator_busy']:>11.0%} {one['peers_busy']:>6.0%} {one['lost']:>5}",
                    flush=True,
                )
    result = {"benchmark": "fleet", "trajectories": args.trajectories, **summary(found)}
    return report_result(args, result)
