"""Comparison of the learner's update log with the journal, to audit the weights.

In: a run's folder. Of it two things: `applied/rank-R.jsonl`, where each learner rank wrote down
what it had just trained, and the journal's Arrow segments. Out: an `UpdateLogComparison`. Promises:
it imports nothing of the coordinator or of storage, so none of their mistakes is made twice; it
reads only, and may run while the run goes on.

Weights are a chain of batches, each applied to what the one before had left. The journal's updates
on the surviving lineage must be that chain: the same batches in the same order, each with the same
windows, and no window in two of them.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from headrace.run_files.checked_lines import whole_lines

FOLDER = "applied"
_KINDS = frozenset(
    {"WindowsClosed", "BatchTaken", "BatchReturned", "UpdateCommitted", "LineageBegan"}
)
_MAX_NAMED_IDS = 4
"""Maximum number of ids named in a problem."""


class AppliedUpdate(NamedTuple):
    """A rank's share of a batch, at the moment when it is in the weights. `after`: id of the batch
    trained before this one; None: none, or a batch without an id. `windows` and `values`: ids of
    what was trained, of windows and of trajectories. `skipped`: why the update was broken off: then
    it published nothing, and steps before that may be in the weights."""

    at: float
    batch_id: int
    update: int
    lineage: int
    after: int | None
    windows: list[int]
    values: list[int]
    skipped: str | None


@dataclass
class UpdateLogComparison:
    """Differences of update log and journal.

    Attributes:
        updates: number of compared updates of the surviving lineage. windows: number of windows in
        the weights. doubled: windows that are in the weights twice. doubled_values: trajectories on
        which the value model was trained twice. problems: every difference, a line for each.
    """

    updates: int = 0
    windows: int = 0
    doubled: list[int] = field(default_factory=list)
    doubled_values: list[int] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


class _Commit(NamedTuple):
    """An update as the journal has it; `windows`: those with tokens in the loss."""

    update: int
    lineage: int
    batch_id: int | None
    windows: list[int]
    values: list[int]
    skipped: bool


def read_applied(run_dir: Path) -> Iterator[tuple[str, AppliedUpdate]]:
    """Yield (rank, line) as each rank wrote. Torn lines are skipped: their update was not
    reported."""
    for path in sorted((run_dir / FOLDER).glob("rank-*.jsonl")):
        for values in whole_lines(path):
            yield path.stem, AppliedUpdate(**values)


def compare(run_dir: Path) -> UpdateLogComparison:
    """Compare the surviving updates of a run with what the learner wrote down of its weights.
    A run whose learner wrote nothing down is passed over."""
    found = UpdateLogComparison()
    if not (run_dir / FOLDER).is_dir():
        return found
    commits = _surviving(_records(run_dir / "journal"))
    lines: dict[int, list[tuple[str, AppliedUpdate]]] = defaultdict(list)
    for rank, line in read_applied(run_dir):
        lines[line.batch_id].append((rank, line))
    before: int | None = None
    windows, values = Counter[int](), Counter[int]()
    for commit in commits:
        if commit.batch_id is not None:
            own = lines.get(commit.batch_id, [])
            found.problems += _problems(commit, own, before)
            found.updates += 1
            for _, line in own:
                if line.skipped is None:
                    windows.update(line.windows)
                    values.update(line.values)
        before = commit.batch_id
    found.windows = len(windows)
    found.doubled = [key for key, count in windows.items() if count > 1]
    found.doubled_values = [key for key, count in values.items() if count > 1]
    for what, twice in (("windows", found.doubled), ("value targets", found.doubled_values)):
        if twice:
            found.problems.append(f"{what} {first_ids(twice)} are in the weights twice")
    return found


def _problems(
    commit: _Commit, own: list[tuple[str, AppliedUpdate]], before: int | None
) -> Iterator[str]:
    name = f"update {commit.update} of lineage {commit.lineage} (batch {commit.batch_id})"
    if not own:
        yield f"{name} is committed, and no learner wrote that it is in the weights"
        return
    if len({rank for rank, _ in own}) < len(own):
        yield f"{name} was applied twice"
    for rank, line in own:
        if (line.update, line.lineage) != (commit.update, commit.lineage):
            yield f"{name} was applied by {rank} as update {line.update} of lineage {line.lineage}"
        if line.after != before:
            yield f"{name} was applied by {rank} to batch {line.after}, and should follow {before}"
        if (line.skipped is not None) != commit.skipped:
            yield f"{name} was broken off by {rank}, or in the journal, and not in both"
    for what, ours, theirs in (
        ("windows", commit.windows, [w for _, line in own for w in line.windows]),
        ("value targets", commit.values, [v for _, line in own for v in line.values]),
    ):
        if missing := set(ours) - set(theirs):
            yield f"{name}: {what} {first_ids(missing)} are not in the weights"
        if more := set(theirs) - set(ours):
            yield f"{name}: {what} {first_ids(more)} are in the weights and not in the journal"


def first_ids(ids: Iterable[int]) -> str:
    """Name the first few of some ids, and how many others there are."""
    ordered = sorted(ids)
    rest = f" and {len(ordered) - _MAX_NAMED_IDS} more" if len(ordered) > _MAX_NAMED_IDS else ""
    return ", ".join(map(str, ordered[:_MAX_NAMED_IDS])) + rest


# -- the journal -----------------------------------------------------------------------------------


def _surviving(records: Iterator[dict[str, Any]]) -> list[_Commit]:
    """The updates that no rollback has undone, in their order."""
    sizes: dict[int, int] = {}
    taken: dict[str, Any] | None = None
    line: dict[int, _Commit] = {}
    for record in records:
        match record["type"]:
            case "WindowsClosed":
                sizes |= {w["window_id"]: w["tokens"] for w in record["windows"]}
            case "BatchTaken":
                taken = record
            case "BatchReturned":
                taken = None
            case "LineageBegan":
                line = {u: commit for u, commit in line.items() if u <= record["update"]}
                taken = None
            case "UpdateCommitted" if taken is not None:
                line[record["update"]] = _Commit(
                    update=record["update"],
                    lineage=record["lineage"],
                    batch_id=record.get("batch_id"),
                    windows=[w["window_id"] for w in taken["windows"] if _trains(w, sizes)],
                    values=taken["value_trajectories"],
                    skipped=record.get("skipped") is not None,
                )
                taken = None
    return [line[update] for update in sorted(line)]


def _trains(window: dict[str, Any], sizes: dict[int, int]) -> bool:
    """Return whether a window that was taken has tokens outside its masked runs."""
    masked = sum(int(tokens) for _, _, _, tokens in window.get("masked", []))
    return masked < sizes.get(window["window_id"], masked + 1)


def _records(folder: Path) -> Iterator[dict[str, Any]]:
    """Records of batches and windows, as plain maps, up to the last whole batch."""
    import pyarrow as pa

    for path in sorted(folder.glob("segment-*.arrow")):
        with pa.OSFile(str(path)) as source:
            try:
                reader = pa.ipc.open_stream(source)
                for batch in reader:
                    kinds = batch.column("kind").to_pylist()
                    bodies = batch.column("body")
                    for row, kind in enumerate(kinds):
                        if kind in _KINDS:
                            yield msgspec.msgpack.decode(bodies[row].as_py())
            except (pa.ArrowInvalid, OSError):
                continue  # Nothing whole follows in this segment.
