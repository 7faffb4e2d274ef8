"""Reward code of other systems runs as it is, and nothing is paid for what it was not told."""

import json
from typing import Any

import pytest
from msgspec.structs import replace

from headrace.config.sections.reward import Adapter
from headrace.errors import UserError
from headrace.protocol.messages.control import ScoreItem
from rewards.build import build_verifier
from rewards.functions.arguments import InvalidRewardError, ResponseFacts
from rewards.functions.calling_conventions import CONVENTIONS, bind, recognise
from rewards.functions.results import Verdict
from rewards.functions.signatures import read_signature
from rewards.functions.user_functions import load_functions
from tests.rewards import foreign
from tests.rewards.items import foreign_function, foreign_functions, item, row

THOUGHT = "<think>3 and 4</think><answer>7</answer>"


def row_with_ids(text: str, **columns: Any) -> ScoreItem:
    return item(text, info=json.dumps(columns), ids=True)


def convention_of(name: str) -> str:
    (function,) = load_functions(foreign_function(name)).functions
    return function.binding.convention.system


def verdict(name: str, scored: ScoreItem, **settings: object) -> Verdict:
    return build_verifier(foreign_function(name, **settings))(scored)


@pytest.mark.parametrize(
    ("name", "system", "scored", "reward"),
    [
        ("trl_length", "TRL", item("seven"), 5.0),
        ("trl_length", "TRL", item("seven", chat=True), 1.0),
        ("trl_ids", "TRL", item("seven", ids=True), 5.0),
        ("trl_truth", "TRL", item(r"so \boxed{7}"), 1.0),
        ("trl_truth", "TRL", row(r"so \boxed{8}", ground_truth="8"), 1.0),
        ("trl_format", "TRL", item(THOUGHT, chat=True), 1.0),
        ("trl_format", "TRL", item("7", chat=True), 0.0),
        ("trl_math", "TRL", row("7", task="math"), 1.0),
        ("trl_async", "TRL", item("7"), 0.25),
        ("trl_open", "TRL", row("7", solution="7"), 1.0),
        ("verl", "verl", row("7", data_source="gsm8k"), 1.0),
        ("verl_gsm8k", "verl", row("#### 7", score=0.5, method="flexible"), 1.0),
        ("verl_geo3k", "verl", item("<think></think>7"), 1.0),
        ("verl_verify", "verl", item("it is 7"), 1.0),
        ("verl_extra", "verl", row("7", extra_info={"index": 3}), 3.0),
        ("verl_extra", "verl", item("7"), -1.0),
        ("verl_tuple", "verl", item("= 7"), 1.0),
        ("verl_batch", "verl", row("7", data_source="x", extra_info={}), 1.0),
        ("openrlhf", "OpenRLHF", item("7"), 1.0),
        ("openrlhf", "OpenRLHF", item("8"), 0.0),
        ("areal_gsm8k", "AReaL", item("is 7", ids=True), 1.0),
        ("areal_doc", "AReaL", item("is 7"), 1.0),
        ("areal_solutions", "AReaL", row_with_ids("is 8", solutions=["7", "8"]), 1.0),
        ("areal_solutions", "AReaL", row_with_ids("is 9", solutions=["7", "8"]), 0.0),
        ("areal_agent", "AReaL", row_with_ids("7", answer="7"), 1.0),
        ("rllm_math", "verl", row("7", data_source="x"), 1.0),
        ("rllm_evaluate", "rLLM", item("7"), 1.0),
        ("rllm_artifacts", "rLLM", row("seven", of="even"), 0.5),
        ("slime_own", "slime", item("7", chat=True), 1.0),
        ("slime_level", "slime", row("is 7", level=2), 2.0),
        ("slime_level", "slime", row("is 7", metadata={"level": 3}), 3.0),
        ("slime_rule", "Headrace", item("<think>3 + 4</think> 7"), 1.0),
        ("verifiers_state", "verifiers", item("7"), 1.0),
        ("verifiers_state", "verifiers", item("8", chat=True), 0.0),
        ("verifiers_turns", "verifiers", item("7"), 1.0),
        ("later", "Headrace", item("7"), 1.0),
        ("by_position", "Headrace", item("7"), 1.0),
        ("in_another_order", "Headrace", item("7"), 1.0),
        ("open_and_short", "Headrace", item("7", chat=True), 1.0),
        ("without_answer", "Headrace", item("7"), 1.0),
        ("with_a_reference", "Headrace", row("7", response="7"), 1.0),
        ("plurals", "Headrace", item("7"), 1.0),
    ],
)
def test_it_is_recognised_and_scores_as_at_home(
    name: str, system: str, scored: ScoreItem, reward: float
) -> None:
    assert convention_of(name) == system
    assert verdict(name, scored).reward == pytest.approx(reward)


def test_what_they_say_beside_the_score() -> None:
    right = verdict("verl_dapo", item("Answer: 7"))
    assert right == Verdict(1.0, True, {"acc": 1.0})
    assert verdict("verl_dapo", item("Answer: 8")) == Verdict(-1.0, False, {"acc": 0.0})
    logs = verdict("openrlhf_logs", item("7"))
    assert logs == Verdict(1.0, True, {"scores": 1.0, "extra_logs/length": 4.0})
    # 0.3 is below the threshold, and right all the same: it says so.
    assert verdict("rllm_task", item("7")) == Verdict(0.3, True, {"is_correct": 1.0})
    assert verdict("areal_async", item_of_areal("7")).reward == 2.0


def test_a_prompt_that_the_template_framed_is_shown_as_the_policy_saw_it() -> None:
    """It is no chat, whatever the item says of its row for judges."""
    framed = replace(item(THOUGHT), prompt="<u>3+4<a>", messages='"3+4"')
    facts = ResponseFacts(framed, "row")
    assert (facts.prompt, facts.completion) == ("<u>3+4<a>", THOUGHT)


def item_of_areal(text: str) -> ScoreItem:
    scored = item(text, info=json.dumps({"level": 2, "answer": "7"}), ids=True)
    assert scored.completion_ids is not None
    return scored


def test_an_answer_that_is_no_text_is_itself() -> None:
    truth = {"target": ["7", "seven"]}
    info = json.dumps({"reward_model": {"style": "rule", "ground_truth": truth}})
    scored = item("seven", answer=json.dumps(truth), info=info)
    assert verdict("verl_targets", scored).reward == 1.0


def test_several_functions_are_a_weighted_sum() -> None:
    verify = build_verifier(foreign_functions("trl_truth", "trl_length*0.1"))
    right = verify(item(r"\boxed{7}"))
    assert right.reward == pytest.approx(1.9)
    assert right.correct
    assert right.parts == {"trl_truth": 1.0, "trl_length": 9.0}
    # The first function says what is right, however much the others pay.
    assert verify(item("long and wrong")).reward == pytest.approx(1.4)
    assert not verify(item("long and wrong")).correct


def test_functions_that_do_not_apply_leave_it_to_the_others() -> None:
    verify = build_verifier(foreign_functions("trl_math", "trl_code*2"))
    assert verify(row("def f(): 1", task="code")) == Verdict(2.0, True, {"trl_code": 1.0})
    assert verify(row("7", task="math")) == Verdict(1.0, True, {"trl_math": 1.0})
    with pytest.raises(InvalidRewardError, match="all functions say None"):
        verify(row("7", task="art"))
    with pytest.raises(InvalidRewardError, match="the function says None"):
        verdict("trl_math", row("7", task="code"))


def test_functions_of_one_name_keep_their_parts_apart() -> None:
    verify = build_verifier(foreign_functions("trl_length", "trl_length*0"))
    assert verify(item("7")).parts == {"trl_length_1": 1.0, "trl_length_2": 1.0}


def test_a_rubric_is_its_functions() -> None:
    scored = item("so 7", info=json.dumps({"info": {"level": 2}}))
    assert verdict("rubric", scored) == Verdict(
        2.0, True, {"verifiers_parsed": 2.0, "verifiers_turns": 1.0}
    )
    for name in ("group", "environment", "load_environment"):
        assert verdict(name, scored).reward == 2.5


def test_a_rubrics_function_alone_is_forced() -> None:
    """Its names are also those of ours: as ours it is handed text, and fails aloud."""
    assert verdict("verifiers_answer", item("7"), adapter="verifiers").reward == 1.0
    with pytest.raises(TypeError, match="string indices"):
        verdict("verifiers_answer", item("7"))


def test_functions_of_a_rubric_share_a_state_and_the_first_with_a_weight_says_what_is_right() -> (
    None
):
    assert verdict("noting", item("seven")) == Verdict(
        1.0, True, {"verifiers_notes": 0.0, "verifiers_reads": 1.0}
    )
    assert verdict("noting", item("7")).reward == 0.0


def test_a_number_for_a_list_is_never_a_score() -> None:
    """A function of AReaL that nothing tells from TRL's is handed lists, and would pay 0."""
    with pytest.raises(InvalidRewardError, match="float for a list of responses, not a list"):
        verdict("areal_bare", item("is 7"))
    assert verdict("areal_bare", item("is 7"), adapter="areal").reward == 1.0


def test_what_a_system_has_and_a_run_has_not_is_told_by_its_name() -> None:
    with pytest.raises(AttributeError, match="eps_clip"):
        verdict("slime_arguments", item("7"))


def test_a_second_name_of_the_response_may_be_a_column() -> None:
    def takes(completions: str, completion_ids: list[int], output_tokens: int) -> float:
        return float(output_tokens)

    binding = bind(read_signature(takes, "f"), "f")
    _, given = binding.arguments(row_with_ids("is 7", output_tokens=5))
    assert (given["completions"], given["output_tokens"]) == ("is 7", 5)


def test_a_column_that_makes_the_guess_doubtful_is_told() -> None:
    with pytest.raises(InvalidRewardError, match="say which with"):
        verdict("verifiers_state", row("7", state="Ohio"))
    assert verdict("verifiers_state", row("7", state="Ohio"), adapter="verifiers").reward == 1.0


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("other_names", r"takes \(question, output, target\), and none of these is the response"),
        ("anything", r"takes \(\*\*\), and none of these is the response"),
        ("RewardOutput", "is a class: name a function"),
    ],
)
def test_what_takes_no_response_is_refused_in_one_line(name: str, reason: str) -> None:
    with pytest.raises(UserError, match=reason) as caught:
        load_functions(foreign_function(name))
    assert f"reward.function='tests.rewards.foreign:{name}'" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "needs"),
    [
        ("verl", ("data_source",)),
        ("trl_math", ("task",)),
        ("verl_batch", ("data_sources",)),
        ("with_a_reference", ("response",)),
        ("verifiers_parsed", ("parser",)),
        ("trl_truth", ()),
        ("areal_gsm8k", ()),
    ],
)
def test_what_is_known_of_nothing_else_is_a_column(name: str, needs: tuple[str, ...]) -> None:
    loaded = load_functions(foreign_function(name))
    assert loaded.needs == needs
    if needs:
        with pytest.raises(InvalidRewardError, match=f"the row has no `{needs[0]}`"):
            build_verifier(foreign_function(name))(item("7", ids=True))


def test_token_ids_are_asked_for_by_whoever_takes_them() -> None:
    asking = {"trl_ids", "areal_gsm8k", "areal_async"}
    for name in (*asking, "trl_length", "verl", "openrlhf", "rubric", "later"):
        assert load_functions(foreign_function(name)).asks_ids == (name in asking)
    with pytest.raises(InvalidRewardError, match="no token ids came along"):
        verdict("trl_ids", item("7"))


@pytest.mark.parametrize("adapter", CONVENTIONS)
def test_a_convention_reads_the_form_that_it_states(adapter: Adapter) -> None:
    names = CONVENTIONS[adapter].expected.strip("()").replace("*", "").split(", ")
    fits = recognise([name for name in names if name not in ("columns", "data", "info")])
    assert fits == adapter


@pytest.mark.parametrize("adapter", CONVENTIONS)
def test_every_convention_can_be_forced(adapter: Adapter) -> None:
    def takes(prompt: Any, completion: Any) -> float:
        return 1.0

    binding = bind(read_signature(takes, "f"), "f", adapter=adapter)
    _, given = binding.arguments(item("7"))
    completion: Any = "7" if adapter != "verifiers" else [{"role": "assistant", "content": "7"}]
    lists = CONVENTIONS[adapter].lists
    assert given["completion"] == ([completion] if lists else completion)
    assert foreign.Parser().parse_answer([{"role": "assistant", "content": "is 7"}]) == "7"
