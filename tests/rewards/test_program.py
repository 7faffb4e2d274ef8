"""Programs in responses, judged by the tests of rows of both shapes."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import ValidationError

from headrace.errors import UserError
from headrace.protocol.messages.control import ScoreItem
from rewards.functions.arguments import InvalidRewardError
from rewards.kinds.program import Options, build, builtin_names, code_of, program_of, prompt_code
from rewards.verifier import Verifier

PROMPT = '''from typing import List


def scale(values: List[int]) -> int:
    return 2 * sum(values)


def doubled(values: List[int]) -> List[int]:
    """ Each value twice.
    >>> doubled([1, 2])
    [2, 4]
    """
'''
COMPLETION = "    return [2 * value for value in values]\n"
TEST = """
METADATA = {'author': 'us'}


def check(candidate):
    given = [1, 2, 3]
    assert sum(candidate(given)) == scale(given)
    assert candidate([]) == []
"""
CONTINUED = {"test": TEST, "entry_point": "doubled"}
HEAD = PROMPT.partition("def scale")[0]
WHOLE = f"Sure:\n```python\n{HEAD}def doubled(values):\n{COMPLETION}```\nDone."
LISTED: dict[str, Any] = {
    "test_list": ["assert depth(root) == 2", "assert depth(None) == 0"],
    "test_setup_code": "root = Node(1)\nroot.left = Node(2)",
    "challenge_test_list": [],
}
TREE = """```python
class Node:
    def __init__(self, value):
        self.value, self.left, self.right = value, None, None

def depth(node):
    return 1 + max(depth(node.left), depth(node.right)) if node else 0
```"""


@pytest.fixture(scope="module")
def verifiers() -> Iterator[dict[str, Verifier]]:
    try:
        yield {
            "whole": build(Options(seconds=10)),
            "partial": build(Options(seconds=10, partial=True)),
        }
    except UserError as error:
        pytest.skip(str(error))


def item(
    text: str, columns: dict[str, Any], *, prompt: str = PROMPT, answer: str = ""
) -> ScoreItem:
    return ScoreItem(
        trajectory_id=0, prompt=prompt, text=text, answer=answer, finished=True,
        num_tokens=len(text), info=json.dumps(columns),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "columns", "right"),
    [
        (COMPLETION, CONTINUED, True),
        (WHOLE, CONTINUED, True),
        (COMPLETION.replace("2 *", "3 *"), CONTINUED, False),
        ("    return values\n", CONTINUED, False),
        ("    import os\n    os._exit(0)\n", CONTINUED, False),
        ("no code at all", CONTINUED, False),
        ("def scale(values): return 0\ndef doubled(values): return []", CONTINUED, False),
        (TREE, LISTED, True),
        (TREE.replace("else 0", "else 1"), LISTED, False),
        ("```python\ndef depth(node):\n    return 2\n```", LISTED, False),
    ],
)
def test_right_is_what_passes_every_test(
    verifiers: dict[str, Verifier], text: str, columns: dict[str, Any], right: bool
) -> None:
    verdict = verifiers["whole"](item(text, columns))
    assert verdict.correct is right
    assert verdict.reward == float(right)


def test_tests_whose_imports_are_missing_are_an_error_of_their_scoring(
    verifiers: dict[str, Verifier],
) -> None:
    """Else every program is wrong, and nobody hears why."""
    head, guarded = "import numpy as np\n", "try:\n    import numpy\nexcept ImportError:\n    pass"
    broken: tuple[dict[str, Any], ...] = (
        {**CONTINUED, "test": head + TEST},
        {**LISTED, "test_imports": [head]},
    )
    for text, columns in zip((COMPLETION, TREE), broken, strict=True):
        with pytest.raises(InvalidRewardError, match=r"tests cannot run: .*No module named .numpy"):
            verifiers["whole"](item(text, columns))
    wrong = item("```python\nimport numpy\n```", {**LISTED, "test_imports": [guarded]})
    assert not verifiers["whole"](wrong).correct


def test_the_share_of_tests_can_be_paid(verifiers: dict[str, Verifier]) -> None:
    half = TREE.replace("else 0", "else 5").replace("1 + max", "-8 + max")
    half = half.replace("-8 + max(depth(node.left), depth(node.right))", "2")
    verdict = verifiers["partial"](item(half, LISTED))
    assert (verdict.reward, verdict.correct, verdict.parts["tests_passed"]) == (0.5, False, 0.5)


def test_tests_may_stand_in_the_answer(verifiers: dict[str, Verifier]) -> None:
    listed = item("def f(): return 1", {}, answer=json.dumps(["assert f() == 1"]))
    assert verifiers["whole"](listed).correct
    continued = item(COMPLETION, {"entry_point": "doubled"}, answer=TEST)
    assert verifiers["whole"](continued).correct


@pytest.mark.parametrize(
    ("tests", "reference", "names"),
    [
        (["assert sum(10, 15) == 6"], "def sum(a, b): return 6", ["sum"]),
        (["assert sum(10, 15) == 6"], "", ["sum"]),
        (["assert sum(f(1)) == 6"], "def f(x): return [6]", []),
        (["assert sorted(f(1)) == [6]"], "", []),
    ],
)
def test_a_program_may_be_asked_for_a_name_that_python_has(
    tests: list[str], reference: str, names: list[str]
) -> None:
    assert builtin_names(tests, reference) == names


def test_a_row_without_tests_is_an_error_of_its_scoring() -> None:
    with pytest.raises(ValueError, match="neither `test` and `entry_point` nor `test_list`"):
        program_of("p", "x = 1", {"answer": ""})


def test_code_is_the_last_block_that_has_what_is_asked_for() -> None:
    text = "```python\ndef f(): pass\n```\nUse it:\n```python\nprint(f())\n```\n"
    assert code_of(text) == "print(f())\n"
    assert code_of(text, "f") == "def f(): pass\n"
    assert code_of("```\nx = 1\n") == "x = 1\n"
    assert code_of("x = 1") == "x = 1"


@pytest.mark.parametrize(
    "around",
    ["{}", "<|user|>Complete this:\n{}<|assistant|>\n", "Complete:\n```python\n{}```\nThanks"],
)
def test_a_prompts_code_is_found_whatever_stands_around_it(around: str) -> None:
    assert prompt_code(around.format(PROMPT), "doubled").strip() == PROMPT.strip()
    assert prompt_code("Write a function.", "doubled") == ""


def test_a_head_without_a_body_is_gone_on_with() -> None:
    test = "def check(candidate):\n    assert candidate(1, 2) == 3"
    columns = {"test": test, "entry_point": "add"}
    program = program_of("def add(a, b):", "    return a + b\n", columns)
    assert program.source == "def add(a, b):\n    return a + b\n"


def test_options_are_checked() -> None:
    with pytest.raises(ValidationError):
        Options(seconds=0)


@pytest.mark.slow
def test_packages_are_there_where_the_options_name_them() -> None:
    text = "import numpy\ndef total(values):\n    return numpy.sum(values)\n"
    scored = item(text, {"test_list": ["assert total([1, 2]) == 3"]})
    try:
        seeing, bare = build(Options(seconds=8, packages=("numpy",))), build(Options(seconds=8))
    except UserError as error:
        pytest.skip(str(error))
    assert seeing(scored).correct
    assert not bare(scored).correct
    with pytest.raises(UserError, match="is not installed beside Headrace"):
        build(Options(packages=("no-such-package",)))


def test_a_right_answer_is_no_test() -> None:
    """Whatever is written would pass it, as it defines a function and asserts nothing."""
    columns = {"test": "def test_add():\n    assert add(1, 2) == 3\n"}
    with pytest.raises(ValueError, match="the row has no tests"):
        program_of("p", "pass", {"answer": "def add(a, b):\n    return a + b", **columns})


def test_a_test_without_a_function_check_is_an_error_of_its_scoring() -> None:
    """A program that defines `check` itself would pass, and every other one fail."""
    columns = {"entry_point": "add", "test": "def test_add():\n    assert add(1, 2) == 3\n"}
    with pytest.raises(ValueError, match="no function `check`"):
        program_of("p", "def add(a, b): pass\ndef check(f): pass", columns)


@pytest.mark.parametrize("info", ["python3.11", 'python title="a.py"', "{python}", "Python 3"])
def test_a_fence_may_say_more_than_its_language(info: str) -> None:
    assert code_of(f"```{info}\nprint(3)\n```\n") == "print(3)\n"
    other = f"```c++\nint x;\n```\nNow:\n```{info}\nprint(3)\n```\n"
    assert code_of(other) == "print(3)\n"


def test_what_is_asked_for_may_be_a_method(verifiers: dict[str, Verifier]) -> None:
    test = "def check(candidate):\n    assert candidate(x=2) == 4\n"
    text = "```python\nclass Solution:\n    def f(self, x):\n        return 2 * x\n```"
    columns = {"entry_point": "Solution().f", "test": test}
    annotated = text.replace("x):", "x: Optional[int]) -> int:")
    for each in (text, annotated):
        assert verifiers["whole"](item(each, columns, prompt="Double it.")).correct
    assert not verifiers["whole"](item(text.replace("2 *", "3 *"), columns, prompt="-")).correct


def test_a_program_may_leave_by_the_names_of_a_console(verifiers: dict[str, Verifier]) -> None:
    columns = {"input_output": {"inputs": ["3"], "outputs": ["3"]}}
    for name in ("exit", "quit"):
        text = f"print(input())\n{name}()\nprint('more')"
        assert verifiers["whole"](item(text, columns)).correct
