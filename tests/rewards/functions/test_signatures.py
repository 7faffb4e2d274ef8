"""Functions that cannot be called as a reward function are told before anything is scored."""

import functools
from collections.abc import Callable
from typing import Any

import pytest

from headrace.config.sections.reward import RewardConfig
from headrace.errors import UserError
from rewards.functions.calling_conventions import bind
from rewards.functions.results import FunctionResult
from rewards.functions.signatures import check_columns, read_signature
from rewards.functions.user_functions import FunctionCall, RewardFunction
from rewards.preflight import check_sources
from tests.rewards import foreign
from tests.rewards.items import foreign_function, item, user_function

RIGHT = FunctionResult(1.0, None, {})


def call(function: Callable[..., Any]) -> FunctionResult | None:
    """What it says of a right answer."""
    bound = RewardFunction("f", function, bind(read_signature(function, "f"), "f"))
    return bound.read(FunctionCall(function, *bound.binding.arguments(item("7"))).result())


def test_partial_and_wrapped_functions_have_the_signature_of_what_they_hold() -> None:
    assert call(functools.partial(foreign.in_another_order, prompt="other")) == RIGHT

    @functools.wraps(foreign.in_another_order)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return foreign.in_another_order(*args, **kwargs)

    assert call(wrapped) == RIGHT


def test_an_object_that_can_be_called_is_a_function() -> None:
    class Scorer:
        def __call__(self, completion: str, answer: str) -> bool:
            return completion == answer

    assert call(Scorer()) == RIGHT


@pytest.mark.parametrize(("function", "reason"), [(dict, "is a class"), (max, "no signature")])
def test_what_has_no_signature_is_refused(function: Callable[..., Any], reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        read_signature(function, "f")


def test_a_signature_is_shown_without_what_may_be_long() -> None:
    def long(a: dict[str, list[int]], /, b: int = 3, *args: Any, c: str, **rest: Any) -> None: ...

    assert str(read_signature(long, "f")) == "(a, b=, c, **)"


def test_a_needed_column_that_the_task_lacks_is_told() -> None:
    check_columns("f", ["weight"], ["source", "weight"])
    check_columns("f", ["data_sources"], ["data_source"])
    with pytest.raises(UserError, match=r"needs `weight`, which no column .* \(it has source\)"):
        check_columns("f", ["weight"], ["source"])


def test_the_check_before_a_run_loads_what_a_worker_will_load(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert check_sources(RewardConfig(), list) == RewardConfig()
    strict = user_function(function="tests.rewards.misbehaviour:strict")
    assert check_sources(strict, lambda: ["weight"]) == strict
    asks = foreign_function("areal_gsm8k")
    assert check_sources(asks, list) == asks.model_copy(update={"token_ids": True})
    for config, columns, message in (
        (foreign_function("other_names"), [], "none of these is the response"),
        (foreign_function("verl"), ["terms"], "needs `data_source`"),
        (strict, ["terms"], "needs `weight`"),
        (user_function(function="tests.rewards.misbehaviour:nothing"), [], "has no function"),
        (user_function(python="/no/such/python"), [], "reward.python='/no/such/python' cannot be"),
    ):
        with pytest.raises(UserError, match=message):
            check_sources(config, columns.copy)
    assert capfd.readouterr() == ("", "")
