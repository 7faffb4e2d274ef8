"""A tiny random Llama as a Hugging Face folder, and weights of the same shape."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

VOCAB_SIZE = 64
END_TOKEN = 2


def make_model(seed: int) -> LlamaForCausalLM:
    """Hidden 64, 2 layers, wide initialisation so that distributions differ between seeds; its
    output head is tied to the embedding, which a weight load must not forget."""
    torch.manual_seed(seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCAB_SIZE,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            head_dim=32,
            max_position_embeddings=512,
            initializer_range=0.2,
            tie_word_embeddings=True,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=END_TOKEN,
        )
    ).eval()


def save_weights(model: LlamaForCausalLM, path: Path) -> Path:
    """The model's weights as one safetensors file, as the learner publishes them."""
    weights = {k: v.contiguous() for k, v in model.state_dict().items() if k != "lm_head.weight"}
    save_file(weights, str(path))
    return path


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The policy as a Hugging Face folder."""
    folder = tmp_path_factory.mktemp("policy")
    make_model(0).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def weight_files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Weights of versions 0 (the policy's own) and 1 (others of the same shape)."""
    folder = tmp_path_factory.mktemp("weights")
    return [save_weights(make_model(seed), folder / f"v{seed}.safetensors") for seed in (0, 1)]
