"""A Chromium, and a dashboard for it to look at: for tests, for the pictures of the documentation
(`scripts/screenshots.py`), and for what measures the pages (`benchmarks/performance/dashboard.py`).
"""

import contextlib
import os
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import Browser, BrowserContext, Page, ViewportSize, sync_playwright

from headrace.errors import RunFailedError
from headrace.host.hardware import free_port
from headrace_cli.launch.plan import dashboard_argv, role_environment
from tests.services import find_chromium

HOST = "127.0.0.1"
PATIENCE_S = 300.0
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""A proxy of the environment does not know this machine's own servers."""
STDERR = 2
"""The file itself: what stands for it in a test may be none."""
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


@contextlib.contextmanager
def open_window(width: int, height: int, *, private: bool = False) -> Iterator[BrowserContext]:
    """A window of the system's Chromium that keeps what it has seen while it is open, and, as
    people's do, the code that it has compiled. A `private` one keeps no code."""
    size: ViewportSize = {"width": width, "height": height}
    if private:
        with open_chromium() as browser:
            yield browser.new_context(viewport=size)
        return
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as profile:
        window = playwright.chromium.launch_persistent_context(
            profile, executable_path=find_chromium(), args=ARGUMENTS, viewport=size
        )
        yield window
        window.close()


def wait_until_drawn(page: Page) -> None:
    """Wait until a page has nothing more to draw, charts included."""
    page.wait_for_function(_DRAWN)


@contextlib.contextmanager
def serving(root: Path) -> Iterator[tuple[str, int]]:
    """The dashboard of a folder as the launcher starts it; gives its address and its process id.
    RunFailedError where it does not begin to answer."""
    port = free_port(HOST)
    with subprocess.Popen(
        dashboard_argv(HOST, port, root),
        env={**os.environ, **role_environment(threads=1)},
        stdout=STDERR,
    ) as server:
        url, began = f"http://{HOST}:{port}", time.monotonic()
        try:
            while not _answers(f"{url}/_stcore/health"):
                if server.poll() is not None or time.monotonic() - began > PATIENCE_S:
                    raise RunFailedError("the dashboard did not start; what it said is above")
                time.sleep(0.05)
            yield url, server.pid
        finally:
            server.terminate()


@contextlib.contextmanager
def served(root: Path) -> Iterator[str]:
    """The same; gives its address."""
    with serving(root) as (url, _):
        yield url


def _answers(url: str) -> bool:
    try:
        with DIRECT.open(url, timeout=1) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
