"""Line labels: golden searches, what a prefix costs, exactness where nothing is repaired."""

import asyncio
import math
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewards.answers.line_ends import split_lines
from rewards.labeling.line_labels import Completion, PrefixLabeler, labels_of, search

GOOD, BAD, NEWLINE, END = 1, 2, 10, 0


@pytest.mark.parametrize(
    ("lines", "good", "probes"),
    [(8, 3, [4, 2, 3]), (8, 0, [4, 2, 1]), (8, 7, [4, 6, 7]), (1, 0, []), (5, 2, [2, 3])],
)
async def test_golden_searches(lines: int, good: int, probes: list[int]) -> None:
    asked = []

    async def recoverable(count: int) -> bool:
        asked.append(count)
        return count <= good

    assert await search(lines, recoverable) == good
    assert asked == probes


@given(st.integers(0, 200), st.data())
def test_a_search_finds_every_boundary_in_few_probes(lines: int, data: st.DataObject) -> None:
    good = data.draw(st.integers(0, max(lines - 1, 0)))
    asked = []

    async def recoverable(count: int) -> bool:
        asked.append(count)
        return count <= good

    assert asyncio.run(search(lines, recoverable)) == good
    assert all(0 < count < lines for count in asked)
    assert len(asked) <= math.ceil(math.log2(max(lines, 1)))


def test_labels_skip_what_is_neutral() -> None:
    neutral = [True, False, False, True, False, True]
    assert labels_of(neutral, 2) == (None, 1, 1, None, -1, None)
    assert labels_of(neutral, 0) == (None, -1, -1, None, -1, None)
    assert labels_of([], 0) == ()


class Writer:
    """A policy of two-token lines, `GOOD` or `BAD` and a newline, that cannot repair: each further
    line is good with probability `skill`."""

    def __init__(self, lines: int, skill: float) -> None:
        self.lines, self.skill = lines, skill
        self.asked: list[tuple[int, int, int]] = []
        """(lines of the prefix, first, n)"""

    async def __call__(
        self, prompt_ids: Sequence[int], prefix_ids: Sequence[int], n: int, *, first: int
    ) -> list[Completion]:
        await asyncio.sleep(0)
        written = len(prefix_ids) // 2
        self.asked.append((written, first, n))
        found = []
        for number in range(first, first + n):
            rng = Random(f"{prompt_ids}/{prefix_ids}/{number}")
            ids: list[int] = []
            for _ in range(self.lines - written):
                ids += [GOOD if rng.random() < self.skill else BAD, NEWLINE]
            found.append(Completion([*ids, END], True))
        return found


async def passes(row: str, ids: Sequence[int], finished: bool) -> bool:
    assert row == "row"
    return finished and BAD not in ids


def written(*tokens: int) -> tuple[list[int], list[str]]:
    """An answer's ids and texts."""
    ids = [token for each in tokens for token in (each, NEWLINE)]
    texts = {GOOD: "good", BAD: "bad", NEWLINE: "\n", END: "", 3: "# note"}
    return [*ids, END], [texts[token] for token in [*ids, END]]


async def test_a_wrong_answer_is_labelled_up_to_its_fatal_line() -> None:
    policy = Writer(8, skill=1.0)
    labeler = PrefixLabeler(policy, passes, k=4)
    ids, texts = written(*[GOOD] * 3, *[BAD] * 5)
    found = await labeler.label("row", [7], ids, split_lines(texts), passed=False)
    assert found.labels == (1, 1, 1, -1, -1, -1, -1, -1)
    assert (found.boundary, found.counted, found.revised) == (3, 8, True)
    # 4 lines are lost after four tries; 2 and 3 are saved by the first.
    assert policy.asked == [(4, 0, 1), (4, 1, 1), (4, 2, 1), (4, 3, 1), (2, 0, 1), (3, 0, 1)]
    assert (found.calls, found.completions) == (3, 6) == (3, labeler.completions)


async def test_a_right_answer_costs_nothing() -> None:
    labeler = PrefixLabeler(Writer(2, 1.0), passes, k=4)
    ids, texts = written(GOOD, 3, GOOD)
    found = await labeler.label("row", [7], ids, split_lines(texts), passed=True)
    assert found.labels == (1, None, 1)
    assert (found.boundary, found.calls, found.revised) == (2, 0, False)


async def test_an_answer_that_is_lost_from_the_start_and_one_without_a_line() -> None:
    labeler = PrefixLabeler(Writer(2, 1.0), passes, k=4)
    ids, texts = written(3, BAD, GOOD)
    found = await labeler.label("row", [7], ids, split_lines(texts), passed=False)
    assert (found.labels, found.boundary, found.revised) == ((None, -1, -1), 0, False)
    nothing = await labeler.label("row", [7], [END], split_lines([""]), passed=False)
    assert (nothing.labels, nothing.counted, nothing.calls) == ((), 0, 0)


async def test_a_comment_belongs_to_the_line_after_it() -> None:
    """The prefix through a line has the comments before it and none behind it."""
    policy = Writer(9, 0.0)
    ids, texts = written(3, GOOD, 3, BAD, 3)
    labeler = PrefixLabeler(policy, passes, k=1)
    await labeler.label("row", [7], ids, split_lines(texts), passed=False)
    assert [prefix for prefix, _, _ in policy.asked] == [2]


async def test_answers_that_begin_alike_share_their_tries() -> None:
    policy = Writer(4, 1.0)
    labeler = PrefixLabeler(policy, passes, k=4, at_once=4)
    ids, texts = written(GOOD, GOOD, BAD, BAD)
    other, others = written(GOOD, GOOD, BAD, GOOD)
    asked = [
        labeler.label("row", [7], ids, split_lines(texts), passed=False),
        labeler.label("row", [7], other, split_lines(others), passed=False),
        labeler.label("row", [8], other, split_lines(others), passed=False),
        labeler.label("row", [7], ids, split_lines(texts), passed=False, key="other tests"),
    ]
    found = await asyncio.gather(*asked)
    assert [one.boundary for one in found] == [2, 2, 2, 2]
    assert [one.calls for one in found] == [2, 0, 2, 2]


async def test_at_once_asks_for_as_many_as_are_left() -> None:
    policy = Writer(2, 0.0)
    labeler = PrefixLabeler(policy, passes, k=5, at_once=3)
    ids, texts = written(BAD, BAD)
    found = await labeler.label("row", [7], ids, split_lines(texts), passed=False)
    assert policy.asked == [(1, 0, 3), (1, 3, 2)]
    assert found.completions == 5
    with pytest.raises(ValueError, match="1 to k = 5"):
        PrefixLabeler(policy, passes, k=5, at_once=6)


async def test_what_cannot_be_judged_is_no_label() -> None:
    async def broken(row: str, ids: Sequence[int], finished: bool) -> bool:
        raise RuntimeError("the judge is away")

    labeler = PrefixLabeler(Writer(2, 1.0), broken, k=2)
    ids, texts = written(BAD, BAD)
    with pytest.raises(RuntimeError, match="away"):
        await labeler.label("row", [7], ids, split_lines(texts), passed=False)


async def test_a_skilful_policy_finds_nearly_every_boundary_for_half_the_price() -> None:
    """Nine good lines of ten, K = 8, eight lines: what a linear scan pays is measured beside it."""
    rng, policy = Random(0), Writer(8, skill=0.9)
    labeler = PrefixLabeler(policy, passes, k=8)
    exact = 0
    linear = 0
    for prompt in range(300):
        good = rng.randrange(8)
        ids, texts = written(*[GOOD] * good, *[BAD] * (8 - good))
        found = await labeler.label("row", [prompt], ids, split_lines(texts), passed=False)
        exact += found.boundary == good
        linear += 8 * 8
    assert exact / 300 >= 0.9
    assert labeler.completions / linear <= 0.6
