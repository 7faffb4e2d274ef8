"""The fast path gives the same scores as a scoring child, without one."""

import asyncio
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.config.sections.reward import RewardConfig, SourceConfig
from headrace.errors import RunFailedError
from rewards.answers.math_answer import is_right
from rewards.build import build_verifier
from rewards.kinds.mathematics import is_right_by_text
from rewards.worker.child import score
from rewards.worker.pool import ScoringPool
from rewards.worker.source_workers import fast_path_of
from tests.rewards import math_cases
from tests.rewards.items import item, user_function

NUMBERS = st.from_regex(r"[-+]?[0-9]{1,15}(\.[0-9]{1,15})?", fullmatch=True)
NEAR = st.from_regex(r"[-+ ]?[0-9]{0,3}[.,eE/% ]?[0-9]{0,3}[a-c.!%]?", fullmatch=True)
SMALL = st.integers(-20, 20).map(str)
ANSWERS = SMALL | NUMBERS | NEAR
AROUND = st.sampled_from(
    ["", " ", "\n", "so ", "#", "##", "it is ", " or ", "The final answer is ", "$", "{", "}", "**",
     "\\boxed{3}", "\\boxed", "boxed ", "\\fbox{4}", "<answer>5</answer>", "#### 6\n", "3+0=3;"]
)  # fmt: skip
TEXTS = st.builds(
    lambda before, answer, box, behind: before + box.format(answer) + behind,
    AROUND,
    ANSWERS,
    st.sampled_from(["{}", "#{}", "\\boxed{{{}}}", "${}$", "\\boxed {{{}}}", "#{0}#{0}"]),
    AROUND,
)


@given(TEXTS, ANSWERS | TEXTS, st.sampled_from([None, "#", "####"]))
def test_the_quick_way_says_what_the_long_way_says(
    text: str, answer: str, marker: str | None
) -> None:
    quick = is_right_by_text(text, answer, marker=marker)
    if quick is not None:
        assert quick == is_right(text, answer, marker=marker)


@given(NUMBERS, NUMBERS, st.sampled_from(["#{}", "3+4=7;#{} \n", "\\boxed{{{}}}.", "{}"]))
def test_plain_numbers_go_the_quick_way(one: str, other: str, text: str) -> None:
    marker = "#" if "#" in text else None
    for given_answer in (one, other):
        quick = is_right_by_text(text.format(given_answer), other, marker=marker)
        assert quick is not None
        assert quick == is_right(text.format(given_answer), other, marker=marker)


@pytest.mark.parametrize("about", list(math_cases.RIGHT))
def test_every_difficulty_is_right_or_goes_the_long_way(about: str) -> None:
    assert {is_right_by_text(text, answer) for answer, text in math_cases.RIGHT[about]} <= {
        True,
        None,
    }


@pytest.mark.parametrize("about", list(math_cases.WRONG))
def test_every_difficulty_is_wrong_or_goes_the_long_way(about: str) -> None:
    assert {is_right_by_text(text, answer) for answer, text in math_cases.WRONG[about]} <= {
        False,
        None,
    }


@pytest.mark.parametrize(
    ("text", "answer", "marker", "told"),
    [
        ("a3+4=7;#7", "7", "#", True),
        ("a3+4=7;#7.0", "7", "#", True),
        ("a3+4=7;#8", "7", "#", False),
        ("a3+4=7;", "7", "#", False),
        ("#", "7", "#", False),
        ("#7", "3+4\n#7", "#", True),
        ("so \\boxed{-7}.", "-7", None, True),
        ("x+1", "x+1", None, True),
        ("#1+x", "x+1", "#", None),
        ("#7", "", "#", None),
        ("#7 cm", "7", "#", None),
        ("\\boxed{7}, no: \\boxed{8}", "7", None, None),
        ("\\boxed{7}, no: the final answer is 8", "7", None, None),
        ("#9^{9^{9}}", "9^{9^{9}}", "#", True),
        ("#" + "9" * 5000, "7", "#", None),
    ],
)
def test_what_is_told(text: str, answer: str, marker: str | None, told: bool | None) -> None:
    assert is_right_by_text(text, answer, marker=marker) is told


SOURCES: dict[str, dict[str, Any]] = {
    "math": {"kind": "math", "answer_marker": "#"},
    "exact": {"kind": "exact", "correct_reward": 2.0, "wrong_reward": -1.0},
    "scaled": {"kind": "math", "score_range": (0.0, 2.0), "require_finish": False},
    "other": {"kind": "text", "options": {"ignore_case": True}, "wrong_reward": -0.5},
}
VERIFIERS = {
    name: (fast_path_of(source), build_verifier(source))
    for name, table in SOURCES.items()
    for source in [SourceConfig.model_validate(table)]
}


@given(st.sampled_from(list(SOURCES)), TEXTS, ANSWERS | st.just(""), st.booleans())
def test_an_outcome_is_the_childs(name: str, text: str, answer: str, finished: bool) -> None:
    fast_path, verifier = VERIFIERS[name]
    asked = item(text, answer=answer, finished=finished)
    if (quick := fast_path(asked)) is not None:
        said = score(verifier, asked)
        assert msgspec.structs.replace(quick, seconds=0.0) == msgspec.structs.replace(
            said, seconds=0.0
        )


async def test_no_child_is_needed() -> None:
    """Nobody runs the children of this pool."""
    sources = {
        "sums": {"kind": "math", "answer_marker": "#"},
        "words": {"kind": "exact"},
        "mine": {"kind": "function", "function": "tests.rewards.misbehaviour:behave"},
    }
    pool = ScoringPool(RewardConfig.model_validate({"sources": sources}))
    asked = [
        item("#7", source="sums"),
        item("#x+1", source="sums", answer="1+x"),
        item("8", source="words"),
        item("7", source="mine", finished=False),
        item("7", source="mine"),
    ]
    await pool.submit(
        [msgspec.structs.replace(each, trajectory_id=i) for i, each in enumerate(asked)]
    )
    told = {score.trajectory_id: score for score in (pool.scores.get_nowait() for _ in range(3))}
    assert {i: (told[i].reward, told[i].source) for i in told} == {
        0: (1.0, "sums"), 2: (0.0, "words"), 3: (0.0, "mine"),
    }  # fmt: skip
    assert (pool.held, pool.scores.qsize()) == (2, 0)


async def test_what_is_told_ends_a_row_of_failures() -> None:
    """An answer that met the length limit stands between two that the function fails at."""
    pool = ScoringPool(user_function(max_consecutive_failures=2))
    async with asyncio.timeout(60.0):
        children = asyncio.create_task(pool.run())
        for number, (text, finished) in enumerate([("nan", True), ("7", False), ("nan", True)]):
            await pool.submit([item(text, trajectory_id=number, finished=finished)])
            await pool.scores.get()
        assert not children.done()
        await pool.submit([item("nan", trajectory_id=4)])
        with pytest.raises(RunFailedError, match="2 scorings in a row failed"):
            await children
