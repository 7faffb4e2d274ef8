import msgspec
import pytest

from headrace.config.sections.reward import RewardConfig
from headrace.errors import UserError
from rewards.build import build_verifier
from rewards.functions.results import Verdict
from rewards.functions.reward_scaling import scale_response, scale_verdict
from tests.rewards.items import item, user_function


def test_math_and_exact_pay_the_configured_rewards() -> None:
    for kind in ("math", "exact"):
        verify = build_verifier(
            RewardConfig(kind=kind, answer_marker="#", correct_reward=2.0, wrong_reward=-1.0)
        )
        assert verify(item("#7")) == Verdict(2.0, True, {"correct": 1.0})
        assert verify(item("#8")) == Verdict(-1.0, False, {"correct": 0.0})


def test_exact_means_the_string() -> None:
    verify = build_verifier(RewardConfig(kind="exact", answer_marker="#"))
    assert not verify(item("#7.0")).correct
    assert build_verifier(RewardConfig(kind="math", answer_marker="#"))(item("#7.0")).correct


def test_a_response_without_an_end_is_wrong_unless_allowed() -> None:
    cut = item("#7", finished=False)
    assert not build_verifier(RewardConfig(answer_marker="#"))(cut).correct
    lenient = RewardConfig(answer_marker="#", require_finish=False)
    assert build_verifier(lenient)(cut).correct


def test_user_functions() -> None:
    verify = build_verifier(user_function())
    assert verify(item("7")) == Verdict(1.0, True)
    assert verify(item("parts")) == Verdict(0.5, True, {"format": 1.0, "length": 5.0})
    assert verify(item("7", finished=False)) == Verdict(0.0, False)
    with pytest.raises(UserError, match=r"reward\.function"):
        build_verifier(RewardConfig(kind="function"))


def test_one_judge_and_two_thresholds() -> None:
    """A score of 0.5 is right from 0.5 on, and wrong below 0.6; what it pays is the score."""
    for threshold, right in ((0.5, True), (0.6, False)):
        verdict = build_verifier(user_function(correct_threshold=threshold))(item("parts"))
        assert (verdict.reward, verdict.correct) == (0.5, right)


def test_a_cut_response_is_not_correct_whatever_it_is_paid() -> None:
    verify = build_verifier(user_function(wrong_reward=0.9))
    assert verify(item("7", finished=False)) == Verdict(0.9, False)


@pytest.mark.parametrize("kind", ["math", "exact"])
@pytest.mark.parametrize("answer", ["", " "])
def test_a_row_without_an_answer_is_an_error(kind: str, answer: str) -> None:
    """Not a right answer for whoever says nothing, nor a wrong one for everybody."""
    verify = build_verifier(RewardConfig.model_validate({"kind": kind}))
    with pytest.raises(ValueError, match="is empty"):
        verify(item("", answer=answer))


@pytest.mark.parametrize("kind", ["math", "exact"])
@pytest.mark.parametrize("answer", ["72", "48 and half of it.\n#### 72", "####72"])
def test_an_answer_that_holds_the_marker_can_be_given(kind: str, answer: str) -> None:
    config = RewardConfig.model_validate({"kind": kind, "answer_marker": "####"})
    verify = build_verifier(config)
    assert verify(item("48 + 24\n#### 72", answer=answer)).correct
    assert not verify(item("48 + 24\n#### 48", answer=answer)).correct
    with pytest.raises(ValueError, match="is empty"):
        verify(item("#### 72", answer="48 + 24 ####"))


@pytest.mark.parametrize("kind", ["math", "exact"])
def test_a_cut_response_needs_no_answer_to_be_wrong(kind: str) -> None:
    verify = build_verifier(RewardConfig.model_validate({"kind": kind, "wrong_reward": -0.1}))
    assert verify(item("7", answer="", finished=False)) == Verdict(-0.1, False, {"correct": 0.0})


def test_a_range_puts_scores_on_the_scale_of_the_rewards() -> None:
    """A verifier of -1 and 1 becomes one of 0 and 1; what lies beyond the range is cut."""
    verify = build_verifier(user_function(score_range=[-1.0, 1.0]))
    assert verify(item("7")) == Verdict(1.0, True, {"score": 1.0})
    parts = {"score": 0.5, "format": 1.0, "length": 5.0}
    assert verify(item("parts")) == Verdict(0.75, True, parts)
    low = build_verifier(user_function(score_range=[0.6, 0.8]))
    assert low(item("parts")).reward == 0.0
    assert low(item("7")).reward == 1.0
    verifier = build_verifier(
        user_function(score_range=[0.0, 1.0], wrong_reward=-1.0, correct_reward=2.0)
    )
    assert verifier(item("parts")).reward == pytest.approx(0.5)
    assert verifier(item("7", finished=False)) == Verdict(-1.0, False)


@pytest.mark.parametrize("kind", ["exact", "function"])
def test_the_format_comes_before_everything(kind: str) -> None:
    shape = r"<think>.+</think>#?\d"
    more = {"answer_marker": "#"} if kind == "exact" else {"function": user_function().function}
    source = RewardConfig.model_validate({"kind": kind, "format": shape, "wrong_reward": -1} | more)
    verify = build_verifier(source)
    for text in ("#7", "<think></think>#7", "<think>x\ny</think>#7 "):
        verdict = verify(item(text))
        assert (verdict.reward, verdict.correct, verdict.parts["format"]) == (-1.0, False, 0.0)
    if kind == "exact":
        right = verify(item("<think>x\ny</think>#7"))
        assert right == Verdict(1.0, True, {"correct": 1.0, "format": 1.0})


def test_a_group_without_the_format_is_wrong_one_by_one() -> None:
    source = RewardConfig(kind="exact", unit="group", format=r"\d", wrong_reward=-1.0)
    seen = msgspec.structs.replace(item(""), siblings=[item("7"), item("seven")], unit="group")
    given = Verdict(siblings=(Verdict(1.0, True), Verdict(1.0, True)))
    first, second = scale_verdict(source, seen, given, graded=False).siblings
    assert (first and first.reward, second and second.reward) == (1.0, -1.0)


def test_a_format_that_is_no_expression() -> None:
    with pytest.raises(ValueError, match="no regular expression"):
        RewardConfig(format="(")


def test_scores_of_sources_come_to_one_scale() -> None:
    """A verifier that pays -1 and 1, beside others that pay from 0 to 1."""
    source = RewardConfig(kind="exact", score_range=(-1.0, 1.0))
    earned = [
        scale_response(source, Verdict(score), graded=True).reward for score in (-1.0, 0.4, 1.0)
    ]
    assert earned == pytest.approx([0.0, 0.7, 1.0])
