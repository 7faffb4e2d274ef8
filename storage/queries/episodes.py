"""How the episodes of an environment ended."""

from collections import Counter
from pathlib import Path

from sqlalchemy import func, select

from storage.database.reader import open_run
from storage.database.tables import Trajectory


def episode_ends(run_dir: Path) -> dict[str, int]:
    """Training episodes by how they ended, the most frequent first: `finished`, the key of the
    limit that cut them short (`truncated` where a generator met it), what an environment failed by
    (`environment_timeout`), or `failed`; `running` are those that go on."""
    reader, counts = open_run(run_dir), Counter[str]()
    query = (
        select(Trajectory.status, Trajectory.error, func.count())
        .where(Trajectory.run == reader.key, Trajectory.purpose == "train")
        .group_by(Trajectory.status, Trajectory.error)
    )
    for status, error, number in reader.rows(query):
        reason = (error or "").partition(":")[0]
        counts[reason if reason.startswith("environment") else status] += number
    return dict(counts.most_common())
