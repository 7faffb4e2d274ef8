"""Engine without a run: `python -m generators.serving.standalone`.

In and out: lines of `headrace.protocol.messages.sampling` on stdin and the original stdout; output
of libraries goes to stderr. The engine and its sampling settings are those of the configuration's
generator, but for hot first tokens. It ends when stdin closes, that is, when its parent process is
gone. Exit codes: 0 done, 1 ours, 2 the user's mistake.
"""

import asyncio
import os
import sys
from typing import BinaryIO

from generators.engine import Engine, EngineDeadError, GenerationRequest, RequestError
from generators.run import build_engine
from headrace.config.sections.run import RunConfig
from headrace.errors import UserError, first_error
from headrace.host.memory import lasting
from headrace.protocol.messages.sampling import (
    MAX_LINE_BYTES,
    Ready,
    Refused,
    SampleRequest,
    SamplerReply,
    Unfit,
    Written,
    ask_decoder,
    line_of,
)
from headrace.protocol.transport.stdio import take_streams


async def serve(source: BinaryIO, sink: BinaryIO) -> None:
    """Answer requests; UserError without an engine, EngineDeadError when it dies."""
    reader = asyncio.StreamReader(limit=MAX_LINE_BYTES)
    protocol = asyncio.StreamReaderProtocol(reader)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, source)
    config = RunConfig.model_validate_json(await reader.readline())
    if config.generator.cpus:
        os.sched_setaffinity(0, config.generator.cpus)
    with lasting():
        engine = build_engine(config)
    try:
        with first_error(EngineDeadError):
            await engine.start()
            _say(sink, Ready())
            async with asyncio.TaskGroup() as group:
                live: set[asyncio.Task[None]] = set()
                while line := await reader.readline():
                    task = group.create_task(
                        _answer(engine, config, ask_decoder.decode(line), sink)
                    )
                    live.add(task)
                    task.add_done_callback(live.discard)
                # Nobody is left who would read what these say.
                for task in tuple(live):
                    task.cancel()
    finally:
        await engine.stop()


async def _answer(engine: Engine, config: RunConfig, ask: SampleRequest, sink: BinaryIO) -> None:
    """Sample the response of one `SampleRequest`, and send it."""
    generator = config.generator
    request = GenerationRequest(
        str(ask.number),
        ask.prompt_ids,
        max_tokens=ask.max_tokens,
        seed=ask.seed,
        position=ask.position,
        temperature=generator.temperature,
        top_p=generator.top_p,
        top_k=generator.top_k,
    )
    try:
        deltas = [delta async for delta in engine.generate(request)]
    except RequestError as error:
        _say(sink, Refused(ask.number, str(error)))
        return
    ids = [token for delta in deltas for token in delta.token_ids]
    logprobs = [float(x) for delta in deltas for x in delta.logprobs]
    _say(sink, Written(ask.number, ids, logprobs, deltas[-1].finish == "stop"))


def _say(sink: BinaryIO, answer: SamplerReply) -> None:
    sink.write(line_of(answer))
    sink.flush()


def main() -> int:
    """Run the process, and return the exit code."""
    source, sink = take_streams(buffering=0)
    try:
        asyncio.run(serve(source, sink))
    except UserError as error:
        _say(sink, Unfit(str(error)))
        return 2
    except EngineDeadError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
