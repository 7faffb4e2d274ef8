"""Token ids of texts, as a policy's trajectories have them.

In: a prompt (a text or chat messages, whose images are named by their digests) and a response. Out:
ids of both, the response's with the end token, where images stand in them, and the tokens at which
its lines end. Promise: a prompt has the ids that a run gives it with the same `chat_template`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from headrace.data.image_processor import ImageProcessor
from headrace.data.media import open_rgb
from headrace.data.tokenizer import chat_text, text_ids
from headrace.errors import UserError
from headrace.protocol.token_spans import MediaRun
from rewards.models.card import ChatMode
from tasks.rows import chat_of, images_in, other_than_text, text_of

Prompt = str | list[dict[str, Any]]
Tools = Sequence[Mapping[str, Any]]


class EncodedResponse(NamedTuple):
    """Token ids of a prompt and of a response to it, and the images in the prompt."""

    prompt: list[int]
    response: list[int]
    media: tuple[MediaRun, ...] = ()

    @property
    def ids(self) -> list[int]:
        """Both, one after the other."""
        return [*self.prompt, *self.response]


class PromptImages:
    """Images of prompts as a model's own processor puts them into token ids."""

    def __init__(self, folder: str, read: Callable[[str], bytes]) -> None:
        """`read`: an image's file by its digest. UserError where the model has no processor."""
        self._processor, self.read = ImageProcessor(folder), read

    def expand(self, ids: Sequence[int], prompt: Prompt) -> tuple[list[int], tuple[MediaRun, ...]]:
        """Return ids with all tokens of each image, and where they stand.

        UserError where an image cannot be had, or has no placeholder."""
        found, media = self._processor.expand(
            ids, images_in(prompt), lambda digest: open_rgb(self.read(digest))
        )
        return found.tolist(), tuple(media)


def plain_text(prompt: Prompt) -> str:
    """Return a prompt's text: the only message of a chat, or each behind its role."""
    if isinstance(prompt, str):
        return prompt
    if len(prompt) == 1:
        return text_of(prompt[0]["content"])
    return "\n".join(f"{message['role']}: {text_of(message['content'])}" for message in prompt)


def rendered_prompt(
    tokenizer: Any, prompt: Prompt, mode: ChatMode, *, images: bool = False, tools: Tools = ()
) -> str:
    """Return a prompt's text as the policy sees it.

    UserError for chat messages with the template switched off, and for other than text and
    `images`."""
    if not images:
        check_text(prompt)
    if isinstance(prompt, str) and mode != "always":
        return prompt
    if mode == "never":
        raise UserError("a prompt has chat messages, but model.chat_template is 'never'")
    return chat_text(tokenizer, chat_of(prompt), begins_answer=True, tools=tools)


def prompt_ids(
    tokenizer: Any, prompt: Prompt, mode: ChatMode, *, images: bool = False, tools: Tools = ()
) -> list[int]:
    """Return the ids of a prompt; UserError as of `rendered_prompt`."""
    text = rendered_prompt(tokenizer, prompt, mode, images=images, tools=tools)
    if isinstance(prompt, str) and mode != "always":
        return text_ids(tokenizer, text)
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def check_text(prompt: Prompt) -> None:
    """Raise UserError for a prompt with more than text in it."""
    if (other := other_than_text(prompt)) is not None:
        raise UserError(
            f"a prompt has parts of type {other!r}, and text alone is read here: take such rows out"
        )


def encode(
    tokenizer: Any, prompt: Prompt, response: str, mode: ChatMode, *, ended: bool = True,
    images: PromptImages | None = None, tools: Tools = (), turn_end: int | None = None,
) -> EncodedResponse:  # fmt: skip
    """Encode a prompt and a response; `ended`: with the end token, of a chat `turn_end` if given.

    `images`: None for a model of text, which has a UserError for a prompt with images."""
    ids = list(tokenizer(response, add_special_tokens=False)["input_ids"])
    is_chat = mode == "always" or not isinstance(prompt, str)
    end = turn_end if is_chat and turn_end is not None else tokenizer.eos_token_id
    if ended and end is not None:
        ids.append(int(end))
    opening = prompt_ids(tokenizer, prompt, mode, images=images is not None, tools=tools)
    if images is None:
        return EncodedResponse(opening, ids)
    expanded, media = images.expand(opening, prompt)
    return EncodedResponse(expanded, ids, media)


def split_lines(text: str, separator: str) -> list[str]:
    """Split a text into lines, each with its separator; the last may lack it."""
    pieces = text.split(separator)
    lines = [piece + separator for piece in pieces[:-1]]
    return [*lines, pieces[-1]] if pieces[-1] else lines


def line_ends(tokenizer: Any, lines: Sequence[str]) -> tuple[list[int], list[int]]:
    """Return the lines' ids, and for each line the index of the token with its end.

    Several lines may end in one token. UserError for a tokenizer that has no offsets."""
    if not tokenizer.is_fast:
        raise UserError(
            "line ends need a fast tokenizer (a tokenizer.json in the model's folder), which says "
            "where its tokens are in the text"
        )
    found = tokenizer("".join(lines), add_special_tokens=False, return_offsets_mapping=True)
    stops = [stop for _, stop in found["offset_mapping"]]
    ends: list[int] = []
    token = length = 0
    for line in lines:
        length += len(line)
        while token < len(stops) - 1 and stops[token] < length:
            token += 1
        ends.append(token)
    return list(found["input_ids"]), ends
