"""`box`: how far the boxes that a response names overlap those of the image.

The score is the mean intersection over union of the best matching (Hungarian method), over the
larger number of boxes (Seed1.5-VL, arXiv 2505.07062). An inverted box, one beyond the grid, NaN and
what is not whole count as a box without overlap; more than a thousand boxes score 0.
"""

from pydantic import Field

from headrace.config.sections.base import StrictModel
from headrace.data.coordinates import Grounding, mean_iou, response_groups, true_boxes
from headrace.protocol.messages.control import ScoreItem
from rewards.answers.row import columns
from rewards.functions.results import Verdict
from rewards.verifier import Verifier


class Options(Grounding, StrictModel):
    """Place of the boxes, and the overlap that is right."""

    correct_from: float = Field(default=0.5, gt=0, le=1)
    """A score from here on is a right answer."""


def build(options: Options) -> Verifier:
    """The verifier. Parts: `iou`, and `boxes`, how many the response names."""

    def judge(item: ScoreItem) -> Verdict:
        wanted = true_boxes(item.answer, columns(item), options)
        found = response_groups(item.text, options, 4)
        score = mean_iou(found, wanted)
        right = score >= options.correct_from
        parts = {"correct": float(right), "iou": score, "boxes": float(len(found))}
        return Verdict(score, right, parts)

    return Verifier(judge, options.needs())
