"""Health: how each process is, what the run waits for, what happened, and the last stacks."""

import time
from functools import partial
from html import escape

import pandas as pd
import streamlit as st

from dashboard.components import panels
from dashboard.components.alert_list import CAPTION, LEVELS, alerts_html, event_html, event_rows
from dashboard.components.reading import literal_markdown
from dashboard.formatting import duration
from dashboard.reads.data import RunData, is_live
from dashboard.reads.process_health import HealthSnapshot, health_rows, health_sentence
from headrace.errors import moment
from storage import queries
from storage.queries import StackDump

EVENTS = 200
SHOWN = 14
"""Events that are shown before `more`."""
_BEATS = 3
"""Number of missed heartbeats after which a process counts as silent."""
_LEAST_SILENCE_S = 5.0


def render(run: RunData) -> None:
    """Draw the page. Stacks are not drawn again by themselves: their reader would lose the
    place."""
    panels.live(run, _body)
    _stacks(run)


def _body(run: RunData) -> None:
    panels.title(run, "Health")
    if run.line.sql:
        st.warning(literal_markdown(run.line.sql), icon=":material/database_off:")
    rows, look = run.fresh(queries.process_health), snapshot(run)
    said, well = health_sentence(rows, look)
    if well:
        st.success(literal_markdown(said), icon=":material/check_circle:")
    else:
        st.warning(literal_markdown(said), icon=":material/warning:")
    with panels.framed("Processes"):
        processes(run, rows, look)
    panels.grid([partial(_alerts, run), partial(_waits, run, look)])
    _events(run)
    names = sorted(run.latest("memory/"))
    if names:
        panels.metric_card(
            run, "Memory", names, "wall", samples=True,
            caption="Resident memory of each process and of all that it started, in bytes; pages "
            "they share count in each. Healthy: levels off.",
        )  # fmt: skip


def snapshot(run: RunData) -> HealthSnapshot:
    """State of the processes at this moment."""
    beat_s = run.config().get("transport", {}).get("heartbeat_s") or 0.0
    silent_s = max(_LEAST_SILENCE_S, _BEATS * float(beat_s))
    status = queries.coordinator_status(run.line.run_dir)
    return HealthSnapshot(run.line, status, time.time(), silent_s)


def processes(run: RunData, rows: pd.DataFrame, look: HealthSnapshot) -> None:
    """Draw the table of processes, whose rows are those of `queries.process_health`."""
    if rows.empty:
        panels.empty(panels.awaited(run, "processes that say hello"))
        return
    panels.table(health_rows(rows, look), "Processes")
    st.caption(
        "Last heard: how long ago the coordinator heard the process, and how long ago it wrote "
        "anything itself. Restarts and deaths are the supervisor's count. Memory is as of the "
        "newest sample. Healthy: heard a few seconds ago, no restarts."
    )


def _alerts(run: RunData) -> None:
    with panels.framed("Alerts", height="stretch"):
        st.html(alerts_html(run.alerts(), run.line.run_dir.name))
        st.caption(CAPTION)


def _waits(run: RunData, look: HealthSnapshot) -> None:
    with panels.framed("What the run waits for", height="stretch"):
        word = look.word
        if word is None:
            panels.empty("This run did not write down what it waits for.")
        elif not word.waits:
            panels.empty("For nothing.")
        else:
            ages = pd.DataFrame(
                {"for": list(word.waits), "age": list(map(duration, word.waits.values()))}
            )
            panels.table(ages, "Waits")
        last = f"As it last said, {moment(word.at)}, {word.phase}. " if word else ""
        st.caption(
            (last if not is_live(run.line) else "")
            + "Whatever can hold the run, with the time since it last moved. Waits are part of the "
            "work; one that is long names who holds the others up."
        )


def _events(run: RunData) -> None:
    rows = run.fresh(queries.events, limit=EVENTS)
    with panels.framed("What happened"):
        if rows.empty:
            panels.empty("Nothing so far.")
            return
        odd = rows[rows["level"].isin(LEVELS)]
        shown = odd if len(odd) else rows
        newest = shown.head(SHOWN).itertuples()
        st.html("".join(event_html(row) for row in newest))
        st.caption(
            "Incidents, newest first: warnings and errors of the coordinator and the supervisor."
            if len(odd)
            else "No incidents: no warnings, no errors. The newest events."
        )
        with st.expander(f"The newest {len(rows)} events"):
            panels.table(event_rows(rows), "Events")


def _stacks(run: RunData) -> None:
    found = run.fresh(queries.last_stacks)
    with panels.framed("Last stacks"):
        if not found:
            panels.empty("No process wrote one: none failed, and none was asked what it was doing.")
        for name, stack in found.items():
            with st.expander(literal_markdown(f"{name}: {_what(stack)}")):
                st.html(f'<pre class="hr-stack" tabindex="0">{escape(stack.text)}</pre>')
        st.caption(
            "The last traceback or dump of all threads in the end of each log in "
            f"{escape(str(run.line.run_dir / 'logs'))}. A run in which nobody makes progress has "
            "every process write what it is doing before it ends."
        )


def _what(stack: StackDump) -> str:
    if stack.kind == "traceback":
        return stack.text.splitlines()[-1][:120]
    return "what each thread was doing" + (f" at {moment(stack.at)}" if stack.at else "")
