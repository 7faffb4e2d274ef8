"""Event loop of a generator: one task per lease, chunks out, weights in.

In: Leases, Hold, WeightNotice, ChunkAck, Shutdown from the coordinator. Out: Chunks, WeightsLoaded,
GeneratorReport, Goodbye. Each lease has a task that consumes its stream; no token waits for
anything else that the loop does, but for the acknowledgement of its window's border (`chunking`).

Blocked by: a lease waits for weights of its `version_at_least` (and for any weights at all);
nothing else. Woken by: messages and tokens. On Shutdown or `finish` every live lease is held with
the tokens it has, chunks are delivered, Goodbye is said. When the engine dies the same happens with
the cause in Goodbye, and `run` raises. When the coordinator is silent for some heartbeats, or asks,
Hello is sent again with the leases that are held, and chunks wait for the Welcome, after which all
unacknowledged ones are sent again; they also are when one is not acknowledged for as long. Engines
go on meanwhile. Silence for `stall_timeout_s` raises RunFailedError.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, Protocol

from msgspec.structs import replace

from generators.engine import (
    NO_VERSION,
    Engine,
    GenerationRequest,
    LoadReport,
    RequestError,
    WeightsBrokenError,
    WeightsRefusedError,
)
from generators.engines.weights import Overtaken, WeightsUnavailableError, fetch, seen_from
from generators.rollout.chunking import ChunkCutter
from generators.rollout.cpu_affinity import FrontCores, WorkTime
from generators.rollout.outbox import Outbox
from headrace.errors import RunFailedError, UserError
from headrace.host.progress_reporter import ProgressReporter
from headrace.protocol.messages import control as m

_LOG = logging.getLogger("headrace.generator")
_REPORT_S = 1.0
_SILENT_HEARTBEATS = 5
_LOAD_ATTEMPTS = 3
_RETRY_S = 1.0
_GOODBYE_S = 3.0


class CoordinatorChannel(Protocol):
    """Socket to the coordinator (`headrace.protocol.transport.sockets.Dealer`)."""

    async def send(self, message: m.Message) -> None:
        """Queue a message."""

    async def receive(self) -> m.Message:
        """Receive the next good message."""


Receive = Callable[[m.WeightNotice, str, str | None, Overtaken], Awaitable[LoadReport | None]]
"""Loading of weights as the learner broadcasts them (`VllmEngine.receive_weights`)."""


class GeneratorLoop:
    """Event loop of one engine, for one coordinator and many leases."""

    def __init__(
        self,
        engine: Engine,
        channel: CoordinatorChannel,
        hello: m.Hello,
        *,
        chunk_tokens: int,
        weights_folder: Path,
        receive: Receive | None = None,
        curve_keys: str | None = None,
        host: str = "127.0.0.1",
        heartbeat_s: float = 1.0,
        stall_timeout_s: float = 300.0,
        max_bytes: int = 8 << 20,
        cores: FrontCores | None = None,
        work: ProgressReporter | None = None,
    ) -> None:
        self._engine, self._channel, self._hello = engine, channel, hello
        self._chunk_tokens, self._weights_folder = chunk_tokens, weights_folder
        self._receive_weights, self._curve_keys, self._host = receive, curve_keys, host
        self._heartbeat_s, self._stall_timeout_s = heartbeat_s, stall_timeout_s
        self._cores, self._work = cores or FrontCores(), work or ProgressReporter()
        self._outbox = Outbox(channel.send, max_bytes=max_bytes)
        self._live: dict[int, ChunkCutter] = {}
        self._waiting: dict[int, m.Lease] = {}
        self._notice: m.WeightNotice | None = None
        self._noticed = asyncio.Event()
        self._over: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._tasks: set[asyncio.Task[None]] = set()
        self._heard = time.monotonic()
        self._leases_until = -1
        """Lease id below which all leases have arrived, or never will."""
        self._tokens = self._discarded_tokens = 0
        self.time = WorkTime()

    async def run(self) -> str:
        """Generate until the end, and return its reason; raise the error that ended it."""
        for part in (self._receive(), self._outbox.run(), self._watch(), self._keep_weights()):
            self._spawn(part)
        await self._channel.send(self._hello)
        try:
            reason = await self._over
        except Exception as error:
            await self._leave(f"{type(error).__name__}: {error}")
            raise
        await self._leave(None)
        return reason

    def finish(self, reason: str) -> None:
        """End `run` in good order, soon."""
        if not self._over.done():
            self._over.set_result(reason)

    def _spawn(self, part: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(part)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._over.done():
            self._over.set_exception(error)

    async def _leave(self, failed: str | None) -> None:
        for lease_id in [*self._live, *self._waiting]:
            self._hold(lease_id, -1)
        if self._outbox.paused:
            self._outbox.resend()
        if not await self._outbox.drain(_GOODBYE_S):
            _LOG.warning("some chunks were not acknowledged; they will be generated again")
        await self._channel.send(m.Goodbye(failed=failed))
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- messages ----------------------------------------------------------------------------------

    async def _receive(self) -> None:
        while True:
            message = await self._channel.receive()
            self._heard = time.monotonic()
            match message:
                case m.Leases(leases=leases):
                    for lease in leases:
                        self._take(lease)
                case m.ChunkAck(acked=acked):
                    self._outbox.acknowledge(message)
                    known = set(acked)
                    for lease_id, cutter in list(self._live.items()):
                        if cutter.awaited in known:
                            self._put(lease_id, cutter.go_on())
                case m.Heartbeat(leases_until=until):
                    self._leases_until = max(self._leases_until, until)
                case m.Hold(leases=holds):
                    for lease_id, at in holds:
                        self._hold(lease_id, at)
                        await self._engine.abort(str(lease_id))
                case m.WeightNotice():
                    if self._notice is None or message.version >= self._notice.version:
                        self._notice = seen_from(message, self._host)
                        self._noticed.set()
                case m.AskHello():
                    if not self._outbox.paused:
                        await self._greet()
                case m.Welcome() | m.Resend():
                    self._outbox.resend()
                case m.Refused(reason=reason):
                    raise UserError(f"the coordinator refuses {self._hello.name}: {reason}")
                case m.Shutdown(reason=reason):
                    self.finish(reason)

    # -- leases ------------------------------------------------------------------------------------

    def _take(self, lease: m.Lease) -> None:
        if lease.lease_id in self._live or lease.lease_id in self._waiting:
            return
        if self._engine.version == NO_VERSION or self._engine.version < lease.version_at_least:
            self._waiting[lease.lease_id] = lease
            return
        self._cores.serve(evaluation=lease.purpose in ("eval", "probe"))
        cutter = self._live[lease.lease_id] = ChunkCutter(lease, self._chunk_tokens)
        self.time.set_live(True)
        self._spawn(self._generate(lease, cutter))

    async def _generate(self, lease: m.Lease, cutter: ChunkCutter) -> None:
        if lease.lease_id not in self._live:  # a Hold came before this task began
            return
        known = len(lease.prefix_ids)
        request = GenerationRequest(
            request_id=str(lease.lease_id),
            prompt_ids=lease.prompt_ids.tolist() + lease.prefix_ids.tolist(),
            max_tokens=min(lease.max_total, lease.stop_at) - known,
            seed=lease.seed,
            position=known,
            temperature=lease.temperature,
            top_p=lease.top_p,
            top_k=lease.top_k,
            fire=lease.fire,
            cache_version=lease.cache_version,
            media=lease.media,
        )
        try:
            async for delta in self._engine.generate(request):
                self._tokens += len(delta.token_ids)
                if cutter.ended:
                    self._discarded_tokens += len(delta.token_ids)
                else:
                    self._put(lease.lease_id, cutter.add(delta))
        except RequestError as error:
            if not cutter.ended:
                self._put(lease.lease_id, cutter.fail(str(error)))

    def _hold(self, lease_id: int, at: int) -> None:
        waiting = self._waiting.pop(lease_id, None)
        cutter = self._live.get(lease_id)
        if waiting is not None:
            cutter = ChunkCutter(waiting, self._chunk_tokens)
        if cutter is None or cutter.ended:
            return
        chunks, lost = cutter.hold(at)
        self._discarded_tokens += lost
        self._put(lease_id, chunks)

    def _put(self, lease_id: int, chunks: list[m.TrajectoryChunk]) -> None:
        """Send chunks of a lease, which ends with the last of all."""
        for chunk in chunks:
            self._outbox.put(chunk)
            if chunk.finish is not None:
                self._live.pop(lease_id, None)
                self.time.set_live(bool(self._live))

    # -- weights -----------------------------------------------------------------------------------

    async def _keep_weights(self) -> None:
        """Load the newest weights; a newer notice replaces any that waits."""
        while True:
            await self._noticed.wait()
            self._noticed.clear()
            notice = self._notice
            assert notice is not None
            if notice.version < self._engine.version:
                continue
            answer = m.WeightsLoaded(version=notice.version, gap_s=0.0, load_s=0.0)
            if notice.version > self._engine.version:
                with self._work.moving(f"loading version {notice.version}"):
                    answer = await self._load(notice)
            if answer.error is not None and self._noticed.is_set():
                continue  # It was overtaken, and nobody waits for it.
            await self._channel.send(answer)
            for lease in list(self._waiting.values()):
                del self._waiting[lease.lease_id]
                self._take(lease)

    async def _load(self, notice: m.WeightNotice) -> m.WeightsLoaded:
        cause = ""
        for attempt in range(_LOAD_ATTEMPTS):
            if attempt:
                await asyncio.sleep(_RETRY_S)
            if self._noticed.is_set():
                break
            try:
                name, keys, folder = self._hello.name, self._curve_keys, self._weights_folder
                report, overtaken = None, self._noticed.is_set
                if self._receive_weights is not None:
                    report = await self._receive_weights(notice, name, keys, overtaken)
                if report is None:
                    if overtaken():
                        break
                    path = await fetch(notice, folder, name=name, curve_keys=keys)
                    report = await self._engine.load_weights(path, notice.version)
            except (WeightsUnavailableError, WeightsRefusedError, WeightsBrokenError) as error:
                cause = str(error)
                _LOG.error("weights %d: %s", notice.version, cause)
                continue
            self.time.add_pause(report.gap_s)
            return m.WeightsLoaded(version=notice.version, gap_s=report.gap_s, load_s=report.load_s)
        return m.WeightsLoaded(version=notice.version, gap_s=0.0, load_s=0.0, error=cause)

    # -- staying in touch --------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Report once per second, and react to silence."""
        greeted = now = time.monotonic()
        while True:
            await asyncio.sleep(_REPORT_S)
            before, now = now, time.monotonic()
            # A standstill of this process, with messages waiting, is no silence.
            self._heard += max(0.0, now - before - _REPORT_S)
            if now - self._heard > self._stall_timeout_s:
                raise RunFailedError(
                    f"nothing heard from the coordinator for {now - self._heard:.0f} s"
                )
            patience = _SILENT_HEARTBEATS * self._heartbeat_s
            heard = 0.0 if self._outbox.paused else self._heard
            if now - max(heard, greeted) > patience:
                greeted = now
                await self._greet()
            elif self._outbox.waits_since() < now - patience:
                self._outbox.resend()
            await self._channel.send(self._report())

    async def _greet(self) -> None:
        """Say Hello with the leases that are held; chunks wait for the answer."""
        if self._over.done():
            return
        self._outbox.pause()
        hello = replace(self._hello, leases=self._leases(), leases_until=self._leases_until)
        await self._channel.send(hello)

    def _leases(self) -> list[int]:
        """Return the leases that are live, wait, or have unacknowledged chunks."""
        return sorted({*self._live, *self._waiting, *self._outbox.leases()})

    def _report(self) -> m.GeneratorReport:
        return m.GeneratorReport(
            live=len(self._live),
            version=self._engine.version,
            tokens=self._tokens,
            discarded_tokens=self._discarded_tokens,
            pending_tokens=sum(cutter.pending for cutter in self._live.values()),
            prefill_tokens=self._engine.prefill_tokens,
            preempted=self._engine.preempted,
            idle_s=self.time.idle_s,
            pause_s=self.time.pause_s,
            busy_s=self.time.busy_s,
            leases=self._leases(),
            leases_until=self._leases_until,
        )
