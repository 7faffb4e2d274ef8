"""A Chromium for tests, and pictures of the pages for the documentation:

python -m tests.dashboard.chromium http://127.0.0.1:8501 docs/images/dashboard.png
"""

import contextlib
import sys
from collections.abc import Iterator

from playwright.sync_api import Browser, sync_playwright

from tests.services import find_chromium

ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@contextlib.contextmanager
def open_chromium() -> Iterator[Browser]:
    """The system's Chromium without a window; it fetches nothing of its own."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=ARGUMENTS)
        yield browser
        browser.close()


def picture(address: str, path: str, scheme: str = "light", height: int = 1030) -> None:
    """Save a page as it looks once its charts are drawn."""
    with open_chromium() as browser:
        page = browser.new_page(
            viewport={"width": 1440, "height": height},
            color_scheme="dark" if scheme == "dark" else "light",
        )
        page.goto(address)
        page.get_by_test_id("stVegaLiteChart").first.wait_for()
        page.wait_for_timeout(3000)
        page.screenshot(path=path)


if __name__ == "__main__":
    picture(sys.argv[1], sys.argv[2], scheme="".join(sys.argv[3:4]) or "light")
