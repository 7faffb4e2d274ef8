import pytest

from headrace.config.reward import RewardConfig
from headrace.errors import UserError
from rewards.verifier import build_verifier
from tests.rewards.items import item, user_function


def test_math_and_exact_pay_the_configured_rewards() -> None:
    for kind in ("math", "exact"):
        verify = build_verifier(
            RewardConfig(kind=kind, answer_marker="#", correct_reward=2.0, wrong_reward=-1.0)
        )
        assert verify(item("#7")) == (2.0, {"correct": 1.0})
        assert verify(item("#8")) == (-1.0, {"correct": 0.0})


def test_exact_means_the_string() -> None:
    verify = build_verifier(RewardConfig(kind="exact", answer_marker="#"))
    assert verify(item("#7.0"))[0] == 0.0
    assert build_verifier(RewardConfig(kind="math", answer_marker="#"))(item("#7.0"))[0] == 1.0


def test_a_response_without_an_end_is_wrong_unless_allowed() -> None:
    cut = item("#7", finished=False)
    assert build_verifier(RewardConfig(answer_marker="#"))(cut)[0] == 0.0
    lenient = RewardConfig(answer_marker="#", require_finish=False)
    assert build_verifier(lenient)(cut)[0] == 1.0


def test_user_functions() -> None:
    verify = build_verifier(user_function())
    assert verify(item("7")) == (1.0, {})
    assert verify(item("parts")) == (0.5, {"format": 1.0, "length": 5.0})
    assert verify(item("7", finished=False)) == (0.0, {})
    with pytest.raises(UserError, match=r"reward\.function"):
        build_verifier(RewardConfig(kind="function"))
