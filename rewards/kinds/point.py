"""`point`: is the point that a response names in a box of the image?

The response is to name one point, `x, y`, on the grid. None, several, or one beyond the grid is
wrong; the edges of a box are part of it.
"""

from headrace.config.sections.base import StrictModel
from headrace.data.coordinates import Grounding, response_groups, true_boxes
from headrace.protocol.messages.control import ScoreItem
from rewards.answers.row import columns, right_or_wrong
from rewards.functions.results import Verdict
from rewards.verifier import Verifier


class Options(Grounding, StrictModel):
    """Place of the point and of the boxes."""


def build(options: Options) -> Verifier:
    """The verifier. The part `points` says how many the response names."""

    def judge(item: ScoreItem) -> Verdict:
        wanted = true_boxes(item.answer, columns(item), options)
        found = response_groups(item.text, options, 2)
        right = len(found) == 1 and any(
            x1 <= found[0][0] <= x2 and y1 <= found[0][1] <= y2 for x1, y1, x2, y2 in wanted
        )
        return right_or_wrong(right, points=float(len(found)))

    return Verifier(judge, options.needs())
