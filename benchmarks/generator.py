"""Claim: a generator costs at most 5% of vLLM's own decode throughput.

In: a model and a batch of prompts. Side by side in one process on one engine, interleaved: (raw) a
task a request consumes `AsyncLLM.generate` with the generator's own sampling parameters; (ours) the
generator's loop takes leases from a coordinator process, cuts windows and sends chunks that are
acknowledged. Responses have a fixed length. Out: a table; with --json, as the last line, one JSON
object with `ratio`, ours over raw (median of the pairs).
"""

import argparse
import asyncio
import hashlib
import multiprocessing
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.command_line import command_line
from benchmarks.rows import result_line
from generators.engine import NO_VERSION
from generators.loop import GeneratorLoop
from generators.policy_files import read_config, weight_layout
from generators.run import has_gpu, pin
from generators.vllm_engine import VllmEngine, VllmSettings
from headrace.protocol.messages import (
    ChunkAck,
    Chunks,
    GeneratorReport,
    Hello,
    Lease,
    Leases,
    Shutdown,
    TrajectoryChunk,
    WeightNotice,
    WeightsLoaded,
    Welcome,
)
from headrace.protocol.sockets import Dealer, Link, Router

NAME = "generator-0"
PROMPT_TOKENS = 16
DEMO_MODEL = Path("recipes/models/chain-sums-cold")


@dataclass(frozen=True)
class Batch:
    """What is generated in one measurement: `count` responses of `tokens` tokens."""

    count: int
    tokens: int
    window: int
    vocab_size: int

    def prompt(self, index: int, repeat: int) -> list[int]:
        """Random token ids, the same for both sides of a repeat."""
        draw = np.random.default_rng([index, repeat])
        return [int(token) for token in draw.integers(3, self.vocab_size, PROMPT_TOKENS)]

    def leases(self, repeat: int) -> list[Lease]:
        """The batch as leases with ids that no other repeat has."""
        first = 1 + repeat * self.count
        return [
            Lease(
                lease_id=first + i,
                trajectory_id=first + i,
                purpose="train",
                prompt_ids=np.array(self.prompt(i, repeat), dtype=np.int32),
                prefix_ids=np.array([], dtype=np.int32),
                seed=i,
                max_total=self.tokens,
                stop_at=self.tokens,
                window=self.window,
                next_chunk=0,
                temperature=1.0,
                top_p=1.0,
            )
            for i in range(self.count)
        ]


# -- the coordinator's side, in a process of its own -----------------------------------------------


def sink(pipe: Connection, batch: Batch, notice: WeightNotice, cpus: set[int]) -> None:
    """A coordinator that leases, acknowledges and counts. Over the pipe: in a repeat's number,
    out (seconds, tokens); None ends it."""
    os.sched_setaffinity(0, cpus)
    asyncio.run(_sink(pipe, batch, notice))


async def _sink(pipe: Connection, batch: Batch, notice: WeightNotice) -> None:
    router = Router("127.0.0.1", 0, max_bytes=64 << 20)
    pipe.send(router.address)
    message: Any = None
    while not isinstance(message, WeightsLoaded):
        _, message = await router.receive()
        if isinstance(message, Hello):
            router.begin(NAME)
            await router.send(NAME, notice)
    pipe.send("ready")
    orders = asyncio.get_running_loop()
    while (repeat := await orders.run_in_executor(None, pipe.recv)) is not None:
        began = time.perf_counter()
        await router.send(NAME, Leases(leases=batch.leases(repeat)))
        ended = tokens = 0
        while ended < batch.count:
            _, message = await router.receive()
            if isinstance(message, Chunks):
                acked = [(c.trajectory_id, c.chunk_index) for c in message.chunks]
                await router.send(NAME, ChunkAck(acked=acked))
                ended += sum(c.finish is not None for c in message.chunks)
                tokens += sum(_checked(c) for c in message.chunks)
            elif isinstance(message, Hello):
                await router.send(NAME, Welcome(run_id="", run_dir="", config=""))
            elif not isinstance(message, GeneratorReport | WeightsLoaded):
                raise RuntimeError(f"unexpected {message}")
        pipe.send((time.perf_counter() - began, tokens))
    await router.send(NAME, Shutdown(reason="measured"))
    router.close()


def _checked(chunk: TrajectoryChunk) -> int:
    if not np.isfinite(chunk.logprobs).all() or chunk.finish not in (None, "length"):
        raise RuntimeError(f"unexpected chunk {chunk}")
    return len(chunk.token_ids)


# -- the generator's side --------------------------------------------------------------------------


class GeneratorBench:
    """One engine, measured raw and through the generator's loop."""

    def __init__(self, engine: VllmEngine, batch: Batch, pipe: Connection, loop: GeneratorLoop):
        self._engine, self._batch, self._pipe, self._loop = engine, batch, pipe, loop
        self._processes = [psutil.Process(), psutil.Process(engine.pid)]

    def cpu_s(self) -> float:
        """Processor seconds of generator and engine so far: on a machine that others use too, a
        steadier measure of cost than the wall clock."""
        times = [process.cpu_times() for process in self._processes]
        return sum(t.user + t.system for t in times)

    async def _order(self, repeat: int) -> tuple[float, int]:
        self._pipe.send(repeat)
        answer: tuple[float, int] = await asyncio.get_running_loop().run_in_executor(
            None, self._pipe.recv
        )
        return answer

    async def ours(self, repeat: int) -> float:
        """Tokens a second, measured by the coordinator from lease to last chunk."""
        seconds, tokens = await self._order(repeat)
        assert tokens == self._batch.count * self._batch.tokens
        return tokens / seconds

    async def raw(self, repeat: int) -> float:
        """Tokens a second of plain consumers."""
        began = time.perf_counter()
        counts = await asyncio.gather(
            *[self._consume(index, repeat) for index in range(self._batch.count)]
        )
        seconds = time.perf_counter() - began
        assert sum(counts) == self._batch.count * self._batch.tokens
        return sum(counts) / seconds

    async def _consume(self, index: int, repeat: int) -> int:
        from vllm.inputs import tokens_input

        params = self._engine.sampling_params(self._request(index, repeat))
        prompt = tokens_input(self._batch.prompt(index, repeat), cache_salt=f"raw{repeat}")
        tokens = 0
        async for output in self._engine.raw.generate(prompt, params, f"raw-{repeat}-{index}"):
            tokens += len(output.outputs[0].token_ids)
        return tokens

    def _request(self, index: int, repeat: int) -> Any:
        from generators.engine import GenerationRequest

        return GenerationRequest(
            f"raw-{repeat}-{index}",
            self._batch.prompt(index, repeat),
            max_tokens=self._batch.tokens,
            seed=index,
        )

    async def load_gaps(self, path: Path, repeat: int, loads: int) -> list[float]:
        """Seconds that a full batch stood still for each of some weight loads."""
        running = asyncio.create_task(self._order(repeat))
        gaps = []
        for _ in range(loads):
            await asyncio.sleep(0.1)
            report = await self._engine.load_weights(path, self._engine.version + 1)
            gaps.append(report.gap_s)
        await running
        return gaps


async def measure(args: argparse.Namespace, model: Path, cpus: set[int]) -> dict[str, Any]:
    """All repeats; the figures."""
    config = read_config(str(model))
    batch = Batch(args.in_flight, args.tokens, args.window, config.get_text_config().vocab_size)
    weights = model / "model.safetensors"
    data = weights.read_bytes()
    notice = WeightNotice(
        version=0,
        update=0,
        sha256=hashlib.sha256(data).hexdigest(),
        num_bytes=len(data),
        sources=[f"file:{weights.resolve()}"],
    )
    pipe, far_end = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=sink, args=(far_end, batch, notice, cpus), daemon=True
    )
    process.start()
    far_end.close()
    settings = VllmSettings(
        model=str(model),
        max_model_len=PROMPT_TOKENS + args.tokens,
        end_token_ids=(),
        max_num_seqs=args.in_flight,
        dtype=args.dtype,
        stream_interval=args.stream_interval,
        on_gpu=has_gpu(),
    )
    engine = VllmEngine(settings, weight_layout(str(model), config))
    await engine.start()
    dealer = Dealer(Link(pipe.recv()), NAME)
    hello = Hello(role="generator", name=NAME, pid=os.getpid(), host="", capacity=args.in_flight)
    loop = GeneratorLoop(
        engine,
        dealer,
        hello,
        chunk_tokens=min(args.window, 256),
        weights_folder=Path(tempfile.gettempdir()),
    )
    running = asyncio.create_task(loop.run())
    await asyncio.get_running_loop().run_in_executor(None, pipe.recv)
    assert engine.version != NO_VERSION
    bench = GeneratorBench(engine, batch, pipe, loop)
    try:
        return await _compare(bench, args, weights)
    finally:
        if process.is_alive():
            pipe.send(None)
            await running
        running.cancel()
        await engine.stop()
        dealer.close()
        process.join(timeout=10)


async def _compare(
    bench: GeneratorBench, args: argparse.Namespace, weights: Path
) -> dict[str, Any]:
    await bench.raw(0)
    await bench.ours(0)
    raw: list[float] = []
    ours: list[float] = []
    raw_cpu_s = ours_cpu_s = 0.0

    async def measure_raw(repeat: int) -> None:
        nonlocal raw_cpu_s
        before = bench.cpu_s()
        raw.append(await bench.raw(repeat))
        raw_cpu_s += bench.cpu_s() - before

    print(f"{'repeat':>6} {'raw tok/s':>10} {'ours tok/s':>10} {'ratio':>6}")
    for repeat in range(1, args.repeats + 1):
        # Each side goes first in every second repeat.
        if repeat % 2:
            await measure_raw(repeat)
        before = bench.cpu_s()
        ours.append(await bench.ours(repeat))
        ours_cpu_s += bench.cpu_s() - before
        if not repeat % 2:
            await measure_raw(repeat)
        ratio = ours[-1] / raw[-1]
        print(f"{repeat:>6} {raw[-1]:>10.0f} {ours[-1]:>10.0f} {ratio:>6.3f}", flush=True)
    ratios = [mine / theirs for mine, theirs in zip(ours, raw, strict=True)]
    gaps = await bench.load_gaps(weights, args.repeats + 1, loads=5)
    return {
        "name": "generator",
        "ratio": round(statistics.median(ratios), 4),
        "ratio_min": round(min(ratios), 4),
        "ratio_max": round(max(ratios), 4),
        "repeats": args.repeats,
        "raw_tokens_per_s": round(statistics.median(raw), 1),
        "generator_tokens_per_s": round(statistics.median(ours), 1),
        "cpu_ratio": round(raw_cpu_s / ours_cpu_s, 4),
        "weight_load_gap_ms": round(1000 * statistics.median(gaps), 1),
        "in_flight": args.in_flight,
        "tokens": args.tokens,
        "window": args.window,
        "dtype": args.dtype,
        "stream_interval": args.stream_interval,
    }


def random_model(folder: Path) -> Path:
    """A random Llama with 3.4M parameters (hidden 256, 4 layers)."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=256,
        intermediate_size=688,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; the exit code."""
    parser = command_line("generator", __doc__)
    parser.add_argument("--model", type=Path, help=f"a model folder ({DEMO_MODEL} where it exists)")
    parser.add_argument("--in-flight", type=int, default=64, help="responses at once")
    parser.add_argument("--tokens", type=int, default=256, help="length of every response")
    parser.add_argument("--window", type=int, default=64, help="window, and largest chunk")
    parser.add_argument("--repeats", type=int, default=5, help="pairs of measurements")
    parser.add_argument(
        "--stream-interval", type=int, default=8, help="tokens vLLM gathers before it hands over"
    )
    parser.add_argument("--dtype", default="float32", help="the engine's precision")
    args = parser.parse_args(argv)
    cpus = os.sched_getaffinity(0)
    pin(None)
    made = None
    model = args.model
    if model is None:
        made = None if DEMO_MODEL.exists() else Path(tempfile.mkdtemp(prefix="headrace-bench-"))
        model = DEMO_MODEL if made is None else random_model(made)
    try:
        figures = asyncio.run(measure(args, model, cpus))
    finally:
        os.sched_setaffinity(0, cpus)
        if made is not None:
            shutil.rmtree(made)
    print(
        f"\ngenerator / raw vLLM: {figures['ratio']:.3f} "
        f"({figures['ratio_min']:.3f} to {figures['ratio_max']:.3f}), "
        f"processor time raw / generator: {figures['cpu_ratio']:.3f}, "
        f"weights changed in {figures['weight_load_gap_ms']:.0f} ms"
    )
    if args.json:
        print(result_line(figures))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
