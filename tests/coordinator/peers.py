"""Scripted peers that play generator, reward worker and learner against a real coordinator."""

import asyncio
import itertools
import json
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import zmq.asyncio
from msgspec.structs import replace

from headrace.config.sections.run import RunConfig
from headrace.protocol.messages import control as m
from headrace.protocol.messages.batches import Shard
from headrace.protocol.token_spans import Span
from headrace.protocol.transport.endpoints import identity_of
from headrace.protocol.transport.sockets import Dealer, Link
from learner.batching.shards import merge_shards
from learner.process.update_log import UpdateLog
from tests.warm_roles import warm_role

_PIDS = itertools.count(1)
_PATIENCE_S = 0.5
"""Between two Hellos."""
MODEL = Path(__file__).parents[2] / "recipes" / "models" / "chain-sums-cold"


class CoordinatorProcess:
    """A coordinator in a process and a run folder of its own."""

    launch: Any = staticmethod(warm_role)

    def __init__(self, run_dir: Path, config: RunConfig) -> None:
        self.run_dir = run_dir
        run_dir.mkdir(parents=True, exist_ok=True)
        (run_dir / "resolved.json").write_text(config.model_dump_json())
        self.process: Any = None

    def start(self, *, resume: bool = False) -> str:
        """Start and wait for the address."""
        announced = self.run_dir / "coordinator.json"
        arguments = ["--run-dir", str(self.run_dir), *["--resume"] * resume]
        with (self.run_dir / "coordinator.log").open("ab") as log:
            self.process = self.launch("coordinator.run", *arguments, log=log)
        while True:
            assert self.process.poll() is None, (self.run_dir / "coordinator.log").read_text()
            said = json.loads(announced.read_text()) if announced.exists() else {}
            if said.get("pid") == self.process.pid:
                return str(said["address"])
            time.sleep(0.01)

    def interrupt(self) -> None:
        """SIGINT: the run ends in order."""
        assert self.process is not None
        self.process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        """SIGKILL."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def end(self) -> None:
        """Whatever happened: leave nothing behind."""
        if self.process is not None and self.process.poll() is None:
            self.kill()

    def wait(self, timeout_s: float = 30.0) -> int:
        """Its exit code."""
        assert self.process is not None
        return self.process.wait(timeout_s)


class ScriptedPeer:
    """A socket with a Hello; subclasses answer messages."""

    role: m.Role
    awaits_answer = False
    """To a Hello."""
    greeted = 0.0
    """When it last said Hello, on the monotonic clock."""
    failed: str | None = None
    """What it says at its end."""

    def __init__(
        self,
        address: str | Link,
        name: str,
        *,
        capacity: int = 0,
        update: int = 0,
        resumed_from: str | None = None,
        context: zmq.asyncio.Context | None = None,
    ) -> None:
        self.name = name
        self.link = Link(address) if isinstance(address, str) else address
        self.identity = identity_of(name)
        self.dealer = Dealer(self.link, self.identity, context=context)
        self.capacity, self.update, self.resumed_from = capacity, update, resumed_from
        self.pid = next(_PIDS)
        self.shutdown: str | None = None
        self.seen: list[m.Message] = []

    async def hello(self) -> None:
        """Join."""
        self.awaits_answer, self.greeted = True, time.monotonic()
        await self.dealer.send(self.greeting())

    def greeting(self) -> m.Hello:
        """What it says of itself."""
        return m.Hello(
            role=self.role,
            name=self.name,
            pid=self.pid,
            host="here",
            capacity=self.capacity,
            update=self.update,
            resumed_from=self.resumed_from,
        )

    async def run(self) -> None:
        """Answer until told to shut down; say Hello until there is an answer, whatever else is
        heard."""
        await self.hello()
        while True:
            patience = self.greeted + _PATIENCE_S - time.monotonic()
            if self.awaits_answer and patience <= 0:
                await self.hello()
                continue
            message = await self.dealer.receive_within(patience if self.awaits_answer else None)
            if message is None:
                continue
            if isinstance(message, m.Heartbeat):
                continue  # The socket has answered it.
            if isinstance(message, m.AskHello):
                if not self.awaits_answer:
                    await self.hello()
                continue
            if isinstance(message, m.Welcome | m.Restore | m.Refused):
                self.awaits_answer = False
            self.seen.append(message)
            if isinstance(message, m.Shutdown):
                self.shutdown = message.reason
                await self.dealer.send(m.Goodbye(failed=self.failed))
                self.dealer.close()
                return
            await self.answer(message)

    async def answer(self, message: m.Message) -> None:
        """What this role does with a message."""


class ScriptedGenerator(ScriptedPeer):
    """Answers every lease at once with a response whose length its trajectory id decides."""

    role: m.Role = "generator"
    version = -1

    def length_of(self, trajectory_id: int) -> int:
        """Response length of a trajectory."""
        return 1 + (trajectory_id * 7) % 11

    async def answer(self, message: m.Message) -> None:
        match message:
            case m.WeightNotice():
                self.version = message.version
                await self.dealer.send(
                    m.WeightsLoaded(version=message.version, gap_s=0.0, load_s=0.0)
                )
            case m.Leases():
                chunks = [c for lease in message.leases for c in self.generate(lease)]
                await self.dealer.send(m.Chunks(chunks=chunks))
            case _:
                pass

    def generate(self, lease: m.Lease) -> list[m.TrajectoryChunk]:
        """All chunks of a lease."""
        chunks: list[m.TrajectoryChunk] = []
        start, goal = lease.prefix_ids.size, self.length_of(lease.trajectory_id)
        while True:
            border = (start // lease.window + 1) * lease.window
            end = min(goal, border, lease.stop_at)
            finish: m.Finish | None = None
            if end == goal:
                finish = "stop"
            elif end == lease.stop_at:
                finish = "window"
            chunks.append(self.chunk(lease, len(chunks), start, end, finish))
            start = end
            if finish:
                return chunks

    def chunk(
        self, lease: m.Lease, index: int, start: int, end: int, finish: m.Finish | None
    ) -> m.TrajectoryChunk:
        """Tokens [start, end)."""
        size = end - start
        return m.TrajectoryChunk(
            lease_id=lease.lease_id,
            trajectory_id=lease.trajectory_id,
            chunk_index=lease.next_chunk + index,
            start=start,
            token_ids=np.full(size, 5, np.int32),
            logprobs=np.full(size, -0.5, np.float32),
            spans=[Span(self.version, start, end)] if size else [],
            finish=finish,
        )


class ScriptedReward(ScriptedPeer):
    """Even trajectories are right."""

    role: m.Role = "reward"

    async def answer(self, message: m.Message) -> None:
        if isinstance(message, m.ScoreRequest):
            scores = [
                m.Score(
                    trajectory_id=item.trajectory_id,
                    status="ok",
                    reward=float(item.trajectory_id % 2 == 0),
                    correct=item.trajectory_id % 2 == 0,
                )
                for item in message.items
            ]
            await self.dealer.send(m.Scores(scores=scores))


class ScriptedLearner(ScriptedPeer):
    """Says done to every batch that is the next update of its lineage; can be told to die silently
    at an update. Where it has a folder it writes down what it trains, and goes back to whatever it
    is told to."""

    role: m.Role = "learner"
    die_at: int | None = None
    batch: m.Batch | None = None
    batch_id: int | None = None
    """The last one in its weights."""
    skipped: str | None = None
    """Why that was broken off."""
    lineage = 0
    greetings = 0
    applied: UpdateLog | None = None

    def __init__(self, *arguments: Any, **at: Any) -> None:
        super().__init__(*arguments, **at)
        self.trained: dict[int, int] = {}
        """By update, the batch that was trained in it last."""

    def writes(self, run_dir: Path) -> "ScriptedLearner":
        """Write down what is trained, from now on."""
        self.applied = UpdateLog(run_dir, rank=0)
        return self

    async def hello(self) -> None:
        """Join; what was sent before the answer is void."""
        self.greetings += 1
        self.batch = None
        self.shards: list[Shard] = []
        await super().hello()

    def greeting(self) -> m.Hello:
        """With the batch of its weights, and numbered."""
        weights = {"batch_id": self.batch_id, "skipped": self.skipped}
        return replace(super().greeting(), **weights, greeting=self.greetings)

    def notice(self, version: int, update: int) -> m.WeightNotice:
        """A notice of nothing."""
        return m.WeightNotice(version=version, update=update, digest="", num_bytes=0, sources=[])

    def apply(self, batch: m.Batch, shards: list[Shard], skipped: str | None = None) -> None:
        """The batch is in the weights."""
        if self.applied is not None:
            whole = merge_shards(shards)
            self.applied.write(batch, whole, after=self.batch_id, skipped=skipped)
        self.update, self.batch_id, self.skipped = batch.update, batch.batch_id, skipped
        self.trained[batch.update] = batch.batch_id

    async def finish(self) -> None:
        """Say done once every part of the batch is here."""
        batch = self.batch
        if batch is None or len(self.shards) < sum(batch.parts):
            return
        self.batch = None
        self.apply(batch, self.shards)
        await self.report(batch)

    async def report(self, batch: m.Batch) -> None:
        """Say done."""
        trains = batch.publish_as != batch.version
        await self.dealer.send(
            m.UpdateDone(
                batch_id=batch.batch_id,
                update=batch.update,
                lineage=batch.lineage,
                metrics={"actor/pg_loss": 0.5},
                diagnostics=[],
                notice=self.notice(batch.publish_as, batch.update) if trains else None,
                checkpoint=f"step_{batch.update}" if batch.checkpoint else None,
            )
        )

    async def answer(self, message: m.Message) -> None:
        match message:
            case m.Welcome(greeting=greeting) if greeting == self.greetings:
                self.lineage, self.resumed_from = message.lineage, None
                await self.dealer.send(self.notice(message.publish_as, self.update))
            case m.Restore():
                self.update, self.batch_id = message.line[0]
                self.resumed_from = "the first place on the line"
                await self.hello()
            case m.Batch(lineage=self.lineage) if (
                message.update == self.update + 1 and message.update != self.die_at
            ):
                self.batch, self.shards = message, []
                await self.finish()
            case m.BatchPart() if self.batch and message.batch_id == self.batch.batch_id:
                self.shards.append(message.shard)
                await self.finish()
            case m.CheckpointRequest():
                await self.dealer.send(
                    m.CheckpointDone(update=message.update, path=f"step_{message.update}")
                )
            case _:
                pass


async def until(condition: object, timeout_s: float = 30.0) -> None:
    """Wait for a condition."""
    assert callable(condition)
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come about"
        await asyncio.sleep(0.02)
