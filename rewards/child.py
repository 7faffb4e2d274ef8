"""A scoring child: `python -m rewards.child WORKER_PID`, started by `pool.py` only.

In: frames of `pipe.py` on stdin. Out: frames on the original stdout. What the user's code prints
goes to stderr and what it reads is empty, so that it cannot disturb the frames. The child dies with
its worker, ignores Ctrl-C (the worker ends it), and may not take more than MEMORY_BYTES. This is
where broad exceptions are caught: whatever a verifier raises becomes an outcome, and the child goes
on.
"""

import ctypes
import os
import resource
import signal
import sys
import time
from typing import BinaryIO

from headrace.config.reward import SourceConfig
from headrace.errors import UserError
from headrace.protocol.messages import ScoreItem
from rewards.known import InvalidRewardError
from rewards.pipe import (
    MAX_ERROR,
    Batch,
    Began,
    Outcome,
    Ready,
    Setup,
    Unfit,
    pack,
    read_question,
)
from rewards.verdict import Verdict
from rewards.verifier import Verifier, build_verifier

MEMORY_BYTES = 4 << 30
_PR_SET_PDEATHSIG = 1


def die_with(worker: int) -> None:
    """Be killed by the kernel when the worker ends, however it ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # It may have ended before the kernel was asked.
    if os.getppid() != worker:
        raise SystemExit(1)


def limit_memory(num_bytes: int) -> None:
    """Bound the private memory (not the address space: libraries map a lot that they never use)."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    soft = num_bytes if hard == resource.RLIM_INFINITY else min(num_bytes, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def take_streams() -> tuple[BinaryIO, BinaryIO]:
    """Keep stdin and stdout for frames; leave the user's code an empty stdin and stderr."""
    source, sink = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return source, sink


def score(verifier: Verifier, item: ScoreItem) -> Outcome:
    """The outcome of one item, whatever the verifier does short of ending the process."""
    began = time.perf_counter()
    try:
        verdict = verifier(item)
    except InvalidRewardError as error:
        return Outcome("invalid", time.perf_counter() - began, error=_describe(error))
    except (Exception, SystemExit) as error:
        return Outcome("crashed", time.perf_counter() - began, error=_describe(error))
    seconds = time.perf_counter() - began
    return _outcome(verdict, seconds)


def _outcome(verdict: Verdict | None, seconds: float) -> Outcome:
    if verdict is None:
        error = "the function says None, so no reward applies to this response"
        return Outcome("invalid", seconds, error=error)
    return Outcome(
        "ok",
        seconds,
        verdict.reward,
        verdict.correct,
        verdict.parts,
        lines=list(verdict.lines),
        siblings=[_outcome(sibling, seconds) for sibling in verdict.siblings],
    )


def serve(source: BinaryIO, sink: BinaryIO) -> None:
    """Build the verifier, then score batches until the worker closes the pipe."""
    setup = read_question(source)
    assert isinstance(setup, Setup)
    try:
        verifier = build_verifier(SourceConfig.model_validate_json(setup.config))
    except (Exception, SystemExit) as error:
        sink.write(pack(Unfit(_describe(error), isinstance(error, UserError))))
        sink.flush()
        return
    sink.write(pack(Ready(list(verifier.needs), verifier.asks_ids)))
    sink.flush()
    while isinstance(batch := read_question(source), Batch):
        sink.write(pack(Began()))
        sink.flush()
        for item in batch.items:
            sink.write(pack(score(verifier, item)))
            sink.flush()


def main() -> None:
    """Entry point of the process."""
    die_with(int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    limit_memory(MEMORY_BYTES)
    source, sink = take_streams()
    serve(source, sink)


def _describe(error: BaseException) -> str:
    text = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
    return text[:MAX_ERROR]


if __name__ == "__main__":
    main()
