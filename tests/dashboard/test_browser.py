"""The real server and a real browser: the pages of a run, with the store's numbers."""

import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Dialog, Page, expect

from dashboard.views.learning import ARRAYS, CHARTS
from dashboard.words import count
from headrace.hardware import free_port
from headrace.processes.launch import dashboard_argv, role_environment
from storage import queries
from tests.dashboard.chromium import open_chromium
from tests.dashboard.scripted_run import MARKUP, MARKUP_ID
from tests.services import cannot_have, find_chromium

pytestmark = pytest.mark.browser
PATIENCE_MS = 60_000


@pytest.fixture(scope="module")
def address(run_dir: Path) -> Iterator[str]:
    """The dashboard as the launcher starts it."""
    host = "127.0.0.1"
    port = free_port(host)
    with subprocess.Popen(
        dashboard_argv(host, port, run_dir.parent),
        env={**os.environ, **role_environment(threads=1)},
        stdout=sys.stderr,
    ) as server:
        url = f"http://{host}:{port}"
        try:
            while server.poll() is None and not _answers(f"{url}/_stcore/health"):
                pass
            assert server.poll() is None, "the dashboard's server ended"
            yield url
        finally:
            server.terminate()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    if find_chromium() is None:
        cannot_have("Chromium", "chromium")
    with open_chromium() as browser:
        page = browser.new_page(viewport={"width": 1440, "height": 1200})
        page.set_default_timeout(PATIENCE_MS)
        expect.set_options(timeout=PATIENCE_MS)
        yield page


def test_overview_shows_the_run(page: Page, address: str, run_dir: Path) -> None:
    summary = queries.run_summary(run_dir)
    page.goto(address)
    expect(page.get_by_role("heading", name=run_dir.name)).to_be_visible()
    ledger = page.locator(".hr-sum")
    expect(ledger).to_contain_text(count(summary["tokens"]["generated"]))
    expect(ledger).to_contain_text(count(summary["tokens"]["trained_policy"]))
    expect(page.get_by_text("adds up to the token")).to_be_visible()
    accuracy = page.get_by_test_id("stMetric").filter(has_text="Held-out accuracy")
    expect(accuracy).to_contain_text("90.6 %")
    expect(page.get_by_test_id("stVegaLiteChart")).to_have_count(3)


def test_pages_are_reached_from_the_left_and_draw_charts(page: Page, address: str) -> None:
    page.goto(address)
    page.get_by_role("link", name="Learning").click()
    expect(page.get_by_test_id("stVegaLiteChart")).to_have_count(len(CHARTS) + len(ARRAYS) + 1)
    page.get_by_role("link", name="Pipeline").click()
    expect(page.get_by_text("Who works when")).to_be_visible()
    expect(page.get_by_test_id("stException")).to_have_count(0)


def test_markup_in_a_response_is_shown_as_text(page: Page, address: str) -> None:
    alerts: list[str] = []

    def dismiss(dialog: Dialog) -> None:
        alerts.append(dialog.message)
        dialog.dismiss()

    page.on("dialog", dismiss)
    page.goto(f"{address}/trajectories?trajectory={MARKUP_ID}")
    tokens = page.locator(".hr-tokens")
    expect(tokens).to_be_visible()
    pieces = tokens.locator("span:not(.cut)").all_text_contents()
    assert "".join(pieces) == f"{MARKUP}<eos>"
    assert tokens.locator("img, b").count() == 0
    assert alerts == []
