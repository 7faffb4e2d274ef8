"""Claim: the dashboard of a large run is as quick as that of a small one.

Creates a run of --metric-rows metric rows and --trajectories trajectories by the writers of storage
(once: it is kept in `.cache/dashboard` or --root, and a partial one goes on), and one a tenth as
large to compare it with. Then serves both with `headrace dashboard` and opens every page in
Chromium. Out: with --json, as the last line, one JSON object: `first_paint_s` (until all charts and
tables on the screen are drawn; both ends have opened the page before, the browser three times),
`whole_s` (until those below the screen are, too), `cpu_s` (the server's, for that), `filter_s`
(from a filter's change on Trajectories to its rows), `memory_mb` (the server's, resident, at most),
`bytes_per_paint` (over the websocket), `bytes_per_refresh` and `refresh_cpu_s` (of a run that goes
on while the page is open). These are of the worst page; `pages` and `filters` have each.

A page is there when the server's script has ended and every chart and table on the screen is drawn;
it is whole when those below are. Bytes are those of the websocket's messages, as the browser
receives them.
"""

import argparse
import contextlib
import sqlite3
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from playwright.sync_api import BrowserContext, Page

from benchmarks.kit.command_line import add_rows_option, command_line
from benchmarks.kit.machine_state import MachineWatch
from benchmarks.kit.rows import RESULTS, report_result
from benchmarks.kit.synthetic_runs import LiveRun, RunShape, make_run
from headrace.errors import RunFailedError, UserError
from headrace.host.install import ROOT
from storage.database.engine import SQLITE_NAME
from tests.dashboard.chromium import open_window, serving
from tests.services import find_chromium

NAME, OTHER = "large", "other"
BATCH = 64
WINDOW = (1440, 1200)
"""Pixels across and down."""
PAGES = (
    *("overview", "learning", "critic", "rewards", "pipeline", "trajectories", "dropped"),
    *("health", "query", "runs", "compare"),
)
WORST = (
    *("first_paint_s", "whole_s", "cpu_s", "bytes_per_paint", "bytes_per_refresh"),
    "refresh_cpu_s",
)
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
    // Places are asked for last: they make the browser lay out the page.
    const waits = (kind, drawn) => [...document.querySelectorAll(`[data-testid="${kind}"]`)]
        .some(part => !(drawn && part.querySelector(drawn)) && isSeen(part));
    return !waits('stSkeleton') && !waits('stVegaLiteChart', 'canvas, svg')
        && !waits('stDataFrame', 'canvas');
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


def shape(metric_rows: int, trajectories: int, *, figures: float = 0.1) -> RunShape:
    """Shape a run of that size, of at least four updates, with mishaps."""
    return RunShape(
        max(4 * BATCH, trajectories), metric_rows=metric_rows, batch=BATCH, group=8,
        figures=figures, mishaps=True,
    )  # fmt: skip


def path_of(page: str) -> str:
    """Return a page's address for the large run, and for both where runs are compared."""
    if page == "overview":
        return f"?run={NAME}"
    return f"{page}?run={NAME}" + (f"&runs={NAME}&runs={OTHER}" if page == "compare" else "")


@dataclass(frozen=True)
class DashboardServer:
    """A dashboard: its address, its server, and the browser's window that looks at it."""

    address: str
    process: psutil.Process
    window: BrowserContext

    def cpu_s(self) -> float:
        """Return the processor seconds that the server has used."""
        times = self.process.cpu_times()
        return times.user + times.system

    def memory_mb(self) -> float:
        """Return the server's resident memory, in millions of bytes."""
        return self.process.memory_info().rss / 1e6


class PagePaint(NamedTuple):
    """Cost of opening a page: seconds until it was there and whole, server CPU, bytes."""

    first_paint_s: float
    whole_s: float
    cpu_s: float
    bytes_per_paint: int


@contextlib.contextmanager
def open_page(server: DashboardServer, name: str) -> Iterator[tuple[Page, PagePaint, list[int]]]:
    """Open a new page until it is there, and record its messages' bytes.

    The list has a number for each message over its websockets, and grows."""
    page, sizes = server.window.new_page(), list[int]()
    page.set_default_timeout(1000 * PATIENCE_S)

    def came(payload: str | bytes) -> None:
        sizes.append(len(payload))

    page.on("websocket", lambda socket: socket.on("framereceived", came))
    with contextlib.closing(page):
        used, began = server.cpu_s(), time.perf_counter()
        page.goto(f"{server.address}/{path_of(name)}", wait_until="commit")
        page.wait_for_function(IS_THERE, arg=False, polling="raf")
        seconds = time.perf_counter() - began
        page.wait_for_function(IS_THERE, arg=True, polling="raf")
        whole = time.perf_counter() - began
        page.wait_for_timeout(1000 * SETTLE_S)
        if (errors := page.get_by_test_id("stException")).count():
            raise RunFailedError(f"page {path_of(name)}: {errors.first.inner_text()[:500]}")
        yield page, PagePaint(seconds, whole, server.cpu_s() - used, sum(sizes)), sizes


def first_paints(server: DashboardServer, pages: Sequence[str], times: int) -> dict[str, Any]:
    """Return median figures of opening pages, by name.

    Each page is opened three times before it counts, so that both ends are warm: a browser keeps
    the code of a page after two visits. The first visit is `cold_s`."""
    found: dict[str, Any] = {}
    for name in pages:
        paints = []
        for _ in range(1 + BEFORE + times):
            with open_page(server, name) as (_, paint, _):
                paints.append(paint)
        cold, warm = paints[0], paints[1 + BEFORE :]
        middle = PagePaint(*map(statistics.median, zip(*warm, strict=True)))
        found[name] = {
            **{figure: round(value, 3) for figure, value in middle._asdict().items()},
            "first_paint_most_s": round(max(paint.first_paint_s for paint in warm), 3),
            "bytes_per_paint": round(middle.bytes_per_paint),
            "cold_s": round(cold.first_paint_s, 3),
            "cold_cpu_s": round(cold.cpu_s, 3),
            "memory_mb": round(server.memory_mb(), 1),
        }
        print(f"{name:<14} {found[name]}", flush=True)
    return found


def refreshes(server: DashboardServer, name: str, seconds: float) -> dict[str, Any]:
    """Return bytes and server CPU per refresh of a live run's page, over `seconds`."""
    with open_page(server, name) as (page, _, sizes):
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


def filters(server: DashboardServer, updates: int, times: int) -> dict[str, Any]:
    """Return median seconds to the rows and the whole page, by Trajectories' filter.

    The whole page has the trajectory below the rows. No filter is repeated, so none is cached."""
    found: dict[str, list[tuple[float, float]]] = {}

    def number(page: Page, label: str, value: float) -> tuple[float, float]:
        box = page.get_by_label(label, exact=True).first
        box.fill(f"{value:g}")
        return time_action(page, lambda: box.press("Enter"))

    def choice(page: Page, label: str, option: str) -> tuple[float, float]:
        page.get_by_label(label, exact=False).first.click()
        wanted = page.get_by_role("option", name=option, exact=True)
        wanted.wait_for()
        return time_action(page, wanted.click)

    for turn in range(times):
        with open_page(server, "trajectories") as (page, _, _):
            reward = number(page, "Reward from", 0.3 + 0.1 * turn / times)
            length = number(page, "Length from", 60 + 5 * turn)
            status = choice(page, "Status", ("truncated", "failed", "truncated")[turn % 3])
            sort = choice(page, "Sort by", ("worst", "oldest", "best")[turn % 3])
        with open_page(server, "trajectories") as (page, _, _):
            update = number(page, "Trained at update", max(1, updates // (turn + 2)))
        took = {"reward": reward, "length": length, "status": status, "sort": sort}
        for name, seconds in (took | {"update": update}).items():
            found.setdefault(name, []).append(seconds)
    return {
        name: {
            figure: round(statistics.median(seconds), 3)
            for figure, seconds in zip(("rows_s", "whole_s"), zip(*took, strict=True), strict=True)
        }
        for name, took in found.items()
    }


def rows_of(run_dir: Path) -> dict[str, int]:
    """Count the rows of the run's tables."""
    path = f"file:{run_dir / SQLITE_NAME}?mode=ro"
    with contextlib.closing(sqlite3.connect(path, uri=True, timeout=60)) as database:
        return {
            f"{name}": int(database.execute(f"select count(*) from {table}").fetchone()[0])
            for name, table in (("metric_rows", "metrics"), ("trajectories", "trajectories"))
        }


def measure(options: argparse.Namespace) -> dict[str, Any]:
    size = shape(options.metric_rows, options.trajectories)
    root = options.root / f"{size.metric_rows}-{size.trajectories}"
    make_run(root / OTHER, shape(size.metric_rows // 10, size.trajectories // 10))
    run_dir = make_run(root / NAME, size)
    counts = rows_of(run_dir)
    print(f"{counts['metric_rows']:,} metric rows, {counts['trajectories']:,} trajectories")
    chosen = options.pages or list(PAGES)
    with (
        MachineWatch() as watch,
        open_window(*WINDOW, private=options.private) as window,
        serving(root) as (address, pid),
    ):
        server = DashboardServer(address, psutil.Process(pid), window)
        pages = first_paints(server, chosen, options.times)
        by_filter = {}
        if "trajectories" in chosen:
            by_filter = filters(server, size.updates, options.times)
            print(f"filters        {by_filter}", flush=True)
        memory = server.memory_mb()
        if options.live_s:
            with LiveRun(run_dir, size):
                for page in chosen:
                    live = refreshes(server, page, options.live_s)
                    print(f"{page:<14} {live}", flush=True)
                    pages[page] |= live
                    memory = max(memory, server.memory_mb())
    worst: dict[str, float] = {}
    for name in WORST:
        of_pages = [page[name] for page in pages.values() if name in page]
        worst |= {name: max(of_pages)} if of_pages else {}
    return {
        **worst,
        "private": options.private,
        "filter_s": max((found["rows_s"] for found in by_filter.values()), default=None),
        "memory_mb": round(memory, 1),
        **counts,
        "filters": by_filter,
        "pages": pages,
        **{name: seen for name, seen in watch.state({}).items() if name not in WORST},
    }


def main(argv: Sequence[str]) -> int:
    parser = command_line("dashboard", __doc__)
    parser.add_argument("--metric-rows", type=int, default=10_000_000, help="of the run")
    parser.add_argument("--trajectories", type=int, default=1_000_000, help="of that run")
    kept = ROOT / ".cache" / "dashboard"
    parser.add_argument("--root", type=Path, default=kept, help="where the run is made and kept")
    parser.add_argument("--pages", nargs="+", choices=PAGES, help="these alone")
    parser.add_argument("--times", type=int, default=5, help="warm paints of each page")
    parser.add_argument("--private", action="store_true", help="a window that keeps no code")
    parser.add_argument("--live-s", type=float, default=10.0, help="of each page; 0: not at all")
    add_rows_option(parser, RESULTS / "dashboard.jsonl")
    options = parser.parse_args(argv)
    if find_chromium() is None:
        raise UserError("no Chromium on this machine: install the package chromium")
    options.root.mkdir(parents=True, exist_ok=True)
    return report_result(options, {"name": "dashboard", **measure(options)})
