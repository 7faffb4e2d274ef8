"""Fewer and longer messages from vLLM's engine process to a generator's front.

In: the scheduler's outputs of a step, for every running request one token and its logprob. Out: the
same tokens in the same order, a request's as one output as soon as there are `tokens` of them or
the request ends. Promises: nothing is kept while the scheduler is paused, so that the caller of a
pause knows every sampled token; a request that was aborted leaves nothing behind; an output with
more than tokens, logprobs and the reason of the request's end is never kept.

vLLM sends one output per request and step, each with three small arrays, and gathers them in the
front (`stream_interval`), after both processes have packed and unpacked them. On a core that engine
and front share, that took a fifth of the time. Runs inside the engine process: `gather` wraps three
methods of its loop, and leaves a loop alone that does not have them.
"""

import functools
import logging
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import numpy as np

_LOG = logging.getLogger("headrace.generator")
TOKENS_VARIABLE = "HEADRACE_GATHER_TOKENS"
_USED = ("step_fn", "_finish_pause", "abort_requests", "output_queue")
_KEPT = frozenset(
    {"request_id", "new_token_ids", "new_logprobs", "finish_reason", "stop_reason", "prefill_stats"}
)


class OutputGatherer:
    """Buffer of the outputs of one engine that are not due yet."""

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens
        self._held: dict[str, list[Any]] = {}

    def take(self, outputs: Iterable[Any]) -> list[Any]:
        """Take the outputs of a step, and return those that are due."""
        due: list[Any] = []
        for output in outputs:
            held = self._held.setdefault(output.request_id, [])
            if _is_plain(output) and (not held or _has_logprobs(held[0]) == _has_logprobs(output)):
                held.append(output)
                if output.finish_reason is None and len(held) < self._tokens:
                    continue
                due.append(joined(held))
            else:
                due += [joined(held), output] if held else [output]
            del self._held[output.request_id]
        return due

    def rest(self) -> list[Any]:
        """Pop all outputs."""
        due = [joined(held) for held in self._held.values()]
        self._held.clear()
        return due

    def forget(self, request_ids: Iterable[str]) -> None:
        """Drop the outputs of requests that were aborted."""
        for request_id in request_ids:
            self._held.pop(request_id, None)


def joined(outputs: list[Any]) -> Any:
    """Join one request's outputs of consecutive steps."""
    if len(outputs) == 1:
        return outputs[0]
    last = outputs[-1]
    last.prefill_stats = outputs[0].prefill_stats
    last.new_token_ids = [token for output in outputs for token in output.new_token_ids]
    if _has_logprobs(last):
        parts = [output.new_logprobs for output in outputs if output.new_token_ids]
        last.new_logprobs = type(last.new_logprobs)(
            np.concatenate([part.logprob_token_ids for part in parts]),
            np.concatenate([part.logprobs for part in parts]),
            np.concatenate([part.sampled_token_ranks for part in parts]),
        )
    return last


def _has_logprobs(output: Any) -> bool:
    return output.new_logprobs is not None


@functools.cache
def _others() -> tuple[tuple[str, Any], ...]:
    """Return the fields that a plain output does not use, with their values there."""
    from vllm.v1.engine import EngineCoreOutput

    plain = EngineCoreOutput("", [])
    names = (name for name in EngineCoreOutput.__struct_fields__ if name not in _KEPT)
    return tuple((name, getattr(plain, name)) for name in names)


def _is_plain(output: Any) -> bool:
    return bool(output.new_token_ids) and all(
        getattr(output, name) == nothing for name, nothing in _others()
    )


def install(tokens: int) -> None:
    """Let an engine of this process gather `tokens` tokens per request once it runs."""
    from vllm.v1.engine.core import EngineCoreProc

    run = EngineCoreProc.run_busy_loop
    if tokens < 2 or hasattr(run, "gathers"):
        return

    @functools.wraps(run)
    def gathering(engine: Any) -> None:
        gather(engine, tokens)
        run(engine)

    gathering.gathers = True  # type: ignore[attr-defined]
    EngineCoreProc.run_busy_loop = gathering


def gather(engine: Any, tokens: int) -> None:
    """Let this engine gather from now on."""
    if missing := [name for name in _USED if not hasattr(engine, name)]:
        _LOG.warning("this vLLM's engine has no %s: its tokens come one by one", missing[0])
        return
    step, finish_pause, abort = engine.step_fn, engine._finish_pause, engine.abort_requests
    gatherers: defaultdict[int, OutputGatherer] = defaultdict(lambda: OutputGatherer(tokens))

    def gathered_step() -> tuple[dict[int, Any], bool]:
        made, executed = step()
        due = {}
        for client, message in (made or {}).items():
            message.outputs = gatherers[client].take(message.outputs)
            if message.outputs or message.scheduler_stats or message.finished_requests:
                due[client] = message
        return due, executed

    def finish_pause_with_all(clear_cache: bool) -> None:
        from vllm.v1.engine import EngineCoreOutputs

        for client, gatherer in gatherers.items():
            if rest := gatherer.rest():
                engine.output_queue.put_nowait((client, EngineCoreOutputs(outputs=rest)))
        finish_pause(clear_cache)

    def abort_and_forget(request_ids: list[str]) -> None:
        abort(request_ids)
        for gatherer in gatherers.values():
            gatherer.forget(request_ids)

    engine.step_fn = gathered_step
    engine._finish_pause = finish_pause_with_all
    engine.abort_requests = abort_and_forget
