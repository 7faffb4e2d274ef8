"""What mutation testing is told in `pyproject.toml` stands in the tree."""

import ast
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def test_targets_and_their_tests_exist() -> None:
    """A name that is none would be passed over in silence, and so would a decorated function."""
    told = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["mutmut"]
    for path in (*told["only_mutate"], *told["pytest_add_cli_args_test_selection"]):
        assert (ROOT / path).is_file(), path
    for path in told["only_mutate"]:
        assert path.split("/")[0] in told["source_paths"]
        for node in ast.parse((ROOT / path).read_text(encoding="utf-8")).body:
            made = {ast.unparse(d) for d in getattr(node, "decorator_list", ())}
            assert isinstance(node, ast.ClassDef) or made <= {"overload"}, ast.unparse(node)
