"""A model that says the same whatever came before: logits z at every position of every prompt."""

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

Z = (5.0, 2.0, 0.0, -1.0)
REGULAR = (0.94428, 0.04701, 0.00636, 0.00234)
"""softmax(Z)"""
HOT = (0.28011, 0.25345, 0.23711, 0.22933)
"""softmax(Z / 30)"""
HOT_TOP_2 = (0.52498, 0.47502, 0.0, 0.0)
"""softmax(top-2 of Z / 30)"""


def save_fixed_model(folder: Path, logits: Sequence[float] = Z) -> Path:
    """A Llama whose tokens all have one embedding, so that attention has only equal values to mix
    and the last hidden state h is the same everywhere; its head is z h^T / |h|^2."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(logits),
            hidden_size=32,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=1,
            num_key_value_heads=1,
            head_dim=32,
            max_position_embeddings=64,
            tie_word_embeddings=False,
            pad_token_id=None,
            bos_token_id=None,
            eos_token_id=None,
        )
    ).eval()
    with torch.no_grad():
        model.model.embed_tokens.weight[:] = model.model.embed_tokens.weight[0].clone()
        h = model.model(torch.tensor([[0, 1]])).last_hidden_state[0, 0]
        model.lm_head.weight[:] = torch.tensor(logits)[:, None] * h / h.dot(h)
    model.save_pretrained(folder)
    return folder
