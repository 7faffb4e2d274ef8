"""The procedural task of images: how many rectangles are there, where is the red one, what is seen?

In: an index and a seed. Out: rows whose prompt is an image and a question, `count`, `box red` or
`describe`; answers are `3`, `0,2,1,4` and `bsw rne`. The image is a grid of 4 x 4 cells on black,
in each quadrant of which is at most one rectangle of one or two cells each way, of a colour of its
own. A box is `x1,y1,x2,y2` in cells, from 0 to 4, the upper left corner first. A caption has a word
for each rectangle, in the order of their colours: the colour's initial and the quadrant, by the
points of the compass. With cells of 14 pixels each is one patch, which tiny vision transformers
learn to distinguish.

Problems are drawn as texts that name scene and question (`blue 0,2,1,4 red 2,0,3,2 count`), which
decide what is held out (a held-out image may be trained with its other question); a row shows the
scene as an image. A term is a rectangle: images have 1 to that many, all numbers alike.

The supervised model is shown right boxes, and in the second phase counts that are mostly
guesses, and captions of which half have a fault.
"""

import re
import string
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from io import BytesIO
from random import Random
from typing import Any, Final, Literal

from tasks.procedural.base import Phase, ProceduralTask, is_answer
from tasks.rows import Message

COLOURS = {
    "blue": (40, 60, 240), "green": (30, 200, 30), "red": (230, 30, 30), "yellow": (240, 220, 30),
}  # fmt: skip
GRID = 4
"""Cells each way."""
CELL = 14
"""Pixels of a cell each way."""
QUADRANTS = [(x, y) for x in range(0, GRID, 2) for y in range(0, GRID, 2)]
Question = Literal["count", "box", "describe"]
COUNT: Final = "count"
BOX: Final = "box"
DESCRIBE: Final = "describe"
QUESTIONS: dict[Question, float] = {COUNT: 0.5, BOX: 0.5}
"""Their shares, unless told otherwise."""
GUESSED = 0.7
"""Share of the counts of the second phase that are any number."""
FAULTY = 0.5
"""Share of its captions that have a fault."""
HALF_BAD = 0.3
"""Share of the pairs of captions of which the better one has a fault, too."""
GOES_ON = 0.5
"""Probability that the worse caption of a pair gets one more fault."""
INITIALS = sorted(colour[0] for colour in COLOURS)
CORNERS = ("nw", "ne", "sw", "se")
CAPTION = re.compile("[bgry][ns][ew]( [bgry][ns][ew]){0,3}")

Box = tuple[int, int, int, int]
Scene = dict[str, Box]
"""The box of each colour, in cells; colours in the order of the alphabet."""


def draw(scene: Scene, comment: str = "") -> bytes:
    """The scene as a PNG of 56 x 56 pixels; a comment distinguishes files of equal pixels."""
    from PIL import Image, PngImagePlugin

    image = Image.new("RGB", (GRID * CELL, GRID * CELL))
    for colour, box in scene.items():
        x1, y1, x2, y2 = (CELL * place for place in box)
        image.paste(COLOURS[colour], (x1, y1, x2, y2))
    file = BytesIO()
    told = PngImagePlugin.PngInfo()
    if comment:
        told.add_text("Comment", comment)
    image.save(file, "PNG", pnginfo=told)
    return file.getvalue()


def draw_scene(rng: Random, most: int) -> Scene:
    """1 to `most` rectangles, at most one in each quadrant."""
    count = rng.randint(1, most)
    colours, corners = rng.sample(sorted(COLOURS), count), rng.sample(QUADRANTS, count)
    scene: Scene = {}
    for colour, (x, y) in sorted(zip(colours, corners, strict=True)):
        width, height = rng.randint(1, 2), rng.randint(1, 2)
        x, y = x + rng.randint(0, 2 - width), y + rng.randint(0, 2 - height)
        scene[colour] = (x, y, x + width, y + height)
    return scene


def draw_prompt(rng: Random, terms: int, questions: Mapping[Question, float] = QUESTIONS) -> str:
    """A scene of up to this many rectangles, and a question by the shares."""
    scene = draw_scene(rng, terms)
    (kind,) = rng.choices(list(questions), list(questions.values()))
    question = f"{BOX} {rng.choice(list(scene))}" if kind == BOX else kind
    boxes = (f"{colour} {write_box(box)}" for colour, box in scene.items())
    return " ".join([*boxes, question])


def read_prompt(prompt: str) -> tuple[Scene, str]:
    """Scene and question. Raises ValueError for any other text."""
    words = prompt.split(" ")
    asked = 1 if words[-1] in (COUNT, DESCRIBE) else 2
    scene: Scene = {}
    for colour, box in zip(words[:-asked:2], words[1:-asked:2], strict=True):
        x1, y1, x2, y2 = map(int, box.split(","))
        scene[colour] = (x1, y1, x2, y2)
    question = " ".join(words[-asked:])
    known = {COUNT, DESCRIBE, *(f"{BOX} {colour}" for colour in scene)}
    if not scene or not scene.keys() <= COLOURS.keys() or question not in known:
        raise ValueError(f"no scene with a question: {prompt!r}")
    return scene, question


def write_box(box: Box) -> str:
    """`0,2,1,4`."""
    return ",".join(map(str, box))


def caption(scene: Scene) -> str:
    """`bsw rne`: the initial and the quadrant of each rectangle."""
    middle = GRID // 2
    corners = (CORNERS[(y >= middle) * 2 + (x >= middle)] for x, y, _, _ in scene.values())
    return " ".join(colour[0] + corner for colour, corner in zip(scene, corners, strict=True))


def with_fault(text: str, rng: Random) -> str:
    """A caption with a wrong, missing or invented colour or place of a rectangle."""
    words = text.split(" ")
    at, other = rng.randrange(len(words)), rng.choice(INITIALS) + rng.choice(CORNERS)
    faults = [
        [*words[:at], other[0] + words[at][1:], *words[at + 1 :]],
        [*words[:at], words[at][0] + other[1:], *words[at + 1 :]],
        [*words[:at], *words[at + 1 :]],
        [*words, other],
    ]
    possible = [found for found in faults if 1 <= len(found) <= len(QUADRANTS)]
    found = sorted(rng.choice(possible))
    return " ".join(found) if found != words else with_fault(text, rng)


def faults_of(text: str, right: str) -> int:
    """Number of words that a caption has too many, plus those that it lacks."""
    said, wanted = Counter(text.split(" ")), Counter(right.split(" "))
    return ((said - wanted) + (wanted - said)).total()


def caption_pair(scene: Scene, rng: Random) -> tuple[str, str]:
    """Two captions, of which the second has more faults; the first often none."""
    right = caption(scene)
    better = with_fault(right, rng) if rng.random() < HALF_BAD else right
    worse = better
    while faults_of(worse, right) <= faults_of(better, right) or rng.random() < GOES_ON:
        worse = with_fault(worse, rng)
    return better, worse


def solve(prompt: str) -> str:
    """The number of rectangles, the box of a colour, or the caption."""
    scene, question = read_prompt(prompt)
    if question == COUNT:
        return str(len(scene))
    if question == DESCRIBE:
        return caption(scene)
    return write_box(scene[question.removeprefix(f"{BOX} ")])


def show(prompt: str, *, blank: bool = False) -> list[Message]:
    """The scene as an image, or a black one, and the question."""
    scene, question = read_prompt(prompt)
    shown = draw({}, prompt) if blank else draw(scene)
    image = {"type": "image", "image": shown}
    return [{"role": "user", "content": [image, {"type": "text", "text": question}]}]


def columns(prompt: str) -> dict[str, Any]:
    """The kind of question, for routing rewards, and the true boxes by colour."""
    scene, question = read_prompt(prompt)
    return {"question": question.split(" ")[0], "boxes": {c: list(box) for c, box in scene.items()}}


def teach(prompt: str, rng: Random, phase: Phase) -> str:
    """The right answer; in the second phase most counts are guesses, half the captions faulty."""
    _, question = read_prompt(prompt)
    if phase == "mixture" and question == DESCRIBE and rng.random() < FAULTY:
        return with_fault(solve(prompt), rng)
    if phase == "mixture" and question == COUNT and rng.random() < GUESSED:
        return str(rng.randint(1, len(QUADRANTS)))
    return solve(prompt)


def style_of(response: str) -> str:
    """The kind of question that a response answers by its form, else `other`."""
    if CAPTION.fullmatch(response):
        return DESCRIBE
    places = response.split(",")
    if not all(place in set(string.digits) for place in places):
        return "other"
    return COUNT if len(places) == 1 else BOX if len(places) == 4 else "other"


def asking(questions: Mapping[Question, float], *, blank: bool = False) -> ProceduralTask:
    """The task with other shares of its questions, or with black images."""
    return replace(
        SHAPES,
        draw=lambda rng, terms: draw_prompt(rng, terms, questions),
        show=partial(show, blank=blank),
    )


SHAPES = ProceduralTask(
    name="shapes",
    characters=string.ascii_lowercase + string.digits + ", ",
    most_terms=len(QUADRANTS),
    max_terms=len(QUADRANTS),
    styles=(COUNT, BOX, DESCRIBE),
    draw=draw_prompt,
    solve=solve,
    teach=teach,
    style_of=style_of,
    is_right=is_answer,
    min_terms=len(QUADRANTS),
    columns=columns,
    show=show,
)
