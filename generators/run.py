"""Generator process: `python -m generators.run --connect ADDR --name generator-0`.

It says Hello, gets the run's configuration with Welcome, builds the configured engine, says Hello
again with its capacity, and runs the loop. Exit codes: 0 done, 1 ours, 2 the user's mistake,
130 interrupted, 143 ended by SIGTERM.
"""

import argparse
import asyncio
import gc
import logging
import math
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from generators.engine import Engine, EngineDeadError, GenerationRequest, RequestError
from generators.engines.fake_engine import FakeEngine
from generators.engines.vllm_adapter import adapter_layout
from generators.engines.vllm_engine import VllmEngine, VllmSettings, cache_folder
from generators.rollout.cpu_affinity import FrontCores
from generators.rollout.loop import GeneratorLoop, Receive
from headrace.config.device_defaults import (
    ALONE,
    GPU_MEMORY_SHARE,
    GpuSharing,
    ResolvedConfig,
    resolve_generator,
)
from headrace.config.estimates.memory import gpu_memory
from headrace.config.estimates.model_shape import model_shape
from headrace.config.sections.run import RunConfig
from headrace.data.image_processor import placeholder_ids
from headrace.data.tokenizer import vocabulary_size
from headrace.errors import RunFailedError, UserError, exit_code
from headrace.host import stack_dumps
from headrace.host.hardware import cores_of, detect, has_gpu
from headrace.host.memory import lasting
from headrace.host.progress_reporter import ProgressReporter
from headrace.protocol.messages.control import FireSampling, Hello, Refused, Shutdown, Welcome
from headrace.protocol.transport.endpoints import identity_of
from headrace.protocol.transport.sockets import Dealer, Link
from headrace.run_files.run_folder import MEDIA

_LOG = logging.getLogger("headrace.generator")
FAKE_STEP = "HEADRACE_FAKE_STEP_S"
"""Variable of the scripted engine's seconds per token, for benchmarks."""
_GREETING_S = 2.0
_FIRST_ANSWER_S = 120.0
PROBE = FireSampling(temperature=1e8, top_k=3)
_TOLERANCE = 1e-3


def build_engine(config: RunConfig, run_dir: Path | None = None) -> Engine:
    """Build the configured engine, for this host and run; UserError without one."""
    config = chosen_here(config).config
    task, generator, path = config.task, config.generator, config.model.path
    if generator.engine == "fake":
        turn = config.environment.max_turn_tokens if config.environment else None
        return FakeEngine(
            vocab_size=vocabulary_size(path, trust_remote_code=config.model.trust_remote_code),
            seed=config.seed,
            mean_length=max(1.0, (turn or task.max_response_length) / 4),
            step_s=float(os.environ.get(FAKE_STEP, "0")),
        )
    from generators.engines.model_files import end_token_ids, read_config, weight_layout

    model = read_config(path, trust_remote_code=config.model.trust_remote_code)
    ends, layout = end_token_ids(path, model), weight_layout(path, model)
    images = tuple(placeholder_ids(model))
    if images and run_dir is not None and not run_dir.is_dir():
        raise UserError(
            f"{path} reads images, which lie in {run_dir}, and this host does not see that folder"
        )
    if generator.engine == "torch":
        if images:
            raise UserError(f"{path} reads images: set generator.engine to vllm")
        from generators.engines.torch_engine import TorchEngine

        return TorchEngine(
            path,
            layout,
            end_token_ids=ends,
            max_model_len=config.longest,
            max_num_seqs=generator.seats,
            dtype=generator.dtype,
            recompute_on_update=generator.kv_on_update == "recompute",
            batch_invariant=generator.batch_invariant,
            trust_remote_code=config.model.trust_remote_code,
            wide_head=config.model.head_precision == "float32",
        )
    adapter = None if config.evaluation.only else config.learner.published_adapter
    if adapter is not None:
        if images:
            raise UserError(f'{path} reads images: set learner.lora.publish to "merged"')
        layout = adapter_layout(layout, adapter)
    return VllmEngine(
        VllmSettings(
            model=path,
            max_model_len=config.longest,
            end_token_ids=ends,
            max_num_seqs=generator.seats,
            dtype=generator.dtype,
            quantization=generator.quantization,
            kv_cache_gib=generator.kv_cache_gib,
            gpu_memory_utilization=generator.gpu_memory_utilization or GPU_MEMORY_SHARE,
            tensor_parallel_size=generator.tensor_parallel_size,
            enforce_eager=bool(generator.enforce_eager),
            stream_interval=generator.stream_interval,
            recompute_on_update=generator.kv_on_update == "recompute"
            and config.schedule.mode == "streaming",
            trust_remote_code=config.model.trust_remote_code,
            wide_head=config.model.head_precision == "float32",
            on_gpu=has_gpu(),
            hot_tokens=generator.fire is not None,
            media=(run_dir or Path()) / MEDIA if images else None,
            max_images=task.max_images,
            banned_ids=images,
            adapter=adapter,
        ),
        layout,
    )


def chosen_here(config: RunConfig, company: GpuSharing = ALONE) -> ResolvedConfig:
    """Choose the generators' open settings of a configuration for this host."""
    hardware, taken = detect(), 0
    gpus = hardware.gpus
    if gpus and company.ranks:
        taken = gpu_memory(config, model_shape(Path(config.model.path))).total
    return resolve_generator(config, gpus, company, taken, bfloat16=hardware.bfloat16)


async def check_hot(engine: Engine, *, temperature: float) -> None:
    """Check that a started engine draws a request's first token hot, and no other.

    UserError where it does not, which nothing else would show: an engine without the logits
    processor ignores the request, other sampling settings may replace the temperature, and logprobs
    of the wrong distribution look like any others. At the boundless temperature of `PROBE` the
    candidates of any model are equally likely, so that the hot token's logprob must be -log of
    their number. `temperature`: of the run's other tokens.
    """
    request = GenerationRequest(
        "hot-token-check", [1, 2, 3], max_tokens=2, seed=1, temperature=temperature, fire=PROBE
    )
    try:
        deltas = [delta async for delta in engine.generate(request)]
    except RequestError as error:
        raise UserError(f"generator.fire cannot work: {error}") from error
    marks = [i == 0 and delta.hot for delta in deltas for i in range(len(delta.token_ids))]
    logprobs = [logprob for delta in deltas for logprob in delta.logprobs]
    even = -math.log(PROBE.top_k)
    if marks[:1] != [True] or any(marks[1:]) or abs(logprobs[0] - even) > _TOLERANCE:
        found = f"logprob {logprobs[0]:.3f}" if logprobs else "no token"
        raise UserError(
            f"generator.fire cannot work: this engine's first token is not hot ({found} instead "
            f"of {even:.3f} in a test); leave [generator.fire] out, or use another generator.engine"
        )


def pin(cpus: list[int] | None, evaluation_cpus: list[int] | None = None) -> FrontCores:
    """Keep this process and its engine on some cores; return those for later use.

    None: the first one allowed, where there is no GPU, so that the learner keeps the others."""
    if cpus is None:
        if has_gpu():
            return FrontCores()
        cpus = [min(os.sched_getaffinity(0))]
    try:
        os.sched_setaffinity(0, evaluation_cpus or cpus)
        os.sched_setaffinity(0, cpus)
    except OSError as error:
        raise UserError(
            f"cannot run on cores {cpus} ({error}); choose others with generator.cpus"
        ) from error
    return FrontCores(cpus, evaluation_cpus or ())


def receiver(engine: Engine, company: GpuSharing) -> Receive | None:
    """Return the loading of broadcasts; None where there is none, or beside the learner on a GPU,
    which NCCL refuses twice in a group."""
    return engine.receive_weights if isinstance(engine, VllmEngine) and not company.ranks else None


async def greet(dealer: Dealer, hello: Hello) -> Welcome:
    """Say Hello until the coordinator answers; UserError where it takes in none."""
    for _ in range(int(_FIRST_ANSWER_S / _GREETING_S)):
        await dealer.send(hello)
        message = await dealer.receive_within(_GREETING_S)
        if isinstance(message, Welcome):
            return message
        if isinstance(message, Refused):
            raise UserError(f"the coordinator refuses {hello.name}: {message.reason}")
        if isinstance(message, Shutdown):
            raise UserError(f"the run is over ({message.reason})")
    raise RunFailedError(f"no coordinator answered within {_FIRST_ANSWER_S:g} s")


async def generate(
    link: Link,
    name: str,
    cpus: list[int] | None,
    evaluation_cpus: list[int] | None = None,
    company: GpuSharing = ALONE,
) -> int:
    """Run a generator from its Hello to its end, and return the exit code."""
    identity = identity_of(name)
    dealer = Dealer(link, identity)
    hello = Hello(role="generator", name=name, pid=os.getpid(), host=socket.gethostname())
    engine: Engine | None = None
    try:
        welcome = await greet(dealer, hello)
        config = RunConfig.model_validate_json(welcome.config)
        transport = config.transport
        work = ProgressReporter(transport.stall_timeout_s)
        with work.heartbeats(link, identity, transport.heartbeat_s):
            config, choices = chosen_here(config, company)
            cores = pin(cpus if cpus is not None else config.generator.cpus, evaluation_cpus)
            with lasting():
                engine = build_engine(config, Path(welcome.run_dir))
            with work.moving("starting the engine (weights, compilation, graphs)"):
                await engine.start()
            if config.generator.fire is not None:
                await check_hot(engine, temperature=config.generator.temperature)
            # Objects of the start-up live as long as the process: keep them out of collections.
            gc.collect()
            gc.freeze()
            loop = GeneratorLoop(
                engine,
                dealer,
                replace(
                    hello, capacity=config.generator.capacity, chosen=", ".join(map(str, choices))
                ),
                chunk_tokens=config.chunk_tokens,
                weights_folder=cache_folder() / "weights",
                receive=receiver(engine, company),
                curve_keys=link.curve_keys,
                host=link.host,
                heartbeat_s=transport.heartbeat_s,
                stall_timeout_s=transport.stall_timeout_s,
                max_bytes=transport.request_bytes,
                cores=cores,
                work=work,
            )
            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(number, loop.finish, number.name)
            reason = await loop.run()
            _LOG.info("generator ends: %s", reason)
    finally:
        if engine is not None:
            await engine.stop()
        dealer.close()
    return 128 + signal.Signals[reason] if reason in signal.Signals.__members__ else 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line, and return the exit code."""
    parser = argparse.ArgumentParser(prog="generators.run", description=__doc__)
    parser.add_argument("--connect", required=True, metavar="ADDR", help="tcp://host:port")
    parser.add_argument("--name", required=True, help="unique in the run, e.g. generator-0")
    parser.add_argument("--curve-keys", metavar="DIR", help="folder with CURVE keys")
    parser.add_argument("--cpus", type=cores_of, metavar="0,1", help="its cores, or `all`")
    parser.add_argument(
        "--evaluation-cpus",
        type=cores_of,
        metavar="0,1",
        help="cores that this process, but not vLLM's, may use during evaluations",
    )
    company = "learner ranks and generators on its GPU, itself among them"
    parser.add_argument("--company", type=int, nargs=2, metavar="N", default=ALONE, help=company)
    args = parser.parse_args(argv)
    stack_dumps.log_and_listen()
    link = Link(args.connect, curve_keys=args.curve_keys)
    run = generate(link, args.name, args.cpus, args.evaluation_cpus, GpuSharing(*args.company))
    return exit_code(lambda: asyncio.run(run), EngineDeadError)


if __name__ == "__main__":
    sys.exit(main())
