"""The dashboard's entry: `streamlit run dashboard/app.py -- ROOT [RUN]`.

In: a folder of runs; of a page that `headrace train` serves, its run. Out: the pages, for the run
chosen at the left. The address of a page holds all that was chosen on it, the run included, so that
a link shows what its sender saw. Reads `storage.queries` only, and writes nothing but what people
note on a run (`headrace.run_files.run_notes`).
"""

import gc
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import streamlit as st

from dashboard.components import panels
from dashboard.components.run_picker import PARAMETER, RunChoice, choose_run, offer_runs
from dashboard.palette import STYLE
from dashboard.reads.data import RunData
from dashboard.views import (
    compare,
    critic,
    dropped,
    environments,
    health,
    learning,
    overview,
    pipeline,
    query,
    reward_model,
    rewards,
    runs,
    trajectories,
)
from headrace.errors import UserError
from storage.queries import WITHOUT_UPDATES

_STATIC = Path(__file__).parent / "static"
Render = Callable[[RunData], None]
PAGES: tuple[tuple[str, str, Render], ...] = (
    ("Overview", ":material/water:", overview.render),
    ("Learning", ":material/trending_up:", learning.render),
    ("Critic", ":material/psychology:", critic.render),
    ("Rewards", ":material/balance:", rewards.render),
    ("Pipeline", ":material/view_timeline:", pipeline.render),
    ("Environments", ":material/sports_esports:", environments.render),
    ("Trajectories", ":material/notes:", trajectories.render),
    ("Dropped", ":material/filter_alt_off:", dropped.render),
    ("Health", ":material/monitor_heart:", health.render),
    ("Query", ":material/database_search:", query.render),
)
# Pages of all runs, which no run has to be chosen for.
OVER_RUNS: tuple[tuple[str, str, Callable[[Path, RunChoice, runs.Turn], None]], ...] = (
    ("Runs", ":material/table_rows:", lambda root, _, turn: runs.render(root, turn)),
    ("Compare", ":material/compare_arrows:", lambda root, choice, _: compare.render(root, choice)),
)


def main(root: Path, served_by: str = "") -> None:
    """Draw the page that is asked for. `served_by`: the run whose training serves the pages."""
    exempt_imports()
    st.html("".join(map(str.strip, STYLE.splitlines())))
    st.logo(str(_STATIC / "headrace.svg"), size="large")
    choice = choose_run(root)
    pages = [
        st.Page(
            partial(show, render, choice),
            title=title,
            url_path=title.lower(),
            default=title == PAGES[0][0],
        )
        for title, _, render in PAGES
    ]

    def turn(title: str, query: runs.Query) -> None:
        st.switch_page(next(each for each in pages if each.title == title), query_params=query)

    pages += [
        st.Page(partial(render, root, choice, turn), title=title, url_path=title.lower())
        for title, _, render in OVER_RUNS
    ]
    page = st.navigation(pages, position="hidden")
    of_run = page.title not in {title for title, _, _ in OVER_RUNS}
    names = [page.title, *filter(None, [choice.name if of_run else None]), "Headrace"]
    st.set_page_config(
        page_title=" \u00b7 ".join(names), page_icon=str(_STATIC / "icon.svg"), layout="wide"
    )
    with st.sidebar:
        query = {PARAMETER: choice.name} if choice.name else None
        # A page that has an icon itself makes the browser ask a host of fonts for a picture of it.
        for each, (_, icon, _) in zip(pages, (*PAGES, *OVER_RUNS), strict=True):
            st.page_link(each, icon=icon, query_params=query)
    offer_runs(root, served_by)
    page.run()


@st.cache_resource(show_spinner=False)
def exempt_imports() -> None:
    """Exempt what was imported from garbage collection, once.

    Streamlit collects after each script run, and would look through all of it: a tenth of a second,
    every two seconds beside a run that trains."""
    gc.freeze()


def show(render: Render, choice: RunChoice) -> None:
    """One page for the run that is chosen."""
    if choice.line is None:
        panels.empty(choice.trouble)
        return
    draw = reward_model.render if choice.line.kind in WITHOUT_UPDATES else render
    try:
        draw(RunData(choice.line))
    except UserError as error:
        panels.empty(str(error))


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs").resolve(), *sys.argv[2:3])
