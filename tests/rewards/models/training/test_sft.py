"""Fine-tuning: rows of answers, the loss by transformers' own, an end that comes early."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from headrace.config.loading.recipe import load_reward_model
from headrace.config.sections.reward_model import RewardModelConfig, TaskDataConfig
from headrace.data.tokenizer import load_tokenizer
from headrace.errors import UserError
from headrace.run_files.reward_model_run import EvaluationLine, read_lines
from headrace.run_files.run_folder import make_run_folder
from headrace_cli.cli import main
from rewards.models.training import synthetic_errors
from rewards.models.training.data_files import read_demonstration
from rewards.models.training.examples import Demonstration, split
from rewards.models.training.model import RewardModel
from rewards.models.training.train import PackedTraining
from storage import queries
from tasks.procedural.chain_sums import CHAIN_SUMS
from tasks.procedural.character_tokenizer import build_tokenizer
from tests.learner.models.families import save_family
from tests.rewards.models.small import ROOT, Silence, run, small

RECIPE = ROOT / "recipes" / "sft" / "cold-start.toml"
CHAT = [{"role": "user", "content": "What is 7 + 5?"}]
ANSWERED = [*CHAT, {"role": "assistant", "content": "12"}]
SPACED = [{"role": "system", "content": ""}, {"role": "user", "content": "What is 7 + 5?\n"}]
TURNS = [
    *CHAT, {"role": "assistant", "content": "add 7 5"}, {"role": "tool", "content": "12"},
    {"role": "assistant", "content": "#12"},
]  # fmt: skip
TOOL = {"type": "function", "function": {"name": "add", "description": "Adds."}}
TOOLS = json.dumps([TOOL])


def recipe(root: Path, *overrides: str) -> RewardModelConfig:
    few = ("training.batch=8", "data.examples=200", "data.max_terms=3", "data.eval_limit=16")
    return load_reward_model(RECIPE, [f'root="{root}"', *few, *overrides])


@pytest.mark.parametrize(
    ("row", "found"),
    [
        ({"prompt": "7+5=", "response": "12"}, Demonstration("7+5=", "12")),
        ({"prompt": CHAT, "completion": ANSWERED[1:]}, Demonstration(CHAT, "12")),
        ({"messages": ANSWERED}, Demonstration(CHAT, "12")),
        ({"prompt": "7+5=", "response": "12", "messages": ANSWERED}, Demonstration("7+5=", "12")),
        (
            {"prompt": "<u>What is 7 + 5?<a>", "response": "12", "messages": ANSWERED},
            Demonstration(CHAT, "12"),
        ),
        (
            {
                "prompt": "<u>What is 7 + 5?<a>",
                "response": "12",
                "messages": [*SPACED, ANSWERED[-1]],
            },
            Demonstration(SPACED, "12"),
        ),
        (
            {"prompt": "7+5=", "response": "add 7 5 12 #12", "messages": TURNS, "tools": TOOLS},
            Demonstration(TURNS[:-1], "#12", tools=(TOOL,)),
        ),
        (
            {"prompt": TURNS[:-1], "completion": TURNS[-1:], "tools": [TOOL]},
            Demonstration(TURNS[:-1], "#12", tools=(TOOL,)),
        ),
        ({"prompt": CHAT, "completion": TURNS[1:]}, Demonstration(TURNS[:-1], "#12")),
        ({"messages": TURNS[:1], "response": "7 + 5? 12"}, Demonstration(CHAT, "7 + 5? 12")),
        (
            {
                "conversations": [
                    {"from": "human", "value": "7 + 5"},
                    {"from": "gpt", "value": "1"},
                ]
            },
            Demonstration([{"role": "user", "content": "7 + 5"}], "1"),
        ),
    ],
)
def test_rows_as_the_field_writes_them(row: dict[str, Any], found: Demonstration) -> None:
    assert read_demonstration("", row) == found


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": "p"}, "row 3: no answer"),
        ({"response": "12"}, "row 3: no prompt"),
        ({"instruction": "Add.", "input": "7+5", "output": "12"}, "row 3: write instruction and"),
        ({"prompt": "p", "response": 12}, "row 3: response is neither a text nor a chat"),
        ({"messages": [*ANSWERED, *CHAT]}, "row 3: the last message is not a text of the assist"),
        ({"messages": [*CHAT, {**ANSWERED[-1], "content": ""}]}, "row 3: the last message is not"),
        ({"messages": [*CHAT, {**TURNS[1], "tool_calls": [TOOL]}, *TURNS[2:]]}, "or tool_calls"),
        ({"prompt": CHAT, "completion": TURNS[1:3]}, "row 3: the last message is not a text of"),
        ({"messages": ["a", "b"]}, "row 3: the prompt is neither text nor a list of messages"),
        ({"prompt": "p", "response": "12", "tools": "add"}, "row 3: tools should be a list"),
    ],
)
def test_a_row_that_is_none(row: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_demonstration("answers.jsonl, row 3", row)


def test_turns_of_an_episode_are_on_one_side() -> None:
    """As rows of their own, and as one row for the last of them."""
    found: list[Demonstration] = []
    for number in range(40):
        chat = [{"role": "user", "content": f"What is {number} + 5?"}, *TURNS[1:]]
        rows: list[dict[str, Any]] = [
            {"turn": 0, "prompt": chat[:1], "completion": chat[1:2]},
            {"turn": 1, "prompt": chat[:3], "completion": chat[3:]},
            {"prompt": "What is", "response": "add 7 5 12 #12", "messages": chat},
        ]
        found += [read_demonstration("", {**row, "prompt_id": f"row-{number}"}) for row in rows]
    sides = split(found, fraction=0.3)
    assert len(sides.training) + len(sides.held_out) == 120
    assert not {one.task for one in sides.training} & {one.task for one in sides.held_out}


def loss_alone(config: RewardModelConfig) -> float:
    """Of the held-out examples by transformers, one at a time."""
    assert isinstance(config.data, TaskDataConfig)
    tokenizer = AutoTokenizer.from_pretrained(config.model.path)
    model = AutoModelForCausalLM.from_pretrained(config.model.path, dtype=torch.float32)
    examples = synthetic_errors.demonstrations(config.data, seed=config.seed)
    held_out = split(examples, fraction=config.data.eval_fraction).held_out[:16]
    total, tokens = 0.0, 0
    for one in held_out:
        prompt = tokenizer(one.prompt)["input_ids"]
        answer = tokenizer(one.answer, add_special_tokens=False)["input_ids"]
        answer = [*answer, tokenizer.eos_token_id]
        ids = torch.tensor([[*prompt, *answer]])
        labels = torch.tensor([[-100] * len(prompt) + answer])
        with torch.no_grad():
            total += float(model(ids, labels=labels).loss) * len(answer)
        tokens += len(answer)
    return total / tokens


def test_the_loss_is_that_of_transformers(tmp_path: Path) -> None:
    """Of answer tokens alone, the end token included, averaged over all of them."""
    config = recipe(tmp_path, "training.from_scratch=false", "training.steps=1")
    watch = Silence()
    run(config, watch=watch)
    figures, expected = watch.evaluations[0].figures, loss_alone(config)
    assert figures["loss"] == pytest.approx(expected, rel=1e-5)
    assert figures["perplexity"] == pytest.approx(math.exp(expected), rel=1e-5)


@pytest.mark.parametrize("family", ["lfm2", "falcon_h1"])
def test_layers_with_a_state_read_one_answer_at_a_time(family: str, tmp_path: Path) -> None:
    """Behind others in its row an answer would begin in their state."""
    folder = save_family(family, tmp_path / "model")
    build_tokenizer(CHAIN_SUMS.characters).save_pretrained(folder)
    path = f'model.path="{folder}"'
    config = recipe(tmp_path, path, "training.from_scratch=false", "training.steps=1")
    found = PackedTraining(config, None).evaluate()["loss"]
    assert found == pytest.approx(loss_alone(config), rel=1e-4)
    with pytest.raises(UserError, match="layers have a state, and pairs share a row"):
        PackedTraining(small("bradley-terry", tmp_path, path, steps=1), None)


def test_random_weights_have_no_dropout_either(tmp_path: Path) -> None:
    """A resumed training has none: its model is loaded."""
    folder = save_family("starcoder2", tmp_path / "model", residual_dropout=0.5)
    build_tokenizer(CHAIN_SUMS.characters).save_pretrained(folder)
    training = PackedTraining(recipe(tmp_path, f'model.path="{folder}"'), None)
    assert training.evaluate() == training.evaluate()


def test_a_family_that_is_computed_otherwise_here_is_refused(tmp_path: Path) -> None:
    folder = save_family("stablelm", tmp_path / "model")
    build_tokenizer(CHAIN_SUMS.characters).save_pretrained(folder)
    config = recipe(tmp_path, f'model.path="{folder}"', "training.from_scratch=false")
    with pytest.raises(UserError, match=r"^stablelm models cannot be trained here"):
        PackedTraining(config, None)


def test_random_weights_learn_and_go_on_as_a_policy(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = recipe(tmp_path, "training.steps=40", "training.warmup_steps=2")
    watch = Silence()
    run_dir, outcome = run(config, watch=watch)
    first, last = (watch.evaluations[i].figures["loss"] for i in (0, -1))
    assert first is not None
    assert last is not None
    assert first > 0.8 * math.log(len(AutoTokenizer.from_pretrained(config.model.path)))
    assert last < 0.6 * first
    assert outcome.model is not None
    assert AutoModelForCausalLM.from_pretrained(outcome.model).num_parameters() > 600_000
    (line,) = queries.list_runs(run_dir.parent)
    assert main(["runs", "--root", str(run_dir.parent)]) == 0
    assert "(fine-tuning)" in capsys.readouterr().out
    assert (line.kind, line.updates) == ("fine-tuning", 40)
    assert "# Fine-tuned policy" in (run_dir / "report.md").read_text()


def test_random_weights_in_bfloat16_keep_frequencies_of_positions(tmp_path: Path) -> None:
    """As they have where they are loaded again. A rounded frequency is a radian off within a
    thousand tokens."""
    config = recipe(tmp_path, "engine.precision=bfloat16")
    tokenizer = load_tokenizer(config.model.path)
    model = RewardModel(config, tokenizer, is_scalar=False, steps=1).pretrained
    assert {weight.dtype for weight in model.parameters()} == {torch.bfloat16}
    assert {frequencies.dtype for frequencies in model.buffers()} == {torch.float32}


def test_it_ends_early_and_keeps_the_best(tmp_path: Path) -> None:
    """A rate that ruins the model: the loss rises from the first evaluation on."""
    config = recipe(
        tmp_path, "training.from_scratch=false", "training.steps=50", "training.patience=2",
        "training.evaluate_every=2", "training.lr=1.0", "training.warmup_steps=0",
    )  # fmt: skip
    run_dir, outcome = run(config)
    losses = [x.figures["loss"] for x in read_lines(run_dir) if isinstance(x, EvaluationLine)]
    assert len(losses) == 3
    assert outcome.step == 4
    assert outcome.figures["loss"] == losses[0]
    assert not (run_dir / "best").exists()
    start = AutoModelForCausalLM.from_pretrained(config.model.path, dtype=torch.float32)
    kept = AutoModelForCausalLM.from_pretrained(outcome.model, dtype=torch.float32)
    for name, tensor in start.state_dict().items():
        assert torch.equal(tensor, kept.state_dict()[name]), name
    report = json.loads((run_dir / "report.json").read_text())
    assert report["after"]["loss"] == losses[0]
    held_out = queries.run_summary(run_dir)["held_out"]
    assert held_out["after"] == held_out["before"]


def test_a_best_model_that_could_not_be_written_is_written_by_a_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing that follows is better, so that the first one is the result."""
    config = recipe(
        tmp_path, "training.from_scratch=false", "training.patience=1", "training.lr=1.0",
        "training.evaluate_every=2", "training.warmup_steps=0",
    )  # fmt: skip
    run_dir = make_run_folder(config)

    def full(model: RewardModel, folder: Path, run_id: str) -> None:
        folder.mkdir()
        raise OSError("no space")

    with monkeypatch.context() as patch:
        patch.setattr(RewardModel, "save", full)
        with pytest.raises(OSError, match="no space"):
            run(config, run_dir)
    _, outcome = run(config, run_dir)
    assert outcome.step == 2
    assert AutoModelForCausalLM.from_pretrained(outcome.model).num_parameters() > 600_000


def test_the_command_trains_what_it_is_for(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pairs = str(ROOT / "recipes" / "reward-models" / "bradley-terry.toml")
    assert main(["sft", pairs, "--root", str(tmp_path)]) == 2
    assert "is trained by `headrace reward train`" in capsys.readouterr().err
    assert main(["sft", str(RECIPE), "data.kind=run", "data.run=x", "--root", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    coca = str(ROOT / "recipes" / "reward-models" / "coca.toml")
    assert main(["rank", "train", coca, "training.patience=2", "--root", str(tmp_path)]) == 2
    assert "patience and from_scratch do not go with a ranker" in capsys.readouterr().err
