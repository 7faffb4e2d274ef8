"""What the learner's benchmarks train: batches with the lengths of the demonstration."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from benchmarks.made_runs import MODEL
from headrace.protocol.batches import BatchSequence, PolicyWindow, Shard, ValueTrajectory
from headrace.protocol.streams import Float32, Int32, Reward, Span

__all__ = ["MODEL", "VOCABULARY", "Answer", "demo_lengths", "demo_shard", "shard_of"]
# Response lengths after training: p50 31, p90 87, p99 239, mean about 45.
QUANTILES = ((0.0, 4), (0.25, 20), (0.5, 31), (0.75, 52), (0.9, 87), (0.99, 239), (1.0, 240))
VOCABULARY = 64


@dataclass(frozen=True)
class Answer:
    """A response up to its window's end, which begins at `start`: its number, its group's, token
    ids of which the prompt has `opening`, the window's logprobs. `score`: None while unfinished."""

    number: int
    group: int
    ids: Int32
    opening: int
    start: int
    logprobs: Float32
    score: float | None = None


def shard_of(answers: Iterable[Answer]) -> Shard:
    """One window of each answer, and the whole of those that are finished."""
    shard = Shard(sequences=[], windows=[], values=[])
    for place, answer in enumerate(answers):
        length, score = answer.ids.size - answer.opening, answer.score or 0.0
        rewards = [] if answer.score is None else [Reward(score, length - 1)]
        shard.sequences.append(
            BatchSequence(
                trajectory_id=answer.number,
                group_id=answer.group,
                token_ids=answer.ids,
                opening=answer.opening,
                sampled=[(0, length)],
            )
        )
        shard.windows.append(
            PolicyWindow(
                window_id=answer.number * 10_000 + answer.start,
                trajectory_id=answer.number,
                sequence=place,
                start=answer.start,
                end=length,
                length=length,
                logprobs=answer.logprobs,
                spans=[Span(0, answer.start, length)],
                loss_weights=np.ones(length - answer.start, np.float32),
                rewards=rewards,
                finished=answer.score is not None,
                score=score,
                correct=score > 0,
            )
        )
        if rewards:
            shard.values.append(
                ValueTrajectory(
                    trajectory_id=answer.number,
                    sequence=place,
                    length=length,
                    rewards=rewards,
                    score=score,
                    logprobs=np.zeros(0, np.float32),
                )
            )
    return shard


def demo_lengths(count: int, rng: np.random.Generator) -> list[int]:
    """Response lengths drawn from the demonstration's distribution."""
    shares, lengths = zip(*QUANTILES, strict=True)
    drawn = np.interp(rng.random(count), shares, np.log(lengths))
    return [round(float(x)) for x in np.exp(drawn)]


def demo_shard(
    *, trajectories: int, window: int, seed: int, prompt: int | None = None, members: int = 1
) -> Shard:
    """One update's only part: each response's last window, and all that finished; a tenth is
    unfinished. `prompt`: its tokens (None: 7 to 17); `members`: responses to each."""
    rng = np.random.default_rng(seed)
    answers: list[Answer] = []
    opening = np.zeros(0, np.int32)
    for i, length in enumerate(demo_lengths(trajectories, rng)):
        if i % members == 0:
            size = prompt or 2 * int(rng.integers(3, 9)) + 1
            opening = rng.integers(3, VOCABULARY, size).astype(np.int32)
        ids = np.concatenate([opening, rng.integers(3, VOCABULARY, length).astype(np.int32)])
        start = (length - 1) // window * window
        finished = bool(rng.random() < 0.9)
        score = float(finished and rng.random() < 0.5)
        logprobs = rng.normal(-2.0, 0.5, length - start).astype(np.float32)
        answers.append(
            Answer(i, i // members, ids, opening.size, start, logprobs, score if finished else None)
        )
    return shard_of(answers)
