"""The pages for who reads them with a keyboard, a screen reader, or on a phone."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from dashboard.app import PAGES
from tests.dashboard.chromium import open_chromium
from tests.dashboard.odd_runs import collapse
from tests.dashboard.scripted_run import write_run
from tests.dashboard.test_browser import PATIENCE_MS, served
from tests.services import cannot_have, find_chromium

pytestmark = pytest.mark.browser
PHONE = {"width": 390, "height": 844}
DESK = {"width": 1440, "height": 1100}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    root = tmp_path_factory.mktemp("accessible")
    collapse(write_run(root, updates=3, roll_back_after=None, end=False), first=4, updates=30)
    with served(root) as url:
        yield url


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if find_chromium() is None:
        cannot_have("Chromium", "chromium")
    with open_chromium() as browser:
        expect.set_options(timeout=PATIENCE_MS)
        yield browser


@pytest.fixture(params=["light", "dark"])
def page(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Page]:
    page = browser.new_page(color_scheme=request.param, viewport=DESK)  # type: ignore[arg-type]
    page.set_default_timeout(PATIENCE_MS)
    yield page
    page.close()


def test_every_chart_has_a_name_that_says_what_it_shows(page: Page, address: str) -> None:
    page.goto(f"{address}/health")
    expect(page.get_by_role("heading", level=1)).to_have_count(1)
    expect(page.get_by_role("heading", level=2).first).to_be_visible()
    page.goto(address)
    charts = page.locator('[role="graphics-document"][aria-label]')
    expect(charts).to_have_count(3)
    titles = [charts.nth(i).get_attribute("aria-label") or "" for i in range(3)]
    assert [title.partition(".")[0] for title in titles] == [
        "Held-out accuracy",
        "Reward",
        "Response length",
    ]
    assert "points, from" in titles[1]


def test_an_alert_is_one_click_from_its_chart(page: Page, address: str) -> None:
    page.goto(address)
    page.get_by_role("link", name="Entropy under 0.02 for 30 updates").click()
    expect(page).to_have_url(re.compile(r"/learning\?.*chart=actor"))
    expect(page.get_by_role("heading", name="Entropy", exact=True)).to_have_count(2)


def test_the_keyboard_goes_through_the_pages_in_their_order(page: Page, address: str) -> None:
    page.goto(address)
    links = page.get_by_test_id("stPageLink-NavLink")
    expect(links).to_have_count(len(PAGES))
    links.first.focus()
    for title, _, _ in PAGES:
        focused = page.evaluate("document.activeElement.innerText")
        assert title in focused
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none"
        page.keyboard.press("Tab")


@pytest.mark.parametrize("path", [title.lower() for title, _, _ in PAGES if title != "Overview"])
def test_a_phone_shows_every_page_without_scrolling_sideways(
    page: Page, address: str, path: str
) -> None:
    page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    page.goto(f"{address}/{path}")
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    page.wait_for_load_state("networkidle")
    wide = page.evaluate("document.querySelector('.stMain').scrollWidth")
    assert wide <= PHONE["width"]


def test_filters_are_folded_on_a_phone_and_open_on_a_desk(page: Page, address: str) -> None:
    page.goto(f"{address}/trajectories")
    search = page.get_by_label("Search")
    expect(search).to_be_visible()
    expect(page.get_by_text("Filters", exact=True)).to_be_hidden()
    page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    expect(search).to_be_hidden()
    page.get_by_text("Filters", exact=True).click()
    expect(search).to_be_visible()
