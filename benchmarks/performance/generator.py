"""Claim: a generator costs at most 5% of vLLM's own decode throughput.

In: a model and a batch of prompts. Side by side in one process on one engine, interleaved: (raw)
one task per request consumes `AsyncLLM.generate` with the generator's own sampling parameters;
(ours) the generator's loop takes leases from a coordinator process, cuts windows and sends chunks
that are acknowledged. Responses have a fixed length. Out: a table; with --json, as the last line,
one JSON object with `ratio`, ours over raw (median of the pairs).
"""

import argparse
import asyncio
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from benchmarks.kit.command_line import command_line
from benchmarks.kit.machine_state import on_cores
from benchmarks.kit.pairs import conclude, in_turns, ratios, spread, spread_text
from benchmarks.kit.synthetic_runs import MODEL
from generators.engine import NO_VERSION, GenerationRequest
from generators.engines.model_files import read_config, weight_layout
from generators.engines.vllm_engine import VllmEngine, VllmSettings
from generators.rollout.loop import GeneratorLoop
from generators.run import pin
from headrace.host.hardware import has_gpu
from headrace.protocol.messages import control as m
from headrace.protocol.transport.sockets import Dealer, Link
from tests.generators.scripted import NAME, ScriptedCoordinator

PATIENCE_S = 600.0
PROMPT_TOKENS = 16
SETTINGS = ("repeats", "in_flight", "tokens", "window", "dtype", "stream_interval")
"""Options that the result has."""


@dataclass(frozen=True)
class PromptBatch:
    """The batch of one measurement: `count` responses of `tokens` tokens.

    Prompts are random, and the same for both sides of a turn."""

    count: int
    tokens: int
    window: int
    vocab_size: int

    def leases(self, turn: int) -> list[m.Lease]:
        """Return the batch's leases, with ids that no other turn has."""
        draw = np.random.default_rng(turn)
        prompts = draw.integers(3, self.vocab_size, (self.count, PROMPT_TOKENS), np.int32)
        first = 1 + turn * self.count
        return [
            m.Lease(
                lease_id=first + i,
                trajectory_id=first + i,
                purpose="train",
                prompt_ids=prompt,
                prefix_ids=np.array([], dtype=np.int32),
                seed=i,
                max_total=self.tokens,
                stop_at=self.tokens,
                window=self.window,
                next_chunk=0,
                temperature=1.0,
                top_p=1.0,
            )
            for i, prompt in enumerate(prompts)
        ]


def notice_of(path: Path) -> m.WeightNotice:
    """Return a learner's notice of a file of weights, of version 0."""
    data = path.read_bytes()
    return m.WeightNotice(
        version=0,
        update=0,
        digest=xxhash.xxh3_128(data).hexdigest(),
        num_bytes=len(data),
        sources=[f"file:{path.resolve()}"],
    )


def coordinator(
    pipe: Connection, batch: PromptBatch, notice: m.WeightNotice, cpus: set[int]
) -> None:
    """Run a process that leases, acknowledges and counts.

    Over the pipe: its address, "ready"; each turn's number in, (seconds, tokens) out; None: end."""
    os.sched_setaffinity(0, cpus)
    asyncio.run(_coordinate(pipe, batch, notice))


async def _coordinate(pipe: Connection, batch: PromptBatch, notice: m.WeightNotice) -> None:
    peer = ScriptedCoordinator()
    serving = asyncio.create_task(peer.serve())
    pipe.send(peer.router.address)
    await peer.until(lambda: bool(peer.got(m.Hello)), PATIENCE_S)
    peer.router.begin_delivery(NAME)
    await peer.send(notice)
    await peer.until(lambda: bool(peer.got(m.WeightsLoaded)), PATIENCE_S)
    pipe.send("ready")
    while (turn := await asyncio.to_thread(pipe.recv)) is not None:
        peer.seen.clear()
        peer.chunks.clear()
        began = time.perf_counter()
        await peer.send(m.Leases(leases=batch.leases(turn)))
        await peer.until(
            lambda: sum(c.finish == "length" for c in peer.chunks) == batch.count, PATIENCE_S
        )
        tokens = sum(c.token_ids.size for c in peer.chunks if np.isfinite(c.logprobs).all())
        pipe.send((time.perf_counter() - began, tokens))
    await peer.send(m.Shutdown(reason="measured"))
    serving.cancel()
    peer.router.close()


async def read_all(
    engine: VllmEngine, requests: Sequence[GenerationRequest], in_flight: int, *, salt: str = "raw"
) -> int:
    """Count the tokens of plain consumers of vLLM, one task per request.

    `salt`: requests of another one find none of these prompts in the cache."""
    from vllm.inputs import tokens_input

    slots = asyncio.Semaphore(in_flight)

    async def tokens(request: GenerationRequest) -> int:
        prompt = tokens_input(list(request.prompt_ids), cache_salt=salt)
        parameters, count = engine.sampling_params(request), 0
        async with slots:
            async for output in engine.raw.generate(prompt, parameters, request.request_id):
                count += len(output.outputs[0].token_ids)
        return count

    return sum(await asyncio.gather(*map(tokens, requests)))


class GeneratorBench:
    """One engine, measured raw and through the generator's loop."""

    def __init__(self, options: argparse.Namespace, cpus: set[int]) -> None:
        """`cpus`: the coordinator's cores."""
        model = str(options.model)
        config = read_config(model)
        self._capacity = options.in_flight
        self._batch = PromptBatch(
            options.in_flight, options.tokens, options.window, config.get_text_config().vocab_size
        )
        notice = notice_of(options.model / "model.safetensors")
        self._pipe, far_end = multiprocessing.Pipe()
        self._process = multiprocessing.get_context("spawn").Process(
            target=coordinator, args=(far_end, self._batch, notice, cpus), daemon=True
        )
        self._process.start()
        far_end.close()
        settings = VllmSettings(
            model=model,
            max_model_len=PROMPT_TOKENS + options.tokens,
            end_token_ids=(),
            max_num_seqs=options.in_flight,
            dtype=options.dtype,
            stream_interval=options.stream_interval,
            on_gpu=has_gpu(),
        )
        self._engine = VllmEngine(settings, weight_layout(model, config))
        self._running: asyncio.Task[str] | None = None

    async def start(self) -> None:
        """Start engine and loop, with the weights of version 0."""
        await self._engine.start()
        self._dealer = Dealer(Link(self._pipe.recv()), NAME)
        loop = GeneratorLoop(
            self._engine,
            self._dealer,
            m.Hello(role="generator", name=NAME, pid=os.getpid(), host="", capacity=self._capacity),
            chunk_tokens=min(self._batch.window, 256),
            weights_folder=Path(tempfile.gettempdir()),
        )
        self._running = asyncio.create_task(loop.run())
        await asyncio.to_thread(self._pipe.recv)
        assert self._engine.version != NO_VERSION

    async def stop(self) -> None:
        """End loop, engine and coordinator."""
        if self._running is not None:
            if self._process.is_alive():
                self._pipe.send(None)
                await self._running
            self._running.cancel()
            self._dealer.close()
        await self._engine.stop()
        self._process.kill()
        self._process.join()

    async def ours(self, turn: int) -> float:
        """Return a batch's seconds, measured by the coordinator from lease to last chunk."""
        self._pipe.send(turn)
        seconds, tokens = await asyncio.to_thread(self._pipe.recv)
        assert tokens == self._batch.count * self._batch.tokens
        return float(seconds)

    async def raw(self, turn: int) -> float:
        """Return the same batch's seconds for plain consumers."""
        requests = [
            GenerationRequest(
                f"raw-{lease.lease_id}", lease.prompt_ids.tolist(), lease.max_total, lease.seed
            )
            for lease in self._batch.leases(turn)
        ]
        began = time.perf_counter()
        tokens = await read_all(self._engine, requests, len(requests), salt=f"raw{turn}")
        assert tokens == self._batch.count * self._batch.tokens
        return time.perf_counter() - began


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Compare both sides in turns.

    This process is on a generator's core meanwhile, the coordinator on any."""
    tokens = options.in_flight * options.tokens
    with on_cores(cpus := os.sched_getaffinity(0)), asyncio.Runner() as runner:
        pin(None)
        bench = GeneratorBench(options, cpus)

        def show(turn: Mapping[str, float]) -> None:
            raw, ours = (tokens / turn[side] for side in ("raw", "ours"))
            print(f"{raw:>10.0f} {ours:>10.0f} {ours / raw:>6.3f}", flush=True)

        try:
            runner.run(bench.start())
            print(f"{'raw tok/s':>10} {'ours tok/s':>10} {'ratio':>6}")
            sides = {
                "raw": lambda turn: runner.run(bench.raw(turn)),
                "ours": lambda turn: runner.run(bench.ours(turn)),
            }
            turns = in_turns(sides, options.repeats, seen=show)
        finally:
            runner.run(bench.stop())
    speeds = {side: [tokens / seconds for seconds in found] for side, found in turns.items()}
    ratio = spread(ratios(speeds["ours"], speeds["raw"]))
    print(f"\ngenerator / raw vLLM: {spread_text(ratio)}")
    return {
        **ratio,
        "raw_tokens_per_s": round(statistics.median(speeds["raw"]), 1),
        "generator_tokens_per_s": round(statistics.median(speeds["ours"]), 1),
        **{name: getattr(options, name) for name in SETTINGS},
    }


def main(argv: Sequence[str]) -> int:
    parser = command_line("generator", __doc__)
    parser.add_argument("--model", type=Path, default=MODEL, help="a model folder")
    parser.add_argument("--in-flight", type=int, default=64, help="responses at once")
    parser.add_argument("--tokens", type=int, default=256, help="length of every response")
    parser.add_argument("--window", type=int, default=64, help="window, and largest chunk")
    parser.add_argument("--repeats", type=int, default=5, help="pairs of measurements")
    parser.add_argument(
        "--stream-interval", type=int, default=8, help="tokens vLLM gathers before it hands over"
    )
    parser.add_argument("--dtype", default="float32", help="the engine's precision")
    options = parser.parse_args(argv)
    return conclude("generator", options, partial(measure, options))
