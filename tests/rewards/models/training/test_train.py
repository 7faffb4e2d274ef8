"""Real trainings: fifty steps teach something, what is kept opens elsewhere, and an interrupted one
goes on as if it had not been.
"""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification, AutoTokenizer

from headrace.errors import UserError
from headrace.run_files.reward_model_run import StepLine, read_lines, read_status
from headrace.run_files.run_folder import find_run
from learner.process.checkpoint import newest
from rewards.models.encoding import encode, line_ends
from rewards.models.packing import LossUnit, UnitRow, packs_of
from rewards.models.scorer import LineScorer, PairScorer, ScoreScorer
from rewards.models.training.train import batch_of
from storage import queries
from tests.learner.models.families import save_family
from tests.rewards.models.conftest import Trained
from tests.rewards.models.small import Silence, run, small

CPU = torch.device("cpu")


def unit(*lengths: int) -> LossUnit:
    rows = tuple(UnitRow(list(range(n)), [n - 1], [0]) for n in lengths)
    return LossUnit(rows, (0.0,))


def lift(trained: Trained, figure: str = "accuracy") -> float:
    """How much better the last look at the held-out examples was than the first."""
    first, last = (trained.watch.evaluations[i].figures[figure] for i in (0, -1))
    assert first is not None
    assert last is not None
    return last - first


def test_fifty_steps_teach_which_answer_is_better(bradley_terry: Trained) -> None:
    assert lift(bradley_terry) > 0.3
    assert lift(bradley_terry, "loss") < -0.3


def test_fifty_steps_teach_yes_and_no(pairwise: Trained) -> None:
    assert lift(pairwise) > 0.2
    assert lift(pairwise, "loss") < -0.5


def test_fifty_steps_teach_where_an_answer_goes_wrong(lines: Trained) -> None:
    assert lift(lines) > 0.3
    auc = lines.watch.evaluations[-1].figures["auc"]
    assert auc is not None
    assert auc > 0.8


def test_scores_are_those_of_transformers(bradley_terry: Trained) -> None:
    folder = bradley_terry.model
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForTokenClassification.from_pretrained(folder, dtype=torch.float32).eval()
    assert model.config.num_labels == 1
    ids = encode(tokenizer, "a3b5=", "a3+0=3;b5+3=8;#8", "auto").ids
    with torch.inference_mode():
        expected = model(torch.tensor([ids])).logits[0, -1, 0].item()
    scorer = ScoreScorer(folder)
    assert scorer.score("a3b5=", "a3+0=3;b5+3=8;#8") == pytest.approx(expected, abs=1e-5)


def test_line_scores_are_those_of_transformers_in_one_pass(lines: Trained) -> None:
    folder = lines.model
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForTokenClassification.from_pretrained(folder, dtype=torch.float32).eval()
    opening = tokenizer("a3b5=")["input_ids"]
    ids, ends = line_ends(tokenizer, ["a3+0=3;", "b5+3=9;", "#9"])
    with torch.inference_mode():
        logits = model(torch.tensor([[*opening, *ids]])).logits[0, :, 0]
    scorer = LineScorer(folder)
    passes: list[int] = []
    scorer.model.register_forward_hook(lambda *_: passes.append(1))
    found = scorer.lines(opening, ids, ends)
    assert found == pytest.approx([logits[len(opening) + end].item() for end in ends], abs=1e-5)
    assert len(passes) == 1
    assert scorer.lines(opening, ids[: ends[0] + 1], ends[:1]) == pytest.approx(found[:1], abs=1e-5)
    assert scorer.lines(opening, ids, []) == []
    with pytest.raises(UserError, match="not inside a response of 3 tokens"):
        scorer.lines(opening, ids[:3], [3])


def test_probabilities_are_those_of_transformers(pairwise: Trained) -> None:
    scorer = PairScorer(pairwise.model)
    model = AutoModelForCausalLM.from_pretrained(pairwise.model, dtype=torch.float32).eval()
    good, bad = "a3+0=3;b5+3=8;#8", "a3+0=3;b5+3=9;#9"
    tokenizer = scorer.tokenizer
    text = f"a3b5=P{good}Q{bad}="
    with torch.inference_mode():
        logits = model(torch.tensor([tokenizer(text)["input_ids"]])).logits[0, -1]
    yes, no = tokenizer.convert_tokens_to_ids(["S", "T"])
    score = scorer.pair("a3b5=", good, bad)
    expected = torch.sigmoid(logits[yes] - logits[no]).item()
    assert score.p_front == pytest.approx(expected, abs=1e-5)
    assert score.r == pytest.approx((score.p_front + score.p_back) / 2)
    assert scorer.pair("a3b5=", good, good).r == pytest.approx(0.5, abs=1e-6)
    assert score.r + scorer.pair("a3b5=", bad, good).r == pytest.approx(1.0, abs=1e-6)


def test_a_scorer_refuses_what_it_was_not_trained_for(lines: Trained, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"was trained with objective\.kind = 'lines'"):
        ScoreScorer(lines.model)
    with pytest.raises(UserError, match="it is not a reward model"):
        LineScorer(lines.config.model.path)
    with pytest.raises(UserError, match="no reward model at"):
        LineScorer(tmp_path / "nowhere")


def test_a_critic_may_start_from_a_line_model(lines: Trained) -> None:
    from headrace.config.sections.model import ModelConfig
    from learner.models.loading import load_critic

    models = ModelConfig(path=lines.config.model.path, critic_path=str(lines.model))
    critic = load_critic(models, dtype=torch.float32, device=CPU)
    kept = load_file(lines.model / "model.safetensors")
    weight = critic.score.weight.detach()
    assert torch.equal(weight, kept["score.weight"])
    assert weight.abs().sum() > 0


@pytest.mark.parametrize("family", ["gpt_neox", "olmo2"])
def test_a_head_is_the_trained_one_whatever_transformers_has(family: str, tmp_path: Path) -> None:
    """For GPT-NeoX it has a class with another head, which would be random; for OLMo 2 none."""
    from headrace.config.sections.model import ModelConfig
    from learner.models.loading import load_critic

    models = ModelConfig(path=str(save_family(family, tmp_path / "policy")))
    critic = load_critic(models, dtype=torch.float32, device=CPU)
    torch.nn.init.normal_(critic.score.weight)
    critic.save_pretrained(tmp_path / "scores")
    scorer = ScoreScorer.__new__(ScoreScorer)
    scorer.folder, scorer._images = tmp_path / "scores", None
    found = scorer._load()
    assert torch.equal(found.score.weight, critic.score.weight)


def test_the_report_and_the_readers_agree(pairwise: Trained) -> None:
    report = json.loads((pairwise.run_dir / "report.json").read_text())
    after = report["after"]
    assert after["accuracy"] == pairwise.watch.evaluations[-1].figures["accuracy"]
    assert {"gap", "bias"} <= set(after["position_bias"])
    assert sum(part["count"] for part in after["calibration"]["bins"]) == 2 * after["examples"]
    text = (pairwise.run_dir / "report.md").read_text()
    assert "| position bias |" in text
    assert (pairwise.run_dir / "report.svg").read_text().lstrip().startswith("<?xml")
    summary = queries.run_summary(pairwise.run_dir)
    assert summary["status"] == "finished"
    assert summary["held_out"]["after"]["accuracy"] == after["accuracy"]
    (line,) = queries.list_runs(pairwise.run_dir.parent)
    assert line.kind == "reward model"
    assert line.updates == 50
    assert line.accuracy_after == after["accuracy"]
    curves = queries.reward_model_curves(pairwise.run_dir)
    losses = curves[curves["name"] == "loss"]
    assert losses["x"].tolist() == list(range(1, 51))
    assert losses["value"].iloc[-1] == pairwise.watch.steps[-1].loss
    assert find_run(pairwise.run_dir.parent, "latest") == pairwise.run_dir
    with pytest.raises(UserError, match="trained a reward model"):
        queries.evaluations(pairwise.run_dir)


def test_an_interrupted_training_goes_on_to_the_bit(tmp_path: Path) -> None:
    config = small("lines", tmp_path / "whole", steps=6)
    whole, outcome = run(config)
    assert outcome.model is not None
    watch = Silence()
    config = small("lines", tmp_path / "halves", steps=6)
    halves, outcome = run(config, watch=watch, should_stop=lambda: len(watch.steps) == 3)
    assert outcome.model is None
    status = read_status(halves)
    assert (status.status, status.detail) == ("interrupted", "interrupted after 3 of 6 steps")
    assert newest(halves / "checkpoints") == halves / "checkpoints" / "step_3"
    assert not (halves / "report.json").exists()
    _, outcome = run(config, halves)
    assert outcome.model is not None
    assert read_status(halves).status == "finished"
    losses = [
        [line.loss for line in read_lines(folder) if isinstance(line, StepLine)]
        for folder in (whole, halves)
    ]
    assert losses[0] == losses[1]
    weights = [load_file(folder / "model" / "model.safetensors") for folder in (whole, halves)]
    for name, tensor in weights[0].items():
        assert torch.equal(tensor, weights[1][name]), name


def test_packing_does_not_change_what_is_learned(tmp_path: Path) -> None:
    """One forward pass a step, or many: the same losses."""
    losses = []
    for name, budget in (("many", 40), ("one", 100_000)):
        watch = Silence()
        config = small(
            "bradley-terry", tmp_path / name, f"engine.micro_batch_tokens={budget}", steps=2
        )
        run(config, watch=watch)
        losses.append([line.loss for line in watch.steps])
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)


def test_outputs_of_a_pack_come_in_the_order_of_its_units() -> None:
    units = [unit(3, 9), unit(5), unit(8, 2), unit(4)]
    packs = packs_of(units, budget=14, device=CPU)
    assert sorted(id(u) for pack in packs for u in pack.units) == sorted(map(id, units))
    for pack in packs:
        tokens = pack.pack.token_ids[pack.pack.reads]
        for one, found in pack.of_units(tokens):
            assert found.tolist() == [row.ids[-1] for row in one.rows]


def test_every_epoch_has_every_unit_once() -> None:
    units = [unit(n) for n in range(2, 12)]
    seen = [batch_of(units, step, 5, seed=3) for step in range(6)]
    for epoch in range(3):
        lengths = [u.longest for u in seen[2 * epoch] + seen[2 * epoch + 1]]
        assert sorted(lengths) == list(range(2, 12))
    assert seen[0] == batch_of(units, 0, 5, seed=3)
    assert [u.longest for u in seen[0]] != [u.longest for u in seen[2]]
