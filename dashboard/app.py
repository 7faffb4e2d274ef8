"""The dashboard's entry: `streamlit run dashboard/app.py -- ROOT`.

In: a folder of runs. Out: the pages, for the run chosen at the left (`latest` follows the newest).
Reads `storage.queries` only, and never writes.
"""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import streamlit as st

from dashboard import data, panels
from dashboard.data import RunData
from dashboard.palette import STYLE
from dashboard.picker import pick_run
from dashboard.views import (
    learning,
    overview,
    pipeline,
    query,
    reward_model,
    rewards,
    trajectories,
)

_STATIC = Path(__file__).parent / "static"
Render = Callable[[RunData, Path], None]
# The kind of a run that all pages show alike.
REWARD_MODEL = "reward model"
PAGES: tuple[tuple[str, str, Render], ...] = (
    ("Overview", ":material/water:", overview.render),
    ("Learning", ":material/trending_up:", learning.render),
    ("Rewards", ":material/balance:", rewards.render),
    ("Pipeline", ":material/view_timeline:", pipeline.render),
    ("Trajectories", ":material/notes:", trajectories.render),
    ("Query", ":material/database_search:", query.render),
)


def main(root: Path) -> None:
    """Draw the page that is asked for."""
    st.set_page_config(page_title="Headrace", page_icon=str(_STATIC / "icon.svg"), layout="wide")
    st.html(STYLE)
    st.logo(str(_STATIC / "headrace.svg"), size="large")
    pages = [
        st.Page(
            partial(show, render, root),
            title=title,
            icon=icon,
            url_path=title.lower(),
            default=title == "Overview",
        )
        for title, icon, render in PAGES
    ]
    st.navigation(pages).run()


def show(render: Render, root: Path) -> None:
    """One page for the run that is chosen."""
    run_dir = pick_run(root)
    if run_dir is None:
        panels.empty(
            f"No run under {root} yet. Start one with: headrace train recipes/quickstart.toml"
        )
    else:
        line = data.run_line(str(run_dir))
        draw = reward_model.render if line.kind == REWARD_MODEL else render
        draw(RunData(line), root)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs").resolve())
