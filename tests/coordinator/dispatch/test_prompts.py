"""Prompts as the policy sees them: a task that its tokenizer cannot spell is refused."""

from pathlib import Path

import pytest

from coordinator.dispatch.prompts import Prompts
from headrace.config.loading.recipe import load_recipe
from headrace.errors import UserError

RECIPE = Path(__file__).parents[3] / "recipes" / "quickstart.toml"


@pytest.mark.parametrize(("model", "most"), [("chain-sums-cold", 46), ("chain-sums-long-cold", 52)])
def test_problems_may_be_as_long_as_the_model_has_labels(model: str, most: int) -> None:
    path = f"model.path={RECIPE.parent / 'models' / model}"
    prompts = Prompts(load_recipe(RECIPE, [path, f"task.max_terms={most}"]))
    prompts.next_group(0, 0, 0)


def test_problems_with_labels_that_the_model_lacks_are_refused() -> None:
    with pytest.raises(UserError, match=r"lower task\.max_terms"):
        Prompts(load_recipe(RECIPE, ["task.max_terms=47"]))
