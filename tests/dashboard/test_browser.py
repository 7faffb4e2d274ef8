"""The real server and a real browser: the pages of a run, with the store's numbers."""

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Dialog, Page, Request, expect

from dashboard.app import PAGES
from dashboard.components.token_facts import borders
from dashboard.formatting import count
from dashboard.views.answer import WAYS
from dashboard.views.learning import ARRAYS, CHARTS
from headrace.protocol.records.record_types import MetricsSampled, RunPhase
from storage import queries
from storage.run_store import RunStore
from tests.dashboard.chromium import open_chromium, served, wait_until_drawn
from tests.dashboard.odd_runs import HOSTILE, RAISED, evaluate
from tests.dashboard.scripted_run import MARKUP, MARKUP_ID, write_run
from tests.dashboard.test_pages import SOURCES
from tests.services import cannot_have, find_chromium

pytestmark = pytest.mark.browser
PATIENCE_MS = 60_000
OLDER, YOUNGER = "older-20260101-120000-aaaa", "younger-20260102-120000-bbbb"


@pytest.fixture(scope="module")
def address(run_dir: Path) -> Iterator[str]:
    with served(run_dir.parent) as url:
        yield url


@pytest.fixture(scope="module")
def two_runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The page of two runs, of which `latest` is the younger."""
    root = tmp_path_factory.mktemp("two")
    for number, name in enumerate((OLDER, YOUNGER)):
        started = 1_767_268_800.0 + 1000 * number
        write_run(root, name, started=started, updates=3, roll_back_after=None)
    with served(root) as url:
        yield url


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
    expect(page.get_by_role("heading", name="Who works when")).to_be_visible()
    expect(page.get_by_test_id("stException")).to_have_count(0)


TURNS = """charts => charts.map(chart => {
    const style = getComputedStyle(chart);
    return style.animationName === 'hr-turn' ? parseFloat(style.animationDuration) : 0;
})"""
"""By chart, seconds that it waits for those above it."""


def test_charts_are_drawn_from_the_top_of_a_page(page: Page, address: str) -> None:
    page.goto(f"{address}/learning")
    charts = page.get_by_test_id("stVegaLiteChart")
    expect(charts).to_have_count(len(CHARTS) + len(ARRAYS) + 1)
    waits = charts.evaluate_all(TURNS)
    assert waits[:4] == [0, 0, 0, 0]
    assert waits == sorted(waits)
    assert len(set(waits)) == len(waits) // 2 - 1  # a row at a time
    wait_until_drawn(page)
    assert charts.evaluate_all("charts => Math.min(...charts.map(c => c.offsetWidth))") > 100


def test_markup_in_a_response_is_shown_as_text(page: Page, address: str) -> None:
    alerts: list[str] = []

    def dismiss(dialog: Dialog) -> None:
        alerts.append(dialog.message)
        dialog.dismiss()

    page.on("dialog", dismiss)
    page.goto(f"{address}/trajectories?trajectory={MARKUP_ID}")
    tokens = page.locator(".hr-tokens")
    expect(tokens).to_be_visible()
    pieces = tokens.locator("span[data-i]").all_text_contents()
    assert "".join(pieces) == f"{MARKUP}<eos>"
    assert tokens.locator("img, b").count() == 0
    assert alerts == []


def test_what_is_folded_is_drawn_when_it_is_opened(page: Page, address: str) -> None:
    page.goto(f"{address}/trajectories?trajectory=3")
    folded = page.get_by_text("Windows, reward parts and times")
    expect(folded).to_be_visible()
    code = page.get_by_test_id("stCode")
    expect(code).to_have_count(0)
    folded.click()
    expect(code).to_contain_text('"trajectory_id": 3,')
    expect(page.get_by_test_id("stDataFrame")).to_have_count(2)


def test_the_chosen_run_survives_every_page_change(page: Page, two_runs: str) -> None:
    page.goto(two_runs)
    expect(page).to_have_title(f"Overview \u00b7 {YOUNGER} \u00b7 Headrace")
    expect(page).to_have_url(re.compile(rf"run={YOUNGER}"))  # a link under `latest` names the run
    page.get_by_test_id("stSelectbox").first.click()
    page.get_by_role("option", name=OLDER).click()
    # Links to other pages name the run, so that one is followed when they name the chosen one.
    expect(page.get_by_role("link", name="Learning")).to_have_attribute("href", re.compile(OLDER))
    names = [*(title for title, _, _ in PAGES if title != "Overview"), "Overview"]
    for name in names:
        page.get_by_role("link", name=name).click()
        expect(page).to_have_title(f"{name} \u00b7 {OLDER} \u00b7 Headrace")
        expect(page).to_have_url(re.compile(rf"run={OLDER}"))
        expect(page.locator(".hr-line")).to_contain_text(OLDER)
    page.go_back()
    expect(page).to_have_title(f"{names[-2]} \u00b7 {OLDER} \u00b7 Headrace")
    expect(page.locator(".hr-line")).to_contain_text(OLDER)


def test_what_was_chosen_on_a_page_is_in_its_address(page: Page, two_runs: str) -> None:
    page.goto(f"{two_runs}/learning?run={OLDER}")
    page.get_by_role("button", name="training time").or_(
        page.get_by_role("radio", name="training time")
    ).first.click()
    expect(page).to_have_url(re.compile("axis=training"))
    page.goto(f"{two_runs}/trajectories?run={OLDER}&sort=longest&colour_by=version&trajectory=3")
    expect(page.get_by_text("Trajectory 3", exact=True)).to_be_visible()
    expect(page.locator(".hr-scale")).to_contain_text("weights")
    page.get_by_role("button", name=re.compile("^2: ")).click()
    expect(page).to_have_url(re.compile("trajectory=2"))
    expect(page.get_by_text("Trajectory 2", exact=True)).to_be_visible()
    page.reload()
    expect(page.get_by_text("Trajectory 2", exact=True)).to_be_visible()
    expect(page).to_have_title(f"Trajectories \u00b7 {OLDER} \u00b7 Headrace")


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("learning?run=nowhere", "There is no run nowhere under"),
        (f"trajectories?run={OLDER}&trajectory=123456", "has no trajectory 123456"),
        (f"trajectories?run={OLDER}&trajectory={'9' * 40}", "There is no trajectory '9999"),
    ],
)
def test_an_address_of_nothing_says_so(page: Page, two_runs: str, path: str, said: str) -> None:
    page.goto(f"{two_runs}/{path}")
    expect(page.locator(".hr-empty")).to_contain_text(said)
    expect(page.get_by_test_id("stException")).to_have_count(0)


WATCH = """() => {
    window.least = 1;
    const look = () => {
        for (const part of document.querySelectorAll('[data-stale="true"]'))
            window.least = Math.min(window.least, parseFloat(getComputedStyle(part).opacity));
        requestAnimationFrame(look);
    };
    look();
}"""


def test_a_live_page_reaches_its_end_by_itself_and_never_greys_out(
    page: Page, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("live")
    started = time.time() - 12
    run = write_run(root, "live-1", started=started, updates=3, roll_back_after=None, end=False)
    store = RunStore.open(run)
    with served(root) as url:
        page.goto(url)
        pill = page.locator(".hr-pill")
        expect(pill).to_have_text("training")
        page.evaluate(WATCH)
        dropped = {"ledger/generated": 123456.0, "ledger/dropped/stale": 123456.0}
        store.append([MetricsSampled(at=time.time(), update=3, metrics=dropped)])
        expect(page.locator(".hr-sum")).to_contain_text("123,456")
        store.append([RunPhase(at=time.time(), phase="draining", detail="3 updates")])
        store.append([RunPhase(at=time.time(), phase="finished")])
        store.close()
        expect(pill).to_have_text("finished")
        expect(page.locator(".hr-line")).to_contain_text("ended: 3 updates")
        assert page.evaluate("window.least") == 1


def test_what_was_dropped_leads_to_its_tokens(page: Page, address: str, run_dir: Path) -> None:
    page.goto(f"{address}/dropped?reasons=stale")
    row = queries.dropped_page(run_dir, reasons=["stale"], limit=1).rows.iloc[0]
    expect(page.get_by_text("as the ledger counts them, reason by reason")).to_be_visible()
    expect(page.get_by_test_id("stDataFrame")).to_be_visible()
    page.goto(f"{address}/trajectories?trajectory={row['trajectory_id']}")
    cut = page.locator(".cut").filter(has_text=f"window {row['window']}: dropped, stale")
    expect(cut).to_be_visible()


def test_two_runs_are_chosen_and_compared(page: Page, two_runs: str) -> None:
    page.goto(f"{two_runs}/runs")
    table = page.get_by_test_id("stDataFrame")
    expect(table).to_be_visible()
    for row, name in enumerate((YOUNGER, OLDER)):
        table.click(position={"x": 16, "y": 35 * (row + 1) + 17})
        expect(page.locator(".hr-chosen")).to_contain_text(name)
    page.get_by_role("button", name="Compare").click()
    expect(page).to_have_title("Compare \u00b7 Headrace")
    expect(page).to_have_url(re.compile(f"runs={YOUNGER}.*runs={OLDER}"))
    expect(page.get_by_role("heading", name="Which is better, since when?")).to_be_visible()
    page.get_by_text("Seeds as a band").click()
    expect(page.get_by_text("is not apart from it for good")).to_be_visible()
    page.get_by_role("link", name="Overview").click()
    expect(page.locator(".hr-line")).to_contain_text(YOUNGER)
    page.get_by_role("link", name="Compare").click()  # what was compared is kept
    expect(page).to_have_url(re.compile(f"runs={YOUNGER}.*runs={OLDER}"))


def test_an_answer_is_read_without_a_mouse(page: Page, address: str, run_dir: Path) -> None:
    long = queries.trajectory_page(run_dir, where="length > 70 and reward = 1").rows
    key = int(long["trajectory_id"].iloc[-1])
    detail = queries.trajectory_detail(run_dir, key)
    page.goto(f"{address}/trajectories?trajectory={key}")
    tokens, panel = page.locator(".hr-tokens"), page.locator(".hr-token")
    expect(panel).to_contain_text("no token chosen")
    tokens.focus()
    page.keyboard.press("ArrowRight")
    expect(panel).to_contain_text(" at 0")
    page.keyboard.press("ArrowRight")
    expect(panel).to_contain_text(" at 1")
    expect(panel.locator("dt").filter(has_text="logprob").first).to_be_visible()
    expect(panel.locator(".why")).to_contain_text(re.compile("trained|not in the loss"))
    page.keyboard.press("End")
    expect(panel).to_contain_text(f" at {len(detail.tokens.token_ids) - 1}")
    page.keyboard.press("Home")
    page.keyboard.press("PageDown")
    marks = [at for at in sorted({at for at, _, _ in borders(detail)}) if at > 0]
    expect(panel).to_contain_text(f" at {marks[0]}")
    panel.get_by_role("button", name="next token").click()
    expect(panel).to_contain_text(f" at {marks[0] + 1}")
    tokens.locator("[data-i='5']").click()
    expect(panel).to_contain_text(" at 5")
    panel.get_by_role("button", name="Copy token as JSON").click()
    expect(panel.get_by_role("status")).to_have_text("token copied")


def test_the_critic_with_its_range_in_the_address(page: Page, address: str) -> None:
    page.goto(f"{address}/critic?updates_from=5&updates_to=20")
    expect(page.get_by_text("In updates 5 to 20 values explain")).to_be_visible()
    expect(page.get_by_role("heading", name="Value along the answer", exact=True)).to_be_visible()
    expect(page.get_by_test_id("stException")).to_have_count(0)
    page.reload()
    expect(page.get_by_text("In updates 5 to 20 values explain")).to_be_visible()


ANSWERS = {"a": ["2", "1", "3"], "b": ["1", HOSTILE, "1"], "c": ["1", "22", "1"]}
"""What evaluations 2 to 4 were answered; the first one has no answers in the script."""


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The page of a run with evaluations and of one that failed in its first."""
    root = tmp_path_factory.mktemp("evaluated")
    reward = SOURCES | {"alerts": {}}
    run = write_run(root, OLDER, updates=3, roll_back_after=None, end=False, reward=reward)
    evaluate(run, ANSWERS)
    failed = write_run(root, YOUNGER, updates=0, roll_back_after=None, end=False)
    evaluate(failed, {"d": [HOSTILE]}, ends=False)
    with served(root) as url:
        yield url


def answers_shown(page: Page) -> int:
    caption = page.get_by_text(re.compile("Choose a row to read it")).first
    expect(caption).to_be_visible()
    return int((caption.text_content() or "").split(" of ")[1].split()[0])


@pytest.mark.parametrize("by_point", [True, False])
def test_what_an_evaluation_got_wrong_is_a_click_away(
    page: Page, evaluated: str, by_point: bool
) -> None:
    """From the point of the third of four evaluations, and from its link; then how an answer
    changed."""
    page.goto(f"{evaluated}/?run={OLDER}")
    wait_until_drawn(page)
    if by_point:
        chart = page.get_by_test_id("stVegaLiteChart").first
        chart.locator("g.mark-symbol path").nth(2).click()
    else:
        page.get_by_role("link", name="3", exact=True).click()
    expect(page).to_have_url(re.compile("answers=evaluation(%20|[+])3"))
    assert answers_shown(page) == 2  # b and c
    slider = page.get_by_role("slider")
    expect(slider).to_have_attribute("aria-valuetext", "update 3, evaluation 3: reward 0")
    slider.press("ArrowLeft")
    expect(page).to_have_url(re.compile("trajectory=100103"))
    expect(page.get_by_test_id("stMetric").filter(has_text="Reward")).to_contain_text("1")


def test_a_point_of_a_line_opens_what_its_update_trained(page: Page, evaluated: str) -> None:
    page.goto(f"{evaluated}/?run={OLDER}")
    wait_until_drawn(page)
    chart = page.get_by_test_id("stVegaLiteChart").nth(1)
    chart.locator("g.mark-rect path").last.click()
    expect(page).to_have_url(re.compile("at_update=3"))
    assert answers_shown(page) > 0


def test_what_the_audit_disputes_is_two_clicks_away(page: Page, evaluated: str) -> None:
    page.goto(f"{evaluated}/?run={OLDER}")
    page.get_by_role("link", name="Rewards").click()
    link = page.get_by_role("link", name=re.compile("^judge: [0-9]+ paid more than the audit"))
    number = int((link.text_content() or "").split()[1])
    link.click()
    assert answers_shown(page) == number > 0
    expect(page.get_by_text(re.compile("^Audited by sums: "))).to_be_visible()


def followed(page: Page) -> list[str]:
    """What the page asks e.test for, and what it says in dialogs, from now on."""
    said: list[str] = []

    def note(request: Request) -> None:
        if "e.test" in request.url:
            said.append(request.url)

    def dismiss(dialog: Dialog) -> None:
        said.append(dialog.message)
        dialog.dismiss()

    page.on("request", note)
    page.on("dialog", dismiss)
    return said


@pytest.mark.parametrize("way", WAYS)
def test_hostile_answers_run_nothing_and_fetch_nothing(
    page: Page, evaluated: str, way: str
) -> None:
    said = followed(page)
    hostile = 100_105
    page.goto(f"{evaluated}/trajectories?run={OLDER}&trajectory={hostile}&read_as={way}")
    wait_until_drawn(page)
    main = page.locator(".stMain")
    if way == "drawn":
        main.get_by_text("thoughts", exact=True).click()
        expect(main.locator(".katex").first).to_be_visible()
        expect(main.locator("strong").filter(has_text="is")).to_be_visible()
    if way == "text":
        expect(main.locator("summary").filter(has_text="thoughts, 2 words")).to_be_visible()
        expect(main.locator(".hr-role").first).to_have_text("user")
    if way == "raw":
        expect(main.get_by_test_id("stCode").first).to_have_text(HOSTILE)
    expect(main.get_by_text("e.test").first).to_be_attached()
    assert main.locator("a[href*='e.test'], img, script").count() == 0
    page.wait_for_timeout(300)
    assert said == []


def test_a_failed_run_says_which_function_raised_and_shows_an_answer(
    page: Page, evaluated: str
) -> None:
    said = followed(page)
    page.goto(f"{evaluated}/?run={YOUNGER}")
    heading = page.get_by_role("heading", name="The reward function gave no score")
    expect(heading).to_be_visible()
    expect(page.locator(".hr-stack")).to_have_text(RAISED)
    expect(page.get_by_test_id("stAlert")).to_contain_text("64 scorings in a row failed")
    expect(page.locator(".hr-prompt").last).to_have_text(HOSTILE)
    assert page.locator(".stMain img, .stMain a[href*='e.test']").count() == 0
    assert said == []
    page.get_by_role("link", name="1 answers").click()
    expect(page).to_have_url(re.compile("scores=crashed"))
    assert answers_shown(page) == 1
    page.get_by_role("link", name="Rewards").click()
    expect(page.get_by_text("This evaluation has not ended.")).to_be_visible()
    expect(page.get_by_role("link", name="default: 1 crashed")).to_be_visible()
