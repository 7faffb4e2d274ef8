"""The written policy: every step is an edge, no edge is preferred, and it can still be taught."""

from pathlib import Path
from random import Random

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from tasks.make_models.cold_start import build_model
from tasks.make_models.policy_check import check_policy
from tasks.make_models.scripted_model import main, write_walker
from tasks.procedural.base import prompt_row
from tasks.procedural.character_tokenizer import build_tokenizer
from tasks.procedural.graph_walk import GRAPH_WALK, MARSH, read_prompt, sample_walk

SHIPPED = Path(__file__).parents[3] / "recipes" / "models" / "graph-walk-cold"


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def written(seed: int) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    tokenizer = build_tokenizer(GRAPH_WALK.characters)
    model = build_model(tokenizer, seed)
    write_walker(model, tokenizer)
    return model, tokenizer


@pytest.mark.parametrize("seed", [0, 1])
def test_each_edge_has_its_even_share_and_the_end_comes_where_no_edge_leads(seed: int) -> None:
    model, tokenizer = written(seed)
    for index in range(12):
        prompt = str(prompt_row(GRAPH_WALK, index, 0).prompt)
        graph = read_prompt(prompt)
        walk = sample_walk(graph, Random(index), max_steps=120)
        ids = torch.tensor([tokenizer.encode(prompt + walk)])
        with torch.no_grad():
            shares = model(ids).logits[0, len(prompt) - 1 :].softmax(-1)
        leads = graph.successors()
        for node, share in zip(graph.start + walk, shares, strict=True):
            onward = [tokenizer.convert_tokens_to_ids(n) for n in leads[node]]
            if not onward:
                assert share[tokenizer.eos_token_id] > 0.95
            else:
                assert share[onward].sum() > 0.97
                assert share[onward].min() > 0.2


def test_weights_that_are_not_written_are_noise_that_can_learn() -> None:
    model, tokenizer = written(0)
    prompt = str(prompt_row(GRAPH_WALK, 0, 0).prompt)
    ids = torch.tensor([tokenizer.encode(prompt)])
    model(ids).logits[0, -1].log_softmax(-1)[5].backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name


def test_the_script_writes_the_same_folder_for_the_same_seed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for out in ("one", "two"):
        main(["--out", str(tmp_path / out), "--eval-prompts", "8"])
    assert capsys.readouterr().out.count("held-out prompts 8") == 2
    one, two = ((tmp_path / out / "model.safetensors").read_bytes() for out in ("one", "two"))
    assert one == two == (SHIPPED / "model.safetensors").read_bytes()


def test_the_shipped_weights_walk_blindly() -> None:
    tokenizer = AutoTokenizer.from_pretrained(SHIPPED)
    model = AutoModelForCausalLM.from_pretrained(SHIPPED, dtype=torch.float32)
    check = check_policy(model, tokenizer, GRAPH_WALK, prompts=256, seed=0)
    assert 0.26 <= check.accuracy() <= 0.44
    assert 12 <= check.mean_tokens() <= 25
    assert check.share("other") <= 0.02
    assert check.accuracy("firm") >= 0.95
    assert max(answer.tokens for answer in check.answers) >= 5 * check.mean_tokens()
    assert any(set(answer.text) & set(MARSH) for answer in check.answers)
    assert sum(path.stat().st_size for path in SHIPPED.iterdir()) <= 2 * 2**20
