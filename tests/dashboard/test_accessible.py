"""The pages for who reads them with a screen reader, by keyboard, with weak eyes, or on a phone."""

import re
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, ViewportSize, expect

from dashboard.app import OVER_RUNS, PAGES
from dashboard.palette import DARK_BACKGROUND
from tests.dashboard.chromium import open_chromium, served, wait_until_drawn
from tests.dashboard.odd_runs import collapse
from tests.dashboard.scripted_run import MARKUP_ID, write_run
from tests.dashboard.test_pages import SOURCES
from tests.services import cannot_have, find_chromium

pytestmark = pytest.mark.browser
PATIENCE_MS = 60_000
PHONE: ViewportSize = {"width": 390, "height": 844}
DARK = bytes.fromhex(DARK_BACKGROUND[1:])
DESK: ViewportSize = {"width": 1440, "height": 1100}
AUDIT = Path(__file__).with_name("page_audit.js").read_text(encoding="utf-8")
RUN, OTHER = "scripted-20260101-120000-beef", "other-20260102-120000-aaaa"
TITLES = [title for title, *_ in (*PAGES, *OVER_RUNS)]
ADDRESSES = {title: f"{title.lower()}?run={RUN}" for title in TITLES} | {
    "Overview": f"?run={RUN}",
    "Trajectories": f"trajectories?run={RUN}&trajectory={MARKUP_ID - 1}&colour_by=logprob",
    "Compare": f"compare?runs={RUN}&runs={OTHER}&seeds=false",
}
FOLDED = {
    "Learning": "First of all", "Trajectories": "Search", "Dropped": "Reasons", "Runs": "Search",
    "Compare": "Metrics",
}  # fmt: skip
"""Pages with filters, and the label of one."""
INPUTS = {"input", "textarea", "select", "combobox", "grid", "switch"}
_BACKGROUND = "getComputedStyle(document.querySelector('.stApp')).backgroundColor"
_FOCUSED = """() => {
    const node = document.activeElement, box = node.getBoundingClientRect();
    const name = node.getAttribute("aria-label") || node.innerText;
    return {
        body: node === document.body, side: !!node.closest("[data-testid='stSidebar']"),
        name: name || node.labels?.[0]?.innerText || "", left: box.left, top: box.top,
        bottom: box.bottom, filters: !!node.closest(".st-key-filters"),
    };
}"""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A run with several sources of rewards and an alert, and another one beside it."""
    root = tmp_path_factory.mktemp("accessible")
    write_run(root, OTHER, started=1_767_200_000.0, updates=2, roll_back_after=None)
    run = write_run(root, RUN, updates=5, roll_back_after=None, end=False, reward=SOURCES)
    collapse(run, first=6, updates=30)
    with served(root) as url:
        yield url


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if find_chromium() is None:
        cannot_have("Chromium", "chromium")
    with open_chromium() as browser:
        expect.set_options(timeout=PATIENCE_MS)
        yield browser


@pytest.fixture(scope="module")
def page(browser: Browser) -> Iterator[Page]:
    page = browser.new_page()
    page.set_default_timeout(PATIENCE_MS)
    yield page
    page.close()


_LEGENDS = """() => [...document.querySelectorAll("[data-testid='stVegaLiteChart'] svg")].flatMap(
    (svg) => {
        const box = svg.getBoundingClientRect();
        return [...svg.querySelectorAll(".role-legend-label text")].map((text) => {
            const { left, right } = text.getBoundingClientRect();
            return [text.textContent, left - box.left, box.right - right];
        });
    }
)"""
"""Labels of legends, and how many pixels are left of them and right of them in their charts."""
WITH_LEGENDS = ("Learning", "Critic", "Rewards", "Pipeline", "Compare")


def look_at(page: Page, address: str, title: str) -> None:
    """Open a page and wait until it is drawn."""
    page.set_viewport_size(DESK)
    page.emulate_media(color_scheme="light")
    page.goto(f"{address}/{ADDRESSES[title]}")
    wait_until_drawn(page)


@pytest.mark.parametrize("title", TITLES)
def test_a_page_is_named_legible_and_fits_a_phone(page: Page, address: str, title: str) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    said: list[str] = []
    page.on("console", lambda line: said.append(f"{line.type}: {line.text}"))
    look_at(page, address, title)
    assert [line for line in said if line.startswith(("warning", "error"))] == []
    assert [url for url in asked if not url.startswith((address, "ws:", "data:", "blob:"))] == []
    found = page.evaluate(AUDIT)
    names = [name for name, _ in found["charts"]]
    for name, heading in found["charts"]:
        assert heading
        assert name.startswith(heading), (
            "a chart is called as the card that it is in, and says more"
        )
        assert len(name) > len(heading) + 20
    assert len(set(names)) == len(names)
    assert all(found["grids"]), "a table has a name"
    levels = [level for level, _ in found["headings"]]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert found["twice"] == [], "an id is one element's"
    assert found["ahead"] == [], "nothing jumps the queue of the keyboard"
    assert [c["html"] for c in found["controls"] if not c["name"]] == []
    assert found["renamed"] == [], "a button's name has the words that stand on it"
    assert found["headless"] == [], "every column of a table has a head"
    inputs = Counter(c["name"] for c in found["controls"] if c["kind"] in INPUTS)
    assert [name for name, number in inputs.items() if number > 1] == []
    assert found["texts"] > 10
    assert found["faint"] == [], "text has a contrast of 4.5 to 1"
    page.emulate_media(color_scheme="dark")
    page.wait_for_function(f"{_BACKGROUND} === 'rgb({', '.join(map(str, DARK))})'")
    assert page.evaluate(AUDIT)["faint"] == [], "in the dark, too"
    page.set_viewport_size(PHONE)
    wide = "Math.max(...['html', '.stMain'].map((q) => document.querySelector(q).scrollWidth))"
    page.wait_for_function(f"{wide} <= {PHONE['width']}", timeout=5000)
    if title in FOLDED:
        one = page.locator(".st-key-filters").get_by_label(FOLDED[title]).first
        expect(one).to_be_hidden()
        page.get_by_text("Filters", exact=True).click()
        expect(one).to_be_visible()


def test_a_phone_jumps_to_a_card_and_sees_how_runs_stand(page: Page, address: str) -> None:
    page.set_viewport_size(PHONE)
    page.goto(f"{address}/{ADDRESSES['Learning']}")
    wait_until_drawn(page)
    heading = page.get_by_role("heading", name="Value loss", exact=True)
    expect(heading).not_to_be_in_viewport()
    page.get_by_text("On this page").click()
    page.get_by_role("link", name="Value loss", exact=True).click()
    expect(heading).to_be_in_viewport()
    page.goto(f"{address}/runs")
    row = page.get_by_role("listitem").filter(has_text=OTHER)
    expect(row).to_be_in_viewport()
    expect(row).to_contain_text("finished")
    expect(row).to_contain_text("%")


def test_an_alert_is_one_click_from_its_chart(page: Page, address: str) -> None:
    look_at(page, address, "Overview")
    page.get_by_role("link", name="Entropy under 0.02 for 30 updates").click()
    expect(page).to_have_url(re.compile(r"/learning\?.*chart=actor"))
    expect(page.get_by_role("heading", name="Entropy", exact=True)).to_have_count(2)


@pytest.mark.parametrize("title", ["Trajectories", "Runs"])
def test_the_keyboard_goes_through_pages_then_controls_as_one_reads(
    page: Page, address: str, title: str
) -> None:
    look_at(page, address, title)
    stops = []
    for _ in range(len(TITLES) + 25):
        page.keyboard.press("Tab")
        stops.append(page.evaluate(_FOCUSED))
    side = [stop["name"].strip() for stop in stops if stop["side"]]
    links = [name.splitlines()[-1] for name in side if name.splitlines()[-1:] != []]
    assert [name for name in links if name in TITLES] == TITLES
    at = [i for i, stop in enumerate(stops) if stop["filters"]]
    assert len(at) >= 5
    assert at[0] > max(i for i, stop in enumerate(stops) if stop["side"])
    for one, then in pairwise(at):
        before, after = stops[one], stops[then]
        assert after["top"] >= before["bottom"] - 1 or after["left"] >= before["left"]
        assert after["bottom"] >= before["top"]


def test_what_has_the_focus_is_seen(page: Page, address: str) -> None:
    look_at(page, address, "Overview")
    links = page.get_by_test_id("stPageLink-NavLink")
    expect(links).to_have_count(len(TITLES))
    links.first.focus()
    page.keyboard.press("Tab")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"


@pytest.mark.parametrize("title", WITH_LEGENDS)
def test_no_legend_is_cut_off_on_a_phone(page: Page, address: str, title: str) -> None:
    page.set_viewport_size(PHONE)
    page.goto(f"{address}/{ADDRESSES[title]}")
    wait_until_drawn(page)
    found = page.evaluate(_LEGENDS)
    assert found
    for label, left, right in found:
        assert not label.endswith("\u2026"), "it is written in full"
        assert min(left, right) >= -1, f"{label} is within its chart"
