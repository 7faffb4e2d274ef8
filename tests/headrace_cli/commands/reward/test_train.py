"""`headrace reward train` as a user calls it: mistakes in one line, runs that are found again."""

import json
import os
import signal
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from headrace.config.loading.keys import key_names, keys
from headrace.config.loading.recipe import load_recipe, load_reward_model
from headrace.config.sections.reward_model import RewardModelConfig
from headrace.errors import UserError
from headrace.run_files import run_folder
from headrace.run_files.reward_model_run import EvaluationLine as Evaluation
from headrace.run_files.reward_model_run import (
    RewardModelStatus,
    append_line,
    forget_after,
    read_lines,
    write_status,
)
from headrace.run_files.reward_model_run import StepLine as Step
from headrace_cli.cli import main
from headrace_cli.commands.reward.train import RewardScreen, stop_on_interrupt
from rewards.models.training.train import TrainingResult

ROOT = Path(__file__).resolve().parents[4]
RECIPES = sorted((ROOT / "recipes" / "reward-models").glob("*.toml"))
LINES = ROOT / "recipes" / "reward-models" / "lines.toml"
PAIRS = ROOT / "recipes" / "reward-models" / "pairwise.toml"


def written(path: Path, *rows: dict[str, Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def recipe(tmp_path: Path, kind: str, data: str, **more: str) -> str:
    """A recipe that learns from a file."""
    path = tmp_path / "recipe.toml"
    path.write_text(
        f'[model]\npath = "{ROOT / "recipes/models/chain-sums-cold"}"\n'
        f'[objective]\nkind = "{kind}"\n'
        + "".join(f'{key} = "{value}"\n' for key, value in more.items())
        + f'[data]\nkind = "file"\npath = "{data}"\n'
    )
    return str(path)


def failed(capsys: pytest.CaptureFixture[str], tmp_path: Path, *arguments: str) -> str:
    """The line that a mistake ends with; nothing is left of the run."""
    root = tmp_path / "runs"
    assert main(["reward", "train", *arguments, "--root", str(root)]) == 2
    assert run_folder.run_names(root) == []
    captured = capsys.readouterr().err.strip().splitlines()
    return captured[-1]


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_recipes_load(path: Path) -> None:
    config = load_reward_model(path)
    assert Path(config.model.path).is_dir()
    assert config.training.steps is not None or config.objective.kind == "ranker"


def test_there_is_a_recipe_for_each_objective() -> None:
    kinds = {load_reward_model(path).objective.kind for path in RECIPES}
    assert kinds == {"bradley_terry", "pairwise", "lines", "ranker"}


def test_every_key_says_what_it_means_here_and_in_the_documentation() -> None:
    silent = [k.name for k in keys(RewardModelConfig) if not k.meaning]
    assert silent == []
    page = (ROOT / "docs" / "configuration.md").read_text()
    for name in key_names(RewardModelConfig):
        if not name.startswith("model."):
            assert f"`{name}`" in page, name


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("objective.kind=scalar", "objective.kind must be one of"),
        ("training.step=5", "unknown key training.step; did you mean training.steps?"),
        ("training.max_steps=5", "unknown key training.max_steps; did you mean training.steps?"),
        ("objective.template=x", "a text with {question} exactly once, not 0 times"),
        ("training.lr=-1", "training.lr = -1: should be greater than 0"),
    ],
)
def test_a_recipe_that_cannot_be(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, override: str, message: str
) -> None:
    assert message in failed(capsys, tmp_path, str(PAIRS), override)


def test_words_of_several_tokens(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    line = failed(capsys, tmp_path, str(PAIRS), "objective.yes=yes")
    assert line.startswith("error: objective.yes = 'yes' is 3 tokens behind the template")


def test_labels_out_of_range(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    row = {"prompt": "a3=", "lines": ["a3+0=3;", "#3"], "labels": [1, 7]}
    data = written(tmp_path / "labels.jsonl", row)
    line = failed(capsys, tmp_path, recipe(tmp_path, "lines", data, separator=";"))
    assert line == f"error: {data}, row 1: label 2 is 7, and should be 1, 0, -1 or null"


def test_a_column_that_is_missing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    data = written(tmp_path / "pairs.jsonl", {"prompt": "a3=", "chosen": "#3"})
    line = failed(capsys, tmp_path, recipe(tmp_path, "bradley_terry", data))
    assert line == f"error: {data}, row 1: no 'rejected' (the row has chosen, prompt)"


def test_data_that_is_not_there(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    line = failed(capsys, tmp_path, recipe(tmp_path, "bradley_terry", "nowhere.jsonl"))
    assert "nowhere.jsonl does not exist" in line
    line = failed(capsys, tmp_path, str(LINES), "model.path=/nowhere")
    assert "/nowhere" in line


def test_examples_that_are_all_too_long(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    line = failed(capsys, tmp_path, str(LINES), "data.max_tokens=4", "data.examples=40")
    assert "0 examples to learn from" in line
    assert "data.max_tokens" in line


def test_a_folder_that_is_not_empty(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "file").touch()
    line = failed(capsys, tmp_path, str(LINES), "--out", str(tmp_path / "out"))
    assert "exists and is no empty folder" in line
    line = failed(capsys, tmp_path, str(LINES), "--out", str(tmp_path / "out" / "file"))
    assert "exists and is no empty folder" in line


@pytest.fixture
def scripted(tmp_path: Path) -> Path:
    """The folder of a run that took three steps and was interrupted."""
    config = load_reward_model(LINES, [f'root="{tmp_path}/runs"'])
    run_dir = run_folder.make_run_folder(config)
    append_line(run_dir, Evaluation(0, {"accuracy": 0.5, "ece": None}, 0.0, 1.0))
    for step in (1, 2, 3):
        append_line(run_dir, Step(step, 1.0 / step, 0.1, 1e-3, 100 * step, float(step), 1.0 + step))
    append_line(run_dir, Evaluation(3, {"accuracy": 0.75, "ece": 0.1}, 3.0, 5.0))
    write_status(run_dir, RewardModelStatus("interrupted", 3, 10, 1.0, 5.0, "after 3 of 10 steps"))
    return run_dir


def test_runs_and_show_know_it(capsys: pytest.CaptureFixture[str], scripted: Path) -> None:
    root = str(scripted.parent)
    assert main(["runs", "--root", root]) == 0
    text = capsys.readouterr().out
    assert scripted.name in text
    assert "0.500 -> 0.750  (reward model)" in text
    assert main(["show", "latest", "--json", "--root", root]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["kind"], found["objective"], found["steps"]) == ("reward model", "lines", 3)
    assert found["held_out"]["after"]["accuracy"] == 0.75
    assert main(["show", scripted.name, "--root", root]) == 0
    shown = capsys.readouterr().out
    assert "\nheld_out\n" in shown
    assert ["after", "0.75"] in [line.split()[:2] for line in shown.splitlines()]


@pytest.mark.parametrize("command", [["audit"], ["stop"], ["train", "--resume"]])
def test_other_commands_say_that_it_is_no_run_of_theirs(
    capsys: pytest.CaptureFixture[str], scripted: Path, command: list[str]
) -> None:
    assert main([*command, scripted.name, "--root", str(scripted.parent)]) == 2
    assert "a reward model" in capsys.readouterr().err


def test_resuming(capsys: pytest.CaptureFixture[str], scripted: Path) -> None:
    root = ["--root", str(scripted.parent)]
    assert main(["reward", "train", "--resume", "latest", "seed=3", *root]) == 2
    assert "--resume takes everything from the run" in capsys.readouterr().err
    # A newer one of another command is not meant.
    run_folder.make_run_folder(
        load_reward_model(ROOT / "recipes/sft/cold-start.toml", [f'root="{scripted.parent}"'])
    )
    write_status(scripted, RewardModelStatus("finished", 10, 10, 1.0, 5.0))
    assert main(["reward", "train", "--resume", "latest", *root]) == 2
    assert "has finished" in capsys.readouterr().err
    (scripted / run_folder.NOTES).write_text('{"archived": true}')
    assert main(["reward", "train", "--resume", "latest", *root]) == 2
    assert "no reward model was trained" in capsys.readouterr().err


def test_a_resume_goes_on_in_the_folders_of_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--out` may be relative, and `latest` is the last run that was resumed."""
    outs: list[str | None] = []

    def interrupted(config: RewardModelConfig, *_: Any, **settings: Any) -> TrainingResult:
        outs.append(config.out)
        return TrainingResult(None, 0, {})

    monkeypatch.setattr("rewards.models.training.train.train", interrupted)
    root = tmp_path / "runs"
    monkeypatch.chdir(tmp_path)
    assert main(["reward", "train", str(LINES), "--out", "model", "--root", str(root)]) == 130
    (begun,) = run_folder.run_names(root)
    run_folder.make_run_folder(load_reward_model(PAIRS, [f'root="{root}"']))
    monkeypatch.chdir(ROOT)
    assert main(["reward", "train", "--resume", begun, "--root", str(root)]) == 130
    assert outs == 2 * [str((tmp_path / "model").resolve())]
    assert run_folder.latest_name(root) == begun


def test_lines_of_steps_that_will_be_taken_again_are_forgotten(scripted: Path) -> None:
    with (scripted / "metrics.jsonl").open("ab") as file:
        file.write(b'{"type": "st')
    forget_after(scripted, 2)
    assert [line.step for line in read_lines(scripted)] == [0, 1, 2]


def test_a_process_that_died_leaves_a_lost_run(scripted: Path) -> None:
    from storage.queries import run_line

    write_status(scripted, RewardModelStatus("training", 3, 10, 1.0, 5.0))
    assert run_line(scripted).status == "lost"
    with run_folder.locked(scripted):
        assert run_line(scripted).status == "training"


def test_a_reward_models_run_has_no_configuration_of_a_training(scripted: Path) -> None:
    assert run_folder.read_reward_model_config(scripted).objective.kind == "lines"
    with pytest.raises(UserError, match="trained a reward model"):
        run_folder.read_config(scripted)


def test_latest_is_the_newest_run_that_has_answers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is looked for before the training has a folder of its own, and is written down."""
    root = tmp_path / "runs"
    quickstart = load_recipe(ROOT / "recipes" / "quickstart.toml", [f'root="{root}"'])
    run_dir = run_folder.make_run_folder(quickstart)
    run_folder.make_run_folder(load_reward_model(PAIRS, [f'root="{root}"']))
    own = Path(recipe(tmp_path, "bradley_terry", "none"))
    data = 'kind = "file"\npath = "none"', 'kind = "run"\nrun = "latest"'
    own.write_text(own.read_text().replace(*data))
    assert main(["reward", "train", str(own), "--root", str(root)]) == 2
    assert run_dir.name in capsys.readouterr().err
    assert len(run_folder.run_names(root)) == 2


def test_a_closed_terminal_asks_for_a_stop_and_its_second_hangup_for_no_more() -> None:
    """The shell sends one and then the kernel another: the checkpoint is written in between."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        with stop_on_interrupt() as stop:
            assert not stop()
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGHUP)
                assert stop()
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(
    ("figures", "shown"),
    [
        ({"accuracy": 0.25, "loss": 1.0}, "held-out accuracy 0.250"),
        ({"loss": 2.0, "perplexity": 7.4}, "held-out loss 2.000"),
        ({"lists": 20.0, "map": 0.5, "mrr": 0.75}, "held-out map 0.500"),
    ],
)
def test_every_objective_has_a_held_out_figure_beside_its_steps(
    figures: dict[str, float | None], shown: str
) -> None:
    out = StringIO()
    screen = RewardScreen(Console(file=out, width=200), live=False)
    screen.evaluated(Evaluation(1, figures, 0.0, 0.0))
    screen.step(Step(1, 0.5, 1.0, 1e-3, 10, 0.0, 0.0), 1)
    assert out.getvalue().splitlines()[-1] == f"step 1/1  loss 0.5000  {shown}"
