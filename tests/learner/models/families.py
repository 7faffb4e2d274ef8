"""Tiny models of many families with random weights, as folders."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

VOCABULARY = 96
_BASE: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 128, "intermediate_size": 96, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
    "max_position_embeddings": 256, "initializer_range": 0.1, "tie_word_embeddings": False,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_WINDOW = {"sliding_window": 8}
_TIED = {"tie_word_embeddings": True}
_EXPERTS = {
    "num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
}  # fmt: skip
_ROUTED = {
    "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_group": 1,
    "topk_group": 1, "n_shared_experts": 1, "first_k_dense_replace": 1,
}  # fmt: skip
_LINEAR = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
    "linear_value_head_dim": 8, "linear_conv_kernel_dim": 4,
    "layer_types": ["linear_attention", "full_attention"] * 2,
}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "apertus": {}, "arcee": {}, "cohere": {"logit_scale": 0.25, **_TIED},
    "cohere2": {"logit_scale": 0.25, **_WINDOW, **_TIED},
    "deepseek_v3": {
        **_ROUTED, "head_dim": None, "num_key_value_heads": 4, "q_lora_rank": 16,
        "kv_lora_rank": 16, "qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 32,
    },
    "ernie4_5": {}, "exaone4": _WINDOW, "gemma": _TIED, "gemma2": _WINDOW | _TIED,
    "gemma3_text": _WINDOW | _TIED,
    "gemma4_text": {**_WINDOW, **_TIED, "vocab_size_per_layer_input": VOCABULARY},
    "glm": {}, "glm4": {}, "glm4_moe": _ROUTED, "gpt_neox": {},
    "gpt_oss": {**_EXPERTS, **_WINDOW},
    "granite": {"logits_scaling": 4.0, "embedding_multiplier": 3.0, "attention_multiplier": 0.2},
    "granitemoe": {"logits_scaling": 4.0, **_EXPERTS}, "helium": {}, "hunyuan_v1_dense": {},
    "llama": {}, "ministral": _WINDOW, "mistral": _WINDOW, "mixtral": _EXPERTS, "nemotron": {},
    "olmo": {}, "olmo2": {}, "olmo3": _WINDOW, "olmoe": _EXPERTS, "phi": {}, "phi3": {},
    "qwen2": {}, "qwen3": {}, "qwen3_moe": _EXPERTS, "seed_oss": {}, "smollm3": {}, "stablelm": {},
    "starcoder2": _WINDOW,
    # With layers that keep a state.
    "bamba": {
        "attn_layer_indices": [1, 3], "mamba_n_heads": 8, "mamba_d_head": 32, "mamba_d_state": 8,
        "mamba_n_groups": 1, "mamba_expand": 2,
    },
    "falcon_h1": {
        "mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_n_groups": 1,
        "mamba_d_state": 8, "mamba_expand": 1, "lm_head_multiplier": 0.5,
    },
    "jamba": {
        "num_experts": 2, "num_experts_per_tok": 1, "attn_layer_period": 2, "attn_layer_offset": 1,
        "mamba_d_state": 8, "use_mamba_kernels": False,
    },
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2, "block_ff_dim": 48},
    "minimax": {
        **_EXPERTS, "layer_types": ["linear_attention", "full_attention"] * 2, "block_size": 8,
    },
    "qwen3_5_text": _LINEAR,
    "qwen3_next": {**_EXPERTS, **_LINEAR, "shared_expert_intermediate_size": 32},
}  # fmt: skip


def save_family(name: str, folder: Path, **changes: Any) -> Path:
    """A model of that family, saved as transformers saves it."""
    torch.manual_seed(0)
    own = _BASE | FAMILIES[name] | changes
    shape = AutoConfig.for_model(name, **{key: x for key, x in own.items() if x is not None})
    model = AutoModelForCausalLM.from_config(shape, dtype=torch.float32)
    model.save_pretrained(folder)
    return folder
