"""Sources that see all responses to a prompt at once."""

import json
from typing import Any

import msgspec
import pytest

from headrace.config.sections.reward import RewardConfig
from headrace.errors import UserError
from headrace.protocol.messages.control import ScoreItem
from rewards.build import build_verifier
from rewards.functions.arguments import InvalidRewardError
from rewards.functions.results import Verdict
from rewards.labeling.offline_scoring import score_all
from tests.rewards.items import item

HERE = "tests.rewards.several"


def config(*names: str, **settings: Any) -> RewardConfig:
    functions = [{"name": f"{HERE}:{name}"} for name in names]
    return RewardConfig.model_validate(
        {"kind": "function", "functions": functions, "unit": "group", **settings}
    )


def group(*texts: str, ids: bool = False, **columns: Any) -> ScoreItem:
    """An item with a sibling for each text; one that ends in `...` has no end."""
    info = json.dumps(columns)
    siblings = [
        item(text, trajectory_id=i, finished=not text.endswith("..."), info=info, ids=ids)
        for i, text in enumerate(texts)
    ]
    return msgspec.structs.replace(siblings[0], text="", unit="group", siblings=siblings)


def verdicts(source: RewardConfig, asked: ScoreItem) -> list[Verdict | None]:
    return list(build_verifier(source.each()["default"])(asked).siblings)


def rewards(source: RewardConfig, asked: ScoreItem) -> list[float]:
    found = verdicts(source, asked)
    return [verdict.reward for verdict in found if verdict is not None]


def test_plural_names_are_lists_with_an_entry_a_sibling() -> None:
    assert rewards(config("longest"), group("7", "777", "77", of="x")) == [0.0, 1.0, 0.0]


def test_what_belongs_to_the_prompt_comes_once() -> None:
    first, second, third = verdicts(config("against_answer"), group("7", "8", "", weight=2.0))
    assert first == Verdict(2.0, True, {"correct": 1.0})
    assert second == Verdict(0.0, False, {"correct": 0.0})
    assert third is None


def test_arrays_coroutines_and_token_ids() -> None:
    assert rewards(config("ranked"), group("777", "7")) == [1.0, 0.0]
    assert rewards(config("by_ids"), group("777", "7", ids=True)) == [3.0, 1.0]


def test_several_functions_are_a_weighted_sum_for_each_sibling() -> None:
    found = verdicts(config("longest", "ranked"), group("777", "7"))
    assert [v.reward for v in found if v] == [2.0, 0.0]
    assert found[0] is not None
    assert found[0].parts == {"longest": 1.0, "ranked": 1.0}


def test_siblings_without_an_end_are_seen_and_pay_what_a_wrong_answer_pays() -> None:
    asked = group("7", "777...")
    assert rewards(config("longest"), asked) == [0.0, 0.0]
    assert rewards(config("longest", require_finish=False), asked) == [0.0, 1.0]
    assert rewards(config("longest", wrong_reward=-1.0), asked) == [0.0, -1.0]


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (1.0, "the result is float, where a list of 2 belongs"),
        ("ab", "the result is str"),
        ([1.0], "a list of 1 for 2 siblings"),
        ([1.0, 2.0, 3.0], "a list of 3 for 2 siblings"),
        ([1.0, "2"], "is str, not a number"),
    ],
)
def test_anything_but_a_score_for_each_sibling_is_no_reward(result: Any, message: str) -> None:
    with pytest.raises(InvalidRewardError, match=message):
        rewards(config("whatever"), group("7", "8", result=result))


def test_a_group_to_which_no_reward_applies_is_a_failure() -> None:
    """Else it would be a good score, and so many in a row would never end a run."""
    with pytest.raises(InvalidRewardError, match="no reward applies to this group"):
        verdicts(config("against_answer"), group("", ""))
    without_end, none = verdicts(config("against_answer"), group("7...", ""))
    assert without_end == Verdict(0.0, False, {})
    assert none is None


def test_a_function_of_one_response_is_the_users_mistake() -> None:
    with pytest.raises(UserError, match=r"`completion` is one response.*as `completions`"):
        build_verifier(config("alone").each()["default"])


@pytest.mark.parametrize("unit", ["group", "line"])
def test_a_kind_without_the_unit_is_the_users_mistake(unit: str) -> None:
    source = RewardConfig.model_validate({"kind": "exact", "unit": unit})
    with pytest.raises(UserError, match=f'kind .exact. has no unit "{unit}" '):
        build_verifier(source.each()["default"])


async def test_answers_to_one_prompt_are_tried_as_a_group() -> None:
    """Through real children; those to another prompt are another group."""
    texts = ["7", "777", "77", "7"]
    items = [item(text, trajectory_id=i) for i, text in enumerate(texts)]
    items[3] = msgspec.structs.replace(items[3], prompt="another")
    found = [score async for score in score_all(config("longest"), items)]
    assert [score.trajectory_id for score in found] == [0, 1, 2, 3]
    assert [score.reward for score in found] == [0.0, 1.0, 0.0, 1.0]
    broken = [score async for score in score_all(config("whatever"), items)]
    assert {score.status for score in broken} == {"invalid"}
