"""`headrace replay`: recompute one update from stored data and report differences.

In: a run, the number of an update. Out: a table of quantities, or JSON. From the journal and the
token diagnostics alone: the batch, its shares, masks, lambdas, advantages, returns and figures.
Where the weights of the update's start are at hand also the update itself, with its models, on as
many learner ranks as then. Exit codes: 0 all that was compared agrees, 1 something differs, 2 there
is no such run or update. NaN means that a number is not known: where both are known they are
compared; one that is known on the stored side alone is counted as not recomputed, one on the other
side alone differs.
"""

import argparse
import contextlib
import json
import math
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from headrace.config.sections.run import RunConfig
from headrace.errors import UserError
from headrace.protocol.messages.diagnostics import TokenDiagnostics
from headrace.protocol.records.record_types import TakenWindow
from headrace.run_files import run_folder
from headrace.run_files.update_log import AppliedUpdate, read_applied

MAX_NAMED_DIFFERENCES = 5
"""Maximum number of differences named per quantity."""
Array = npt.NDArray[np.float64]


class NumberDifference(NamedTuple):
    """A number that differs: its owner, its place there, and its values on both sides."""

    whose: str
    place: int | None
    stored: float | None
    recomputed: float | None


class QuantityComparison(NamedTuple):
    """Comparison of one kind of number.

    Attributes:
        name: what it is. source: its origin, `store` or `models`. tolerance: maximum distance of
        two numbers, as a share of the stored one where that is over 1. compared: count of numbers
        on both sides. differing: count of those further apart, or known on one side only. unmade:
        count of stored ones that could not be recomputed. largest: the largest distance of two
        numbers, as the tolerance counts it. worst: some that differ, the largest difference first.
    """

    name: str
    source: str
    tolerance: float
    compared: int
    differing: int
    unmade: int
    largest: float
    worst: list[NumberDifference]


class ReplayRow(NamedTuple):
    """Numbers of one owner: their places from `first` on (None: it has no places)."""

    whose: str
    first: int | None
    stored: Array
    recomputed: Array


def quantity(
    name: str, rows: Iterable[ReplayRow], *, source: str, tolerance: float, lacks: bool = False
) -> QuantityComparison:
    """Compare rows. `lacks`: there is a reason for missing numbers, so that they do not differ."""
    compared = differing = unmade = 0
    largest = 0.0
    worst: list[tuple[float, NumberDifference]] = []
    for row in rows:
        known, made = ~np.isnan(row.stored), ~np.isnan(row.recomputed)
        with np.errstate(invalid="ignore"):
            apart = np.abs(row.stored - row.recomputed) / np.maximum(1.0, np.abs(row.stored))
        apart[np.isnan(apart)] = np.inf
        apart[(row.stored == row.recomputed) | ~(known | made)] = 0.0
        if lacks:
            unmade += int((known & ~made).sum())
            apart[known & ~made] = 0.0
        differs = apart > tolerance
        compared += int((known & made).sum())
        differing += int(differs.sum())
        largest = max(largest, float(apart[np.isfinite(apart)].max(initial=0.0)))
        places = np.flatnonzero(differs)
        order = places[np.argsort(-apart[places], kind="stable")[:MAX_NAMED_DIFFERENCES]]
        for place in order.tolist():
            where = None if row.first is None else row.first + place
            pair = _number(row.stored[place]), _number(row.recomputed[place])
            worst.append((float(apart[place]), NumberDifference(row.whose, where, *pair)))
        worst = sorted(worst, key=lambda found: -found[0])[:MAX_NAMED_DIFFERENCES]
    return QuantityComparison(
        name, source, tolerance, compared, differing, unmade, largest, [d for _, d in worst]
    )


def named_rows(stored: Mapping[str, object], recomputed: Mapping[str, object]) -> list[ReplayRow]:
    """Return rows of recomputed numbers stored by name; a list has a place for each number."""
    rows = []
    for name in sorted(set(stored) & set(recomputed)):
        both = (np.atleast_1d(np.array(x[name], np.float64)) for x in (stored, recomputed))
        rows.append(row_of(name, 0 if isinstance(stored[name], list) else None, *both))
    return rows


def row_of(
    whose: str, first: int | None, stored: npt.NDArray[Any], recomputed: npt.NDArray[Any]
) -> ReplayRow:
    """Return a row of two arrays that may differ in length; missing numbers are not known."""
    size = max(stored.size, recomputed.size)
    padded = (
        np.concatenate([x.astype(np.float64), np.full(size - x.size, np.nan)])
        for x in (stored, recomputed)
    )
    return ReplayRow(whose, first, *padded)


def _number(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


if TYPE_CHECKING:
    from coordinator.training.replayed_batch import PastBatch
    from headrace.protocol.messages.batches import Shard
    from headrace.protocol.token_spans import Float32

STORE, MODELS = "store", "models"
MASKS, RANKS = "masks", "ranks"
EXACT_TOLERANCE = 1e-5
"""Tolerance of numbers that need no model: both are float32."""
TIMING_PREFIXES = ("timing_s/", "perf/tokens_per_s")
"""Prefixes of figures that no two computations share."""
AppliedByRank = Mapping[int, AppliedUpdate]
"""Each rank's record of a batch."""
StoredDiagnostics = Mapping[int, TokenDiagnostics]
"""The learner's token diagnostics, by window."""


@dataclass
class ReplayReport:
    """Compared quantities, and the reasons for what was not recomputed."""

    past: "PastBatch"
    stored: StoredDiagnostics
    quantities: list[QuantityComparison] = field(default_factory=list)
    lacking: dict[str, str] = field(default_factory=dict)
    device: str | None = None

    @property
    def agrees(self) -> bool:
        """Return whether nothing differs."""
        return not any(q.differing for q in self.quantities)

    def compare(
        self, name: str, rows: Iterable[ReplayRow], tolerance: float, source: str = STORE
    ) -> None:
        """Add a quantity; numbers that are lacking do not differ."""
        lacks = source == STORE and name in self.lacking
        found = quantity(name, rows, source=source, tolerance=tolerance, lacks=lacks)
        self.quantities.append(found)

    def compare_tokens(
        self, name: str, again: "Mapping[int, Float32]", tolerance: float, source: str = STORE
    ) -> None:
        """Add a figure of single tokens, by window."""
        rows = (
            row_of(f"trajectory {row.trajectory_id}", row.start, row.columns[name], again[key])
            for key, row in self.stored.items()
            if key in again and name in row.columns
        )
        self.compare(name, rows, tolerance, source)

    def compare_figures(
        self, metrics: Mapping[str, object], tolerance: float, source: str = STORE
    ) -> None:
        """Add figures of the update; one that was broken off has those of a part."""
        commit = self.past.commit
        if commit.skipped is not None:
            self.lacking["figures"] = f"the update was broken off: {commit.skipped}"
        recorded = commit.metrics if commit.skipped is None else {}
        self.compare("figures", named_rows(recorded, metrics), tolerance, source)


def replay(arguments: argparse.Namespace) -> int:
    if not arguments.tolerance >= 0:
        raise UserError("--tolerance is a number from 0 on")
    run_dir = run_folder.find_run(Path(arguments.root or "runs"), arguments.name)
    run_folder.need_training(run_dir)
    config = run_folder.read_config(run_dir)
    with contextlib.redirect_stdout(sys.stderr):  # What libraries print is not the answer.
        found = _from_store(run_dir, config, arguments.update)
        if arguments.store_only:
            found.lacking["logprobs, values, losses, gradients, weights"] = "--store-only was given"
        else:
            _with_models(found, run_dir, config, arguments.tolerance)
    if arguments.json:
        print(json.dumps(_plain(found, run_dir.name)))
    else:
        _print(found, run_dir.name)
    return 0 if found.agrees else 1


# -- from the store --------------------------------------------------------------------------------


def _from_store(run_dir: Path, config: RunConfig, update: int) -> ReplayReport:
    """Compare everything that can be recomputed without a model."""
    from coordinator.training.replayed_batch import past_batch
    from learner.algorithms.registry import algorithm_of
    from learner.batching.shards import merge_shards
    from learner.replay.recompute import recompute
    from storage.journal.diagnostics import DiagnosticsReader
    from storage.journal.store import read_journal

    records = (record for batch in read_journal(run_dir / "journal") for _, record in batch)
    written = _written(run_dir, update)
    ranks = {batch_id: 1 + max(lines) for batch_id, lines in written.items()}
    past = past_batch(records, config, update, ranks)
    shard, commit = merge_shards(past.parts), past.commit
    keys = [(commit.lineage, commit.update, window.window_id) for window in shard.windows]
    rows = DiagnosticsReader(run_dir / "diagnostics").read(keys)
    stored = {key[2]: row for key, row in rows.items()}
    algorithm = algorithm_of(config)
    made = recompute(algorithm, shard, stored, version=past.recorded.version)
    found = ReplayReport(past, stored, lacking=dict(made.lacking))
    by_rank = written.get(past.recorded.batch_id or 0, {})
    if not by_rank:
        found.lacking[RANKS] = "no rank wrote down what it trained"
    found.compare(RANKS, _rank_rows(by_rank, past.prepared.parts) if by_rank else (), 0.0)
    found.compare(MASKS, _mask_rows(past), 0.0)
    ids = [window.window_id for window in made.windows]
    lams = [
        row_of(f"window {key}", None, np.array([stored[key].lam]), np.array([lam]))
        for key, lam in zip(ids, made.lams, strict=True)
        if key in stored
    ]
    found.compare("lambda", lams, EXACT_TOLERANCE)
    for name, column in made.columns.items():
        found.compare_tokens(name, dict(zip(ids, column, strict=True)), EXACT_TOLERANCE)
    found.compare_figures({**made.metrics, **past.prepared.metrics}, EXACT_TOLERANCE)
    return found


def _written(run_dir: Path, update: int) -> dict[int, dict[int, AppliedUpdate]]:
    """Return the ranks' records of an update, by batch and rank; the last of a repeated one."""
    found: dict[int, dict[int, AppliedUpdate]] = {}
    for name, line in read_applied(run_dir):
        if line.update == update:
            found.setdefault(line.batch_id, {})[int(name.removeprefix("rank-"))] = line
    return found


def _rank_rows(written: AppliedByRank, shares: Sequence[Sequence["Shard"]]) -> Iterator[ReplayRow]:
    """The rank of each window that was trained and of each value trajectory."""
    stored: dict[tuple[str, int], int] = {}
    for rank, line in written.items():
        stored |= {("window", key): rank for key in line.windows}
        stored |= {("value trajectory", key): rank for key in line.values}
    made: dict[tuple[str, int], int] = {}
    for rank, share in enumerate(shares):
        for part in share:
            made |= {("window", window.window_id): rank for window in part.windows}
            made |= {("value trajectory", value.trajectory_id): rank for value in part.values}
    for kind, key in sorted(stored.keys() | made.keys()):
        both = (np.array([x.get((kind, key), np.nan)]) for x in (stored, made))
        yield row_of(f"{kind} {key}", None, *both)


def _mask_rows(past: "PastBatch") -> Iterator[ReplayRow]:
    """Yield masks of the loss with their reasons, by the records and by the rules."""
    recorded = {window.window_id: window for window in past.recorded.windows}
    for taken in past.prepared.taken.windows:
        window = past.windows[taken.window_id]
        both = (
            _codes(each, window.start, window.end) for each in (recorded[taken.window_id], taken)
        )
        yield ReplayRow(f"trajectory {window.trajectory_id}", window.start, *both)


def _codes(window: TakenWindow, start: int, end: int) -> Array:
    """[end - start] 0 for a token in the loss, else the reason's number."""
    from storage.queries import REASONS

    codes = np.zeros(end - start)
    for run in window.masked:
        codes[run.start - start : run.end - start] = 1 + REASONS.index(run.reason)
    return codes


# -- with the models -------------------------------------------------------------------------------


def _with_models(found: ReplayReport, run_dir: Path, config: RunConfig, tolerance: float) -> None:
    """The update itself, where the weights of its start are there."""
    from learner.replay.model_replay import replay_obstacle, replay_update, weights_after

    past, update = found.past, found.past.commit.update
    why = replay_obstacle(config, run_dir, update, past.after)
    if why is None:
        try:
            with tempfile.TemporaryDirectory(prefix="headrace-replay-") as beside:
                parts = past.prepared.parts
                again = replay_update(config, run_dir, past.header(), parts, Path(beside))
        except UserError as error:
            why = str(error)
    if why is not None:
        found.lacking["logprobs, values, losses, gradients, weights"] = why
        return
    found.device = again.device
    for name in ("learner_logprobs", "values", "advantages"):
        columns = {row.window_id: row.columns[name] for row in again.done.diagnostics}
        found.compare_tokens(name, columns, tolerance, MODELS)
    every = again.done.metrics.items()
    figures = {name: value for name, value in every if not name.startswith(TIMING_PREFIXES)}
    found.compare_figures(figures, tolerance, MODELS)
    after = weights_after(run_dir, update, past.recorded.batch_id)
    if not after:
        found.lacking["weights"] = f"there is no checkpoint of update {update} to compare with"
    for name, weights in after.items():
        pair = (weights, again.weights[name])
        # One tensor at a time is float64 in memory; its numbers count from the first.
        rows = (ReplayRow(k, 0, *(x[k].double().flatten().numpy() for x in pair)) for k in weights)
        found.compare(f"weights of the {name}", rows, tolerance, MODELS)


# -- output ----------------------------------------------------------------------------------------


def _plain(found: ReplayReport, run: str) -> dict[str, Any]:
    commit, taken = found.past.commit, found.past.recorded
    return {
        "run": run,
        "update": commit.update,
        "lineage": commit.lineage,
        "batch_id": commit.batch_id,
        "windows": len(taken.windows),
        "value_trajectories": len(taken.value_trajectories),
        "device": found.device,
        "agrees": found.agrees,
        "quantities": [q._asdict() | {"worst": list(_worst(q))} for q in found.quantities],
        "not_recomputed": found.lacking,
    }


def _worst(q: QuantityComparison) -> Iterator[dict[str, Any]]:
    """Differences as JSON has them."""
    for d in q.worst:
        both = {"stored": _told(q, d.stored), "recomputed": _told(q, d.recomputed)}
        yield d._asdict() | both


def _told(q: QuantityComparison, value: float | None) -> float | str | None:
    """A number as JSON has it, a mask by its name."""
    if q.name == MASKS and value is not None:
        from storage.queries import REASONS

        return ("trained", *REASONS)[int(value)]
    return str(value) if value is not None and math.isinf(value) else value


def _print(found: ReplayReport, run: str) -> None:
    console = Console(highlight=False)
    commit, taken = found.past.commit, found.past.recorded
    console.print(
        f"run {run}, update {commit.update} of lineage {commit.lineage}: "
        f"{len(taken.windows):,} windows, {len(taken.value_trajectories):,} value trajectories",
        soft_wrap=True,
    )
    table = Table("quantity", "from", "compared", "differing", "largest", "tolerance", box=None)
    for column in table.columns[2:]:
        column.justify = "right"
    for q in found.quantities:
        source = f"{q.source} ({found.device})" if q.source == MODELS else q.source
        table.add_row(
            q.name, source, f"{q.compared:,}", f"{q.differing:,}", f"{q.largest:.2g}",
            f"{q.tolerance:g}",
        )  # fmt: skip
    console.print(table)
    worst = Table("quantity", "from", "where", "place", "stored", "recomputed", box=None)
    for q in found.quantities:
        for d in q.worst:
            place = "" if d.place is None else f"{d.place:,}"
            told = (_told(q, x) for x in (d.stored, d.recomputed))
            texts = (f"{x:.9g}" if isinstance(x, float) else x or "-" for x in told)
            worst.add_row(q.name, q.source, escape(d.whose), place, *texts)
    if worst.row_count:
        console.print(worst)
    for name, why in found.lacking.items():
        console.print(f"not recomputed: {name}: {why}", markup=False, soft_wrap=True)
    differing = [q.name for q in found.quantities if q.differing]
    said = f"DIFFERS: {', '.join(dict.fromkeys(differing))}" if differing else "agrees"
    console.print(said)
