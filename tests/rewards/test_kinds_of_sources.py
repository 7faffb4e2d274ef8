"""Every kind of verifier can be named by a source of rewards, with its options and its pay."""

from typing import Any, get_args

import pytest

from headrace.config.sections.reward import Kind, SourceConfig
from headrace.errors import UserError
from rewards.build import build_verifier
from rewards.kinds import KINDS
from tests.rewards.kinds.rows import judged


def source(**keys: Any) -> SourceConfig:
    return SourceConfig.model_validate(keys)


def test_a_recipe_knows_every_kind() -> None:
    assert set(get_args(Kind)) == {*KINDS, "function"}


def test_options_reach_the_kind_and_the_source_pays() -> None:
    near = source(kind="number", options={"relative": 0.1}, correct_reward=2.0, wrong_reward=-1.0)
    verifier = build_verifier(near)
    assert judged(verifier, "about 10.5", "10").reward == 2.0
    assert judged(verifier, "about 12", "10").reward == -1.0
    assert judged(verifier, "about 10.5", "10", finished=False).reward == -1.0


def test_a_share_of_a_score_is_paid_between_wrong_and_right() -> None:
    verifier = build_verifier(source(kind="instruction", correct_reward=3.0, wrong_reward=1.0))
    checks = [
        {"type": "length", "unit": "words", "max": 5},
        {"type": "starts_with", "text": "No"},
    ]
    verdict = judged(verifier, "yes it is", "", checks=checks)
    assert (verdict.reward, verdict.correct) == (2.0, False)


def test_columns_that_a_kind_needs_are_said() -> None:
    asked = source(kind="choice", options={"options_column": "choices"})
    assert build_verifier(asked).needs == ("choices",)


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ({"kind": "choice", "options": {"letters": 4}}, "option letters of kind 'choice': extra"),
        ({"kind": "number", "options": {"relative": "x"}}, "option relative of kind 'number'"),
        ({"kind": "gym", "answer_marker": "#"}, "option answer_marker of kind 'gym'"),
        ({"kind": "code", "timeout_s": 4.0}, "option seconds of kind 'code' is 5"),
    ],
)
def test_what_a_kind_does_not_know_is_one_line(keys: dict[str, Any], line: str) -> None:
    with pytest.raises(UserError) as caught:
        build_verifier(source(**keys))
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)
