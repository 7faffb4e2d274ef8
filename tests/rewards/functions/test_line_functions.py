"""Sources that score lines of a response that may go on."""

import json
from typing import Any

import msgspec
import pytest

from headrace.config.sections.reward import RewardConfig
from headrace.errors import UserError
from headrace.protocol.messages.control import Score, ScoreItem
from rewards.build import build_verifier
from rewards.functions.arguments import InvalidRewardError
from rewards.labeling.offline_scoring import score_all
from tests.rewards.items import item

HERE = "tests.rewards.several"


def config(*names: str, **settings: Any) -> RewardConfig:
    functions = [{"name": f"{HERE}:{name}"} for name in names]
    return RewardConfig.model_validate(
        {"kind": "function", "functions": functions, "unit": "line", **settings}
    )


def asked(*lines: str, **columns: Any) -> ScoreItem:
    """Lines of a response that goes on."""
    text = "".join(lines)
    ends = [len("".join(lines[: i + 1])) - 1 for i in range(len(lines))]
    made = item(text, finished=False, ids=True, info=json.dumps(columns))
    return msgspec.structs.replace(made, unit="line", lines=list(lines), line_ends=ends)


def scores(source: RewardConfig, question: ScoreItem) -> tuple[float | None, ...]:
    return build_verifier(source.each()["default"])(question).lines


def test_one_score_a_line_and_none_for_a_neutral_one() -> None:
    assert scores(config("lines_of"), asked("7\n", "# 7\n", "8\n")) == (1.0, None, 0.0)


@pytest.mark.parametrize(("name", "wanted"), [("by_name", (0.5, 0.5)), ("first_line", (1.0, 0.0))])
def test_lines_come_by_name_among_all_others_or_by_position(
    name: str, wanted: tuple[float, ...]
) -> None:
    assert scores(config(name), asked("a\n", "b\n")) == wanted


def test_several_functions_are_summed_and_a_line_is_neutral_where_all_say_so() -> None:
    assert scores(config("lines_of", "by_name"), asked("7\n", "# 7\n")) == (1.5, 0.5)
    entries = [{"name": f"{HERE}:lines_of", "weight": -2.0}]
    weighted = RewardConfig.model_validate(
        {"kind": "function", "functions": entries, "unit": "line"}
    )
    assert scores(weighted, asked("7\n", "#\n")) == (-2.0, None)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (0.5, "the result is float, where a list of 2 belongs"),
        ([0.5], "a list of 1 for 2 lines"),
        ([0.5, "good"], "is str, not a number"),
        ({"score": [0.5, 0.5]}, "the result is dict"),
    ],
)
def test_anything_but_a_score_for_each_line_is_no_reward(result: Any, message: str) -> None:
    with pytest.raises(InvalidRewardError, match=message):
        scores(config("said"), asked("a\n", "b\n", result=result))


def test_a_function_that_takes_no_lines_is_the_users_mistake() -> None:
    with pytest.raises(UserError, match=r"handed `lines`, the texts of the lines to score"):
        build_verifier(config("alone").each()["default"])


async def test_scores_of_lines_come_back_from_a_child_with_their_source() -> None:
    (score,) = [s async for s in score_all(config("lines_of"), [asked("7\n", "#\n")])]
    assert (score.status, score.source, score.lines) == ("ok", "default", [1.0, None])
    (bad,) = [s async for s in score_all(config("said"), [asked("7\n", result="x")])]
    assert isinstance(bad, Score)
    assert (bad.status, bad.lines) == ("invalid", [])
