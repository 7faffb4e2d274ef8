"""A real coordinator's process on one core, its scripted peers, and its usage.

In: a run folder and its configuration. Out: the coordinator on a core of its own, peers that join
it from this process, seconds of the processor and the clock. Promises: a peer that fails ends the
measurement; nothing of the coordinator outlives `end`.
"""

import argparse
import asyncio
import contextlib
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import psutil
import zmq.asyncio

from benchmarks.kit.machine_state import on_cores
from headrace.config.sections.run import RunConfig
from headrace.host.install import ROOT
from headrace.protocol.messages.control import Heartbeat
from headrace.protocol.transport.sockets import Link
from tests.coordinator.peers import CoordinatorProcess, ScriptedPeer


class CoordinatorUsage(NamedTuple):
    """Wall-clock seconds, and CPU seconds of the coordinator's threads and the peers.

    By its event loop, its recorder and its sockets; the peers are in this process."""

    wall_s: float
    loop_s: float
    recorder_s: float
    sockets_s: float
    peers_s: float

    @property
    def cpu_s(self) -> float:
        """Processor seconds of the coordinator."""
        return self.loop_s + self.recorder_s + self.sockets_s

    def since(self, before: Self) -> "CoordinatorUsage":
        return CoordinatorUsage(*(now - then for now, then in zip(self, before, strict=True)))


class PinnedCoordinator(CoordinatorProcess):
    """A coordinator's process; `core`: its own core."""

    @staticmethod
    def launch(module: str, *argv: str, log: Any) -> "subprocess.Popen[bytes]":
        """Start a role as a run does, with imports and memory of its own."""
        return subprocess.Popen([sys.executable, "-m", module, *argv], stderr=log, cwd=ROOT)

    def __init__(self, run_dir: Path, config: RunConfig, *, core: int | None = None) -> None:
        super().__init__(run_dir, config)
        self._cores = os.sched_getaffinity(0) if core is None else {core}
        self._heartbeat_s = config.transport.heartbeat_s

    def start(self, *, resume: bool = False) -> str:
        with on_cores(self._cores):
            return super().start(resume=resume)

    @contextlib.contextmanager
    def started(self, peers: int) -> Iterator[dict[str, Any]]:
        """Start; yield the peers' shared settings: address, and one context of their sockets.

        The end of the block kills it, unmeasured."""
        context = zmq.asyncio.Context()
        context.max_sockets = peers + 16
        # A peer has some sixteen file descriptors.
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        try:
            yield {"address": Link(self.start()), "context": context}
        finally:
            context.destroy(linger=0)
            self.end()

    @property
    def seen(self) -> psutil.Process:
        """The process that runs now."""
        assert self.process is not None
        return psutil.Process(self.process.pid)

    def peak_mb(self) -> float:
        """Return the peak of resident memory, in millions of bytes."""
        status = Path(f"/proc/{self.seen.pid}/status").read_text().splitlines()
        peak = next(line.split()[1] for line in status if line.startswith("VmHWM"))
        return int(peak) * 1024 / 1e6

    def used(self) -> CoordinatorUsage:
        """Return the usage so far; all other threads of the coordinator are the recorder."""
        loop = sockets = whole = 0.0
        process = self.seen
        for thread in process.threads():
            seconds = thread.user_time + thread.system_time
            name = Path(f"/proc/{process.pid}/task/{thread.id}/comm")
            whole += seconds
            if thread.id == process.pid:
                loop = seconds
            elif name.exists() and name.read_text().startswith("ZMQ"):
                sockets += seconds
        own = os.times()
        recorder = whole - loop - sockets
        return CoordinatorUsage(time.perf_counter(), loop, recorder, sockets, own.user + own.system)

    @contextlib.asynccontextmanager
    async def joined(self, peers: Sequence[ScriptedPeer]) -> AsyncIterator[None]:
        """Run all peers as long as the body; a peer that fails ends it."""
        body = asyncio.current_task()
        assert body is not None

        def over(done: "asyncio.Task[None]") -> None:
            if not done.cancelled():
                body.cancel(f"a peer ended: {done.exception()!r}")

        tasks = [asyncio.create_task(peer.run()) for peer in peers]
        tasks.append(asyncio.create_task(self._live(peers)))
        for task in tasks:
            task.add_done_callback(over)
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for peer in peers:
                peer.dealer.close()

    async def _live(self, peers: Sequence[ScriptedPeer]) -> None:
        """Send all peers' heartbeats, and clear their received messages."""
        while True:
            for peer in peers:
                await peer.dealer.send(Heartbeat())
                peer.seen.clear()
            await asyncio.sleep(self._heartbeat_s)


@contextlib.contextmanager
def bench_folder(parser: argparse.ArgumentParser) -> Iterator[tuple[Path, int]]:
    """Yield a folder and the coordinator's core, with this process on another one meanwhile.

    A usage error with only one core."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        parser.error("coordinator and peers need a core each")
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as root, on_cores(cores[1:2]):
        yield Path(root), cores[0]
