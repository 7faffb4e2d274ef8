import sys
from types import ModuleType
from typing import Any

import pytest

from headrace.errors import UserError
from rewards.functions.results import Verdict
from rewards.kinds import KINDS, load
from tests.rewards.kinds.rows import judged, verifier


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_options_without_demands_and_documents_each(kind: str) -> None:
    module = load(kind)
    module.Options()
    fields = module.Options.model_fields.values()
    assert all(field.description for field in fields)


def test_a_kind_that_is_none() -> None:
    with pytest.raises(UserError, match=r"'maths' is not known; there are: math, exact, choice"):
        load("maths")


def test_math_and_exact() -> None:
    right, wrong = Verdict(1.0, True, {"correct": 1.0}), Verdict(0.0, False, {"correct": 0.0})
    for kind in ("math", "exact"):
        verify = verifier(kind, answer_marker="#")
        assert judged(verify, "4+3 #7", "7") == right
        assert judged(verify, "4+3 #8", "7") == wrong
    assert judged(verifier("math"), "\\boxed{7.0}", "7") == right
    assert judged(verifier("exact"), "7.0", "7") == wrong


def test_gym_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(UserError, match="install it with `pip install reasoning-gym`"):
        verifier("gym")


class Sums:
    """A task as reasoning-gym has them."""

    def score_answer(self, answer: str | None, entry: dict[str, Any]) -> float:
        """Half of it for the right sum written badly."""
        if answer is None:
            return 0.0
        if entry["answer"] == "broken":
            raise TypeError("the task's own answer")
        int(answer.removeprefix("="))
        return 1.0 if answer == entry["answer"] else 0.5 * (entry["answer"] in answer)


def test_gym_with_the_scorer_of_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def create_dataset(name: str, **settings: int) -> Sums:
        made.append(name)
        return Sums()

    package = ModuleType("reasoning_gym")
    package.create_dataset = create_dataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "reasoning_gym", package)
    verify = verifier("gym")
    assert verify.needs == ("metadata",)
    task = {"source_dataset": "sums"}
    for text, score in (("so <answer> 7 </answer>", 1.0), ("<answer>=7</answer>", 0.5), ("7", 0.0)):
        verdict = judged(verify, text, "7", metadata=task)
        assert (verdict.reward, verdict.correct) == (score, score == 1.0)
        assert verdict.parts["unreadable"] == 0.0
    # The task's scorer raises: at this answer, which is wrong, or at any.
    verdict = judged(verify, "<answer>seven</answer>", "7", metadata=task)
    assert (verdict.reward, verdict.parts["unreadable"]) == (0.0, 1.0)
    with pytest.raises(TypeError, match="the task's own answer"):
        judged(verify, "<answer>7</answer>", "broken", metadata=task)
    assert made == ["sums"]
    assert judged(verifier("gym", answer_tag=None), "\\boxed{7}", "7", metadata=task).correct
    with pytest.raises(ValueError, match="column 'metadata' has no `source_dataset`"):
        judged(verify, "<answer>7</answer>", "7", metadata={})
