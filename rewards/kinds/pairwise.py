"""The kind `pairwise`: the probability that an answer beats its prompt's anchor.

In: an answer as text, and the anchor of its prompt from a file of anchors or, of prompts with
images too, a column of its row. Out: r = (p(yes | the answer stands first) + p(no | it stands
second)) / 2, from 0 to 1 (Pairwise-RL, arXiv 2504.04950), by a model that `headrace reward train`
made with `kind = "pairwise"`. Above 1/2 the answer counts as correct. The judge reads texts, so its
tokenizer need not be the policy's. An empty answer scores 0, one without an anchor is `invalid`.
"""

import json
from collections.abc import Callable
from pathlib import Path

from pydantic import Field

from headrace.config.sections.base import StrictModel
from headrace.data.anchors import Anchor, read_anchors
from headrace.data.media import MediaStore
from headrace.errors import UserError
from headrace.protocol.messages.control import ScoreItem
from rewards.functions.arguments import InvalidRewardError
from rewards.functions.results import Verdict
from rewards.kinds import model_folder
from rewards.verifier import Verifier


class Options(StrictModel):
    """The judging model and its anchors."""

    model: str | None = None
    """Folder of the pairwise model, relative to recipe or working directory; required."""

    anchors: str | None = None
    """A file of anchors, as `headrace reward anchors` writes it."""

    column: str | None = Field(default=None, min_length=1)
    """The column of the dataset with the anchor, in the place of a file."""

    rule: str | None = None
    """Rule that makes an answer better. None: the one that the model was trained with."""

    threads: int = Field(default=1, ge=1)
    """Torch threads of a scoring child."""


def build(options: Options) -> Verifier:
    """The verifier, with its model and anchors loaded; UserError where they cannot be had."""
    folder = model_folder(options.model, "pairwise", "pairwise reward model")
    if (options.anchors is None) == (options.column is None):
        raise UserError(
            "kind 'pairwise' needs anchors: name either a file in options.anchors "
            "(`headrace reward anchors` makes one) or a column of the dataset in options.column"
        )
    anchor_of = _from_file(options.anchors) if options.anchors else _from_column(options.column)
    # Torch takes seconds to load, and most kinds do without.
    import torch

    from rewards.models.scorer import PairScorer

    torch.set_num_threads(options.threads)
    store = MediaStore(Path())
    scorer = PairScorer(folder, read_image=store.read)

    def judge(item: ScoreItem) -> Verdict:
        anchor, store.folder = anchor_of(item), Path(item.media)
        if not item.text.strip():
            return Verdict(parts={"correct": 0.0})  # As of `bradley_terry`.
        try:
            score = scorer.pair(anchor.prompt, item.text, anchor.text, rule=options.rule)
        except UserError as error:
            raise InvalidRewardError(str(error)) from error
        beats = score.r > 0.5
        parts = {"correct": float(beats), "front": score.p_front, "back": score.p_back}
        return Verdict(score.r, beats, parts)

    return Verifier(judge, needs=() if options.column is None else (options.column,))


def _from_file(name: str) -> Callable[[ScoreItem], Anchor]:
    anchors = read_anchors(Path(name).expanduser())

    def anchor_of(item: ScoreItem) -> Anchor:
        anchor = anchors.get(item.prompt)
        if anchor is None:
            raise InvalidRewardError(
                f"{name} has no anchor for the prompt {item.prompt[:60]!r}; "
                "`headrace reward anchors` makes more with --prompts"
            )
        return anchor

    return anchor_of


def _from_column(name: str | None) -> Callable[[ScoreItem], Anchor]:
    def anchor_of(item: ScoreItem) -> Anchor:
        text = json.loads(item.info).get(name)
        if not isinstance(text, str) or not text:
            raise InvalidRewardError(f"the row has no anchor: its column {name!r} is {text!r}")
        prompt = json.loads(item.messages) if item.messages else item.prompt
        return Anchor(prompt, text)

    return anchor_of
