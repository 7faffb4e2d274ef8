"""A batch as flat arrays: which lengths rewards and lambdas are made from, and what is frozen."""

import numpy as np
import pytest
import torch
from msgspec import structs

from headrace.config.sections.algorithm import AlgorithmConfig
from headrace.protocol.messages.batches import (
    BatchSequence,
    GroupScores,
    PolicyWindow,
    Shard,
    ValueTrajectory,
)
from headrace.protocol.token_spans import Reward, Span
from learner.algorithms.registry import Algorithm, build_algorithm
from learner.algorithms.segment_advantages import window_advantages
from learner.batching.batch import PolicyBatch, policy_batch, value_batch
from learner.device import RankContext
from learner.models.microbatches import micro_batches
from learner.updates.token_statistics import tally_egae

CPU = torch.device("cpu")
PROMPT, WINDOW, LONGEST = 3, 16, 40


def algorithm() -> Algorithm:
    """alpha = 1/2 over a floor of 0.9; the overlong penalty grows over the last 10 of 40 tokens."""
    advantages = {"kind": "egae", "length_adaptive_alpha": 0.5, "gae_lambda_policy": 0.9}
    config = {"advantages": advantages, "value": {}, "overlong": {"cache": 10}}
    return build_algorithm(
        AlgorithmConfig.model_validate(config), window=WINDOW, max_length=LONGEST
    )


def answer(length: int) -> BatchSequence:
    """An opening and an answer that the policy sampled alone."""
    return BatchSequence(
        trajectory_id=0,
        group_id=0,
        token_ids=np.arange(PROMPT + length, dtype=np.int32),
        opening=PROMPT,
        sampled=[(0, length)],
    )


def window(start: int, end: int, *, finished: bool) -> PolicyWindow:
    """Tokens start to end of an answer that was scored 1 if it ends here."""
    return PolicyWindow(
        window_id=start,
        trajectory_id=0,
        sequence=0,
        start=start,
        end=end,
        length=end,
        logprobs=np.full(end - start, -1.0, np.float32),
        loss_weights=np.ones(end - start, np.float32),
        spans=[Span(0, start, end)],
        rewards=[Reward(1.0, end - 1)] if finished else [],
        finished=finished,
        correct=finished,
    )


def half(window: PolicyWindow) -> PolicyBatch:
    made = algorithm()
    scores, lengths = np.ones(1, np.float32), np.array([window.end], np.int32)
    group = GroupScores(group_id=0, trajectory_ids=[0], scores=scores, lengths=lengths)
    return policy_batch(
        Shard(sequences=[answer(window.end)], windows=[window], values=[], groups=[group]),
        version=0, lambdas=made.lambdas, shape=made.shape_rewards, kl_coef=0.0, device=CPU,
    )  # fmt: skip


def test_what_sampled_the_tokens_before_a_later_window_is_not_known() -> None:
    """So none of its tokens says how sampler and learner differ under the same weights."""
    assert half(window(0, 16, finished=False)).same_version.all()
    assert not half(window(16, 32, finished=True)).same_version.any()


@pytest.mark.parametrize(
    ("start", "end", "finished", "expected"),
    [
        (0, 16, True, 0.9),  # 1 - 1/8 is under the floor
        (0, 16, False, 1 - 1 / 12),  # 16 and half a window
        (16, 32, True, 1 - 1 / 16),
        (16, 32, False, 1 - 1 / 20),  # 32 and half a window
        (32, 40, True, 1 - 1 / 20),  # a window of 8 tokens alone would be at the floor
    ],
)
def test_lambda_is_from_the_length_of_the_answer_so_far(
    start: int, end: int, finished: bool, expected: float
) -> None:
    lam = half(window(start, end, finished=finished)).segments.lam
    assert lam.tolist() == pytest.approx([expected], abs=1e-12)


@pytest.mark.parametrize(
    ("start", "end", "expected"), [(16, 30, 1.0), (32, 35, 0.5), (32, 40, 0.0), (0, 16, 1.0)]
)
def test_the_overlong_penalty_is_from_the_length_of_the_whole_answer(
    start: int, end: int, expected: float
) -> None:
    """A score of 1 and the penalty, on the last token, in both halves and in the group; right is
    what the score says, not what is left of it."""
    policy = half(window(start, end, finished=True))
    assert policy.rewards.tolist() == pytest.approx([0.0] * (end - start - 1) + [expected])
    assert policy.groups.rewards.tolist() == pytest.approx([expected])
    assert policy.right.tolist() == [True]
    whole = ValueTrajectory(
        trajectory_id=0,
        sequence=0,
        length=end,
        rewards=[Reward(1.0, end - 1)],
        logprobs=np.zeros(0, np.float32),
    )
    shard = Shard(sequences=[answer(end)], windows=[], values=[whole])
    values = value_batch(shard, shape=algorithm().shape_rewards, kl_coef=0.0, device=CPU)
    assert values.rewards.tolist() == pytest.approx([0.0] * (end - 1) + [expected])


def test_answers_of_a_prompt_are_one_group_to_the_value_model() -> None:
    """Their ids differ, and none of them may tell of another in a fit."""
    sequences = [
        structs.replace(answer(3), trajectory_id=key, group_id=group)
        for key, group in ((4, 1), (5, 1), (6, 2))
    ]
    values = [
        ValueTrajectory(
            trajectory_id=sequence.trajectory_id, sequence=i, length=3, rewards=[],
            logprobs=np.zeros(0, np.float32),
        )
        for i, sequence in enumerate(sequences)
    ]  # fmt: skip
    shard = Shard(sequences=sequences, windows=[], values=values)
    made = value_batch(shard, shape=algorithm().shape_rewards, kl_coef=0.0, device=CPU)
    assert made.groups == [1, 1, 2]


def test_an_outcome_is_shaped_by_the_length_of_the_whole_answer() -> None:
    """The answer went on to 35 of 40 tokens and earned 1, of which the penalty leaves a half."""
    config = {"kind": "egae", "boundary": "outcome"}
    made = build_algorithm(
        AlgorithmConfig.model_validate({"advantages": config, "value": {}}), window=WINDOW
    )
    cut = window(0, 16, finished=False)
    values, place = torch.full((16,), 0.2), RankContext(device=CPU)
    for seen, expected in (
        (structs.replace(cut, outcome=1.0, answer_length=35), 0.5 - 0.2),
        (cut, 0.0),
    ):
        found = window_advantages(
            made, place, half(seen), values=values, at_cuts=None, penalty=torch.zeros(16)
        )
        assert found.raw[-1].item() == pytest.approx(expected)
        tally = tally_egae(values, found.raw, half(seen).segments).sums
        assert tally["egae/bootstrapped_tokens"] == (0 if seen.outcome else 16)


@pytest.mark.parametrize(("start", "end"), [(0, 16), (16, 32), (32, 35)])
def test_frozen_is_all_before_the_token_that_predicts_the_first(start: int, end: int) -> None:
    """The last token before the window is where its first is predicted: its keys and values are
    the window's own, those of what stands before it are not."""
    place = RankContext(device=CPU, frozen_context=True)
    ((pack, _),) = micro_batches(half(window(start, end, finished=False)).reads, [0], place)
    assert pack.layout.frozen is not None
    kept = PROMPT + start - 1
    assert pack.layout.frozen.tolist() == [True] * kept + [False] * (end - start)
    assert int(pack.reads.min()) == kept
