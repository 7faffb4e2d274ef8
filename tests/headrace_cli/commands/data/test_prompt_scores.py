"""What `headrace select` writes, of the scores of a run that is not there."""

import json
from pathlib import Path

import pandas as pd
import pytest

from headrace.config.loading.recipe import load_recipe
from headrace.run_files import run_folder
from headrace_cli.cli import main
from headrace_cli.commands.data.prompt_scores import _by_domain
from tasks.datasets.dataset_files import read_dataset
from tasks.datasets.selection import PromptScore
from tasks.datasets.source import build_source, split_by_hash

SCORED = 4
HALF = "\ud83d"
"""Half a character, which JSON can say and UTF-8 cannot."""


def rows_in(folder: Path, name: str, count: int = 40) -> Path:
    """A file of rows whose prompts begin with the file's name."""
    path = folder / f"{name}.jsonl"
    rows = ({"prompt": f"{name} {i}", "answer": "1", "note": HALF} for i in range(count))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def scored_run(
    recipe: Path, pool: Path, monkeypatch: pytest.MonkeyPatch, *, scored: int, more: str = "",
    task: str = "",
) -> str:  # fmt: skip
    """The run that scored the first prompts of a pool; `more`: further keys of its task; `task`:
    another one."""
    task = task or f'task={{kind="dataset",path="{pool}"{more}}}'
    overrides = [task, f"evaluation.num_prompts={scored}", f'root="{pool.parent}/runs"']
    config = load_recipe(recipe, overrides)
    figures = {
        "reward_source": "default", "scored": 16, "mean": 0.5, "lowest": 0.0, "best": 1.0,
        "solved": 0.5,
    }  # fmt: skip
    rows = build_source(config.task, config.seed).training_rows(scored)
    found = [{"prompt_id": row.id, "answer": row.answer} | figures for row in rows]
    monkeypatch.setattr("storage.queries.prompt_scores", lambda run_dir: pd.DataFrame(found))
    return str(run_folder.make_run_folder(config))


@pytest.fixture
def run_dir(recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    return scored_run(recipe, rows_in(tmp_path, "pool"), monkeypatch, scored=SCORED)


def test_a_base_is_kept_whole_however_few_prompts_were_scored(run_dir: str, tmp_path: Path) -> None:
    base, out = rows_in(tmp_path, "base"), tmp_path / "hard.jsonl"
    assert main(["select", run_dir, "--keep", "2", "--base", str(base), "--out", str(out)]) == 0
    written = [json.loads(line)["prompt"] for line in out.read_text().splitlines()]
    training, _ = split_by_hash(read_dataset(str(base)), 0.1)
    assert len(training) > SCORED
    assert written[: len(training)] == [row.prompt for row in training]
    assert all(prompt.startswith("pool") for prompt in written[len(training) :])


def test_a_prompt_that_the_base_has_as_a_chat_is_not_chosen(
    run_dir: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base, out = tmp_path / "base.jsonl", tmp_path / "hard.jsonl"
    chats = ([{"role": "user", "content": f"pool {i}"}] for i in range(40))
    base.write_text("".join(f"{json.dumps({'prompt': c, 'answer': '1'})}\n" for c in chats))
    training, _ = split_by_hash(read_dataset(str(base)), 0.1)
    asked = ["select", run_dir, "--keep", "4", "--base", str(base), "--out", str(out), "--json"]
    assert main(asked) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["rows"] == told["base"] == len(training)


def test_all_held_out_rows_are_kept_however_few_prompts_were_scored(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else runs with the file and without it would be evaluated on other prompts."""
    pool, out = rows_in(tmp_path, "pool", 400), tmp_path / "hard.jsonl"
    run_dir = scored_run(recipe, pool, monkeypatch, scored=SCORED)
    assert main(["select", run_dir, "--keep", "2", "--out", str(out)]) == 0
    task = run_folder.read_config(Path(run_dir)).task
    files = (task, task.model_copy(update={"path": str(out)}))
    before, after = (build_source(each, 0).eval_rows(400) for each in files)
    assert len(before) > SCORED
    assert [row.prompt for row in after] == [row.prompt for row in before]


def test_of_a_mixture_the_rows_are_kept_that_a_hash_holds_out(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them. Whoever reads the file would train those of an `eval_path`, and made ones."""
    pool, apart, test = (rows_in(tmp_path, name, 200) for name in ("pool", "apart", "test"))
    task = (
        f'task={{kind="mixture",datasets={{pool={{kind="dataset",path="{pool}"}},'
        f'apart={{kind="dataset",path="{apart}",eval_path="{test}"}},sums={{kind="chain_sums"}}}}}}'
    )
    run_dir, out = scored_run(recipe, pool, monkeypatch, scored=6, task=task), tmp_path / "h.jsonl"
    assert main(["select", run_dir, "--keep", "2", "--out", str(out)]) == 0
    written = [json.loads(line)["prompt"] for line in out.read_text().splitlines()]
    _, held_out = split_by_hash(read_dataset(str(pool)), 0.1)
    assert sorted(written[2:]) == sorted(str(row.prompt) for row in held_out)
    assert len(held_out) > 6


def test_a_domain_of_which_nothing_is_kept_has_no_mean() -> None:
    """Two prompts of one domain with means of 0.25 and 0.5, and none of the other, are kept."""
    means = {"a1": 0.25, "a2": 0.5, "a3": 1.0, "b1": 0.75}
    scores = [PromptScore(key, key[0], 16, mean, 0.0, 1.0) for key, mean in means.items()]
    found = {row["domain"]: row for row in _by_domain(scores, ["a1", "a2"], [])}
    assert (found["a"]["kept"], found["a"]["kept_mean"]) == (2, 0.375)
    assert (found["b"]["kept"], found["b"]["kept_mean"]) == (0, None)


def test_columns_are_written_whatever_they_hold(run_dir: str, tmp_path: Path) -> None:
    out = tmp_path / "hard.jsonl"
    assert main(["select", run_dir, "--keep", "2", "--out", str(out)]) == 0
    assert all(json.loads(line)["note"] == HALF for line in out.read_text().splitlines())


def test_a_file_is_replaced_in_one_step(run_dir: str, tmp_path: Path) -> None:
    """Half a file would be a smaller data set, and nobody would know."""
    out = tmp_path / "hard.jsonl"
    out.write_text("mine")
    with out.open() as before:
        assert main(["select", run_dir, "--keep", "2", "--out", str(out), "--force"]) == 0
        assert before.read() == "mine"
    assert out.read_text().startswith("{")


def test_a_template_decides_what_is_held_out_and_is_not_written(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recipe puts each prompt into it again, and then trains the chosen ones alone."""
    more, pool = ',prompt_template="Ask: {prompt}"', rows_in(tmp_path, "pool", 400)
    run_dir = scored_run(recipe, pool, monkeypatch, scored=400, more=more)
    out = tmp_path / "hard.jsonl"
    assert main(["select", run_dir, "--keep", "2", "--out", str(out)]) == 0
    written = [json.loads(line)["prompt"] for line in out.read_text().splitlines()]
    assert all(prompt.startswith("pool ") for prompt in written)
    task = run_folder.read_config(Path(run_dir)).task
    trained = build_source(task.model_copy(update={"path": str(out)}), 0).training_rows(400)
    assert [row.prompt for row in trained] == [f"Ask: {prompt}" for prompt in written[:2]]
    assert len(written) > 2


def test_columns_keep_the_names_that_the_recipe_gives_them(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recipe reads what is selected by the same names."""
    pool = tmp_path / "pool.jsonl"
    rows = ({"q": f"pool {i}", "gold": {"a": "1"}, "answer": "worked out"} for i in range(40))
    pool.write_text("".join(json.dumps(row) + "\n" for row in rows))
    more = ',prompt_key="q",answer_key="gold.a"'
    run_dir = scored_run(recipe, pool, monkeypatch, scored=SCORED, more=more)
    out = tmp_path / "hard.jsonl"
    assert main(["select", run_dir, "--keep", "2", "--out", str(out)]) == 0
    task = run_folder.read_config(Path(run_dir)).task
    found = build_source(task.model_copy(update={"path": str(out)}), 0).training_rows(400)
    assert len(found) == 2
    for row in found:
        assert str(row.prompt).startswith("pool ")
        assert (row.answer, row.info["answer"]) == ("1", "worked out")


def test_a_column_of_answers_stays_where_the_recipe_has_none(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reward function may read it."""
    more, pool = ',answer_key=""', rows_in(tmp_path, "pool")
    run_dir = scored_run(recipe, pool, monkeypatch, scored=SCORED, more=more)
    out = tmp_path / "hard.jsonl"
    assert main(["select", run_dir, "--keep", "2", "--out", str(out)]) == 0
    assert all(json.loads(line)["answer"] == "1" for line in out.read_text().splitlines())
