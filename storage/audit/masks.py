"""Checks of the trained mask that pages and exports show against what was trained.

Comes in: facts, and a connection to the rows that pages and exports are made from. Goes out:
findings where a token table says otherwise. Of a long run it looks at a sample, the same one every
time.
"""

from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import Connection, select

from storage.audit.facts import Facts, TrajectoryFacts
from storage.audit.findings import Findings
from storage.responses import Wanted, read_responses
from storage.tables import Trajectory, Window
from storage.tokens import token_table

MOST = 512
"""So many trajectories are looked at, evenly spread over the run."""


def check_masks(
    connection: Connection, run: int, journal: Path, facts: Facts, findings: Findings
) -> int:
    """Compare the token tables of training trajectories; how many were."""
    query = (
        select(Trajectory.trajectory_id, Trajectory.last_offset)
        .where(Trajectory.run == run, Trajectory.purpose == "train", Trajectory.length > 0)
        .where(Trajectory.last_offset.is_not(None))
        .order_by(Trajectory.trajectory_id)
    )
    rows = connection.execute(query).all()
    chosen = rows[:: max(1, -(-len(rows) // MOST))]
    ids = np.array([row.trajectory_id for row in chosen], np.int64)
    windows: dict[int, list[Any]] = {int(key): [] for key in ids}
    of_chosen = select(Window).where(Window.run == run, Window.trajectory_id.in_(ids.tolist()))
    ordered = of_chosen.order_by(Window.window_id).with_only_columns(*Window.__table__.c)
    for window in connection.execute(ordered):
        windows[window.trajectory_id].append(window)
    wanted = Wanted(ids, np.array([row.last_offset for row in chosen], np.int64))
    for key, response in read_responses(journal, wanted):
        trajectory = facts.trajectories.get(key)
        if trajectory is None or len(response.token_ids) != trajectory.length:
            text = f"the table has {len(response.token_ids)} tokens"
            findings.add("mask", f"trajectory {key}", text)
            continue
        table = token_table(response, windows[key], {})
        _compare(trajectory, table.loss_mask, table.trained_at_update, findings)
    return len(chosen)


def _compare(
    trajectory: TrajectoryFacts,
    mask: "np.ndarray[Any, Any]",
    updates: "np.ndarray[Any, Any]",
    findings: Findings,
) -> None:
    expected = np.zeros(trajectory.length, np.uint8)
    expected_at = np.full(trajectory.length, -1, np.int64)
    for window in trajectory.windows:
        if window.state == "trained":
            here = slice(window.start, window.end)
            expected[here] = trajectory.in_loss(window)
            expected_at[here] = window.update if window.update is not None else -1
    name = f"trajectory {trajectory.trajectory_id}"
    for wrong, what in (
        (mask != expected, "the trained mask"),
        (updates != expected_at, "the update that trained them"),
    ):
        if wrong.any():
            first = int(np.flatnonzero(wrong)[0])
            text = f"{what} is wrong for {int(wrong.sum())} tokens, first at position {first}"
            findings.add("mask", name, text)
