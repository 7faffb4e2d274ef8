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

With --rates, the generators share --slots slots that make so many tokens a second each, in answers
of up to 16k tokens, through a generator's own outbox. For each size and rate: `tokens_per_s` that
were acknowledged, `offered` ones, `tokens_per_cpu_s` of the coordinator, its memory, and what it
writes to journal and database in a second. `ratios`: by rate, tokens per processor second with the
last number of generators over those with the first. --seconds: of each rate; `memory_mb` has the
coordinator's memory at their beginning and end. With --kill, so many of the generators fall silent
at the end of the last rate: `lost_generators` is what the coordinator noticed, `lost_tokens` those
that it acknowledged and that are not in the journal.
"""

import argparse
import asyncio
import contextlib
import statistics
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.kit.command_line import add_rows_option, command_line
from benchmarks.kit.pinned_coordinator import PinnedCoordinator, bench_folder
from benchmarks.kit.rows import report_result
from benchmarks.kit.synthetic_runs import stream
from generators.rollout.outbox import Outbox
from headrace.config.loading.recipe import deep_merge
from headrace.config.sections.run import RunConfig
from headrace.protocol.messages import control as m
from headrace.protocol.records.record_types import ChunkArrived, ProcessChanged
from storage.journal.store import read_journal
from tests.coordinator.peers import ScriptedGenerator, ScriptedLearner, ScriptedReward, until

WARM_UP = 0.2
"""Share of a measurement that is not counted: files are created, peers join."""
PATIENCE_S = 120.0
SETTLE_S = 5.0
CHUNK, LONGEST = 256, 64
"""Tokens of a chunk, and chunks of the longest answer, with slots that have a rate."""
G = TypeVar("G", bound=ScriptedGenerator)
Fleet = contextlib.AbstractAsyncContextManager[tuple[PinnedCoordinator, "CountingReward", list[G]]]


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


class PacedGenerator(ScriptedGenerator):
    """Scripted generator whose slots take turns with chunks, which go through an outbox."""

    def __init__(self, *arguments: Any, **at: Any) -> None:
        super().__init__(*arguments, **at)
        self._slots: deque[tuple[m.Lease, int]] = deque()
        """Leases, each with the number of its chunks so far."""
        self._outbox = Outbox(self.dealer.send)
        self._due = 0.0
        self._task: asyncio.Task[None] | None = None
        self.acked: list[tuple[int, int]] = []

    @property
    def busy(self) -> bool:
        """True where every slot has a lease."""
        return len(self._slots) >= self.capacity

    async def run(self) -> None:
        self._task = asyncio.current_task()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._outbox.run())
            await super().run()

    async def answer(self, message: m.Message) -> None:
        match message:
            case m.Leases(leases=leases):
                self._slots.extend((lease, 0) for lease in leases)
            case m.ChunkAck(acked=acked):
                self.acked += acked
                self._outbox.acknowledge(message)
            case _:
                await super().answer(message)

    def fall_silent(self) -> None:
        """Send and receive nothing any more, as a killed process."""

        async def drop(message: m.Message) -> None:
            pass

        self.dealer.send = drop  # type: ignore[method-assign]
        self._slots.clear()
        if self._task is not None:
            self._task.cancel()

    def advance(self, tokens: float) -> None:
        """Let so many tokens be sampled in all slots together."""
        self._due += tokens / CHUNK
        while self._due >= 1 and self._slots:
            self._due -= 1
            lease, index = self._slots.popleft()
            start, ends = index * CHUNK, index == lease.trajectory_id * 37 % LONGEST
            finish: m.Finish | None = "stop" if ends else None
            self._outbox.put(self.chunk(lease, index, start, start + CHUNK, finish))
            if not ends:
                self._slots.append((lease, index + 1))


def settings(ranks: int, **own: Any) -> RunConfig:
    """Configure a stream with these keys, without evaluations and token diagnostics."""
    shared: dict[str, Any] = {
        "algorithm": {"value": {"warmup_updates": 0}},
        "learner": {"ranks": ranks},
        "evaluation": {"before": False, "after": False},
        "storage": {"token_diagnostics": False},
        "transport": {"heartbeat_timeout_s": 60.0, "stall_timeout_s": 600.0},
    }
    deep_merge(shared, own)
    return stream(**shared)


@contextlib.asynccontextmanager
async def fleet(
    folder: Path, config: RunConfig, kind: type[G], *, generators: int, capacity: int, core: int
) -> AsyncIterator[tuple[PinnedCoordinator, CountingReward, list[G]]]:
    """Start a coordinator and all its peers, until the block ends, which kills it."""
    server = PinnedCoordinator(folder, config, core=core)
    with server.started(generators + 2) as at:
        names = [f"generator-{number}" for number in range(generators)]
        scripted = [kind(name=name, capacity=capacity, **at) for name in names]
        reward = CountingReward(name="reward-0", **at)
        async with server.joined([ScriptedLearner(name="learner-0", **at), reward, *scripted]):
            yield server, reward, scripted


def short_answers(
    folder: Path, *, generators: int, ranks: int, every_updates: int, core: int
) -> Fleet[ScriptedGenerator]:
    """Return a fleet with short answers, in which every generator always has work."""
    capacity = max(4, 4096 // generators)
    config = settings(
        ranks,
        task={"max_prompt_length": 80, "max_response_length": 12},
        schedule={
            "window": 8,
            "batch_windows": max(256, generators * capacity // 4),
            "max_staleness": 8,
        },
        checkpoint={"every_updates": every_updates},
    )
    sizes = {"generators": generators, "capacity": capacity}
    return fleet(folder, config, ScriptedGenerator, **sizes, core=core)


async def measure(
    folder: Path, *, generators: int, ranks: int, trajectories: int, core: int
) -> dict[str, Any]:
    """Measure one size."""
    sizes = {"generators": generators, "ranks": ranks}
    async with short_answers(folder, **sizes, every_updates=50, core=core) as (server, reward, _):
        await reward.until(round(trajectories * WARM_UP))
        first, before = reward.scored, server.used()
        await reward.until(trajectories)
        count, used = reward.scored - first, server.used().since(before)
    records = (each for batch in read_journal(folder / "journal") for _, each in batch)
    return {
        **sizes,
        "trajectories_per_s": round(count / used.wall_s, 1),
        "coordinator_busy": round(used.cpu_s / used.wall_s, 3),
        "peers_busy": round(used.peers_s / used.wall_s, 3),
        **{
            name: round(getattr(used, name) / count * 1000, 4)
            for name in ("loop_s", "recorder_s", "sockets_s")
        },
        "lost": sum(isinstance(one, ProcessChanged) and one.state == "lost" for one in records),
    }


async def pace(
    folder: Path, load: argparse.Namespace, *, generators: int, core: int
) -> AsyncIterator[dict[str, Any]]:
    """Yield the figures of one size at each rate in turn, in tokens a second of a slot."""
    config = settings(
        load.ranks,
        task={"max_prompt_length": 80, "max_response_length": CHUNK * LONGEST},
        schedule={
            "window": 4096,
            "batch_windows": 1024,
            "max_staleness": 8 + 2 * load.slots // 1024,
        },
        checkpoint={"every_updates": 10**6},
        transport={"self_test_s": None, "heartbeat_timeout_s": load.silence_s},
    )
    sizes = {"generators": generators, "capacity": load.slots // generators}
    async with fleet(folder, config, PacedGenerator, **sizes, core=core) as (server, _, paced):
        await until(lambda: all(one.busy for one in paced), PATIENCE_S)
        for rate in load.rates:
            await _advance(paced, rate, SETTLE_S)
            acked, written, before = _acked(paced), _written(server), server.used()
            memory = [_memory_mb(server)]
            await _advance(paced, rate, load.seconds)
            used = server.used().since(before)
            tokens, written = _acked(paced) - acked, _written(server) - written
            row = {
                "generators": generators,
                "rate": rate,
                "offered": round(rate * load.slots),
                "tokens_per_s": round(tokens / used.wall_s),
                "tokens_per_cpu_s": round(tokens / used.cpu_s),
                "coordinator_busy": round(used.cpu_s / used.wall_s, 3),
                "loop_busy": round(used.loop_s / used.wall_s, 3),
                "peers_busy": round(used.peers_s / used.wall_s, 3),
                "memory_mb": [*memory, _memory_mb(server)],
                "disk_mb_per_s": round(written / used.wall_s / 1e6, 2),
            }
            if load.kill and rate == load.rates[-1]:
                for one in paced[: load.kill]:
                    one.fall_silent()
                await _advance(paced, rate, 2 * load.silence_s)
                row |= _losses(folder / "journal", [key for one in paced for key in one.acked])
            yield row


def _losses(journal: Path, acked: Iterable[tuple[int, int]]) -> dict[str, int]:
    """Count lost generators, and tokens of acknowledged chunks that the journal has not."""
    silent, arrived = 0, set[tuple[int, int]]()
    for batch in read_journal(journal):
        for _, one in batch:
            silent += isinstance(one, ProcessChanged) and one.state == "lost"
            if isinstance(one, ChunkArrived):
                arrived.add((one.trajectory_id, one.chunk_index))
    return {"lost_generators": silent, "lost_tokens": len(set(acked) - arrived) * CHUNK}


def _memory_mb(server: PinnedCoordinator) -> int:
    return round(server.seen.memory_info().rss / 1e6)


def _acked(paced: Sequence[PacedGenerator]) -> int:
    return CHUNK * sum(len(one.acked) for one in paced)


def _written(server: PinnedCoordinator) -> int:
    return int(server.seen.io_counters().write_chars)


async def _advance(paced: Sequence[PacedGenerator], rate: float, seconds: float) -> None:
    """Let all slots sample for so many seconds, whatever the coordinator does."""
    last = began = time.monotonic()
    while last < began + seconds:
        await asyncio.sleep(0.02)
        now = time.monotonic()
        for one in paced:
            one.advance((now - last) * rate * one.capacity)
        last = now


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


async def _all_paces(parser: argparse.ArgumentParser, args: argparse.Namespace) -> dict[str, Any]:
    rows = []
    with bench_folder(parser) as (root, core):
        for size in args.generators:
            async for row in pace(root / str(size), args, generators=size, core=core):
                print("  ".join(f"{name} {value}" for name, value in row.items()), flush=True)
                rows.append(row)
    per_cpu_s = {(row["generators"], row["rate"]): row["tokens_per_cpu_s"] for row in rows}
    few, many = args.generators[0], args.generators[-1]
    ratios = [round(per_cpu_s[many, rate] / per_cpu_s[few, rate], 3) for rate in args.rates]
    sizes = {"slots": args.slots, "ranks": args.ranks}
    return {"name": "fleet", **sizes, "paced": rows, "ratios": ratios}


def main(argv: Sequence[str]) -> int:
    parser = command_line("fleet", __doc__)
    sizes = [16, 64, 256, 1000]
    parser.add_argument("--generators", type=int, nargs="+", default=sizes, help="each counted")
    parser.add_argument("--ranks", type=int, default=64, help="of the learner")
    parser.add_argument("--trajectories", type=int, default=200_000, help="a measurement")
    parser.add_argument("--repeats", type=int, default=3, help="measurements of each")
    parser.add_argument("--rates", type=float, nargs="+", help="tokens a second of each slot")
    parser.add_argument("--slots", type=int, default=100_000, help="of all generators together")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each rate")
    parser.add_argument("--kill", type=int, default=0, help="generators that fall silent")
    parser.add_argument("--silence-s", type=float, default=60.0, help="after which one is lost")
    add_rows_option(parser)
    args = parser.parse_args(argv)
    if args.rates:
        return report_result(args, asyncio.run(_all_paces(parser, args)))
    found: dict[int, list[dict[str, Any]]] = {size: [] for size in args.generators}
    print(f"{'generators':>10} {'answers/s':>10} {'coordinator':>11} {'peers':>6} {'lost':>5}")
    with bench_folder(parser) as (root, core):
        for repeat in range(args.repeats):
            for size in args.generators[:: -1 if repeat % 2 else 1]:
                load = {"ranks": args.ranks, "trajectories": args.trajectories}
                folder = root / f"{repeat}-{size}"
                one = asyncio.run(measure(folder, generators=size, core=core, **load))
                found[size].append(one)
                print(
                    f"{size:>10} {one['trajectories_per_s']:>10.0f} "
                    f"{one['coordinator_busy']:>11.0%} {one['peers_busy']:>6.0%} {one['lost']:>5}",
                    flush=True,
                )
    result = {"name": "fleet", "trajectories": args.trajectories, **summary(found)}
    return report_result(args, result)
