"""The images of a data set are looked at before a run starts, a line each."""

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.config.loading.recipe import load_recipe
from headrace.config.sections.environment import EnvironmentConfig
from headrace.config.sections.run import RunConfig
from headrace.errors import UserError
from headrace_cli.commands.checks import preflight
from headrace_cli.commands.checks.preflight import check_data, image_problems
from tasks.procedural.shapes import draw


def config(recipe: Path, rows: list[list[Any]], *, family: str | None = "qwen3_vl") -> RunConfig:
    """A run over rows with these images each, in the recipe's folder. `family`: None: of text."""
    folder = recipe.parent
    records = [
        {"id": f"r{n}", "prompt": "<image>" * len(images) + "How many?", "answer": "1"}
        | {"images": images}
        for n, images in enumerate(rows)
    ]
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    shape: dict[str, Any] = {"model_type": family, "vision_config": {}} if family else {}
    (folder / "config.json").write_text(json.dumps(shape))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "x"}))
    task = f'task={{kind="dataset",path="{path}",eval_fraction=0.01}}'
    return load_recipe(recipe, [task, f'model.path="{folder}"'])


def test_each_bad_image_is_a_line_with_its_row(recipe: Path) -> None:
    folder = recipe.parent
    (folder / "good.png").write_bytes(draw({"red": (0, 0, 1, 1)}))
    (folder / "cut.png").write_bytes(draw({"red": (0, 0, 1, 1)})[:70])
    url = "https://example.org/a.png"
    rows = [["good.png"], ["gone.png"], ["good.png", "cut.png"], [url], ["good.png"] * 2]
    run = config(recipe, rows)
    check_data(run)
    gone, cut, away = image_problems(run)
    assert gone.startswith(f"row r1, image 1: image '{folder}/gone.png' cannot be read")
    assert cut.startswith("row r2, image 2: the image is damaged")
    assert away.startswith(f"row r3, image 1: image '{url}'")
    assert "task.image_urls" in away


def test_of_many_rows_a_sample_is_looked_at(
    recipe: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(preflight, "CHECKED_IMAGE_ROWS", 3)
    found = image_problems(config(recipe, [["gone.png"]] * 11))
    assert [line.partition(",")[0] for line in found] == [f"row r{n}" for n in (0, 1, 2, 3, 6, 9)]
    said = capsys.readouterr().err
    assert said.startswith("images of 6 of 11 rows are looked at: of the first 3 and one in 3")
    image_problems(config(recipe, [["gone.png"]] * 6))
    assert capsys.readouterr().err == ""


def test_a_row_with_more_images_than_a_prompt_may_have_is_named(recipe: Path) -> None:
    """A run that came to it would end, and so would each resume."""
    (recipe.parent / "good.png").write_bytes(draw({"red": (0, 0, 1, 1)}))
    run = config(recipe, [["good.png"] * 4, ["good.png"] * 5])
    assert image_problems(run) == ["row r1: 5 images, but task.max_images = 4"]


@pytest.mark.parametrize("family", [None, "gemma3"])
def test_a_model_that_reads_no_images_here_takes_none(recipe: Path, family: str | None) -> None:
    """Gemma 3 has a vision tower, and the learner would leave it out."""
    run = config(recipe, [["gone.png"]] * 2, family=family)
    assert image_problems(run) == []
    with pytest.raises(
        UserError, match=r"row r0: .* type 'image', and the policy reads text alone"
    ):
        check_data(run)


def test_an_agents_rows_have_no_images(recipe: Path) -> None:
    """Its requests are text, so that no image would come to the policy."""
    run = config(recipe, [["gone.png"]] * 2)
    agent = EnvironmentConfig(name="command", options={"run": ["true"]})
    with pytest.raises(UserError, match=r"row r0: .* type 'image', and the policy reads text"):
        check_data(run.model_copy(update={"environment": agent}))
