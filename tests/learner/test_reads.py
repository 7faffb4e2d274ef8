"""Which windows are positive examples: the learner takes the verifier's word."""

import msgspec
import pytest

from learner.batch import totals_of
from learner.reads import is_right, policy_reads, with_earlier_tokens
from tests.learner.recorded import batch_of, record


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
    (window, *_), _ = record(seed=1, trajectories=1, longest=8, window=4, unfinished=0.0)
    changed = msgspec.structs.replace(window, finished=finished, reward=reward, correct=correct)
    assert is_right(changed) is right
    assert totals_of(batch_of([changed], [])).positive_tokens == (changed.end if right else 0)


def test_a_wrong_answers_earlier_tokens_are_not_read_again() -> None:
    windows, _ = record(seed=1, trajectories=8, longest=16, window=4, unfinished=0.0)
    ends = [w for w in windows if w.finished and w.start]
    reads = policy_reads(ends)
    for correct in (True, False):
        told = [msgspec.structs.replace(w, reward=0.25, correct=correct) for w in ends]
        earlier = with_earlier_tokens(reads, told).targets.size - reads.targets.size
        assert earlier == (sum(w.start for w in ends) if correct else 0)
