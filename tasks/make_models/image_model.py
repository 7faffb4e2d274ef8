"""Make a tiny random vision-language model.

Usage: `python -m tasks.make_models.image_model --out DIR`. In: the name of a family, the characters
of the task, a seed. Out: a Hugging Face folder with 1.5 to 2.5 million random weights, a
character-level tokenizer, a chat template and the family's processor, for images of a few ten
pixels a side: 28 x 28 pixels are one token of a sequence, 56 x 56 are four (Idefics3 makes every
image 56 x 56). Nothing is downloaded. Same seed, same weights.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken
from transformers import (
    GenerationConfig,
    Idefics3Config,
    Idefics3ForConditionalGeneration,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
)

from tasks.procedural.character_tokenizer import build_tokenizer

CHARACTERS = "0123456789abcdefghijklmnopqrstuvwxyz ,.?:\n"
PATCH, MERGE = 14, 2
"""Pixels of a patch's side, and patches of an image token's side."""
SIDE = PATCH * MERGE
MAX_IMAGE_TOKENS = 64
"""Of one image; a larger image is made smaller."""
WIDTH, LAYERS, HEAD = 128, 4, 32
MAX_LENGTH = 1024

_CHAT = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.content is string %}{{ m.content }}{% else %}{% for c in m.content %}"
    "{% if c.type == 'image' %}IMAGE{% else %}{{ c.text }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_QWEN_TOKENS = {
    "vision_start_token_id": "<|vision_start|>", "vision_end_token_id": "<|vision_end|>",
    "image_token_id": "<|image_pad|>", "video_token_id": "<|video_pad|>",
}  # fmt: skip
_IDEFICS_TOKENS = ("<fake_token_around_image>", "<image>", "<end_of_utterance>", "<global-img>")
ModelAndProcessor = tuple[PreTrainedModel, Any]
"""A model and its processor."""


def _tokenizer(characters: str, special: list[str], max_length: int) -> PreTrainedTokenizerFast:
    """One token per character, and the family's special ones."""
    tokenizer = build_tokenizer(characters, max_length)
    added = ["<|im_start|>", "<|im_end|>", *special]
    tokenizer.add_special_tokens(
        {"extra_special_tokens": [AddedToken(token, special=True) for token in added]}
    )
    return tokenizer


def _text_shape(tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    return {
        "vocab_size": len(tokenizer), "hidden_size": WIDTH, "intermediate_size": 3 * WIDTH,
        "num_hidden_layers": LAYERS, "num_attention_heads": WIDTH // HEAD,
        "num_key_value_heads": WIDTH // HEAD // 2, "head_dim": HEAD,
        "max_position_embeddings": tokenizer.model_max_length, "tie_word_embeddings": False,
        "pad_token_id": tokenizer.pad_token_id, "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
    }  # fmt: skip


def _rope(sections: list[int], **more: Any) -> dict[str, Any]:
    """Pairs of a head for time, height and width: half of its dimensions together."""
    return {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": sections, **more}


def _qwen(
    characters: str, max_length: int, config: Any, model: Any, video_processor: Any, processor: Any,
    rope: dict[str, Any], vision: dict[str, Any],
) -> ModelAndProcessor:  # fmt: skip
    from transformers.models.qwen2_vl import Qwen2VLImageProcessor

    tokenizer = _tokenizer(characters, list(_QWEN_TOKENS.values()), max_length)
    ids = {key: tokenizer.convert_tokens_to_ids(token) for key, token in _QWEN_TOKENS.items()}
    shape = config(
        text_config=_text_shape(tokenizer) | {"rope_parameters": rope},
        vision_config={
            "depth": LAYERS, "hidden_size": WIDTH, "intermediate_size": 2 * WIDTH,
            "num_heads": WIDTH // HEAD, "patch_size": PATCH, "spatial_merge_size": MERGE,
            "temporal_patch_size": 2, "out_hidden_size": WIDTH, **vision,
        },
        tie_word_embeddings=False,
        **ids,
    )  # fmt: skip
    parts = {"patch_size": PATCH, "temporal_patch_size": 2, "merge_size": MERGE}
    # These edges are areas in pixels; by default a small image is enlarged.
    size = {"shortest_edge": SIDE**2, "longest_edge": MAX_IMAGE_TOKENS * SIDE**2}
    reads = processor(
        image_processor=Qwen2VLImageProcessor(size=size, **parts),
        video_processor=video_processor(**parts),
        tokenizer=tokenizer,
        chat_template=_CHAT.replace("IMAGE", "<|vision_start|><|image_pad|><|vision_end|>"),
    )
    return model(shape), reads


def qwen3_vl(characters: str, max_length: int) -> ModelAndProcessor:
    """Qwen3-VL: the decoder also adds features of two inner layers of the tower."""
    from transformers.models.qwen3_vl import Qwen3VLProcessor, Qwen3VLVideoProcessor

    return _qwen(
        characters, max_length, Qwen3VLConfig, Qwen3VLForConditionalGeneration,
        Qwen3VLVideoProcessor, Qwen3VLProcessor, _rope([6, 5, 5], mrope_interleaved=True),
        {"num_position_embeddings": 64, "deepstack_visual_indexes": [1, 2]},
    )  # fmt: skip


def qwen2_5_vl(characters: str, max_length: int) -> ModelAndProcessor:
    """Qwen2.5-VL: most layers of the tower see windows of 4 x 4 patches."""
    from transformers.models.qwen2_5_vl import Qwen2_5_VLProcessor
    from transformers.models.qwen2_vl.video_processing_qwen2_vl import Qwen2VLVideoProcessor

    return _qwen(
        characters, max_length, Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration,
        Qwen2VLVideoProcessor, Qwen2_5_VLProcessor, _rope([4, 6, 6]),
        {"window_size": 4 * PATCH, "fullatt_block_indexes": [1, 3]},
    )  # fmt: skip


def idefics3(characters: str, max_length: int) -> ModelAndProcessor:
    """Idefics3, such as SmolVLM: a Llama, positions in one row, four tokens per image."""
    from transformers import Idefics3ImageProcessor, Idefics3Processor

    tokenizer = _tokenizer(characters, list(_IDEFICS_TOKENS), max_length)
    edge = {"longest_edge": 2 * SIDE}
    shape = Idefics3Config(
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        scale_factor=MERGE,
        text_config=_text_shape(tokenizer) | {"model_type": "llama"},
        vision_config={
            "hidden_size": WIDTH, "intermediate_size": 2 * WIDTH, "num_hidden_layers": LAYERS,
            "num_attention_heads": WIDTH // HEAD, "image_size": 2 * SIDE, "patch_size": PATCH,
        },
        tie_word_embeddings=False,
    )  # fmt: skip
    reads = Idefics3Processor(
        image_processor=Idefics3ImageProcessor(
            do_image_splitting=False, size=edge, max_image_size=edge
        ),
        tokenizer=tokenizer,
        image_seq_len=4,
        chat_template=_CHAT.replace("IMAGE", "<image>"),
    )
    return Idefics3ForConditionalGeneration(shape), reads


FAMILIES: dict[str, Callable[[str, int], ModelAndProcessor]] = {
    "qwen3_vl": qwen3_vl, "qwen2_5_vl": qwen2_5_vl, "idefics3": idefics3,
}  # fmt: skip


def make(
    folder: Path,
    *,
    family: str = "qwen3_vl",
    characters: str = CHARACTERS,
    max_length: int = MAX_LENGTH,
    seed: int = 0,
) -> PreTrainedModel:
    """Write the folder, and give back its model in float32.

    Args:
        folder: to write. family: one of `FAMILIES`. characters: of prompts and answers; all others
        are unknown. max_length: tokens of a prompt and its answer together. seed: of the weights.
    """
    torch.manual_seed(seed)
    model, processor = FAMILIES[family](characters, max_length)
    shape = model.config.get_text_config()
    special = {key: getattr(shape, key) for key in ("pad_token_id", "bos_token_id", "eos_token_id")}
    model.generation_config = GenerationConfig(**special, do_sample=True, temperature=1.0)
    model.float().eval().save_pretrained(folder)
    processor.save_pretrained(folder)
    return model


def main(arguments: list[str] | None = None) -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="image_model", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--like", choices=sorted(FAMILIES), default="qwen3_vl")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    model = make(options.out, family=options.like, seed=options.seed)
    print(f"{options.like}: {model.num_parameters():,} random parameters -> {options.out}")


if __name__ == "__main__":
    main()
