"""Functions that cannot be called as a reward function are told before anything is scored."""

import functools
from collections.abc import Callable
from typing import Any

import pytest

from headrace.config.reward import RewardConfig
from headrace.errors import UserError
from rewards.functions import RewardFunction, load_function
from rewards.preflight import check_function
from rewards.signatures import check_columns, read_signature
from rewards.verdict import Verdict
from tests.rewards import foreign
from tests.rewards.items import user_function

EXPECTED = r"expected \(prompt, completion, answer, \*\*info\)"
RIGHT = Verdict(1.0, True)


def call(function: Callable[..., Any], info: str = "{}") -> Verdict:
    """The verdict on a right answer."""
    loaded = RewardFunction(function, read_signature(function, "f"))
    return loaded("3+4", "7", "7", info, threshold=0.5)


@pytest.mark.parametrize(
    ("function", "system"),
    [
        (foreign.verl, "verl"),
        (foreign.verl_required, "verl"),
        (foreign.verl_batch, "verl"),
        (foreign.openrlhf, "OpenRLHF"),
        (foreign.openrlhf_open, "OpenRLHF"),
        (foreign.trl, "TRL"),
        (foreign.trl_accuracy, "TRL"),
    ],
)
def test_another_systems_function_is_refused_by_the_systems_name(
    function: Callable[..., Any], system: str
) -> None:
    """Called by position, verl's and OpenRLHF's gave 0 for this right answer."""
    with pytest.raises(UserError, match=EXPECTED) as caught:
        load_function(f"tests.rewards.foreign:{function.__name__}")
    line = str(caught.value)
    assert "\n" not in line
    assert f"function='tests.rewards.foreign:{function.__name__}'" in line
    assert line.endswith(f"It looks like a reward function for {system}")


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (foreign.by_position, "takes `prompt`, `completion`, `answer` by position only"),
        (foreign.without_answer, "does not take `answer`"),
        (foreign.other_names, r"got \(question, response, target\)$"),
        (foreign.anything, "does not take `completion`"),
        (foreign.later, "is an async function"),
        (dict, "has no signature to read"),
    ],
)
def test_what_cannot_be_called_with_our_names_is_refused(
    function: Callable[..., Any], reason: str
) -> None:
    with pytest.raises(UserError, match=reason) as caught:
        read_signature(function, "f")
    assert EXPECTED.replace("\\", "") in str(caught.value)


def test_arguments_come_by_name() -> None:
    assert call(foreign.in_another_order) == RIGHT
    assert call(foreign.open_and_short) == RIGHT
    assert call(functools.partial(foreign.in_another_order, prompt="other")) == RIGHT

    @functools.wraps(foreign.in_another_order)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return foreign.in_another_order(*args, **kwargs)

    assert call(wrapped) == RIGHT


def test_a_parameter_without_default_is_a_column_of_the_task() -> None:
    needs = load_function("tests.rewards.misbehaviour:strict").signature.needs
    assert needs == ("weight",)
    check_columns("f", needs, ["source", "weight"])
    with pytest.raises(UserError, match=r"needs `weight`, which no column .* \(it has source\)"):
        check_columns("f", needs, ["source"])


def test_the_check_before_a_run_loads_what_a_worker_will_load(
    capfd: pytest.CaptureFixture[str],
) -> None:
    check_function(RewardConfig(), list)
    check_function(user_function(), list)
    check_function(user_function(function="tests.rewards.misbehaviour:strict"), lambda: ["weight"])
    for name, columns, message in (
        ("tests.rewards.foreign:verl", [], "looks like a reward function for verl"),
        ("tests.rewards.misbehaviour:strict", ["terms"], "needs `weight`"),
        ("tests.rewards.misbehaviour:nothing", [], "has no function 'nothing'"),
    ):
        with pytest.raises(UserError, match=message):
            check_function(user_function(function=name), columns.copy)
    assert capfd.readouterr() == ("", "")
