"""The mathematics stands alone: it imports torch, the standard library, itself, and the table of
metrics for the borders of bins, which stands alone too."""

import ast
import sys
from pathlib import Path

import pytest

import headrace.metrics.registry
import learner

FOLDER = Path(learner.__file__).parent
TABLE = Path(headrace.metrics.registry.__file__)
MATHEMATICS = (
    "batching.segments",
    "algorithms.advantages",
    "batching.group_statistics",
    "algorithms.value_targets",
    "algorithms.ratios",
    "algorithms.fire",
    "algorithms.policy_losses",
    "algorithms.penalties",
    "algorithms.aggregation",
    "updates.token_statistics",
    "updates.token_statistics_table",
)


def foreign(path: Path) -> set[str]:
    """The modules that a file imports besides torch and the standard library."""
    imported: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0
            assert node.module is not None
            imported.add(node.module)
        elif isinstance(node, ast.Import):
            imported.update(alias.name for alias in node.names)
    return {m for m in imported if m.split(".")[0] not in {"torch", *sys.stdlib_module_names}}


@pytest.mark.parametrize("name", MATHEMATICS)
def test_imports(name: str) -> None:
    allowed = {f"learner.{other}" for other in MATHEMATICS} | {"headrace.metrics.registry"}
    assert not foreign(FOLDER / f"{name.replace('.', '/')}.py") - allowed


def test_imports_of_the_table_of_metrics() -> None:
    assert not foreign(TABLE)


@pytest.mark.parametrize("name", MATHEMATICS)
def test_the_reading_order_names_it(name: str) -> None:
    assert learner.__doc__ is not None
    assert f"    {name.replace('.', '/')} " in learner.__doc__
