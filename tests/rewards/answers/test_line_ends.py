"""Lines on tokens: where they end, what is neutral, and that nothing is lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewards.answers.line_ends import (
    AnswerLine,
    neutral_ends,
    neutral_lines,
    split_lines,
)

pieces = st.text(alphabet="ab \n#`", max_size=5)
answers = st.lists(pieces, max_size=30)


@pytest.mark.parametrize(
    ("tokens", "ends"),
    [
        ([], []),
        (["x"], [0]),  # the last line is never ended
        (["x", "\n"], [1]),
        (["x", "\n", ""], [1]),  # an end token is no line
        (["x", "\n", "y", ""], [1, 2]),  # what no newline ends, its last token does
        (["x\ny", ""], [0]),
        (["x", "\n", "\n", "y\n"], [1, 2, 3]),
        (["x\n\n\n", "y"], [0, 1]),  # several newlines in a token are one line end
        (["x", ";\n  y", "=", "1"], [1, 3]),
        (["a\nb\nc"], [0]),
        (["a\nb"], [0]),
        (["", ""], []),
    ],
)
def test_a_line_ends_at_the_token_with_its_newline(tokens: list[str], ends: list[int]) -> None:
    assert [line.end for line in split_lines(tokens)] == ends


def test_blank_lines_and_comments_are_neutral() -> None:
    tokens = ["x = 1", "\n", "\n", "  # why", "\n", "y = x  # not this one\n", " \n", "z"]
    assert split_lines(tokens) == [
        AnswerLine("x = 1\n", 1, False),
        AnswerLine("\n", 2, True),
        AnswerLine("  # why\n", 4, True),
        AnswerLine("y = x  # not this one\n", 5, False),
        AnswerLine(" \n", 6, True),
        AnswerLine("z", 7, False),
    ]
    slashes = split_lines(["// why\n", "# define\n"], comments=("//",))
    assert [line.neutral for line in slashes] == [True, False]


def test_a_comment_that_begins_in_the_token_before_is_a_comment() -> None:
    assert split_lines(["x", "\n# w", "hy\n", "y\n"]) == [
        AnswerLine("x\n", 1, False),
        AnswerLine("# why\n", 2, True),
        AnswerLine("y\n", 3, False),
    ]


def test_lines_that_end_at_one_token_count_where_one_of_them_does() -> None:
    assert split_lines(["# why\nx\n\n", "# no\n\n"]) == [
        AnswerLine("# why\nx\n\n", 0, False),
        AnswerLine("# no\n\n", 1, True),
    ]


FENCED = ["Here it is:\n", "```python\n", "x = 1\n", "```\n", "That was it.\n", "```\n", "y\n", "`"]


def test_only_code_counts_where_there_is_a_block() -> None:
    counted = [line.text for line in split_lines(FENCED) if not line.neutral]
    assert counted == ["x = 1\n", "y\n", "`"]
    # The second block is not closed yet.
    everything = split_lines(FENCED, fenced=False)
    assert not any(line.neutral for line in everything)


def test_before_its_block_begins_an_answer_has_to_be_told() -> None:
    assert neutral_lines(["Here it is:\n"]) == [False]
    assert neutral_lines(["Here it is:\n"], fenced=True) == [True]
    # More than a language behind the fence, and a fence inside a line, begin no block.
    assert neutral_lines(["``` a b\n", "x\n"]) == [False, False]
    assert neutral_lines(["see ```\n", "x\n"]) == [False, False]


def test_ends_that_somebody_else_found() -> None:
    lines = split_lines(["x\n", "# no\n", ""])
    assert neutral_ends(lines, [0, 1, 2]) == [False, True, True]


@given(answers)
def test_lines_end_to_end_are_the_answer(tokens: list[str]) -> None:
    lines = split_lines(tokens)
    assert "".join(line.text for line in lines) == "".join(tokens)
    ends = [line.end for line in lines]
    assert ends == sorted(set(ends))
    last = max((place for place, token in enumerate(tokens) if token), default=None)
    assert all("\n" in tokens[end] or end == last for end in ends)
    assert all("\n" not in token for i, token in enumerate(tokens) if i not in ends)


@given(answers, st.sampled_from([None, True, False]))
def test_tokens_do_not_change_what_is_neutral(tokens: list[str], fenced: bool | None) -> None:
    """With one token a character no two lines end together, and every line is one."""
    text = "".join(tokens)
    alone = split_lines(list(text), fenced=fenced)
    together = split_lines(tokens, fenced=fenced)
    flags = neutral_lines([line.text for line in alone], fenced=fenced)
    assert [line.neutral for line in alone] == flags
    offset = 0
    for line in together:
        within: list[AnswerLine] = []
        while sum(len(one.text) for one in within) < len(line.text):
            within.append(alone[offset])
            offset += 1
        assert line.neutral == all(one.neutral for one in within)


@given(answers, st.booleans())
def test_what_is_written_later_changes_no_line(tokens: list[str], fenced: bool) -> None:
    lines = split_lines(tokens, fenced=fenced)
    for count, line in enumerate(lines, start=1):
        so_far = tokens[: line.end + 1]
        found = split_lines(so_far, fenced=fenced)
        if "".join(so_far).endswith("\n"):
            assert found == lines[:count]
        else:
            assert found[: count - 1] == lines[: count - 1]
