from pathlib import Path

import numpy as np
import pytest

from headrace.errors import UserError
from rewards.functions import InvalidRewardError, call_function, load_function, read_result

HERE = Path(__file__).parent


def test_by_module_and_by_file_are_the_same_function() -> None:
    for name in ("tests.rewards.misbehaviour:behave", f"{HERE / 'misbehaviour.py'}:behave"):
        function = load_function(name)
        assert call_function(function, "3+4", "7", "7", "{}") == (1.0, {})


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
    assert call_function(function, "3+4", "7", "7", info) == (3.0, {})


def test_a_dict_is_score_and_parts() -> None:
    result = {"score": np.float32(0.5), "format": True, "length": 12}
    assert read_result(result) == (0.5, {"format": 1.0, "length": 12.0})


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
        {"score": 1.0, **{str(i): 0.0 for i in range(100)}},
    ],
    ids=lambda result: str(result)[:30],
)
def test_what_is_no_finite_number_is_invalid(result: object) -> None:
    with pytest.raises(InvalidRewardError):
        read_result(result)
