"""A Chromium, and a dashboard for it to look at: for tests, and for the pictures of the
documentation (`scripts/screenshots.py`).
"""

import contextlib
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

from headrace.hardware import free_port
from headrace.processes.launch import dashboard_argv, role_environment
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
_DRAWN = """() => {
    const app = document.querySelector("[data-testid='stApp']");
    const charts = [...document.querySelectorAll("[data-testid='stVegaLiteChart']")];
    const drawn = document.querySelectorAll("[role='graphics-document']");
    return app?.dataset.testScriptState === "notRunning" && document.querySelector("h1")
        && !document.querySelector("[data-testid='stSkeleton']") && drawn.length >= charts.length;
}"""


@contextlib.contextmanager
def open_chromium() -> Iterator[Browser]:
    """The system's Chromium without a window; it fetches nothing of its own."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=ARGUMENTS)
        yield browser
        browser.close()


def wait_until_drawn(page: Page) -> None:
    """Wait until a page has nothing more to draw, charts included."""
    page.wait_for_function(_DRAWN)


@contextlib.contextmanager
def served(root: Path) -> Iterator[str]:
    """The dashboard of a folder as the launcher starts it; gives its address."""
    host = "127.0.0.1"
    port = free_port(host)
    with subprocess.Popen(
        dashboard_argv(host, port, root),
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
