"""Which windows are positive examples: the learner takes the verifier's word."""

import pytest
import torch
from msgspec.structs import replace

from headrace.protocol.messages.batches import PolicyWindow, Shard
from headrace.protocol.token_spans import Reward
from learner.batching.batch import loss_counts, policy_batch, value_batch
from learner.batching.token_reads import is_right, reads_of, sampled_windows, with_earlier_tokens
from learner.device import RankContext
from tests.learner.recorded import record

CPU = torch.device("cpu")


def positive_tokens(shard: Shard) -> int:
    """Tokens of right answers, as the learner counts them."""
    windows = policy_batch(
        shard, version=1, lambdas=lambda length, _: length.double(), shape=lambda r, _: r,
        kl_coef=0.0, device=CPU,
    )  # fmt: skip
    values = value_batch(shard, shape=lambda r, _: r, kl_coef=0.0, device=CPU)
    return loss_counts(windows, values, RankContext(device=CPU)).positive_tokens


@pytest.mark.parametrize(
    ("finished", "reward", "correct", "right"),
    [
        (True, 0.9, True, True),
        (True, 0.1, False, False),
        (True, -1.0, True, True),
        (True, 0.0, True, True),
        (False, 0.0, True, False),
    ],
)
def test_right_is_what_the_verifier_calls_correct(
    finished: bool, reward: float, correct: bool, right: bool
) -> None:
    """The sign of the reward says nothing: a judge may pay wrong answers a little."""
    shard = record(seed=1, trajectories=1, longest=8, window=4, unfinished=0.0)
    window = shard.windows[0]
    paid = [Reward(reward, window.end - 1)]
    changed = replace(window, finished=finished, rewards=paid, correct=correct)
    assert is_right(changed) is right
    found = positive_tokens(replace(shard, windows=[changed]))
    assert found == (changed.end if right else 0)


def test_a_wrong_answers_earlier_tokens_are_not_read_again() -> None:
    shard = record(seed=1, trajectories=8, longest=16, window=4, unfinished=0.0)
    sequences = shard.sequences
    ends = [w for w in shard.windows if w.finished and w.start]
    reads = reads_of(sequences, ends, sampled_windows(sequences, ends))

    def earlier(told: list[PolicyWindow]) -> int:
        return with_earlier_tokens(reads, sequences, told).targets.size - reads.targets.size

    for correct in (True, False):
        told = [replace(w, correct=correct) for w in ends]
        assert earlier(told) == (sum(w.start for w in ends) if correct else 0)
