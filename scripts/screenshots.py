"""Pictures of the dashboard for the documentation, from two real runs.

    .venv/bin/python -m scripts.screenshots RUN OTHER                     all pictures
    .venv/bin/python -m scripts.screenshots RUN OTHER --only token compare

In: folder names of a run that has ended and of one to compare it with. Out: NAME-light.png and
NAME-dark.png in docs/images/dashboard for each of `SHOTS`, always the same names and sizes. A
picture has at most COLOURS colours, which makes it a third as large and is hardly seen: pages have
few.
"""

import argparse
import io
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from PIL import Image
from playwright.sync_api import Browser, Locator, Page

from headrace.errors import UserError
from storage import queries
from tests.dashboard.chromium import open_chromium, served, wait_until_drawn
from tests.services import find_chromium

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images" / "dashboard"
COLOURS = 256
SETTLE_MS = 700
"""For what moves when it appears."""
Scheme = Literal["light", "dark"]
SCHEMES: tuple[Scheme, ...] = ("light", "dark")


class ScreenshotRuns(NamedTuple):
    """Runs in the pictures: two runs, and an answer of the first one."""

    run: str
    other: str
    answer: int


class Screenshot(NamedTuple):
    """One picture. `address` is that of the page, for these runs; `height` in pixels; `before` is
    done on the page first. A phone has twice the pixels."""

    name: str
    address: Callable[[ScreenshotRuns], str]
    height: int
    before: Callable[[Page], None] | None = None
    phone: bool = False


def _page(name: str, query: str = "") -> Callable[[ScreenshotRuns], str]:
    return lambda runs: f"{name}?run={runs.run}{query}"


def _answer(runs: ScreenshotRuns) -> str:
    return f"trajectories?run={runs.run}&trajectory={runs.answer}&colour_by=advantage"


def _compared(runs: ScreenshotRuns) -> str:
    return f"compare?runs={runs.run}&runs={runs.other}&axis=training+time&seeds=false"


def _to_tokens(page: Page) -> None:
    """Choose the token before the answer's second window, and go where its tokens are."""
    tokens = page.locator(".hr-tokens").first
    tokens.wait_for()
    tokens.focus()
    page.keyboard.press("Home")
    page.keyboard.press("PageDown")
    page.keyboard.press("ArrowLeft")
    _go_to(page, tokens)


def _to_answer(page: Page) -> None:
    """The same, and go to where the answer's card begins."""
    _to_tokens(page)
    _go_to(page, page.get_by_role("heading", name=re.compile("^Trajectory ")))


def _go_to(page: Page, part: Locator) -> None:
    part.evaluate("node => node.scrollIntoView({block: 'start'})")
    page.locator(".stMain").evaluate("node => node.scrollBy(0, -90)")


SHOTS = (
    Screenshot("overview", _page(""), 1200),
    Screenshot("learning", _page("learning"), 1010),
    Screenshot("critic", _page("critic"), 1320),
    Screenshot("rewards", _page("rewards"), 1010),
    Screenshot("pipeline", _page("pipeline"), 1010),
    Screenshot("token", _answer, 1010, _to_answer),
    Screenshot("compare", _compared, 1320),
    Screenshot("runs", lambda _: "runs", 560),
    Screenshot("health", _page("health"), 1010),
    Screenshot("phone", _answer, 844, _to_tokens, phone=True),
)


def take_picture(
    browser: Browser, url: str, runs: ScreenshotRuns, shot: Screenshot, scheme: Scheme
) -> bytes:
    """The picture of a page that has been drawn, as PNG."""
    size = (390, shot.height) if shot.phone else (1280, shot.height)
    page = browser.new_page(
        viewport={"width": size[0], "height": size[1]},
        color_scheme=scheme,
        device_scale_factor=2 if shot.phone else 1,
    )
    page.goto(f"{url}/{shot.address(runs)}")
    wait_until_drawn(page)
    if shot.before:
        shot.before(page)
    page.wait_for_timeout(SETTLE_MS)
    picture = page.screenshot(animations="disabled")
    page.close()
    return picture


def reduce_colours(picture: bytes) -> bytes:
    plain = Image.open(io.BytesIO(picture)).convert("RGB")
    few = plain.quantize(COLOURS, Image.Quantize.MEDIANCUT, kmeans=1, dither=Image.Dither.NONE)
    written = io.BytesIO()
    few.save(written, "PNG", optimize=True)
    return written.getvalue()


def worth_showing(run_dir: Path) -> int:
    """The longest of the newest right answers: it has windows."""
    rows = queries.trajectory_page(
        run_dir, filters={"purpose": "train", "status": ["finished"]}, where="reward > 0", limit=200
    ).rows
    if rows.empty:
        raise UserError(f"{run_dir} has no finished answer that earned anything")
    longest = rows.sort_values("length", ascending=False, kind="stable")
    return int(longest["trajectory_id"].iloc[0])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="screenshots", description=__doc__.splitlines()[0])
    parser.add_argument("run", help="folder name of a run that has ended")
    parser.add_argument("other", help="folder name of the run that it is compared with")
    parser.add_argument("--root", type=Path, default=ROOT / "runs", help="folder of both runs")
    parser.add_argument("--out", type=Path, default=IMAGES, help="folder of the pictures")
    names = [shot.name for shot in SHOTS]
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME")
    asked = parser.parse_args(arguments)
    for name in (asked.run, asked.other):
        if not (asked.root / name).is_dir():
            raise UserError(f"there is no run {name} under {asked.root}")
    runs = ScreenshotRuns(asked.run, asked.other, worth_showing(asked.root / asked.run))
    asked.out.mkdir(parents=True, exist_ok=True)
    if find_chromium() is None:
        raise UserError("there is no Chromium: python -m tests.services installs it")
    with served(asked.root) as url, open_chromium() as browser:
        for shot in (shot for shot in SHOTS if shot.name in asked.only):
            for scheme in SCHEMES:
                path = asked.out / f"{shot.name}-{scheme}.png"
                path.write_bytes(reduce_colours(take_picture(browser, url, runs, shot, scheme)))
                print(f"{path}  {path.stat().st_size / 1000:.0f} kB")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UserError as problem:
        print(problem, file=sys.stderr)
        sys.exit(2)
