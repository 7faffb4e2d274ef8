"""The load of the learner's benchmarks: batches with the lengths of the demonstration."""

from pathlib import Path

import numpy as np

from headrace.protocol.messages import Batch, PolicyWindow, Shard, ValueTrajectory
from headrace.protocol.streams import Span

MODEL = Path(__file__).parent.parent / "recipes" / "models" / "chain-sums-cold"
# Response lengths after training: p50 31, p90 87, p99 239, mean about 45.
QUANTILES = ((0.0, 4), (0.25, 20), (0.5, 31), (0.75, 52), (0.9, 87), (0.99, 239), (1.0, 240))
VOCABULARY = 64


def demo_lengths(count: int, rng: np.random.Generator) -> list[int]:
    """Response lengths drawn from the demonstration's distribution."""
    shares, lengths = zip(*QUANTILES, strict=True)
    drawn = np.interp(rng.random(count), shares, np.log(lengths))
    return [round(float(x)) for x in np.exp(drawn)]


def demo_batch(*, trajectories: int, window: int, seed: int) -> Batch:
    """One update: each response's last window, and all that finished; a tenth is unfinished."""
    rng = np.random.default_rng(seed)
    windows: list[PolicyWindow] = []
    values: list[ValueTrajectory] = []
    for i, length in enumerate(demo_lengths(trajectories, rng)):
        prompt = 2 * int(rng.integers(3, 9)) + 1
        ids = rng.integers(3, VOCABULARY, prompt + length).astype(np.int32)
        start = (length - 1) // window * window
        finished = bool(rng.random() < 0.9)
        reward = float(finished and rng.random() < 0.5)
        windows.append(
            PolicyWindow(
                window_id=i,
                trajectory_id=i,
                group_id=i,
                prompt_length=prompt,
                start=start,
                end=length,
                token_ids=ids,
                logprobs=rng.normal(-2.0, 0.5, length - start).astype(np.float32),
                spans=[Span(0, start, length)],
                loss_mask=np.ones(length - start, np.uint8),
                finished=finished,
                reward=reward,
                correct=reward > 0,
            )
        )
        if finished:
            values.append(
                ValueTrajectory(trajectory_id=i, prompt_length=prompt, token_ids=ids, reward=reward)
            )
    return Batch(
        update=seed + 1,
        version=0,
        publish_as=1,
        shards=[Shard(windows=windows, values=values)],
        value_epochs=1,
        checkpoint=False,
        cut="{}",
    )
