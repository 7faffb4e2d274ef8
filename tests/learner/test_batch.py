"""A batch as flat arrays: which lengths rewards and lambdas are made from, and what is frozen."""

import numpy as np
import pytest
import torch

from headrace.config.algorithm import AlgorithmConfig
from headrace.protocol.messages import PolicyWindow, Shard, Span, ValueTrajectory
from learner.algorithm import Algorithm, build_algorithm
from learner.batch import PolicyHalf, micro_batches, policy_half, value_half
from learner.place import Place
from learner.reads import policy_reads

CPU = torch.device("cpu")
PROMPT, WINDOW, LONGEST = 3, 16, 40


def algorithm() -> Algorithm:
    """alpha = 1/2 over a floor of 0.9; the overlong penalty grows over the last 10 of 40 tokens."""
    advantages = {"kind": "egae", "length_adaptive_alpha": 0.5, "gae_lambda_policy": 0.9}
    config = {"advantages": advantages, "value": {}, "overlong": {"cache": 10}}
    return build_algorithm(
        AlgorithmConfig.model_validate(config), window=WINDOW, max_length=LONGEST
    )


def window(start: int, end: int, *, finished: bool, trajectory: int = 0) -> PolicyWindow:
    """Tokens start to end of an answer that was scored 1 if it ends here."""
    return PolicyWindow(
        window_id=start,
        trajectory_id=trajectory,
        group_id=trajectory,
        prompt_length=PROMPT,
        start=start,
        end=end,
        token_ids=np.arange(PROMPT + end, dtype=np.int32),
        logprobs=np.full(end - start, -1.0, np.float32),
        spans=[Span(0, start, end)],
        loss_mask=np.ones(end - start, np.uint8),
        finished=finished,
        reward=1.0 if finished else 0.0,
    )


def half(*windows: PolicyWindow) -> PolicyHalf:
    made = algorithm()
    return policy_half(
        Shard(windows=list(windows), values=[]),
        version=0, lambdas=made.lambdas, shape=made.shape_rewards, device=CPU,
    )  # fmt: skip


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
    """A score of 1 and the penalty, on the last token, in both halves; the score itself stays."""
    policy = half(window(start, end, finished=True))
    assert policy.rewards.tolist() == pytest.approx([0.0] * (end - start - 1) + [expected])
    assert policy.scores.tolist() == [1.0]
    answer = ValueTrajectory(
        trajectory_id=0,
        prompt_length=PROMPT,
        token_ids=np.arange(PROMPT + end, dtype=np.int32),
        reward=1.0,
    )
    shard = Shard(windows=[], values=[answer])
    values = value_half(shard, shape=algorithm().shape_rewards, device=CPU)
    assert values.rewards.tolist() == pytest.approx([0.0] * (end - 1) + [expected])


@pytest.mark.parametrize(("start", "end"), [(0, 16), (16, 32), (32, 35)])
def test_frozen_is_all_before_the_token_that_predicts_the_first(start: int, end: int) -> None:
    """The last token before the window is where its first is predicted: its keys and values are
    the window's own, those of what stands before it are not."""
    place = Place(device=CPU, frozen_context=True)
    ((pack, _),) = micro_batches(policy_reads([window(start, end, finished=False)]), [0], place)
    assert pack.layout.frozen is not None
    kept = PROMPT + start - 1
    assert pack.layout.frozen.tolist() == [True] * kept + [False] * (end - start)
    assert int(pack.reads.min()) == kept
