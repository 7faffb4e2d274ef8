"""`headrace reward anchors` as a user calls it: a real engine in its own process, real judges."""

import json
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headrace.config.loading.recipe import load_recipe
from headrace.errors import RunFailedError, UserError
from headrace_cli.cli import main
from headrace_cli.commands.checks.reward_check import check_anchors, check_reward
from headrace_cli.commands.reward.anchors import best_of
from headrace_cli.commands.reward.row_file import RowFile
from headrace_cli.commands.reward.sampling import print_result
from rewards.models.scorer import PairScorer
from tasks.datasets.source import build_source
from tests.pair_model import write_pair_model

POLICY = Path(__file__).parents[4] / "recipes" / "models" / "tracking-cold"
RECIPE = """\
name = "anchors"
[model]
path = "{policy}"
[task]
kind = "tracking"
min_terms = 2
max_terms = 3
max_prompt_length = 80
max_response_length = 40
[schedule]
window = 40
batch_windows = 8
[algorithm.advantages]
kind = "egae"
[algorithm.value]
[generator]
engine = "torch"
max_num_seqs = 16
[reward.sources.pairs]
kind = "pairwise"
options = {{ model = "{judge}", anchors = "{anchors}" }}
timeout_s = 60.0
[reward.sources.taste]
kind = "function"
function = "{taste}:score"
[reward.route]
default = "pairs"
[evaluation]
num_prompts = 2
[stop]
updates = 2
"""
TASTE = """
import json, pathlib
def score(prompt, completion):
    if prompt.startswith("{sour}"):
        raise RuntimeError("no such luck")
    with pathlib.Path("{log}").open("a") as log:
        log.write(json.dumps([prompt, completion]) + "\\n")
    return float(sum(map(ord, completion)) % 101)
"""


class Kitchen:
    """A recipe, and all answers that its source `taste` was shown."""

    def __init__(self, folder: Path, judge: Path) -> None:
        self.anchors, self.recipe = folder / "anchors.jsonl", folder / "recipe.toml"
        self._log, self._taste = folder / "tasted.jsonl", folder / "taste.py"
        self.turn_sour("nothing")
        text = RECIPE.format(policy=POLICY, judge=judge, anchors=self.anchors, taste=self._taste)
        self.recipe.write_text(text)

    def turn_sour(self, sour: str) -> None:
        self._taste.write_text(TASTE.format(log=self._log, sour=sour))

    def tasted(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for prompt, completion in map(json.loads, self._log.read_text().splitlines()):
            found.setdefault(prompt, []).append(completion)
        return found

    def make(self, out: Path, *words: str) -> int:
        command = ["reward", "anchors", str(self.recipe), "--out", str(out), *words]
        return main([*command, "--prompts", "6", "--best-of", "5"])


@pytest.fixture(name="judge", scope="module")
def _judge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pair_model(POLICY, tmp_path_factory.mktemp("judge"))


@pytest.fixture(name="kitchen")
def _kitchen(tmp_path: Path, judge: Path) -> Kitchen:
    return Kitchen(tmp_path, judge)


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def value(completion: str) -> float:
    return float(sum(map(ord, completion)) % 101)


def beats(scorer: PairScorer, prompt: str, first: str, second: str) -> float:
    """The probability that the first answer is better."""
    return scorer.pair(prompt, first, second).r


def test_the_best_of_n_is_the_best_by_a_source_and_by_the_model(
    kitchen: Kitchen, judge: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert kitchen.make(tmp_path / "tasty.jsonl", "--by", "taste", "--json") == 0
    told = json.loads(capfd.readouterr().out)
    rows, tasted = read(tmp_path / "tasty.jsonl"), kitchen.tasted()
    assert (told["prompts"], told["held_out"], told["without"]) == (8, 2, 0)
    assert [row["index"] for row in rows] == list(range(8))
    assert [row["held_out"] for row in rows] == [True] * 2 + [False] * 6
    for row in rows:
        answers = tasted[row["prompt"]]
        assert len(answers) == row["anchor_samples"] <= 5
        assert row["anchor"] in answers
        assert row["anchor_score"] == value(row["anchor"]) == max(map(value, answers))
        assert (row["anchor_by"], row["anchor_policy"]) == ("taste", str(POLICY))
        assert row["policy_prompt"] == row["prompt"]
        assert row["answer"].isdigit()

    # The prompt's own source compares the same answers with its model, and needs no anchors yet.
    assert kitchen.make(kitchen.anchors) == 0
    scorer = PairScorer(judge)
    for row in read(kitchen.anchors):
        prompt, answers = row["prompt"], tasted[row["prompt"]]
        best = best_of(answers, partial(beats, scorer, prompt))
        assert row["anchor"] == answers[best.place]
        assert row["anchor_score"] == pytest.approx(best.score, abs=1e-5)
        assert row["anchor_by"] == "pairs"

    # Now every prompt that is known has one.
    check_reward(load_recipe(kitchen.recipe))


def test_what_was_interrupted_goes_on_and_what_failed_is_counted(
    kitchen: Kitchen, tmp_path: Path, capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    out, kept = tmp_path / "out.jsonl", RowFile.add

    def add(self: RowFile, row: dict[str, Any]) -> None:
        if len(self.rows) == 3:
            raise RunFailedError("the disk is full")
        kept(self, row)

    with monkeypatch.context() as patch:
        patch.setattr(RowFile, "add", add)
        assert kitchen.make(out, "--by", "taste") == 1
    assert "the disk is full" in capfd.readouterr().err
    assert not out.exists()
    begun = read(tmp_path / "out.jsonl.part")[1:]
    assert len(begun) == 3
    assert kitchen.make(out) == 2
    assert "begun with another by ('taste', now None)" in capfd.readouterr().err

    # A prompt of which no answer can be judged is left out.
    done = {row["prompt"] for row in begun}
    sour = next(prompt for prompt in kitchen.tasted() if prompt not in done)
    kitchen.turn_sour(sour)
    assert kitchen.make(out, "--by", "taste", "--json") == 0
    told, rows = json.loads(capfd.readouterr().out), read(out)
    assert (told["prompts"], told["without"]) == (7, 1)
    assert all(row in rows for row in begun)
    assert sour not in {row["prompt"] for row in rows}
    assert kitchen.make(out, "--by", "taste") == 2
    assert "is there already" in capfd.readouterr().err


def test_a_failure_with_a_models_words_moves_no_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    assert print_result({}, ["row 1: \x1b[2Jit"], failed="no anchor", as_json=False) == 0
    assert capsys.readouterr().out == "no anchor       row 1: \\x1b[2Jit (the last of 1)\n"


def test_prompts_without_anchors_are_found_before_a_run(kitchen: Kitchen, tmp_path: Path) -> None:
    config = load_recipe(kitchen.recipe)
    with pytest.raises(UserError, match=r"no anchors at .*anchors.jsonl"):
        check_reward(config)
    kitchen.anchors.write_text(json.dumps({"prompt": "3a14b35=", "anchor": "#1"}) + "\n")
    with pytest.raises(
        UserError, match=r"reward.sources.pairs.options.anchors = .*: 3 of 3 prompts have no anchor"
    ):
        check_anchors(config)

    rows = [{"prompt": p, "answer": "1", "gold": g} for p, g in (("3a14b35=", "#1"), ("1a14=", ""))]
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = kitchen.recipe.read_text().replace(
        'kind = "tracking"', f'kind = "dataset"\npath = "{data}"'
    )
    kitchen.recipe.write_text("".join(x for x in lines.splitlines(True) if "_terms" not in x))
    with pytest.raises(
        UserError, match=r"1 of 2 prompts have no anchor, the first is rows.jsonl:2"
    ):
        check_anchors(load_recipe(kitchen.recipe))
    options = "reward.sources.pairs.options"
    column = f'{options}={{anchors="null",column="gold"}}'
    with pytest.raises(UserError, match=r"column = 'gold': 1 of 2 .* is rows.jsonl:2"):
        check_anchors(load_recipe(kitchen.recipe, [column]))
    short = "task.max_prompt_length=3"
    check_anchors(load_recipe(kitchen.recipe, [column, short]))
    other = f'{options}={{anchors="null",column="none"}}'
    with pytest.raises(UserError, match="none"):
        check_reward(load_recipe(kitchen.recipe, [other]))


@pytest.mark.parametrize("kind", ["tracking", "mixture"])
def test_prompts_that_the_command_leaves_out_need_no_anchors(
    kitchen: Kitchen, tmp_path: Path, kind: str
) -> None:
    """Those of another seed, and of a mixture held-out ones that no evaluation asks."""
    words = ["seed=1", "task.min_terms=6", "task.max_terms=6"]
    if kind == "mixture":
        rows = [{"prompt": f"{number}a14=", "answer": "1"} for number in range(40)]
        data, words = tmp_path / "rows.jsonl", []
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        cups = f'{{ kind = "dataset", path = "{data}", eval_fraction = 0.5 }}'
        text = kitchen.recipe.read_text().replace(
            'kind = "tracking"', f'kind = "mixture"\ndatasets = {{ cups = {cups} }}'
        )
        kitchen.recipe.write_text("".join(x for x in text.splitlines(True) if "_terms" not in x))
    config = load_recipe(kitchen.recipe, words)
    source = build_source(config.task, config.seed)
    asked = [*source.training_rows(1 if words else 40), *source.eval_rows(2)]
    made = [json.dumps({"prompt": row.prompt, "anchor": "#1"}) for row in asked]
    kitchen.anchors.write_text("\n".join(dict.fromkeys(made)))
    check_anchors(config)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--best-of", "0"], "at least 1"),
        (["--prompts", "0"], "at least 1"),
        (["--by", "nobody"], "no such source of rewards (there are pairs, taste)"),
        (["--policy", "nowhere"], "no model folder at nowhere"),
        (["reward.sources.pairs.options.model=nowhere"], "no reward model at nowhere"),
        (["--by", "taste", "reward.sources.taste.unit=group"], "scores groups"),
    ],
)
def test_mistakes_are_one_line(
    kitchen: Kitchen, tmp_path: Path, capfd: pytest.CaptureFixture[str], words: list[str], line: str
) -> None:
    out = str(tmp_path / "a.jsonl")
    assert main(["reward", "anchors", str(kitchen.recipe), "--out", out, *words]) == 2
    error = capfd.readouterr().err
    assert line in error
    assert error.startswith("error: ")
    assert error.count("\n") == 1


def test_a_row_may_hold_what_json_does_not_know(tmp_path: Path) -> None:
    """Columns of Parquet files do."""
    file = RowFile(tmp_path / "out.jsonl", {})
    file.add({"index": 0, "at": datetime(2026, 1, 2)})
    assert file.finish(lambda row: True) == 1
    assert read(tmp_path / "out.jsonl") == [{"index": 0, "at": "2026-01-02 00:00:00"}]
