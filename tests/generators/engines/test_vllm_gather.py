"""Gathered outputs of vLLM's engine: the same tokens, in fewer messages."""

import queue
import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("vllm")
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, FinishReason
from vllm.v1.metrics.stats import PrefillStats
from vllm.v1.outputs import LogprobsLists

from generators.engines.vllm_gather import OutputGatherer, gather

TOKENS = 4


def output(name: str, token: int, **more: Any) -> EngineCoreOutput:
    """What a step says of one request: one token, whose logprob is minus its id."""
    row = np.full((1, 1), token)
    logprobs = LogprobsLists(row.astype(np.int32), -row.astype(np.float32), np.full(1, token % 3))
    return EngineCoreOutput(name, [token], new_logprobs=logprobs, **more)


def told(outputs: list[EngineCoreOutput]) -> dict[str, list[int]]:
    """Tokens by request, in the order of arrival; logprobs belong to them."""
    found: dict[str, list[int]] = {}
    for each in outputs:
        found.setdefault(each.request_id, []).extend(each.new_token_ids)
        if each.new_logprobs is not None:
            assert each.new_logprobs.logprobs[:, 0].tolist() == [-t for t in each.new_token_ids]
            assert each.new_logprobs.logprob_token_ids[:, 0].tolist() == each.new_token_ids
            assert each.new_logprobs.sampled_token_ranks.tolist() == [
                token % 3 for token in each.new_token_ids
            ]
    return found


def test_a_request_is_due_when_enough_tokens_are_there() -> None:
    gatherer = OutputGatherer(TOKENS)
    for token in range(TOKENS - 1):
        assert gatherer.take([output("a", token)]) == []
    (due,) = gatherer.take([output("a", TOKENS - 1)])
    assert told([due]) == {"a": list(range(TOKENS))}
    assert gatherer.rest() == []


def test_a_request_that_ends_is_due_at_once_with_how_it_began() -> None:
    gatherer, began = OutputGatherer(TOKENS), PrefillStats(num_prompt_tokens=7)
    gatherer.take([output("a", 5, prefill_stats=began), output("b", 6)])
    (due,) = gatherer.take([output("a", 8, finish_reason=FinishReason.STOP), output("b", 9)])
    assert (due.request_id, due.new_token_ids, due.prefill_stats) == ("a", [5, 8], began)
    assert due.finish_reason is FinishReason.STOP
    assert told(gatherer.rest()) == {"b": [6, 9]}


def test_what_says_more_than_tokens_is_not_kept() -> None:
    gatherer = OutputGatherer(TOKENS)
    gatherer.take([output("a", 1)])
    odd = output("a", 2, num_nans_in_logits=3)
    ended = EngineCoreOutput("b", [], finish_reason=FinishReason.ABORT)
    assert [each.new_token_ids for each in gatherer.take([odd, ended])] == [[1], [2], []]
    assert gatherer.rest() == []


def test_an_aborted_request_leaves_nothing() -> None:
    gatherer = OutputGatherer(TOKENS)
    gatherer.take([output("a", 1), output("b", 2)])
    gatherer.forget(["a", "never heard of"])
    assert told(gatherer.rest()) == {"b": [2]}


class Loop:
    """An engine whose scheduler plays a script; what it sends."""

    def __init__(self, steps: list[list[EngineCoreOutput]]) -> None:
        self._steps = iter(steps)
        self.output_queue: queue.Queue[tuple[int, EngineCoreOutputs]] = queue.Queue()
        self.paused = 0
        self.aborted: list[str] = []

    def step_fn(self) -> tuple[dict[int, EngineCoreOutputs], bool]:
        return {0: EngineCoreOutputs(outputs=next(self._steps))}, True

    def _finish_pause(self, clear_cache: bool) -> None:
        self.paused += 1

    def abort_requests(self, request_ids: list[str]) -> None:
        self.aborted += request_ids

    def step(self) -> None:
        """As vLLM's own loop does it."""
        for message in self.step_fn()[0].items():
            self.output_queue.put_nowait(message)

    def sent(self) -> list[EngineCoreOutput]:
        """All outputs so far, in their order."""
        found = []
        while not self.output_queue.empty():
            found += self.output_queue.get_nowait()[1].outputs
        return found


def test_a_pause_sends_all_there_is_first() -> None:
    loop = Loop([[output("a", 1), output("b", 2)], [output("a", 3), output("b", 4)]])
    gather(loop, TOKENS)
    loop.step()
    loop.step()
    assert loop.output_queue.empty()
    loop.abort_requests(["b"])
    loop._finish_pause(False)
    assert told(loop.sent()) == {"a": [1, 3]}
    assert (loop.paused, loop.aborted) == (1, ["b"])


def test_a_loop_without_the_methods_is_left_alone() -> None:
    other = SimpleNamespace(step_fn=len)
    gather(other, TOKENS)
    assert other.step_fn is len


@pytest.mark.parametrize("seed", range(20))
def test_every_token_arrives_once_and_in_order(seed: int) -> None:
    draw = random.Random(seed)
    live, steps, number = [f"r{n}" for n in range(5)], [], 0
    wanted: dict[str, list[int]] = {}
    for _ in range(60):
        step = []
        for name in list(live):
            if draw.random() < 0.8:
                number += 1
                more = {"finish_reason": FinishReason.LENGTH} if draw.random() < 0.05 else {}
                step.append(output(name, number, **more))
                wanted.setdefault(name, []).append(number)
                if more:
                    live.remove(name)
        steps.append(step)
    loop = Loop(steps)
    gather(loop, draw.choice([2, 3, 8]))
    for _ in steps:
        loop.step()
        if draw.random() < 0.1:
            loop._finish_pause(False)
    loop._finish_pause(False)
    assert told(loop.sent()) == wanted
