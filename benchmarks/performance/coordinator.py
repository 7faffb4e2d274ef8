"""Claim: a coordinator's cost per chunk does not grow with active trajectories.

Scripted peers send chunks of 128 tokens to a real coordinator, which checks them, closes windows,
writes journal and SQL, and acknowledges what is on disk; peers and coordinator have a core each. A
measurement is the same number of chunks, in messages of the same size, for few and for many active
trajectories in turns. In: the two sizes. Out: a table; with --json, as the last line, one JSON
object. `ratio`: chunks per processor second of the coordinator with many over those with few (the
median of the pairs); `chunks_per_s`: from the socket to the acknowledgement, the lower of the two
medians; `threads`: shares of the coordinator's processor time by thread.
"""

import argparse
import asyncio
import contextlib
import statistics
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.kit.command_line import command_line
from benchmarks.kit.pairs import ratios
from benchmarks.kit.pinned_coordinator import CoordinatorUsage, PinnedCoordinator, bench_folder
from benchmarks.kit.rows import report_result
from benchmarks.kit.synthetic_runs import stream
from headrace.config.sections.run import RunConfig
from headrace.protocol.messages import control as m
from tests.coordinator.peers import ScriptedGenerator, ScriptedLearner, ScriptedReward

CHUNK = 128
WINDOW = 2 * CHUNK
IN_FLIGHT = 128
"""Maximum unacknowledged messages: those of some commits, as of busy generators."""
PATIENCE_S = 120.0
Measure = Callable[[int, int], Awaitable[CoordinatorUsage]]
"""The cost of a number of chunks, by the number per message."""
THREADS = ("loop", "recorder", "sockets")


def config() -> RunConfig:
    """Configure a stream without waiting or full batches, in which chunks alone count."""
    return stream(
        task={"max_prompt_length": 64, "max_response_length": WINDOW << 15},
        schedule={"window": WINDOW, "batch_windows": 10**7},
        evaluation={"before": False, "after": False},
        transport={"heartbeat_timeout_s": 3600.0, "stall_timeout_s": 3600.0, "self_test_s": None},
    )


class ChunkSender(ScriptedGenerator):
    """Scripted generator that holds leases and sends their chunks on demand."""

    def __init__(self, *arguments: Any, **at: Any) -> None:
        super().__init__(*arguments, **at)
        self._leases: list[m.Lease] = []
        self._chunks: list[int] = []
        """Chunks of each lease so far."""
        self._open = self._acked = 0
        self._moved = asyncio.Condition()

    async def answer(self, message: m.Message) -> None:
        async with self._moved:
            match message:
                case m.Leases():
                    self._leases += message.leases
                case m.ChunkAck():
                    self._acked += len(message.acked)
                    self._open -= 1
                case m.Hold():
                    raise RuntimeError("the coordinator holds trajectories: it should not have to")
                case _:
                    await super().answer(message)
            self._moved.notify_all()

    async def has_leases(self) -> None:
        """Wait until all of its trajectories are active."""
        async with asyncio.timeout(PATIENCE_S), self._moved:
            await self._moved.wait_for(lambda: len(self._leases) >= self.capacity)
        self._chunks = [0] * self.capacity

    async def send(self, chunks: int, size: int) -> None:
        """Send chunks of all trajectories in turn, `size` per message, and await acks."""
        goal = self._acked + chunks
        async with asyncio.timeout(PATIENCE_S):
            for message in self._messages(chunks, size):
                await self.dealer.send(message)
                self._open += 1
                async with self._moved:
                    await self._moved.wait_for(lambda: self._open < IN_FLIGHT)
            async with self._moved:
                await self._moved.wait_for(lambda: self._acked >= goal)

    def _messages(self, chunks: int, size: int) -> Iterator[m.Chunks]:
        made: list[m.TrajectoryChunk] = []
        for number in range(chunks):
            lease, index = self._leases[place := number % self.capacity], self._chunks[place]
            start = index * CHUNK
            self._chunks[place] += 1
            made.append(self.chunk(lease, index, start, start + CHUNK, None))
            if len(made) == size or number == chunks - 1:
                yield m.Chunks(chunks=made)
                made = []


@contextlib.asynccontextmanager
async def bench(folder: Path, active: int, *, core: int) -> AsyncIterator[Measure]:
    """Start a coordinator with active trajectories."""
    server = PinnedCoordinator(folder, config(), core=core)

    async def measure(chunks: int, size: int) -> CoordinatorUsage:
        before = server.used()
        await sender.send(chunks, size)
        return server.used().since(before)

    with server.started(3) as at:
        sender = ChunkSender(name="generator-0", capacity=active, **at)
        learner = ScriptedLearner(name="learner-0", **at)
        reward = ScriptedReward(name="reward-0", **at)
        async with server.joined([learner, reward, sender]):
            await sender.has_leases()
            yield measure


async def compare(args: argparse.Namespace, root: Path, *, core: int) -> dict[str, Any]:
    """Measure both sizes in turns, each first in every second repeat."""
    sizes = (args.few, args.many)
    samples: dict[int, list[CoordinatorUsage]] = {size: [] for size in sizes}
    async with contextlib.AsyncExitStack() as stack:
        benches = {}
        for size in sizes:
            at = bench(root / str(size), size, core=core)
            benches[size] = await stack.enter_async_context(at)
            await benches[size](args.chunks, args.message)  # Not counted: files are made.
        print(f"{'active':>7} {'chunks/s':>9} {'per CPU s':>10}  {' '.join(THREADS)}")
        for repeat in range(args.repeats):
            for size in sizes[:: 1 if repeat % 2 else -1]:
                sample = await benches[size](args.chunks, args.message)
                samples[size].append(sample)
                found = _figures(args.chunks, [sample])
                print(
                    f"{size:>7} {found['chunks_per_s']:>9} {found['chunks_per_cpu_s']:>10}  "
                    + " ".join(f"{share:7.0%}" for share in found["threads"].values()),
                    flush=True,
                )
    few, many = ([one.cpu_s for one in samples[size]] for size in sizes)
    found_ratios = ratios(few, many)
    active = {str(size): _figures(args.chunks, samples[size]) for size in sizes}
    return {
        "name": "coordinator",
        "ratio": statistics.median(found_ratios),
        "ratios": [round(ratio, 3) for ratio in found_ratios],
        "chunks_per_s": min(one["chunks_per_s"] for one in active.values()),
        "active": active,
        "chunk_tokens": CHUNK,
        "chunks_a_message": args.message,
        "chunks": args.chunks,
    }


def _figures(chunks: int, samples: Sequence[CoordinatorUsage]) -> dict[str, Any]:
    per_cpu_s = [chunks / one.cpu_s for one in samples]
    cpu_s = sum(one.cpu_s for one in samples)
    return {
        "chunks_per_cpu_s": round(statistics.median(per_cpu_s)),
        "chunks_per_cpu_s_range": [round(min(per_cpu_s)), round(max(per_cpu_s))],
        "chunks_per_s": round(statistics.median(chunks / one.wall_s for one in samples)),
        "busy": round(cpu_s / sum(one.wall_s for one in samples), 3),
        "threads": {
            name: round(sum(getattr(one, f"{name}_s") for one in samples) / cpu_s, 3)
            for name in THREADS
        },
    }


def main(argv: Sequence[str]) -> int:
    parser = command_line("coordinator", __doc__)
    parser.add_argument("--few", type=int, default=64, help="active trajectories of one side")
    parser.add_argument("--many", type=int, default=16384, help="and of the other")
    parser.add_argument("--chunks", type=int, default=32768, help="chunks a measurement")
    parser.add_argument("--message", type=int, default=64, help="chunks a message")
    parser.add_argument("--repeats", type=int, default=5, help="measurements of each, in turns")
    args = parser.parse_args(argv)
    with bench_folder(parser) as (root, core):
        result = asyncio.run(compare(args, root, core=core))
    print(
        f"ratio {result['ratio']:.2f} (goal: at least 0.8); {result['chunks_per_s']:.0f} chunks a "
        "second (goal: 20000, at least 5000)"
    )
    return report_result(args, result)
