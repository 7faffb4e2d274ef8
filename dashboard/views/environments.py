"""Environments: how episodes end, how many turns they have, what tools do, who waits for whom."""

from functools import partial

import streamlit as st

from dashboard.components import panels
from dashboard.formatting import answers_address, bars_html, link_html, metric_label, share
from dashboard.palette import BLUE, ORANGE
from dashboard.reads.data import RunData
from storage import queries

MEANINGS = {
    "finished": "Their environment said so.",
    "running": "They go on.",
    "issued": "They wait for their first turn.",
    "aborted": "They went on when the run ended, which is no failure.",
    "task.max_response_length": "All turns together were that long. They keep what they earned.",
    "failed": "Their generator failed on them.",
    "environment.max_turns": "So many turns are the most; they keep what they have earned.",
    "environment.max_turn_tokens": "A turn was longer than that.",
    "environment.max_inserted": "There was no room left for an answer.",
    "environment.max_context": "The sequence was as long as it may be.",
    "environment.episode_timeout_s": "Their environment took longer than that in all steps.",
    "environment_timeout": "A step missed its deadline. They earned nothing, not 0.",
    "environment_crashed": "Their environment raised, or its process died twice: see the events.",
    "environment_invalid": "Their environment returned what is no answer. The events say what.",
    "environment_diverged": "Built again after a death, it answered otherwise than before.",
    "environment_rewritten": "Their agent changed its history, was refused, and ended by that.",
    "environment_lost": "It cannot be built again: replayable = False.",
}
"""What to make of an end."""
TOOLS = (("Calls of tools", "calls"), ("Wrong calls", "errors"), ("Seconds in tools", "seconds"))


@panels.repainted
def render(run: RunData) -> None:
    """The page."""
    panels.title(run, "Environments")
    if not run.config().get("environment"):
        panels.empty("This run has no [environment]: an answer is one turn.")
        return
    ends = run.throttled(queries.episode_ends)
    if not ends:
        panels.empty(panels.awaited(run, "the first episode"))
        return
    with panels.framed("How episodes ended"):
        st.html(ends_html(ends))
        address = answers_address(run.line.run_dir.name, read_as="requests")
        st.html(link_html(address, "Read episodes request by request"))
    said = [name for name in run.charted() if name.startswith("environment/")]
    own = ("environment/turns", "environment/step_s")
    tools = {title: [n for n in said if _is_of(n, what)] for title, what in TOOLS}
    others = [n for n in said if n not in {*own, *(n for names in tools.values() for n in names)}]
    cards = [
        partial(panels.metric_card, run, "Turns of an episode", own[:1]),
        partial(panels.metric_card, run, "Seconds of a step", own[1:]),
        partial(
            panels.metric_card, run, "Waiting for an environment",
            ["schedule/paused", "schedule/live"], "wall", samples=True,
        ),
        *(partial(panels.metric_card, run, title, of) for title, of in tools.items() if of),
        *(partial(panels.metric_card, run, metric_label(name), [name]) for name in others),
    ]  # fmt: skip
    panels.grid(cards)


def _is_of(name: str, what: str) -> bool:
    """Return whether a metric counts that of all tools, or of one."""
    _, _, said = name.partition("/")
    return said == what or said.startswith(f"{what}_")


def ends_html(ends: dict[str, int]) -> str:
    """A row for each end: episodes as a bar, their share, and what it means."""
    total = sum(ends.values())
    words = {end: end if "." in end else end.replace("_", " ") for end in ends}  # keys stay keys
    colours = dict.fromkeys(("finished", "running", "issued", "aborted"), BLUE)
    return bars_html(
        [
            (words[end], n, share(n / total), colours.get(end, ORANGE), MEANINGS.get(end, ""))
            for end, n in ends.items()
        ]
    )
