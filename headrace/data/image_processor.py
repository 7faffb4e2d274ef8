"""Tokens of images in a prompt, by the model's own processor.

In: a model's folder or hub name, images, token ids with one placeholder for each image. Out: the
ids with every placeholder replaced, and where each image stands in them. Promises: an image gives
the same tokens wherever it stands, so that the generator, which sends one placeholder per image,
can be checked against them; an image's tokens are computed once.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from headrace.data.media import MediaError
from headrace.data.tokenizer import json_object
from headrace.errors import UserError
from headrace.protocol.token_spans import Int32, MediaRun

IMAGE_FAMILIES = ("idefics3", "qwen2_5_vl", "qwen3_vl", "smolvlm")
"""Families whose images were checked to be computed as by their own code."""


def sees_images(path: str | Path) -> bool:
    """Return whether the folder of a model says that its family reads images here."""
    shape = json_object(Path(path) / "config.json")
    return "vision_config" in shape and shape.get("model_type") in IMAGE_FAMILIES


def placeholder_ids(config: Any) -> list[int]:
    """Return the tokens that stand for images and videos, which no policy should sample."""
    names = ("image_token_id", "video_token_id") if hasattr(config, "vision_config") else ()
    ids = (getattr(config, name, None) for name in names)
    return [int(token) for token in ids if token is not None]


def collapse_placeholders(
    token_ids: Sequence[int], media: Sequence[MediaRun], placeholders: Sequence[int]
) -> list[int]:
    """The ids with one of the `placeholders` for each image, as they were before the processor."""
    ids, at = list[int](), 0
    for run in media:
        inside = token_ids[run.start : run.end]
        ids += [*token_ids[at : run.start], next(one for one in inside if one in placeholders)]
        at = run.end
    return [*ids, *token_ids[at:]]


def grid_of(prepared: Mapping[str, Any]) -> tuple[int, int, int]:
    """The grid of one image, as `MediaRun` has it, of what its processor prepared."""
    if "image_grid_thw" in prepared:
        frames, height, width = prepared["image_grid_thw"][0]
    else:
        frames, _, height, width = prepared["pixel_values"].shape[-4:]
    return int(frames), int(height), int(width)


MOST_KNOWN = 4096  # images whose tokens are kept; the oldest goes first


class ImageProcessor:
    """The processor of a model that reads images."""

    def __init__(self, path: str, *, trust_remote_code: bool = False) -> None:
        """UserError where the model has no processor or its packages are not there."""
        import transformers

        try:
            self._processor: Any = transformers.AutoProcessor.from_pretrained(
                path, trust_remote_code=trust_remote_code
            )
        except (OSError, ValueError, ImportError, RuntimeError) as error:
            reason = str(error).strip().partition("\n")[0]
            raise UserError(f"{path}: its image processor does not load: {reason}") from error
        if not hasattr(self._processor, "image_token"):
            raise UserError(f"{path} has no processor of images, so prompts are text alone")
        self._token = int(
            self._processor.tokenizer.convert_tokens_to_ids(self._processor.image_token)
        )
        self._known: dict[str, tuple[list[int], tuple[int, int, int]]] = {}
        settings = hashlib.sha256(self._processor.to_json_string().encode()).hexdigest()
        name = type(self._processor).__name__
        self.version = f"{name} of transformers {transformers.__version__}, {settings[:12]}"
        """Its code, and a digest of its settings."""

    def expand(
        self, token_ids: Sequence[int], digests: Sequence[str], read: Callable[[str], Any]
    ) -> tuple[Int32, list[MediaRun]]:
        """Ids with the tokens of each image in the place of its placeholder, and where they stand.

        Args:
            token_ids: with one placeholder for each of `digests`, in order. read: the RGB image of
            a digest.

        UserError where there are more or fewer placeholders than images.
        """
        places = [at for at, token in enumerate(token_ids) if token == self._token]
        if len(places) != len(digests):
            raise UserError(f"{len(digests)} images, but {len(places)} placeholders in the prompt")
        ids, media, at = list[int](), list[MediaRun](), 0
        for place, digest in zip(places, digests, strict=True):
            ids += token_ids[at:place]
            own, grid = self._tokens(digest, read)
            media.append(MediaRun(digest, len(ids), len(ids) + len(own), grid))
            ids += own
            at = place + 1
        return np.array([*ids, *token_ids[at:]], np.int32), media

    def _tokens(
        self, digest: str, read: Callable[[str], Any]
    ) -> tuple[list[int], tuple[int, int, int]]:
        if digest not in self._known:
            try:
                found = self._processor(
                    text=[self._processor.image_token], images=[[read(digest)]],
                    add_special_tokens=False,
                )  # fmt: skip
            except ValueError as error:
                reason = " ".join(str(error).split())
                raise MediaError(f"the model's processor takes no such image: {reason}") from error
            if len(self._known) >= MOST_KNOWN:
                del self._known[next(iter(self._known))]
            self._known[digest] = [int(token) for token in found["input_ids"][0]], grid_of(found)
        return self._known[digest]
