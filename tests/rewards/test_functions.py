from pathlib import Path

import numpy as np
import pytest

from headrace.errors import UserError
from rewards.functions import InvalidRewardError, load_function, read_result
from rewards.verdict import Verdict

HERE = Path(__file__).parent


def test_by_module_and_by_file_are_the_same_function() -> None:
    for name in ("tests.rewards.misbehaviour:behave", f"{HERE / 'misbehaviour.py'}:behave"):
        function = load_function(name)
        assert function("3+4", "7", "7", "{}", threshold=0.5) == Verdict(1.0, True)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_colon", "write package.module:name"),
        (":name", "write package.module:name"),
        ("no.such.module:name", "cannot import"),
        ("no/such/file.py:name", "no file"),
        ("tests.rewards.misbehaviour:nothing", "has no function 'nothing'"),
        ("tests.rewards.misbehaviour:NOT_A_FUNCTION", "has no function"),
    ],
)
def test_a_name_without_a_function_is_the_users_mistake(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_function(name)


def test_info_becomes_keyword_arguments_that_the_function_takes() -> None:
    function = load_function("tests.rewards.misbehaviour:strict")
    info = '{"weight": 3, "source": "somewhere", "answer": "8"}'
    assert function("3+4", "7", "7", info, threshold=0.5) == Verdict(3.0, True)


def test_a_dict_is_score_and_parts() -> None:
    result = {"score": np.float32(0.5), "format": True, "length": 12}
    expected = Verdict(0.5, False, {"format": 1.0, "length": 12.0})
    assert read_result(result, threshold=0.6) == expected


@pytest.mark.parametrize(
    ("result", "correct"),
    [
        (0.9, True), (0.5, True), (0.49, False), (-1.0, False), (True, True), (False, False),
        ({"score": 0.9}, True), ({"score": 0.1}, False),
        ({"score": 0.1, "correct": True}, True), ({"score": 0.9, "correct": np.False_}, False),
        ({"score": 0.0, "correct": 1}, True),
    ],
)  # fmt: skip
def test_the_function_says_what_is_correct_and_else_the_threshold(
    result: object, correct: bool
) -> None:
    assert read_result(result, threshold=0.5).correct is correct


@pytest.mark.parametrize(
    "result",
    [
        None,
        "1.0",
        float("nan"),
        float("-inf"),
        [1.0],
        {},
        {"reward": 1.0},
        {"score": "high"},
        {"score": 1.0, "why": "because"},
        {"score": 1.0, "part": float("nan")},
        {"score": 1.0, "correct": 0.7},
        {"score": 1.0, "correct": "yes"},
        {"score": 1.0, "correct": None},
        {"score": 1.0, **{str(i): 0.0 for i in range(100)}},
    ],
    ids=lambda result: str(result)[:30],
)
def test_what_is_no_finite_number_is_invalid(result: object) -> None:
    with pytest.raises(InvalidRewardError):
        read_result(result, threshold=0.5)
