"""The mathematics stands alone: it imports torch, the standard library and itself."""

import ast
import sys
from pathlib import Path

import pytest

import learner

FOLDER = Path(learner.__file__).parent
MATHEMATICS = (
    "segments",
    "advantages",
    "groups",
    "targets",
    "ratios",
    "hot_tokens",
    "policy_losses",
    "value_losses",
    "penalties",
    "aggregation",
    "shaping",
    "diagnostics",
    "diagnostic_table",
)


@pytest.mark.parametrize("name", MATHEMATICS)
def test_imports(name: str) -> None:
    tree = ast.parse((FOLDER / f"{name}.py").read_text(encoding="utf-8"))
    imported: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0
            assert node.module is not None
            imported.add(node.module)
        elif isinstance(node, ast.Import):
            imported.update(alias.name for alias in node.names)
    allowed = {f"learner.{other}" for other in MATHEMATICS}
    foreign = {
        module
        for module in imported - allowed
        if module.split(".")[0] not in {"torch", *sys.stdlib_module_names}
    }
    assert not foreign


@pytest.mark.parametrize("name", MATHEMATICS)
def test_the_reading_order_names_it(name: str) -> None:
    assert learner.__doc__ is not None
    assert f"    {name} " in learner.__doc__
