"""The cold start: its data, its loss, a short real training, and the weights that ship."""

import math
from pathlib import Path
from random import Random

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tasks.make_models.cold_start import (
    Curriculum,
    TrainingExample,
    buckets,
    build_model,
    learning_rate,
    main,
    make_example,
    train,
    training_texts,
    weighted_loss,
)
from tasks.make_models.policy_check import check_policy, sample
from tasks.procedural.base import PromptSizes, default_sizes, is_held_out, prompt_row
from tasks.procedural.chain_sums import CHAIN_SUMS, style_of
from tasks.procedural.character_tokenizer import build_tokenizer
from tasks.procedural.shift_register import SHIFT_REGISTER
from tasks.procedural.straight_line import STRAIGHT_LINE, right_lines
from tasks.procedural.tracking import TRACKING
from tests.tasks.procedural.test_tracking import wrong_steps
from tests.tasks.register_lines import read_lines

MODELS = Path(__file__).parents[3] / "recipes" / "models"
SHIPPED = MODELS / "chain-sums-cold"
LONG = MODELS / "chain-sums-long-cold"
USUAL = Curriculum(CHAIN_SUMS, default_sizes(CHAIN_SUMS))


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def test_training_data_has_two_phases_and_nothing_held_out() -> None:
    batches = list(training_texts(USUAL, seed=0, steps=20))
    assert [batches, len(batches)] == [list(training_texts(USUAL, seed=0, steps=20)), 20]
    prompts = [prompt for batch in batches for prompt, _ in batch]
    assert not any(map(is_held_out, prompts))
    first = {style_of(response) for batch in batches[:9] for _, response in batch}
    second = {style_of(response) for batch in batches[9:] for _, response in batch}
    assert first == {"fine"}
    assert second == {"direct", "jumps", "fine"}


def test_buckets_keep_every_example_and_bound_the_padding() -> None:
    rng = Random(0)
    examples = [TrainingExample([5] * rng.randint(8, 290), 3) for _ in range(64)]
    groups = list(buckets(examples))
    assert sum(map(len, groups)) == 64
    for group in groups:
        lengths = [len(example.ids) for example in group]
        assert sum(lengths) >= 2 / 3 * len(lengths) * max(lengths)


def test_the_loss_counts_response_tokens_and_weighs_results() -> None:
    tokenizer = build_tokenizer(CHAIN_SUMS.characters)
    model = build_model(tokenizer, seed=0)
    for parameter in model.parameters():
        torch.nn.init.zeros_(parameter)
    prompt, response = "a3b5=", "a3+0=3;b5+3=8;#8"
    example = TrainingExample([*tokenizer.encode(prompt + response), 2], len(prompt))
    equals = tokenizer.convert_tokens_to_ids("=")
    # All-zero weights give a uniform distribution over 70 tokens. 17 response tokens, two of them
    # the result of a step; the `=` that ends the prompt has no result after it.
    loss, weights = weighted_loss(model, [example], equals=equals, weight=4.0)
    assert weights == 17 + 2 * 3
    assert float(loss.detach()) == pytest.approx(weights * math.log(70), rel=1e-5)
    padded, padded_weights = weighted_loss(
        model, [example, TrainingExample(example.ids[:-4], 5)], equals=equals, weight=1.0
    )
    assert padded_weights == 17 + 13
    assert float(padded.detach()) == pytest.approx(30 * math.log(70), rel=1e-5)


def test_an_answer_may_be_shown_only_as_far_as_it_begins() -> None:
    tokenizer = build_tokenizer(CHAIN_SUMS.characters)
    whole = make_example(tokenizer, "a3b5=", "#8")
    assert whole == TrainingExample([*tokenizer.encode("a3b5=#8"), 2], 5)
    assert make_example(tokenizer, "a3b5=", "#8", most=3) == whole
    assert make_example(tokenizer, "a3b5=", "#8", most=2) == TrainingExample(whole.ids[:-1], 5)


def test_the_learning_rate_warms_up_holds_and_decays() -> None:
    rates = [learning_rate(step, 1000) for step in range(1000)]
    assert rates[0] == pytest.approx(2.5e-5)
    assert rates[39] == rates[500] == 1e-3
    assert rates[750] == pytest.approx(1e-3 * (1 - 0.97 / 2))
    assert rates[-1] == pytest.approx(3e-5, rel=0.1)


def test_the_same_seed_gives_the_same_weights() -> None:
    tokenizer = build_tokenizer(CHAIN_SUMS.characters)
    models = [build_model(tokenizer, seed) for seed in (1, 1, 2)]
    for model, seed in zip(models, (1, 1, 2), strict=True):
        train(model, tokenizer, USUAL, steps=3, seed=seed)
    first, again, other = (model.lm_head.weight for model in models)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_the_script_writes_a_folder_that_loads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["--out", str(tmp_path), "--steps", "3", "--eval-prompts", "8"])
    assert "held-out prompts 8" in capsys.readouterr().out
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert model.dtype == torch.bfloat16
    assert model.num_parameters() == 648_832
    assert len(AutoTokenizer.from_pretrained(tmp_path)) == model.config.vocab_size == 70


def test_a_model_for_long_answers_has_positions_for_them(tmp_path: Path) -> None:
    options = "--task shift_register --steps 2 --eval-prompts 0 --first-cut 64 --mlp-width 256"
    main([*options.split(), "--max-tokens", "2048", "--out", str(tmp_path)])
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert model.num_parameters() == 494_848
    assert model.config.max_position_embeddings == 2048 + 128
    assert (tmp_path / "model.safetensors").stat().st_size <= 2**20


def test_the_sampler_agrees_with_a_plain_forward_pass() -> None:
    tokenizer = AutoTokenizer.from_pretrained(SHIPPED)
    model = AutoModelForCausalLM.from_pretrained(SHIPPED, dtype=torch.float32)
    prompts = ["a3b5c7=", "a9b9c9=", "a1b2c3="]
    ids = torch.tensor([tokenizer.encode(prompt) for prompt in prompts])
    answers = sample(model, ids, max_tokens=12, generator=torch.Generator(), greedy=True)
    for prompt, answer in zip(ids, answers, strict=True):
        sequence = prompt.tolist()
        for token in answer:
            logits = model(torch.tensor([sequence])).logits[0, -1]
            assert int(logits.argmax()) == token
            sequence.append(token)
        assert len(answer) == 12 or answer[-1] == 2


def test_the_shipped_weights_are_a_mixture_with_something_to_learn() -> None:
    tokenizer = AutoTokenizer.from_pretrained(SHIPPED)
    model = AutoModelForCausalLM.from_pretrained(SHIPPED, dtype=torch.float32)
    check = check_policy(model, tokenizer, CHAIN_SUMS, prompts=1024, seed=0)
    assert 0.15 <= check.accuracy() <= 0.32
    assert 10 <= check.mean_tokens() <= 22
    assert check.share("direct") == pytest.approx(0.58, abs=0.08)
    assert check.share("other") <= 0.02
    assert check.accuracy("direct") <= 0.2
    assert check.accuracy("fine", range(3, 17)) >= 0.95
    greedy = check_policy(model, tokenizer, CHAIN_SUMS, prompts=1024, seed=0, greedy=True)
    assert greedy.accuracy() <= 0.3
    assert sum(path.stat().st_size for path in SHIPPED.iterdir()) <= 4 * 2**20


def test_the_shipped_model_holds_the_longest_problem() -> None:
    config = AutoModelForCausalLM.from_pretrained(SHIPPED).config
    longest = max(len(prompt_row(CHAIN_SUMS, i, 0).prompt) for i in range(1000))
    assert longest == 65
    assert config.max_position_embeddings >= longest + 240


def test_the_shipped_tracking_policy_slips_in_every_fifth_step() -> None:
    folder = MODELS / "tracking-cold"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    check = check_policy(model, tokenizer, TRACKING, prompts=512, seed=0)
    steps = [
        wrong
        for answer in check.answers
        for wrong in wrong_steps(str(answer.row.prompt), answer.text)
    ]
    assert 0.15 <= sum(steps) / len(steps) <= 0.25
    assert 0.2 <= check.accuracy() <= 0.4
    assert check.share("other") <= 0.03
    # It knows better: the likeliest answer has hardly a wrong step.
    greedy = check_policy(model, tokenizer, TRACKING, prompts=512, seed=0, greedy=True)
    assert greedy.accuracy() >= 0.85
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 4 * 2**20


def test_the_shipped_register_slips_checks_and_is_right_now_and_then_on_long_answers() -> None:
    folder = MODELS / "shift-register-cold"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert model.config.max_position_embeddings >= 2048 + 16
    sizes = PromptSizes(min_terms=3, max_terms=24, tail=1.3)
    check = check_policy(
        model, tokenizer, SHIFT_REGISTER, prompts=384, seed=0, max_tokens=600, sizes=sizes
    )
    lines = [line for one in check.answers for line in read_lines(str(one.row.prompt), one.text)]
    assert 0.06 <= sum(line.wrong for line in lines) / len(lines) <= 0.13
    assert 0.55 <= check.accuracy() <= 0.75
    assert 0.1 <= check.accuracy(terms=range(11, 25)) <= 0.5
    assert check.share("other") <= 0.05
    # It knows better: the likeliest answer has hardly a wrong step.
    greedy = check_policy(
        model, tokenizer, SHIFT_REGISTER, prompts=384, seed=0, max_tokens=600, sizes=sizes,
        greedy=True,
    )  # fmt: skip
    assert greedy.accuracy() >= 0.85
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 2**20


def test_the_shipped_programs_slip_in_every_fourth_line() -> None:
    folder = MODELS / "straight-line-cold"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    check = check_policy(model, tokenizer, STRAIGHT_LINE, prompts=512, seed=0)
    first = [right_lines(str(one.row.prompt), one.text) > 0 for one in check.answers]
    assert 0.68 <= sum(first) / len(first) <= 0.82
    assert 0.05 <= check.accuracy(terms=range(6, 9)) <= 0.3
    assert 0.4 <= check.accuracy(terms=range(2, 3)) <= 0.7
    assert check.share("other") <= 0.02
    # It knows better: the likeliest answer has hardly a wrong line.
    greedy = check_policy(model, tokenizer, STRAIGHT_LINE, prompts=512, seed=0, greedy=True)
    assert greedy.accuracy() >= 0.85
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 2**20


def test_the_long_model_is_a_mixture_and_sound_on_long_problems() -> None:
    tokenizer = AutoTokenizer.from_pretrained(LONG)
    model = AutoModelForCausalLM.from_pretrained(LONG, dtype=torch.float32)
    most = CHAIN_SUMS.most_terms
    assert model.config.max_position_embeddings >= (2 * most + 1) + (7 * most + 3)
    sizes = PromptSizes(min_terms=2, max_terms=52, tail=1.3)
    check = check_policy(
        model, tokenizer, CHAIN_SUMS, prompts=512, seed=0, max_tokens=372, sizes=sizes
    )
    assert 0.15 <= check.accuracy() <= 0.35
    assert 12 <= check.mean_tokens() <= 30
    assert check.share("direct") >= 0.45
    assert check.share("other") <= 0.03
    assert check.accuracy("direct") <= 0.2
    assert check.accuracy("fine", range(2, 20)) >= 0.95
