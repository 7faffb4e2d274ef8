"""Make a random-weight model of a real model's shape: `python -m tasks.make_models.shape_model
--out DIR`.

In: the name of a shape and a text file. Out: a Hugging Face folder with a bf16 Llama of that shape
and a byte-level BPE tokenizer trained on the text, padded to the shape's vocabulary. Nothing is
downloaded. Such a model knows nothing; it exists to measure throughput at a real size.
"""

from __future__ import annotations

import argparse
import gzip
from collections.abc import Iterator
from pathlib import Path

import torch
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils.logging import disable_progress_bar

PAD, BOS, EOS = "<pad>", "<bos>", "<eos>"

SHAPES: dict[str, dict[str, int]] = {
    "smollm2-135m": {
        "vocab_size": 49152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
        "max_position_embeddings": 8192,
    },
    "tiny": {
        "vocab_size": 512,
        "hidden_size": 128,
        "intermediate_size": 384,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 64,
        "max_position_embeddings": 1024,
    },
}


def read_lines(path: Path) -> Iterator[str]:
    """The lines of a text file, plain or gzipped."""
    if path.suffix == ".gz":
        with gzip.open(path, "rt", encoding="utf-8") as stream:
            yield from stream
    else:
        with path.open(encoding="utf-8") as stream:
            yield from stream


def train_tokenizer(
    lines: Iterator[str], *, vocab_size: int, max_length: int
) -> PreTrainedTokenizerFast:
    """A byte-level BPE with exactly `vocab_size` entries; any text round-trips through it.

    A short text yields fewer merges than that: the rest are reserved entries that no text encodes
    to, so that every id a random model samples can be decoded.
    """
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[PAD, BOS, EOS],
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=True,
    )
    tokenizer.train_from_iterator(lines, trainer)
    missing = vocab_size - tokenizer.get_vocab_size()
    tokenizer.add_special_tokens([f"<reserved_{i}>" for i in range(missing)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
    )


def build_model(shape: dict[str, int], *, seed: int) -> LlamaForCausalLM:
    """A bf16 Llama of `shape` with random weights and tied embeddings."""
    torch.manual_seed(seed)
    # The special tokens are the first entries that train_tokenizer makes.
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    config = LlamaConfig(
        **shape,
        **special,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    model.generation_config = GenerationConfig(**special, do_sample=True, temperature=1.0)
    return model


def main(arguments: list[str] | None = None) -> None:
    """Train the tokenizer, make the weights, write the folder."""
    parser = argparse.ArgumentParser(description="Make a random-weight model of a real shape.")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--like", choices=sorted(SHAPES), default="smollm2-135m")
    parser.add_argument(
        "--text", type=Path, required=True, help="text (or .gz) the tokenizer learns from"
    )
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    disable_progress_bar()
    if not options.text.is_file():
        parser.error(f"--text {options.text} does not exist")

    shape = SHAPES[options.like]
    tokenizer = train_tokenizer(
        read_lines(options.text),
        vocab_size=shape["vocab_size"],
        max_length=shape["max_position_embeddings"],
    )
    model = build_model(shape, seed=options.seed)
    model.save_pretrained(options.out)
    tokenizer.save_pretrained(options.out)
    print(f"{options.like}: {model.num_parameters():,} random parameters -> {options.out}")


if __name__ == "__main__":
    main()
