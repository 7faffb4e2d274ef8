"""How the episodes of an environment ended."""

from collections import Counter
from pathlib import Path

from sqlalchemy import func, select

from storage.database.reader import open_run
from storage.database.tables import Trajectory


def episode_ends(run_dir: Path) -> dict[str, int]:
    """Training episodes by how they ended, the most frequent first: `finished`, the key of the
    limit that cut them short, what an environment failed by (`environment_timeout`), or `failed`;
    `issued` and `running` are those that go on."""
    reader, counts = open_run(run_dir), Counter[str]()
    query = (
        select(Trajectory.status, Trajectory.error, func.count())
        .where(Trajectory.run == reader.key, Trajectory.purpose == "train")
        .group_by(Trajectory.status, Trajectory.error)
    )
    for status, error, number in reader.rows(query):
        reason = (error or "").partition(":")[0]
        named = status == "truncated" or reason.startswith("environment_")
        counts[reason if reason and named else status] += number
    return dict(counts.most_common())
