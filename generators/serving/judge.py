"""Judge of a run: `python -m generators.serving.judge --run-dir DIR --name NAME`.

In: the run's configuration, `[reward.judges.NAME]`. Out: vLLM's own server of the protocol of
OpenAI, on a free port of the loopback, with a key that is made here; both are written to the run's
folder when it answers, for the reward sources that ask it. Exit codes: 0 asked to end, 1 ours (the
engine died, too), 2 the user's mistake.
"""

import argparse
import asyncio
import os
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from generators.engines.vllm_engine import (
    VllmSettings,
    engine_memory,
    fork_engine,
    prepare_environment,
)
from headrace.config.sections.model import JudgeConfig
from headrace.errors import RunFailedError, UserError, exit_code
from headrace.host import stack_dumps
from headrace.host.hardware import cores_of, has_bfloat16, has_gpu
from headrace.host.memory import lasting
from headrace.protocol.messages.judges import FOLDER, JudgeAddress, forget_address, write_address
from headrace.run_files.run_folder import read_config

HOST = "127.0.0.1"
LOOK_EVERY_S = 0.2
MOST_LOGPROBS = 20


def server_arguments(judge: JudgeConfig, name: str, *, on_gpu: bool) -> list[str]:
    """Return vLLM's command line for a judge, apart from the port and the key."""
    dtype = judge.dtype if on_gpu or has_bfloat16() else "float32"
    given = [
        "--model", judge.path, "--served-model-name", name, "--host", HOST,
        "--dtype", dtype, "--max-num-seqs", str(judge.max_num_seqs),
        "--tensor-parallel-size", str(judge.tensor_parallel_size),
        "--max-logprobs", str(MOST_LOGPROBS), "--generation-config", "vllm",
        "--worker-extension-cls", "generators.engines.vllm_worker.WeightLoader",
        "--disable-uvicorn-access-log", "--uvicorn-log-level", "warning",
    ]  # fmt: skip
    if on_gpu:
        given += ["--gpu-memory-utilization", str(judge.gpu_memory_utilization)]
    else:
        given += ["--kv-cache-memory-bytes", str(int(judge.kv_cache_gib * 2**30))]
    if judge.max_model_len is not None:
        given += ["--max-model-len", str(judge.max_model_len)]
    if judge.chat_template is not None:
        given += ["--chat-template", judge.chat_template]
    if judge.enforce_eager:
        given.append("--enforce-eager")
    if judge.trust_remote_code:
        given.append("--trust-remote-code")
    return given


async def serve(judge: JudgeConfig, name: str, folder: Path) -> int:
    """Serve until a signal, and return the exit code."""
    forget_address(folder, name)
    on_gpu = has_gpu()
    key = secrets.token_urlsafe(32)
    os.environ["VLLM_API_KEY"] = key
    prepare_environment(
        VllmSettings(judge.path, 0, (), max_num_seqs=judge.max_num_seqs, on_gpu=on_gpu)
    )
    with lasting():
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.entrypoints.launchers.api_server.entry import build_and_serve
        from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
        from vllm.entrypoints.launchers.launcher import create_server_socket
        from vllm.usage.usage_lib import UsageContext
        from vllm.utils.argparse_utils import FlexibleArgumentParser
        from vllm.v1.engine.async_llm import AsyncLLM

    parser = make_arg_parser(FlexibleArgumentParser())
    arguments = parser.parse_args(server_arguments(judge, name, on_gpu=on_gpu))
    validate_parsed_serve_args(arguments)
    listening = create_server_socket((HOST, 0), reuse_port=False)
    arguments.port = listening.getsockname()[1]
    base = f"http://{HOST}:{arguments.port}"
    address = JudgeAddress(f"{base}/v1", name, key, os.getpid())
    try:
        engine_args = AsyncEngineArgs.from_cli_args(arguments)
        config = engine_args.create_engine_config(UsageContext.OPENAI_API_SERVER)
        fork_engine(on_gpu=on_gpu, tensor_parallel_size=judge.tensor_parallel_size)
        engine = AsyncLLM.from_vllm_config(config)
        try:
            await engine.reset_mm_cache()  # of the images that vLLM measured its memory with
            _, memory = await engine_memory(engine)
            announcing = asyncio.create_task(_announce(address, folder))
            try:
                closing = await build_and_serve(engine, base, listening, arguments)
            finally:
                announcing.cancel()
            died = bool(engine.errored)
        finally:
            engine.shutdown(timeout=config.shutdown_timeout)
        await closing
        memory.close()
    except ValueError as error:
        reason = " ".join(str(error).split())
        raise UserError(f"reward.judges.{name}: vLLM does not take it: {reason}") from error
    finally:
        listening.close()
    if died:
        raise RunFailedError("the judge's engine died")
    return 0


async def _announce(address: JudgeAddress, folder: Path) -> None:
    """Write the address as soon as the server answers a request with logprobs.

    The first of these compiles a helper: seconds that no response should wait."""
    import httpx

    question: dict[str, Any] = {
        "model": address.model, "prompt": "yes", "max_tokens": 1, "logprobs": MOST_LOGPROBS
    }  # fmt: skip
    async with httpx.AsyncClient(trust_env=False, timeout=None) as client:
        while True:
            try:
                answer = await client.post(
                    f"{address.base}/completions",
                    json=question,
                    headers={"Authorization": f"Bearer {address.key}"},
                )
                answer.raise_for_status()
                write_address(folder, address.model, address)
                break
            except (httpx.HTTPError, OSError):
                await asyncio.sleep(LOOK_EVERY_S)
    # Printed, so that it is there whatever vLLM has made of logging meanwhile.
    print(f"{address.model} serves at {address.base}", file=sys.stderr, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line, and return the exit code."""
    parser = argparse.ArgumentParser(prog="generators.serving.judge", description=__doc__)
    parser.add_argument("--run-dir", required=True, type=Path, metavar="DIR")
    parser.add_argument("--name", required=True, help="of [reward.judges.NAME]")
    parser.add_argument("--cpus", type=cores_of, metavar="0,1", help="cores of this judge")
    args = parser.parse_args(argv)
    stack_dumps.log_and_listen()

    def run() -> int:
        judge = read_config(args.run_dir).reward.judges[args.name]
        if args.cpus:
            os.sched_setaffinity(0, args.cpus)
        return asyncio.run(serve(judge, args.name, args.run_dir / FOLDER))

    return exit_code(run)


if __name__ == "__main__":
    sys.exit(main())
