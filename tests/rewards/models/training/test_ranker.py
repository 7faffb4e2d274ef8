"""A session ranker is trained by its command, goes on after an interruption, and is measured."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification

from headrace.config.loading.recipe import load_reward_model
from headrace.errors import UserError
from headrace.run_files.reward_model_run import EvaluationLine, StepLine, read_lines
from headrace_cli.cli import main
from learner.ranking.model import SessionRanker
from rewards.models.training.train import build_trainee, train
from tasks.procedural.search_world import search_data, vocabulary
from tests.integration.runs import REPOSITORY
from tests.rewards.models.small import MODELS, Silence

RECIPE = REPOSITORY / "recipes" / "reward-models" / "coca.toml"
SMALL = (
    "data.sessions=96", "data.lists=12", "data.eval_limit=20", "objective.contrastive.epochs=2",
    "objective.contrastive.batch=16", "training.batch=20", "training.epochs=1",
    "training.evaluate_every=6", "training.checkpoint_every=5",
)  # fmt: skip


def trained(root: Path, *, stop_after: int = 10**6) -> tuple[Path, Any]:
    """A training in this process, and its outcome."""
    config = load_reward_model(RECIPE, SMALL)
    root.mkdir(parents=True, exist_ok=True)
    asked = iter(range(10**6))
    return root, train(config, root, Silence(), should_stop=lambda: next(asked) >= stop_after)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def test_both_stages_are_one_training_that_goes_on_to_the_bit(tmp_path: Path) -> None:
    whole, outcome = trained(tmp_path / "whole")
    assert outcome.step == 12 + 6
    steps = [line for line in read_lines(whole) if isinstance(line, StepLine)]
    looks = [line for line in read_lines(whole) if isinstance(line, EvaluationLine)]
    assert steps[0].loss == pytest.approx(3.434, abs=0.05), "log(2 * 16 - 1)"
    assert steps[12].loss is not None
    assert steps[12].loss < 1.0, "the other loss"
    assert steps[-1].lr < steps[12].lr, "the rate falls in the second stage alone"
    assert looks[-1].figures["map"] is not None
    for stop in (7, 14):
        part, first = trained(tmp_path / f"part-{stop}", stop_after=stop)
        assert (first.model, first.step) == (None, stop)
        _, last = trained(part)
        for name, value in weights(outcome.model).items():
            assert torch.equal(value, weights(last.model)[name]), (stop, name)


def test_of_less_data_than_a_batch_an_epoch_is_a_step() -> None:
    little = ("data.sessions=10", "data.lists=1", "training.epochs=3")
    config = load_reward_model(RECIPE, [*SMALL, *little])
    assert build_trainee(config, None).steps == 2 + 3


def test_a_ranker_is_measured_as_its_training_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, outcome = trained(tmp_path / "run")
    file, trec = tmp_path / "lists.jsonl", tmp_path / "run.txt"
    with file.open("w") as out:
        for ranked in search_data(sessions=0, lists=0, held_out=20, seed=3).held_out:
            history = [{"query": q, "clicked": d} for q, d in ranked.history]
            row = {"history": history, "query": ranked.query, "candidates": ranked.candidates}
            out.write(json.dumps(row | {"labels": ranked.labels}) + "\n")
    command = ["rank", "eval", str(outcome.model), "--lists", str(file), "--trec", str(trec)]
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["map"] == pytest.approx(outcome.figures["map"], abs=1e-9)
    assert found["lists"] == 20
    lines = [line.split() for line in trec.read_text().splitlines()]
    assert len(lines) == 200
    assert all(float(a[4]) >= float(b[4]) for a, b in pairwise(lines[:10]))
    AutoModelForSequenceClassification.from_pretrained(outcome.model)
    command = ["rank", "eval", str(trec), "--lists", str(file)]
    assert main([*command, "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["mrr"] == pytest.approx(found["mrr"], abs=1e-9)
    trec.write_text("".join(" ".join(line) + "\n" for line in lines if line[3] == "1"))
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ndcg_1"] == pytest.approx(found["ndcg_1"], abs=1e-9)
    for change, words in (
        ({2: "d9"}, "names d9 of"), ({0: "q"}, "which is no list here"), ({4: "best"}, "is not"),
        ({4: "nan"}, "is not"), ({}, "again"),
    ):  # fmt: skip
        other = [change.get(place, value) for place, value in enumerate(lines[0])]
        trec.write_text(f"{' '.join(lines[0])}\n{' '.join(other)}\n")
        assert main(command) == 2
        assert words in capsys.readouterr().err


def test_what_is_no_ranker_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    of_tasks = tmp_path / "tasks.toml"
    of_tasks.write_text(
        f'model.path = "{RECIPE.parents[1] / "models" / "sessions-cold"}"\n'
        'objective.kind = "ranker"\ndata.kind = "task"\n'
    )
    bad = [
        (["rank", "train", str(RECIPE.with_name("lines.toml"))], "headrace reward train"),
        (["rank", "eval", str(tmp_path)], "is not a reward model"),
        (["rank", "train", str(of_tasks)], "learns from sessions"),
        (["rank", "train", str(RECIPE), f"model.path={MODELS}/tracking-cold"], "no pooler"),
    ]
    for command, words in bad:
        root = [f"--root={tmp_path}"] if command[1] == "train" else []
        assert main([*command, *root]) == 2
        assert words in capsys.readouterr().err


def test_the_world_hides_the_answer_in_the_session_alone() -> None:
    data = search_data(sessions=50, lists=200, held_out=0, seed=1)
    assert data.training == search_data(sessions=50, lists=200, held_out=0, seed=1).training
    words = set(vocabulary())
    for ranked in data.training:
        assert (sum(ranked.labels), len(ranked.candidates)) == (1, 10)
        assert set(" ".join((ranked.query, *ranked.candidates)).split()) <= words
    by_query: dict[str, set[str]] = {}
    for ranked in data.training:
        topic = max(ranked.candidates[ranked.labels.index(1)].split(), key=len)[0]
        by_query.setdefault(ranked.query, set()).add(topic)
    assert sum(len(topics) > 1 for topics in by_query.values()) > 15, "a query has several meanings"


def test_a_session_of_ten_thousand_words_is_cut(tmp_path: Path) -> None:
    model = REPOSITORY / "recipes" / "models" / "sessions-cold"
    ranker = SessionRanker.load(model, torch.device("cpu"), longest=4096)
    long = "Ba " * 10_000
    assert len(ranker.encoder.session([(long, long)]).ids) == 128
    assert len(ranker.encoder.candidate([(long, "Ba")], long, long).ids) <= 128
    with pytest.raises(UserError, match="has no encoder"):
        SessionRanker.load(tmp_path, torch.device("cpu"), longest=128)
