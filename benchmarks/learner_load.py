"""The load of the learner's benchmarks: batches with the lengths of the demonstration."""

from pathlib import Path

import numpy as np

from headrace.protocol.batches import BatchSequence, PolicyWindow, Shard, ValueTrajectory
from headrace.protocol.messages import Batch
from headrace.protocol.streams import Reward, Span

MODEL = Path(__file__).parent.parent / "recipes" / "models" / "chain-sums-cold"
# Response lengths after training: p50 31, p90 87, p99 239, mean about 45.
QUANTILES = ((0.0, 4), (0.25, 20), (0.5, 31), (0.75, 52), (0.9, 87), (0.99, 239), (1.0, 240))
VOCABULARY = 64


def demo_lengths(count: int, rng: np.random.Generator) -> list[int]:
    """Response lengths drawn from the demonstration's distribution."""
    shares, lengths = zip(*QUANTILES, strict=True)
    drawn = np.interp(rng.random(count), shares, np.log(lengths))
    return [round(float(x)) for x in np.exp(drawn)]


def demo_batch(
    *, trajectories: int, window: int, seed: int, prompt: int | None = None, members: int = 1
) -> tuple[Batch, Shard]:
    """One update's header and its only part: each response's last window, and all that finished; a
    tenth is unfinished. `prompt`: its tokens (None: 7 to 17); `members`: responses to each."""
    rng = np.random.default_rng(seed)
    sequences: list[BatchSequence] = []
    windows: list[PolicyWindow] = []
    values: list[ValueTrajectory] = []
    opening, size = np.zeros(0, np.int32), 0
    for i, length in enumerate(demo_lengths(trajectories, rng)):
        if i % members == 0:
            size = prompt or 2 * int(rng.integers(3, 9)) + 1
            opening = rng.integers(3, VOCABULARY, size).astype(np.int32)
        ids = np.concatenate([opening, rng.integers(3, VOCABULARY, length).astype(np.int32)])
        start = (length - 1) // window * window
        finished = bool(rng.random() < 0.9)
        score = float(finished and rng.random() < 0.5)
        rewards = [Reward(score, length - 1)] if finished else []
        sequences.append(
            BatchSequence(
                trajectory_id=i,
                group_id=i // members,
                token_ids=ids,
                opening=size,
                sampled=[(0, length)],
            )
        )
        windows.append(
            PolicyWindow(
                window_id=i,
                trajectory_id=i,
                sequence=i,
                start=start,
                end=length,
                length=length,
                logprobs=rng.normal(-2.0, 0.5, length - start).astype(np.float32),
                spans=[Span(0, start, length)],
                loss_weights=np.ones(length - start, np.float32),
                rewards=rewards,
                finished=finished,
                score=score,
                correct=score > 0,
            )
        )
        if finished:
            values.append(
                ValueTrajectory(
                    trajectory_id=i,
                    sequence=i,
                    length=length,
                    rewards=rewards,
                    score=score,
                    logprobs=np.zeros(0, np.float32),
                )
            )
    header = Batch(
        batch_id=seed + 1,
        update=seed + 1,
        lineage=0,
        version=0,
        publish_as=1,
        parts=[1],
        value_epochs=1,
        checkpoint=False,
    )
    return header, Shard(sequences=sequences, windows=windows, values=values)
