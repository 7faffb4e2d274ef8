"""What a run's keys cost: messages a second and MiB a second between two processes, with CURVE and
without, on loopback.

A child sends messages of three sizes (a heartbeat; a chunk of 256 tokens; a piece of a batch or of
weights, 8 MiB) to a router in this process. `cpu_us` are the processor microseconds of both a
message. The message on the wire is the real one, with its codec.

Needs about a minute. Each measurement is a row of the file `--rows`, by default
`benchmarks/results/sockets.jsonl`.
"""

import json
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.kit.command_line import command_line, take_rows
from benchmarks.kit.rows import RESULTS, Rows
from headrace.errors import RunFailedError
from headrace.protocol.messages import control as m
from headrace.protocol.token_spans import Span
from headrace.protocol.transport.codec import message_codec
from headrace.protocol.transport.curve import make_keys
from headrace.protocol.transport.sockets import BlockingDealer, BlockingRouter, Link

LIMIT = 64 << 20
Row = dict[str, Any]


CHUNK = m.TrajectoryChunk(
    lease_id=1,
    trajectory_id=1,
    chunk_index=0,
    start=0,
    token_ids=np.arange(256, dtype=np.int32),
    logprobs=np.zeros(256, np.float32),
    spans=[Span(0, 0, 256)],
)
SIZES: dict[str, tuple[m.Message, int]] = {
    "heartbeat": (m.Heartbeat(), 20_000),
    "chunk": (m.Chunks(chunks=[CHUNK]), 20_000),
    "piece": (m.WeightBytes(version=1, offset=0, data=bytes(8 << 20)), 60),
}
"""What is sent, and how often."""


def send(pipe: Connection, address: str, keys: str | None, name: str) -> None:
    """The child: send, and say how long the processor worked."""
    message, count = SIZES[name]
    dealer = BlockingDealer(Link(address, LIMIT, keys), "generator-0")
    dealer.send(message)
    pipe.recv()
    began = time.process_time()
    for _ in range(count):
        dealer.send(message)
    dealer.receive()
    pipe.send(time.process_time() - began)
    dealer.close()


def measure(name: str, keys: str | None) -> Row:
    """One size, with keys or without."""
    message, count = SIZES[name]
    router = BlockingRouter("127.0.0.1", 0, max_bytes=LIMIT, curve_keys=keys)
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    child = spawn.Process(target=send, args=(theirs, router.address, keys, name))
    child.start()
    try:
        if router.receive(60.0) is None:
            raise RunFailedError("the child did not connect")
        ours.send("go")
        began, worked = time.perf_counter(), time.process_time()
        for _ in range(count):
            if router.receive(60.0) is None:
                raise RunFailedError("messages are missing")
        seconds, worked = time.perf_counter() - began, time.process_time() - worked
        router.send("generator-0", m.Shutdown(reason="done"))
        worked += ours.recv()
    finally:
        child.join(10.0)
        router.close()
    size = sum(map(len, message_codec(max_bytes=LIMIT).encode(message)))
    return {
        "name": "sockets",
        "message": name,
        "bytes": size,
        "curve": keys is not None,
        "messages_per_s": round(count / seconds),
        "mib_per_s": round(count * size / seconds / 2**20, 1),
        "cpu_us": round(worked / count * 1e6, 1),
    }


def main(argv: Sequence[str]) -> int:
    """Measure and print."""
    parser = command_line("sockets", __doc__)
    parser.add_argument("--repeats", type=int, default=3, help="measurements of each kind")
    take_rows(parser, RESULTS / "sockets.jsonl")
    options = parser.parse_args(argv)
    rows, at = Rows(options.rows), round(time.time())
    measured: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        keys = str(Path(folder) / "keys")
        make_keys(Path(keys))
        for repeat in range(options.repeats):
            for name in SIZES:
                for given in (None, keys):
                    key = f"sockets/{at}/{name}/{'curve' if given else 'plain'}/{repeat}"
                    measured.append(rows.add(key, measure(name, given)))
    for row in measured:
        print(f"{row['message']:<10} {'curve' if row['curve'] else 'plain'} "
              f"{row['messages_per_s']:>8,}/s {row['mib_per_s']:>8,} MiB/s "
              f"{row['cpu_us']:>8,} us", file=sys.stderr)  # fmt: skip
    if options.json:
        print(json.dumps(measured))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
