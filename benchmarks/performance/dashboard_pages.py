"""Times, processor seconds and bytes of the dashboard's pages in a real browser.

In: the address of a served dashboard, its process, a browser. Out: figures by page. A page is there
when the server's script has ended and every chart and table on the screen is drawn; it is whole
when those below are. Bytes are those of the websocket's messages, as the browser receives them.
"""

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from playwright.sync_api import BrowserContext, Page

from headrace.errors import RunFailedError
from tests.dashboard.chromium import serving

PATIENCE_S = 300.0
SETTLE_S = 0.4
"""Wait after a page is there, for the browser's reply and the server's last work."""
BEFORE = 2
"""Visits of a page between the first and those that count."""
IS_THERE = """whole => {
    if (document.querySelector('[data-testid="stException"]')) return true;
    const app = document.querySelector('[data-testid="stApp"]');
    if (!app || app.getAttribute('data-test-script-state') !== 'notRunning') return false;
    if (!document.querySelector('[data-testid="stMain"] h1')) return false;
    const isSeen = part => part.getClientRects().length > 0
        && !part.closest('details:not([open])')
        && (whole || part.getBoundingClientRect().top < window.innerHeight);
    const seen = kind => [...document.querySelectorAll(`[data-testid="${kind}"]`)].filter(isSeen);
    const drawn = (kind, inside) => seen(kind).every(part => part.querySelector(inside));
    return seen('stSkeleton').length === 0
        && drawn('stVegaLiteChart', 'canvas, svg') && drawn('stDataFrame', 'canvas');
}"""
"""Tests that the script has ended and charts and tables on the screen are drawn.

`whole`: those of the rest of the page, too. A chart that is not drawn yet has no height."""
WATCH = """() => {
    const app = document.querySelector('[data-testid="stApp"]');
    for (const table of document.querySelectorAll('[data-testid="stDataFrame"]'))
        table.dataset.known = 'yes';
    window.ranThrough = false;
    let began = false;
    const watcher = new MutationObserver(() => {
        if (app.getAttribute('data-test-script-state') !== 'notRunning') began = true;
        else if (began) { window.ranThrough = true; watcher.disconnect(); }
    });
    watcher.observe(app, {attributes: true});
}"""
"""Marks the tables, and sets `ranThrough` once the server's script has run again."""
HAS_ROWS = """() => {
    if (window.ranThrough) return true;
    const table = document.querySelector('[data-testid="stDataFrame"]');
    return table && table.dataset.known !== 'yes' && table.querySelector('canvas');
}"""
"""Tests that the first table is new and drawn, or certainly stays or is gone."""


@dataclass(frozen=True)
class DashboardServer:
    """A dashboard: its address and its server."""

    address: str
    process: psutil.Process

    def cpu_s(self) -> float:
        """Return the processor seconds that the server has used."""
        times = self.process.cpu_times()
        return times.user + times.system

    def memory_mb(self) -> float:
        """Return the server's resident memory, in millions of bytes."""
        return self.process.memory_info().rss / 1e6


@contextlib.contextmanager
def serve_dashboard(root: Path) -> Iterator[DashboardServer]:
    """Serve the dashboard of the folder until the block ends."""
    with serving(root) as (address, pid):
        yield DashboardServer(address, psutil.Process(pid))


class PagePaint(NamedTuple):
    """Cost of opening a page: seconds until it was there and whole, server CPU, bytes."""

    first_paint_s: float
    whole_s: float
    cpu_s: float
    bytes_per_paint: int


@contextlib.contextmanager
def open_page(
    window: BrowserContext, server: DashboardServer, path: str
) -> Iterator[tuple[Page, PagePaint, list[int]]]:
    """Open a new page until it is there, and record its messages' bytes.

    The list has a number for each message over its websockets, and grows."""
    page, sizes = window.new_page(), list[int]()
    page.set_default_timeout(1000 * PATIENCE_S)

    def came(payload: str | bytes) -> None:
        sizes.append(len(payload))

    page.on("websocket", lambda socket: socket.on("framereceived", came))
    try:
        used, began = server.cpu_s(), time.perf_counter()
        page.goto(f"{server.address}/{path}", wait_until="commit")
        page.wait_for_function(IS_THERE, arg=False, polling="raf")
        seconds = time.perf_counter() - began
        page.wait_for_function(IS_THERE, arg=True, polling="raf")
        whole = time.perf_counter() - began
        page.wait_for_timeout(1000 * SETTLE_S)
        if (errors := page.get_by_test_id("stException")).count():
            raise RunFailedError(f"page {path}: {errors.first.inner_text()[:500]}")
        yield page, PagePaint(seconds, whole, server.cpu_s() - used, sum(sizes)), sizes
    finally:
        page.close()


def first_paints(
    window: BrowserContext, server: DashboardServer, paths: list[str], times: int
) -> dict[str, Any]:
    """Return median figures of opening pages, by path.

    Each page is opened three times before it counts, so that both ends are warm: a browser keeps
    the code of a page after two visits. The first visit is `cold_s`."""
    found: dict[str, Any] = {}
    for path in paths:
        paints = []
        for _ in range(1 + BEFORE + times):
            with open_page(window, server, path) as (_, paint, _):
                paints.append(paint)
        cold, warm = paints[0], paints[1 + BEFORE :]
        middle = PagePaint(*map(statistics.median, zip(*warm, strict=True)))
        found[path] = {
            **{name: round(value, 3) for name, value in middle._asdict().items()},
            "first_paint_most_s": round(max(paint.first_paint_s for paint in warm), 3),
            "bytes_per_paint": round(middle.bytes_per_paint),
            "cold_s": round(cold.first_paint_s, 3),
            "cold_cpu_s": round(cold.cpu_s, 3),
            "memory_mb": round(server.memory_mb(), 1),
        }
        print(f"{path.partition('?')[0] or 'overview':<14} {found[path]}", flush=True)
    return found


def refreshes(
    window: BrowserContext, server: DashboardServer, path: str, seconds: float
) -> dict[str, Any]:
    """Return bytes and server CPU per refresh of a live run's page, over `seconds`."""
    with open_page(window, server, path) as (page, _, sizes):
        page.wait_for_timeout(1000)
        used, runs = server.cpu_s(), len(sizes)
        began = time.perf_counter()
        page.wait_for_timeout(1000 * seconds)
        count = max(1.0, (time.perf_counter() - began) / 2.0)
        return {
            "bytes_per_refresh": round(sum(sizes[runs:]) / count),
            "messages_per_refresh": round((len(sizes) - runs) / count, 1),
            "refresh_cpu_s": round((server.cpu_s() - used) / count, 3),
        }


def time_action(page: Page, act: Callable[[], None]) -> tuple[float, float]:
    """Return seconds from a user's action to the first table's rows and whole page."""
    page.evaluate(WATCH)
    began = time.perf_counter()
    act()
    page.wait_for_function(HAS_ROWS, polling="raf")
    rows_s = time.perf_counter() - began
    page.wait_for_function("() => window.ranThrough", polling="raf")
    page.wait_for_function(IS_THERE, arg=False, polling="raf")
    return rows_s, time.perf_counter() - began
