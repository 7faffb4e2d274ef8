"""`headrace reward label` as a user calls it: a real engine in its own process, real judges."""

import json
import string
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from headrace.errors import RunFailedError, UserError
from headrace_cli.cli import main
from headrace_cli.commands.reward.row_file import RowFile
from headrace_cli.launch import plan
from sandbox.isolation_check import LAYERS
from tasks.make_models.cold_start import build_model
from tasks.procedural.character_tokenizer import build_tokenizer
from tests.sandbox.layers import need

RECIPE = """\
name = "labels"
[model]
path = "{model}"
[task]
kind = "chain_sums"
max_prompt_length = 80
max_response_length = {limit}
[schedule]
window = 12
batch_windows = 8
[algorithm.advantages]
kind = "egae"
[algorithm.value]
[generator]
engine = "torch"
max_num_seqs = 16
[reward]
kind = "function"
function = "{judge}"
require_finish = false
[stop]
updates = 2
"""
JUDGE = """
def score(completion):
    if completion.startswith("!"):
        raise RuntimeError("no such luck")
    return float("9" not in completion)
"""
"""What a random writer of a hundred characters hardly ever gets wrong, and can never repair."""
ANSWERS = [
    ("1\n2\n3\n", [1, 1, 1]),
    ("1\n2\n9\n4\n", [1, 1, -1, -1]),
    ("9\n2\n", [-1, -1]),
    ("# no\n1\n\n# so\n9", [None, 1, None, None, -1]),
]


@pytest.fixture(name="model", scope="module")
def _model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random policy of single characters."""
    folder = tmp_path_factory.mktemp("policy")
    tokenizer = build_tokenizer(string.printable)
    build_model(tokenizer, 0, mlp_width=64).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(name="recipe")
def _recipe(tmp_path: Path, model: Path) -> Path:
    (tmp_path / "judge.py").write_text(JUDGE)
    path = tmp_path / "labels.toml"
    path.write_text(RECIPE.format(model=model, limit=24, judge=f"{tmp_path}/judge.py:score"))
    return path


def write(path: Path, *rows: dict[str, Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def labelled(
    capfd: pytest.CaptureFixture[str], recipe: Path, out: Path, *words: str
) -> dict[str, Any]:
    assert main(["reward", "label", str(recipe), "--out", str(out), "--json", *words]) == 0
    result: dict[str, Any] = json.loads(capfd.readouterr().out)
    return result


def test_answers_of_a_file_are_labelled_and_those_there_are_not_made_again(
    recipe: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """An answer to a held-out prompt, in an export, is none to train on."""
    file = write(
        tmp_path / "answers.jsonl",
        *({"prompt": "a1b2=", "completion": text, "answer": "3"} for text, _ in ANSWERS),
        {"prompt": "a1b2=", "completion": "!\n", "answer": "3"},
        {"prompt": "c3d4=", "completion": "1\n", "answer": "3", "purpose": "eval"},
    )
    out = tmp_path / "labels.jsonl"
    told = labelled(capfd, recipe, out, "--answers", file, "--k", "6")
    rows = read(out)
    assert [row["labels"] for row in rows] == [labels for _, labels in ANSWERS]
    assert [row["boundary"] for row in rows] == [3, 2, 0, 1]
    assert [row["passed"] for row in rows] == [True, False, False, False]
    assert ["".join(row["lines"]) for row in rows] == [text for text, _ in ANSWERS]
    assert rows[1]["ends"] == [1, 3, 5, 7]
    assert [row["revised"] for row in rows] == [False, True, False, True]
    assert told["unlabelled"] == 1
    assert (told["answers"], told["rows"], told["revised"]) == (4, 4, 2)
    assert (told["lines"], told["good"], told["bad"], told["neutral"]) == (14, 6, 5, 3)
    assert told["calls"] == sum(row["calls"] for row in rows) == 4
    assert not (tmp_path / "labels.jsonl.part").exists()

    assert main(["reward", "label", str(recipe), "--out", str(out), "--answers", file]) == 2
    assert "is there already" in capfd.readouterr().err


def test_a_labelling_that_was_interrupted_goes_on(
    recipe: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second answer cannot be kept; the same command then makes that one alone."""
    file = write(
        tmp_path / "answers.jsonl",
        *({"prompt": "a1b2=", "completion": text, "answer": "3"} for text, _ in ANSWERS[:2]),
    )
    out, kept = tmp_path / "labels.jsonl", RowFile.add

    def add(self: RowFile, row: dict[str, Any]) -> None:
        if row["index"] == 1:
            raise RunFailedError("the disk is full")
        kept(self, row)

    words = ["reward", "label", str(recipe), "--out", str(out), "--answers", file]
    with monkeypatch.context() as patch:
        patch.setattr(RowFile, "add", add)
        assert main([*words, "--k", "4"]) == 1
    assert not out.exists()
    assert main([*words, "--k", "5"]) == 2
    assert "begun with another k (4, now 5)" in capfd.readouterr().err
    assert labelled(capfd, recipe, out, "--answers", file, "--k", "4")["answers"] == 2
    assert [row["labels"] for row in read(out)] == [labels for _, labels in ANSWERS[:2]]


def test_rows_of_an_interrupted_file_are_kept_and_a_torn_one_is_not(tmp_path: Path) -> None:
    out, settings = tmp_path / "labels.jsonl", {"k": 8, "policy": "here"}
    file = RowFile(out, settings)
    file.add({"index": 1, "revised": True})
    file.add({"index": 0, "revised": False})
    part = tmp_path / "labels.jsonl.part"
    part.write_text(part.read_text() + '{"index": 2, "rev')
    again = RowFile(out, settings)
    assert sorted(again.rows) == [0, 1]
    again.add({"index": 2, "revised": True})
    assert sorted(RowFile(out, settings).rows) == [0, 1, 2]
    assert RowFile(out, settings).finish(lambda row: bool(row["revised"])) == 2
    assert [row["index"] for row in read(out)] == [1, 2]
    assert not part.exists()
    with pytest.raises(UserError, match="there already"):
        RowFile(out, settings)
    with pytest.raises(UserError, match="there is no folder"):
        RowFile(tmp_path / "none" / "labels.jsonl", settings)


def test_answers_are_sampled_and_the_same_each_time(
    recipe: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """However many are worked on at a time; then only those with both labels are kept."""
    words, outs = ["--samples", "12", "--k", "2"], [tmp_path / "all.jsonl", tmp_path / "some.jsonl"]
    told = labelled(capfd, recipe, outs[0], *words, "generator.max_num_seqs=4")
    only = labelled(capfd, recipe, outs[1], *words, "--revised-only")
    rows = read(outs[0])
    assert [row["index"] for row in rows] == list(range(12))
    assert len({row["prompt"] for row in rows}) > 1
    assert told["sampled_tokens"] > 0
    kept = [row for row in rows if row["revised"]]
    assert [row["labels"] for row in read(outs[1])] == [row["labels"] for row in kept]
    assert only["rows"] == only["revised"] == told["revised"] == len(kept)


PROGRAM = "def double(x):\n    # twice\n    y = 2 * x\n    return y\n"
WRONG = PROGRAM.replace("2 * x", "3 * x")


def test_programs_are_judged_in_the_sandbox(
    recipe: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    need(next(iter(LAYERS)))
    tests = ["assert double(3) == 6", "assert double(0) == 0"]
    rows = [
        {"prompt": "Double it.", "completion": text, "answer": "", "test_list": tests}
        for text in (PROGRAM, WRONG, f"Sure:\n```python\n{PROGRAM}```\n")
    ]
    file = write(tmp_path / "answers.jsonl", *rows)
    out = tmp_path / "labels.jsonl"
    labelled(
        capfd, recipe, out, "--answers", file, "--k", "1", "reward.kind=code",
        "reward.function=null", "task.max_response_length=96", "reward.timeout_s=30",
    )  # fmt: skip
    found = read(out)
    assert [row["passed"] for row in found] == [True, False, True]
    assert found[0]["labels"] == [1, None, 1, 1]
    assert found[1]["labels"][-1] == -1
    assert found[2]["labels"] == [None, None, 1, None, 1, 1, None]


def scripted(name: str, run_dir: Path) -> tuple[str, ...]:
    """The command of a judge of the run, without an engine."""
    module = "tests.rewards.judging.served"
    return (sys.executable, "-m", module, "--run-dir", str(run_dir), "--name", name)


def asking(judge: str, model: Path) -> list[str]:
    """Overrides that have a judge of the run say whether an answer is right."""
    asks = f'judge="{judge}",api="completions",prompt="{{response}}",yes="y",no="n"'
    return [
        "reward.function=null", "reward.kind=judge", f"reward.options={{{asks}}}",
        "reward.timeout_s=60", f'reward.judges.{judge}={{path="{model}"}}',
    ]  # fmt: skip


def test_a_judge_of_the_run_judges_while_answers_are_labelled(
    recipe: Path,
    model: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is served for as long as that takes, and says the same as the function does above."""
    monkeypatch.setattr(plan, "judge_argv", scripted)
    file = write(
        tmp_path / "answers.jsonl",
        *({"prompt": "a1b2=", "completion": text, "answer": "3"} for text, _ in ANSWERS),
    )
    out = tmp_path / "labels.jsonl"
    before = set(psutil.Process().children(recursive=True))
    told = labelled(capfd, recipe, out, "--answers", file, "--k", "6", *asking("fair", model))
    rows = read(out)
    assert [row["labels"] for row in rows] == [labels for _, labels in ANSWERS]
    assert [row["passed"] for row in rows] == [True, False, False, False]
    assert (told["unlabelled"], told["calls"]) == (0, 4)
    assert set(psutil.Process().children(recursive=True)) <= before


def test_a_judge_that_cannot_live_ends_the_labelling_with_its_line(
    recipe: Path,
    model: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plan, "judge_argv", scripted)
    row = {"prompt": "a1b2=", "completion": "1\n", "answer": "3"}
    file = write(tmp_path / "answers.jsonl", row)
    words = ["reward", "label", str(recipe), "--out", str(tmp_path / "l.jsonl"), "--answers", file]
    assert main([*words, *asking("broken", model)]) == 2
    assert "judge-broken ended (exit code 1): it has no voice" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], "give the answers: --answers FILE, or --samples N"),
        (["--answers", "a.jsonl", "--samples", "3"], "give the answers"),
        (["--samples", "0"], "at least 1"),
        (["--samples", "3", "--k", "0"], "at least 1"),
        (["--samples", "3", "--policy", "nowhere"], "no model folder at nowhere"),
        (["--answers", "nowhere.jsonl"], "nowhere.jsonl"),
    ],
)
def test_mistakes_are_one_line(
    recipe: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], words: list[str], line: str
) -> None:
    assert main(["reward", "label", str(recipe), "--out", str(tmp_path / "l.jsonl"), *words]) == 2
    error = capfd.readouterr().err
    assert line in error
    assert error.startswith("error: ")
    assert error.count("\n") == 1
