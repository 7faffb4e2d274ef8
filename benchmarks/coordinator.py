"""Claim: what a coordinator does for a chunk does not depend on how many trajectories are active.

Scripted peers send chunks of 128 tokens to a real coordinator, which checks them, closes windows,
writes journal and SQL, and acknowledges what is on disk; peers and coordinator have a core each. A
measurement is the same number of chunks, in messages of the same size, for few and for many active
trajectories in turns. In: the two sizes. Out: a table; with --json, as the last line, one JSON
object. `ratio`: chunks per processor second of the coordinator with many over those with few (the
median of the pairs); `chunks_per_s`: from the socket to the acknowledgement, the lower of the two
medians; `threads`: who in the coordinator used the processor; `stages` (with --stages): in which
stage the event loop and the recorder were when they were looked at, in a coordinator that is
measured apart, because looking costs time.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import psutil

from benchmarks import made_runs
from benchmarks.command_line import command_line
from benchmarks.rows import result_line
from headrace.config.run import RunConfig
from headrace.protocol.identity import identity_of
from headrace.protocol.messages import (
    ChunkAck,
    Chunks,
    Hello,
    Hold,
    Leases,
    Message,
    Role,
    TrajectoryChunk,
    WeightNotice,
    WeightsLoaded,
    Welcome,
)
from headrace.protocol.sockets import BlockingDealer, Link
from headrace.protocol.streams import Span

M = TypeVar("M", bound=Message)
CHUNK = 128
WINDOW = 2 * CHUNK
IN_FLIGHT = 128
"""Messages sent and not acknowledged: some commits' worth, as from busy generators."""
PATIENCE_S = 120.0


def config() -> RunConfig:
    """A stream in which nobody ever has to wait, and no batch is ever full: chunks alone count."""
    return made_runs.stream(
        task={"max_prompt_length": 64, "max_response_length": WINDOW << 15},
        schedule={"window": WINDOW, "batch_windows": 10**7},
        evaluation={"before": False, "after": False},
        transport={"heartbeat_timeout_s": 3600.0, "stall_timeout_s": 3600.0, "self_test_s": None},
    )


@contextlib.contextmanager
def on_core(core: int) -> Iterator[None]:
    """Processes begun inside run on this core alone."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@dataclass(frozen=True)
class Sample:
    """One measurement: seconds on the clock, and of the processor by the coordinator's threads."""

    chunks: int
    wall_s: float
    loop_s: float
    recorder_s: float
    sockets_s: float

    @property
    def cpu_s(self) -> float:
        """Processor seconds of the coordinator."""
        return self.loop_s + self.recorder_s + self.sockets_s


class Bench:
    """A coordinator with its scripted peers and `active` trajectories."""

    def __init__(self, folder: Path, active: int, *, core: int, stages: Path | None = None) -> None:
        folder.mkdir(parents=True)
        (folder / "resolved.json").write_text(config().model_dump_json())
        module = ["coordinator.run"] if stages is None else ["benchmarks.stages", str(stages)]
        command = [sys.executable, "-m", *module, "--run-dir", str(folder)]
        with on_core(core), (folder / "coordinator.log").open("w") as log:
            self._process = subprocess.Popen(command, stderr=log)
        self._seen = psutil.Process(self._process.pid)
        announced = folder / "coordinator.json"
        while not announced.exists():
            if self._process.poll() is not None:
                raise RuntimeError((folder / "coordinator.log").read_text())
            time.sleep(0.05)
        link = Link(str(json.loads(announced.read_text())["address"]))
        self._dealers: list[BlockingDealer] = []
        try:
            self._join(link, active)
        except BaseException:
            self.close()
            raise

    def _join(self, link: Link, active: int) -> None:
        learner = self._hello(link, "learner")
        welcome = _wait(learner, Welcome)
        learner.send(
            WeightNotice(version=welcome.publish_as, update=0, sha256="", num_bytes=0, sources=[])
        )
        self._hello(link, "reward")
        self._generator = self._hello(link, "generator", capacity=active)
        version = _wait(self._generator, WeightNotice).version
        self._generator.send(WeightsLoaded(version=version, gap_s=0.0, load_s=0.0))
        self._version = version
        leases: list[tuple[int, int]] = []
        while len(leases) < active:
            message = _wait(self._generator, Leases)
            leases += [(lease.lease_id, lease.trajectory_id) for lease in message.leases]
        self._leases = leases
        self._chunks_of = [0] * active

    def _hello(self, link: Link, role: Role, *, capacity: int = 0) -> BlockingDealer:
        name = f"{role}-0"
        dealer = BlockingDealer(link, identity_of(name))
        self._dealers.append(dealer)
        pid = os.getpid() + len(self._dealers)
        dealer.send(Hello(role=role, name=name, pid=pid, host="", capacity=capacity))
        return dealer

    def messages(self, chunks: int, size: int) -> Iterator[Chunks]:
        """So many chunks of all trajectories in turn, `size` to a message."""
        ids, logprobs = np.full(CHUNK, 5, np.int32), np.full(CHUNK, -0.5, np.float32)
        made: list[TrajectoryChunk] = []
        for number in range(chunks):
            place = number % len(self._leases)
            lease_id, trajectory_id = self._leases[place]
            index = self._chunks_of[place]
            self._chunks_of[place] += 1
            start = index * CHUNK
            made.append(
                TrajectoryChunk(
                    lease_id=lease_id,
                    trajectory_id=trajectory_id,
                    chunk_index=index,
                    start=start,
                    token_ids=ids,
                    logprobs=logprobs,
                    spans=[Span(self._version, start, start + CHUNK)],
                )
            )
            if len(made) == size:
                yield Chunks(chunks=made)
                made = []
        if made:
            yield Chunks(chunks=made)

    def measure(self, chunks: int, size: int) -> Sample:
        """Send chunks until all are acknowledged."""
        open_messages: deque[int] = deque()
        acked = 0
        before, began = cpu_seconds(self._seen), time.perf_counter()
        for message in self.messages(chunks, size):
            self._generator.send(message)
            open_messages.append(len(message.chunks))
            while len(open_messages) >= IN_FLIGHT:
                acked += len(_wait(self._generator, ChunkAck).acked)
                open_messages.popleft()
        while acked < chunks:
            acked += len(_wait(self._generator, ChunkAck).acked)
        wall_s, after = time.perf_counter() - began, cpu_seconds(self._seen)
        return Sample(chunks, wall_s, *(b - a for a, b in zip(before, after, strict=True)))

    def close(self) -> None:
        """End the coordinator at once: what it would do at its end is no part of this."""
        for dealer in self._dealers:
            dealer.close()
        self._process.kill()
        self._process.wait()


def cpu_seconds(process: psutil.Process) -> tuple[float, float, float]:
    """Processor seconds so far of a coordinator: its event loop, the rest (which is the recorder),
    and the sockets' threads."""
    loop = sockets = whole = 0.0
    for thread in process.threads():
        seconds = thread.user_time + thread.system_time
        whole += seconds
        if thread.id == process.pid:
            loop = seconds
        elif _name_of(process.pid, thread.id).startswith("ZMQ"):
            sockets += seconds
    return loop, whole - loop - sockets, sockets


def _name_of(process: int, thread: int) -> str:
    path = Path(f"/proc/{process}/task/{thread}/comm")
    return path.read_text().strip() if path.exists() else ""


def _wait(dealer: BlockingDealer, kind: type[M]) -> M:
    """The next message of a kind; anything else but signs of life would spoil the measurement."""
    deadline = time.monotonic() + PATIENCE_S
    while (message := dealer.receive(deadline - time.monotonic())) is not None:
        if isinstance(message, kind):
            return message
        if isinstance(message, Hold):
            raise RuntimeError("the coordinator holds trajectories: it should have no reason to")
    raise RuntimeError(f"no {kind.__name__} in {PATIENCE_S:g} seconds")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, end."""
    parser = command_line("coordinator", __doc__)
    parser.add_argument("--few", type=int, default=64, help="active trajectories of one side")
    parser.add_argument("--many", type=int, default=16384, help="and of the other")
    parser.add_argument("--chunks", type=int, default=32768, help="chunks a measurement")
    parser.add_argument("--message", type=int, default=64, help="chunks a message")
    parser.add_argument(
        "--repeats", type=int, default=5, help="measurements of each side, in turns"
    )
    parser.add_argument("--stages", action="store_true", help="also say what binds, stage by stage")
    args = parser.parse_args(argv)
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        parser.error("coordinator and peers need a core each")
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as root, on_core(cores[1]):
        result = compare(args, Path(root), core=cores[0])
        if args.stages:
            result["stages"] = stages(args, Path(root), core=cores[0])
    print(
        f"ratio {result['ratio']:.2f} (goal: at least 0.8); {result['chunks_per_s']:.0f} chunks a "
        "second (goal: 20000, at least 5000)"
    )
    if args.json:
        print(result_line(result))
    return 0


def compare(args: argparse.Namespace, root: Path, *, core: int) -> dict[str, Any]:
    """Both sizes in turns, each first in every second repeat; the figures."""
    sizes = (args.few, args.many)
    samples: dict[int, list[Sample]] = {size: [] for size in sizes}
    with contextlib.ExitStack() as stack:
        benches = {}
        for size in sizes:
            benches[size] = Bench(root / str(size), size, core=core)
            stack.callback(benches[size].close)
            benches[size].measure(args.chunks, args.message)  # Not counted: files are made.
        print(f"{'active':>7} {'chunks/s':>9} {'per CPU s':>10}  loop recorder sockets")
        for repeat in range(args.repeats):
            for size in sizes if repeat % 2 else reversed(sizes):
                sample = benches[size].measure(args.chunks, args.message)
                samples[size].append(sample)
                shares = [
                    part / sample.cpu_s
                    for part in (sample.loop_s, sample.recorder_s, sample.sockets_s)
                ]
                print(
                    f"{size:>7} {sample.chunks / sample.wall_s:>9.0f} "
                    f"{sample.chunks / sample.cpu_s:>10.0f}  "
                    + " ".join(f"{share:7.0%}" for share in shares),
                    flush=True,
                )
    pairs = zip(samples[args.few], samples[args.many], strict=True)
    ratios = [few.cpu_s / many.cpu_s for few, many in pairs]
    return {
        "benchmark": "coordinator",
        "ratio": statistics.median(ratios),
        "ratios": [round(ratio, 3) for ratio in ratios],
        "chunks_per_s": min(
            statistics.median(s.chunks / s.wall_s for s in of_size) for of_size in samples.values()
        ),
        "active": {str(size): _figures(samples[size]) for size in sizes},
        "chunk_tokens": CHUNK,
        "chunks_a_message": args.message,
        "chunks": args.chunks,
    }


def _figures(samples: list[Sample]) -> dict[str, Any]:
    per_cpu_s = [s.chunks / s.cpu_s for s in samples]
    cpu_s = sum(s.cpu_s for s in samples)
    return {
        "chunks_per_cpu_s": round(statistics.median(per_cpu_s)),
        "chunks_per_cpu_s_range": [round(min(per_cpu_s)), round(max(per_cpu_s))],
        "chunks_per_s": round(statistics.median(s.chunks / s.wall_s for s in samples)),
        "busy": round(cpu_s / sum(s.wall_s for s in samples), 3),
        "threads": {
            "loop": round(sum(s.loop_s for s in samples) / cpu_s, 3),
            "recorder": round(sum(s.recorder_s for s in samples) / cpu_s, 3),
            "sockets": round(sum(s.sockets_s for s in samples) / cpu_s, 3),
        },
    }


def stages(args: argparse.Namespace, root: Path, *, core: int) -> dict[str, Any]:
    """Where the time goes, by the larger size."""
    path = root / "stages.json"
    bench = Bench(root / "stages", args.many, core=core, stages=path)
    try:
        for _ in range(2):
            path.unlink(missing_ok=True)  # What it did before is not counted.
            bench.measure(args.chunks, args.message)
    finally:
        bench.close()
    found: dict[str, Any] = json.loads(path.read_text())
    for thread, counts in found.items():
        whole = sum(counts.values())
        found[thread] = {stage: round(n / whole, 3) for stage, n in counts.items()}
        print(f"{thread}: " + ", ".join(f"{s} {share:.0%}" for s, share in found[thread].items()))
    return found


if __name__ == "__main__":
    sys.exit(main())
