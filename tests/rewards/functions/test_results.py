"""What functions return: everything that is a number is read, and nothing else is ever a zero."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from rewards.functions.arguments import InvalidRewardError
from rewards.functions.results import FunctionResult, Verdict, read_result, weigh


def verdict(result: object, threshold: float = 0.5) -> Verdict:
    return weigh([("f", 1.0, read_result(result))], threshold=threshold)


@pytest.mark.parametrize(
    "result",
    [
        0.5, np.float32(0.5), np.array(0.5), np.array([0.5]), torch.tensor(0.5),
        torch.tensor([[0.5]]), [0.5], (0.5,), [[0.5]], [np.float64(0.5)], {"score": 0.5},
        {"reward": [0.5]}, {"rewards": torch.tensor([0.5])}, [{"score": 0.5}],
        SimpleNamespace(reward=0.5),
    ],
    ids=lambda result: str(result)[:15],
)  # fmt: skip
def test_a_number_in_any_clothes(result: object) -> None:
    assert read_result(result) == FunctionResult(0.5, None, {})


def test_a_dict_is_score_and_parts() -> None:
    result = {"score": np.float32(0.5), "format": True, "length": 12}
    expected = Verdict(0.5, False, {"format": 1.0, "length": 12.0})
    assert verdict(result, threshold=0.6) == expected


def test_what_cannot_be_drawn_is_left_out() -> None:
    result: dict[str, Any] = {
        "score": 1.0, "pred": "7", "why": None, "all": [1, 2], "extra_logs": {"a": [3], "b": "x"},
    }  # fmt: skip
    assert read_result(result) == FunctionResult(1.0, None, {"extra_logs/a": 3.0})


@pytest.mark.parametrize(
    ("result", "correct"),
    [
        (0.9, True), (0.5, True), (0.49, False), (-1.0, False), (True, True), (False, False),
        ({"score": 0.9}, True), ({"score": 0.1}, False),
        ({"score": 0.1, "correct": True}, True), ({"score": 0.9, "correct": np.False_}, False),
        ({"score": 0.0, "correct": 1}, True), ({"score": 0.0, "acc": True}, True),
        ({"score": 0.9, "acc": 0.7}, True), ({"score": 0.9, "acc": True, "correct": False}, False),
    ],
)  # fmt: skip
def test_the_function_says_what_is_correct_and_else_the_threshold(
    result: object, correct: bool
) -> None:
    assert verdict(result).correct is correct


@pytest.mark.parametrize("result", [None, [None], {"score": None}, np.array(None)])
def test_none_does_not_apply(result: object) -> None:
    assert read_result(result) is None
    with pytest.raises(InvalidRewardError, match="no reward applies"):
        verdict(result)


@pytest.mark.parametrize(
    "result",
    [
        "1.0",
        ["1.0"],
        float("nan"),
        float("-inf"),
        [],
        [1.0, 2.0],
        torch.tensor([0.0, 1.0]),
        torch.tensor([float("nan")]),
        {},
        {"value": 1.0},
        {"score": "high"},
        {"score": [1.0, 2.0]},
        {"score": 1.0, "part": float("nan")},
        {"score": 1.0, "correct": 0.7},
        {"score": 1.0, "correct": "yes"},
        {"score": 1.0, "correct": None},
        {"score": 1.0, **{str(i): 0.0 for i in range(100)}},
        object(),
    ],
    ids=lambda result: str(result)[:15],
)
def test_what_is_no_finite_number_is_invalid(result: object) -> None:
    with pytest.raises(InvalidRewardError):
        read_result(result)


def test_a_convention_says_in_what_form_a_reward_comes() -> None:
    assert read_result((True, False, "7"), "first") == FunctionResult(1.0, None, {})
    assert read_result({"score": 0.5}, "first") == FunctionResult(0.5, None, {})
    for listed in ([0.5], (0.5,), np.array([0.5]), torch.tensor([0.5])):
        assert read_result(listed, "list") == FunctionResult(0.5, None, {})
    for single in (0.5, True, "0.5", np.float64(0.5), torch.tensor(0.5), {"score": 0.5}):
        with pytest.raises(InvalidRewardError, match="for a list of responses, not a list"):
            read_result(single, "list")
    assert read_result(None, "list") is None
