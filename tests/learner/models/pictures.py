"""Tiny vision-language models, pictures, and answers to prompts with them."""

import hashlib
import importlib
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headrace.protocol.token_spans import MediaRun
from learner.batching.token_reads import TokenReads

CPU = torch.device("cpu")
SIDES = (56, 28, 56)
"""Pixels a side of the pictures of `store`."""


def lacks() -> str:
    """Why there are no image processors here; empty where there are."""
    try:
        importlib.import_module("torchvision")
    except (ImportError, RuntimeError) as error:
        return f"torchvision cannot be imported: {error}"
    return ""


def store(seed: int = 0) -> dict[str, bytes]:
    """Picture files by digest."""
    from PIL import Image

    rng, files = np.random.default_rng(seed), {}
    for side in SIDES:
        file = BytesIO()
        Image.fromarray(rng.integers(0, 256, (side, side, 3), np.uint8)).save(file, "PNG")
        files[hashlib.sha256(file.getvalue()).hexdigest()] = file.getvalue()
    return files


def folder_of(family: str, folder: Path, **settings: Any) -> Path:
    from tasks.make_models.image_model import make

    make(folder, family=family, **settings)
    return folder


class Asked:
    """Prompts with several pictures each, and answers of the policy to them."""

    def __init__(self, folder: Path, *, seed: int = 0, answers: int = 1) -> None:
        """`answers` of each prompt."""
        from PIL import Image
        from transformers import AutoProcessor

        self.processor, self.files = AutoProcessor.from_pretrained(folder), store()
        rng, digests = np.random.default_rng(seed), list(self.files)
        image_token = self.processor.tokenizer.convert_tokens_to_ids(self.processor.image_token)
        self.inputs: list[dict[str, Tensor]] = []
        ids, media, openings, text = [], [], [], "how many?"
        for shown in ([0], [1, 2], [], [2, 0, 2]):
            parts = [{"type": "image"} for _ in shown]
            chat = [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}]
            template = self.processor.apply_chat_template(chat, add_generation_prompt=True)
            pictures = [Image.open(BytesIO(self.files[digests[i]])) for i in shown]
            given = {"images": [pictures]} if shown else {}
            made = dict(self.processor(text=[template], return_tensors="pt", **given))
            made.pop("attention_mask", None)
            opening = made["input_ids"][0].numpy()
            for _ in range(answers):
                answer = rng.integers(4, 40, rng.integers(3, 12))
                whole = np.append(opening, answer).astype(np.int32)
                openings.append(opening.size)
                ids.append(whole)
                media.append(tuple(self._runs(opening == image_token, [digests[i] for i in shown])))
                self.inputs.append(made | {"input_ids": torch.from_numpy(whole[None]).long()})
        lengths = [x.size - n for x, n in zip(ids, openings, strict=True)]
        self.reads = TokenReads(
            trajectories=list(range(len(ids))),
            token_ids=ids,
            sequence_of=np.repeat(np.arange(len(ids)), lengths),
            position_of=np.concatenate(
                [np.arange(n, x.size) for x, n in zip(ids, openings, strict=True)]
            ),
            targets=np.concatenate([x[n:] for x, n in zip(ids, openings, strict=True)]).astype(
                np.int64
            ),
            openings=openings,
            media=media,
        )

    @staticmethod
    def _runs(is_image: np.ndarray[Any, Any], digests: list[str]) -> list[MediaRun]:
        edges = np.flatnonzero(np.diff(np.concatenate([[0], is_image.astype(np.int8), [0]])))
        starts, ends = edges[::2].tolist(), edges[1::2].tolist()
        return [MediaRun(d, s, e) for d, s, e in zip(digests, starts, ends, strict=True)]

    def alone(self, model: Any) -> list[Tensor]:
        """[n, outputs] logits of each sequence's reads by the family's own code."""
        found = []
        for inputs, opening in zip(self.inputs, self.reads.openings, strict=True):
            given = dict(inputs)
            if "mm_token_type_ids" in given:
                more = given["input_ids"].shape[1] - opening
                kinds = given["mm_token_type_ids"]
                given["mm_token_type_ids"] = torch.nn.functional.pad(kinds, (0, more))
            found.append(model(**given, use_cache=False).logits[0, opening - 1 : -1])
        return found
