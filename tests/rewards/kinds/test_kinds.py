import pytest

from headrace.errors import UserError
from rewards.kinds import KINDS, load
from rewards.verdict import Verdict
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


def test_gym_without_the_package() -> None:

    if _gym_is_there():
        verify = verifier("gym")
        with pytest.raises(ValueError, match="source_dataset"):
            judged(verify, "<answer>4</answer>", "4", metadata={})
    else:
        with pytest.raises(UserError, match=r"install it with `pip install reasoning-gym`"):
            verifier("gym")


def _gym_is_there() -> bool:
    try:
        import reasoning_gym  # noqa: F401
    except ImportError:
        return False
    return True
