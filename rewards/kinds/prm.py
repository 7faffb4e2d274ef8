"""The kind `prm`: the lines of an answer, scored by a line reward model (arXiv 2410.17621).

In: an answer that may go on, as token ids, and the tokens at which the lines to score end. Out: a
score for each of them, near 1 where the answer can still come out right and near -1 where it
cannot; None for neutral lines (see `rewards.answers.line_ends`). It takes one forward pass per
answer. The model is one that `headrace reward train` made with `kind = "lines"`.
"""

from pydantic import Field

from headrace.config.sections.base import StrictModel
from headrace.data.tokenizer import decoded
from headrace.protocol.messages.control import ScoreItem
from rewards.answers.line_ends import COMMENTS, neutral_ends, split_lines
from rewards.functions.results import Verdict
from rewards.kinds import model_folder
from rewards.verifier import Verifier

UNITS = ("line",)


class Options(StrictModel):
    """The model, and the lines that are neutral for it."""

    model: str | None = None
    """Folder of the line model, relative to recipe or working directory; required."""

    fenced: bool = False
    """Lines outside of the fenced block are neutral, even if it is not written yet."""

    comments: tuple[str, ...] = COMMENTS
    """Beginnings of a comment."""

    threads: int = Field(default=1, ge=1)
    """Torch threads of a scoring child."""


def build(options: Options) -> Verifier:
    """The verifier, with its model loaded; UserError where that is no line reward model."""
    folder = model_folder(options.model, "prm", "line reward model")
    # Torch takes seconds to load, and no other kind needs it.
    import torch

    from rewards.models.scorer import LineScorer

    torch.set_num_threads(options.threads)
    scorer = LineScorer(folder)

    def judge(item: ScoreItem) -> Verdict:
        if item.prompt_ids is None or item.completion_ids is None:
            raise ValueError("a line reward model reads token ids, and none came with the answer")
        ids = item.completion_ids.tolist()
        texts = [decoded(scorer.tokenizer, [token]) for token in ids]
        lines = split_lines(texts, comments=options.comments, fenced=options.fenced)
        neutral = neutral_ends(lines, item.line_ends)
        ends = [end for end, passive in zip(item.line_ends, neutral, strict=True) if not passive]
        scores = iter(scorer.lines(item.prompt_ids.tolist(), ids, ends))
        return Verdict(lines=tuple(None if passive else next(scores) for passive in neutral))

    return Verifier(judge)
