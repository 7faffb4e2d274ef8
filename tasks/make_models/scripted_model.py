"""A Llama whose weights are written, not trained.

Usage: `python -m tasks.make_models.scripted_model --out DIR`. In: a seed. Out: a Hugging Face
folder with a model that walks graphs at random, the cold start of `tasks.procedural.graph_walk`.
Its weights are overwritten where the walk needs them and small and random elsewhere, so that
everything can still be learnt. Teaching a model of this size to look up edges by examples takes
many minutes; writing it takes a second.

How it works. The first layer notes for every position which character came before it, and whether
the prompt is over. The second attends to the characters of the prompt that came after the current
node. Where those are nodes they are where edges lead, and each gets an even share of the
probability. Behind the goal and behind the node without a way out there are only separators, and a
separator means the end token. (The two-layer circuit is the induction head of Olsson et al.,
arXiv 2209.11895.)
"""

import argparse
from pathlib import Path

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.models.llama.modeling_llama import LlamaAttention

from tasks.make_models.cold_start import build_model
from tasks.make_models.policy_check import check_policy, print_check
from tasks.procedural.character_tokenizer import build_tokenizer
from tasks.procedural.graph_walk import FIRM, GRAPH_WALK, MARSH

PREVIOUS = 32
"""First dimension of the residual stream that names the previous token; those from 0 on name the
token itself."""

CONSTANT, PROMPT_OVER = 31, 63
NOISE = 0.015
ROPE_PAIRS = 32
"""Of a head of 64 dimensions; pair i turns by 10000^(-i/32) a token."""


def write_walker(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    """Overwrite the weights; those not written become small noise. The vocabulary has at most 31
    tokens and heads have 64 dimensions."""
    nodes = tokenizer.convert_tokens_to_ids(list(FIRM + MARSH))
    separators = tokenizer.convert_tokens_to_ids(list(";#="))
    equals, end = separators[2], tokenizer.eos_token_id
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.mul_(NOISE / model.config.initializer_range)
        _write_embedding(model)
        note, look, _ = model.model.layers
        _write_previous_token(note.self_attn)
        _write_prompt_over(note.self_attn, equals)
        _write_lookup(look.self_attn, nodes, separators, end)


def _write_embedding(model: LlamaForCausalLM) -> None:
    """Write each token's own dimension, and one for all. The output layer is tied: what a layer
    adds to a token's dimension becomes that token's logit."""
    embedding = model.model.embed_tokens.weight
    embedding[:, :64] = 0.0
    embedding[:, : len(embedding)] = torch.eye(len(embedding))
    embedding[:, CONSTANT] = 4.0
    # Some ten nats between the tokens looked up and the others; more would magnify the noise.
    model.model.norm.weight.fill_(1.6)
    model.model.norm.weight[CONSTANT] = 0.0


def _write_previous_token(attention: LlamaAttention) -> None:
    """First head: the score is highest one token back, whatever stands there."""
    # Twelve of the fast pairs: the score falls by about 13 at the neighbours, and more beyond.
    angles = 10_000.0 ** (-torch.arange(12) / ROPE_PAIRS)
    query, key, value, output = _head(attention, 0)
    query[:12, CONSTANT] = 0.9 * angles.cos()
    query[ROPE_PAIRS : ROPE_PAIRS + 12, CONSTANT] = -0.9 * angles.sin()
    key[:12, CONSTANT] = 0.9
    value[:CONSTANT, :CONSTANT] = torch.eye(CONSTANT)
    output[PREVIOUS : PREVIOUS + CONSTANT, :CONSTANT] = 0.75 * torch.eye(CONSTANT)


def _write_prompt_over(attention: LlamaAttention, equals: int) -> None:
    """Second head: attend to `=` where there is one, and raise the flag."""
    query, key, value, output = _head(attention, 1)
    query[ROPE_PAIRS - 1, CONSTANT] = 1.0
    key[ROPE_PAIRS - 1, equals] = 4.0
    value[0, equals] = 1.0
    output[PROMPT_OVER, 0] = 0.75


def _write_lookup(
    attention: LlamaAttention, nodes: list[int], separators: list[int], end: int
) -> None:
    """First head: attend to where the previous token is the current node; to nodes of the prompt
    rather than to separators and to steps already taken. What is attended to is the next token; a
    separator stands for the end."""
    query, key, value, output = _head(attention, 0)
    # The slow pairs hardly turn over a whole prompt, so that the distance does not matter.
    slow = [*range(24, 32), *range(ROPE_PAIRS + 24, ROPE_PAIRS + 32)]
    code = _codes()[: len(nodes)].T
    for row, bits in zip(slow, code, strict=True):
        query[row, nodes] = bits
        key[row, [PREVIOUS + node for node in nodes]] = bits
    query[23, CONSTANT] = 1.0
    # A match scores about 20. Separators and steps taken lose about 8 of it: far less than an edge,
    # far more than the hundred characters that do not match at all.
    key[23, separators] = -3.0
    key[23, PROMPT_OVER] = -2.0
    for node in nodes:
        value[node, node] = 1.0
        output[node, node] = 3.3
    value[end, separators] = 1.0
    output[end, end] = 3.3


def _head(
    attention: LlamaAttention, index: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The query, key, value and output weights of one head, as views set to zero."""
    rows = slice(64 * index, 64 * (index + 1))
    views = (
        attention.q_proj.weight[rows],
        attention.k_proj.weight[rows],
        attention.v_proj.weight[rows],
        attention.o_proj.weight[:, rows],
    )
    for view in views:
        view.zero_()
    return views


def _codes() -> torch.Tensor:
    """32 words of 16 signs; any two agree in half of the places or in none."""
    words = torch.ones(1, 1)
    for _ in range(4):
        words = torch.cat([torch.cat([words, words], 1), torch.cat([words, -words], 1)])
    return torch.cat([words, -words])


def main(arguments: list[str] | None = None) -> None:
    """Write, save, measure the saved weights, print the figures."""
    parser = argparse.ArgumentParser(description="Make the cold-started policy of graph_walk.")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--seed", type=int, default=0, help="of what is not written")
    parser.add_argument("--eval-prompts", type=int, default=2048, help="held-out prompts; 0 skips")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    tokenizer = build_tokenizer(GRAPH_WALK.characters)
    model = build_model(tokenizer, options.seed)
    write_walker(model, tokenizer)
    model.to(torch.bfloat16).save_pretrained(options.out)
    tokenizer.save_pretrained(options.out)
    if options.eval_prompts:
        saved = LlamaForCausalLM.from_pretrained(options.out, dtype=torch.float32)
        check = check_policy(
            saved, tokenizer, GRAPH_WALK, prompts=options.eval_prompts, seed=options.seed
        )
        print_check(check, GRAPH_WALK)


if __name__ == "__main__":
    main()
