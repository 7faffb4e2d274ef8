"""Tiny vision-language folders load as they are; images are tokens of their prompts."""

import time
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForImageTextToText, AutoProcessor

from tests.learner.models.pictures import lacks

pytestmark = pytest.mark.skipif(bool(lacks()), reason=lacks())


@pytest.mark.parametrize("family", ["qwen3_vl", "qwen2_5_vl", "idefics3"])
def test_a_folder_loads_and_an_image_is_tokens(family: str, tmp_path: Path) -> None:
    from PIL import Image

    from tasks.make_models.image_model import make

    start = time.monotonic()
    made = make(tmp_path, family=family, characters="0123 count?", max_length=256)
    assert time.monotonic() - start < 20
    assert 1e6 < made.num_parameters() < 3e6
    model = AutoModelForImageTextToText.from_pretrained(tmp_path)
    assert all(torch.equal(made.state_dict()[n], x) for n, x in model.state_dict().items())
    processor = AutoProcessor.from_pretrained(tmp_path)
    chat = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "count?"}]}]
    text = processor.apply_chat_template(chat, add_generation_prompt=True)
    counts = []
    for side in (28, 56):
        picture = Image.new("RGB", (side, side), (9, 200, 7))
        inputs = processor(text=[text], images=[[picture]], return_tensors="pt")
        counts.append(int((inputs["input_ids"] == model.config.image_token_id).sum()))
        assert model(**inputs).logits.isfinite().all()
    assert counts == ([4, 4] if family == "idefics3" else [1, 4])
    assert processor.tokenizer.decode(processor.tokenizer("0 3?")["input_ids"]) == "0 3?"
    assert model.generation_config.eos_token_id == processor.tokenizer.eos_token_id
