"""A prompt's images, with the boxes or points that an answer names drawn over them.

In: files, an answer, and the source that scored it. Out: HTML, everything in it escaped. Answer and
row are read by what the reward reads them by. Boxes are drawn where a prompt has one image, because
nothing says to which of several they belong; the answer's lines are whole and the right ones
dashed, so that colour alone does not distinguish them.
"""

import json
import math
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

from dashboard.formatting import number
from dashboard.reads.images import picture
from headrace.config.sections.reward import SourceConfig
from headrace.data.coordinates import Grounding, response_groups, true_boxes
from headrace.data.media import MediaError
from storage.queries import TrajectoryDetail

DRAWN = 100
"""Maximum number of boxes drawn per answer."""
NUMBERS = {"box": 4, "point": 2}
"""How many make a place, by the kind of reward."""
_WIDE = 280
"""Pixels that a smaller image is drawn on."""
Places = Sequence[Sequence[float]]


class Marks(NamedTuple):
    """Shapes drawn on an image, with coordinates from 0 to `largest`."""

    given: Places
    wanted: Places
    largest: float


def marks_of(detail: TrajectoryDetail, source: SourceConfig | None) -> Marks | None:
    """Return the shapes that an answer names, and the right ones.

    None where its reward is about no places, or the row has none."""
    if (
        source is None
        or source.kind not in NUMBERS
        or detail.text is None
        or detail.row["inserted"]
    ):
        return None
    told = {"answer_marker": source.answer_marker} if source.answer_marker else {}
    try:
        options = Grounding.model_validate({**source.options, **told})
        columns = json.loads(detail.row["info"])
        wanted = true_boxes(detail.row["answer"], columns, options)
    except ValueError:
        return None
    return Marks(
        response_groups(detail.text, options, NUMBERS[source.kind]), wanted, options.largest
    )


def images_html(files: Sequence[Path], marks: Marks | None) -> str:
    """All images of a prompt side by side; in the place of one that cannot be read why."""
    marks = marks if len(files) == 1 else None
    shown = "".join(_figure(file, place, marks) for place, file in enumerate(files, 1))
    return f'<div class="hr-images">{shown}</div>'


def _figure(file: Path, place: int, marks: Marks | None) -> str:
    try:
        found = picture(file)
    except MediaError as error:
        return f'<div class="hr-empty">Image {place}: {escape(str(error))}</div>'
    scale = max(1, math.ceil(_WIDE / max(found.width, found.height)))
    alt, drawn, legend = f"Image {place}", "", ""
    if marks:
        given, wanted = _named("answer", marks.given), _named("right", marks.wanted)
        alt, drawn = f"{alt} of the prompt. {given}; {wanted}", _drawn(marks)
        legend = (
            f'<figcaption><span><i class="given"></i>{given}</span> '
            f'<span><i class="wanted"></i>{wanted}</span></figcaption>'
        )
    return (
        f'<figure><div class="hr-image" style="width:{found.width * scale}px">'
        f'<img src="{found.url}" alt="{escape(alt)}">{drawn}</div>{legend}</figure>'
    )


def _drawn(marks: Marks) -> str:
    every = [("wanted", place) for place in marks.wanted[:DRAWN]]
    every += [("given", place) for place in marks.given[:DRAWN] if _is_drawn(place)]
    return "".join(
        f'<i class="{name}" style="{_style(p, marks.largest)}"></i>' for name, p in every
    )


def _is_drawn(place: Sequence[float]) -> bool:
    if not all(map(math.isfinite, place)):
        return False
    return len(place) == 2 or (place[0] < place[2] and place[1] < place[3])


def _style(place: Sequence[float], largest: float) -> str:
    x, y, *end = (100 * part / largest for part in place)
    at = f"left:{x:.3f}%;top:{y:.3f}%"
    if not end:
        return f"{at};width:0;height:0"
    return f"{at};width:{end[0] - x:.3f}%;height:{end[1] - y:.3f}%"


def _named(what: str, places: Places) -> str:
    """The numbers of places, the first few of them."""
    few = "; ".join(",".join(map(number, place)) for place in places[:4])
    more = f" and {len(places) - 4} more" if len(places) > 4 else ""
    odd = sum(not _is_drawn(place) for place in places)
    none = f" ({odd} of them cannot be drawn)" if odd else ""
    return f"{what}: {few or 'none'}{more}{none}"
