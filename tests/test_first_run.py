"""The page of the first own run: its data and its recipe are right as they stand there."""

import re
import subprocess
import sys
from pathlib import Path

from headrace.config.loading.recipe import load_recipe
from headrace.config.preflight.checks import problems

ROOT = Path(__file__).parents[1]


def test_the_recipe_of_the_first_run_is_sound(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "first-run.md").read_text(encoding="utf-8")
    blocks = dict(re.findall(r"^```(python|toml)\n(.*?)^```", page, re.MULTILINE | re.DOTALL))
    subprocess.run([sys.executable, "-c", blocks["python"]], cwd=tmp_path, check=True)
    recipe = tmp_path / "first.toml"
    recipe.write_text(blocks["toml"].replace('"recipes/', f'"{ROOT}/recipes/'), encoding="utf-8")
    assert problems(load_recipe(recipe)) == []
