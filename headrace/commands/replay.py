"""`headrace replay`: one update made again from what is stored, and where the numbers differ.

In: a run, the number of an update. Out: a table of quantities, or JSON. From the journal and the
token diagnostics alone: the batch, its shares, masks, lambdas, advantages, returns and figures.
Where the weights of the update's start are at hand also the update itself, with its models, on as
many learner ranks as then. Exit codes: 0 all that was compared agrees, 1 something differs, 2 there
is no such run or update.
"""

import argparse
import contextlib
import json
import math
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from headrace import run_folder
from headrace.commands.differences import (
    Array,
    Quantity,
    Row,
    named_rows,
    quantity,
    row_of,
)
from headrace.commands.shares import Written, rank_rows, written_shares
from headrace.config.run import RunConfig
from headrace.errors import UserError
from headrace.protocol.diagnostics import TokenDiagnostics
from headrace.protocol.fields import Metric
from headrace.protocol.records import TakenWindow

if TYPE_CHECKING:
    from torch import Tensor

    from coordinator.past_batch import PastBatch
    from headrace.protocol.streams import Float32
    from learner.recount import Recount

STORE, MODELS = "store", "models"
MASKS, RANKS = "masks", "ranks"
EXACT = 1e-5
"""How far a number that needs no model may lie from the stored one: both are float32."""
OF_THE_CLOCK = ("timing_s/", "perf/tokens_per_s")
"""Figures that no two computations share."""


@dataclass
class Replay:
    """What came of it: quantities compared, and for what was not made again, why. `written`: what
    the learner's ranks wrote down of the update."""

    past: "PastBatch"
    written: Written
    quantities: list[Quantity] = field(default_factory=list)
    lacking: dict[str, str] = field(default_factory=dict)
    device: str | None = None

    @property
    def agrees(self) -> bool:
        """Whether nothing differs."""
        return not any(q.differing for q in self.quantities)


def replay(arguments: argparse.Namespace) -> int:
    """Make an update again and say what differs."""
    if not arguments.tolerance >= 0:
        raise UserError("--tolerance is a number from 0 on")
    run_dir = run_folder.find_run(Path(arguments.root or "runs"), arguments.name)
    config = run_folder.read_config(run_dir)
    from coordinator.past_batch import past_batch
    from storage.journal import read_journal

    records = (record for batch in read_journal(run_dir / "journal") for _, record in batch)
    shares = written_shares(run_dir, arguments.update)
    ranks = {batch_id: 1 + max(written) for batch_id, written in shares.items()}
    past = past_batch(records, config, arguments.update, ranks)
    found = Replay(past, shares.get(past.recorded.batch_id or 0, {}))
    with _output_on_stderr():
        _from_store(found, run_dir, config, arguments)
    if arguments.json:
        print(json.dumps(_plain(found, run_dir.name)))
    else:
        _print(found, run_dir.name)
    return 0 if found.agrees else 1


@contextlib.contextmanager
def _output_on_stderr() -> Iterator[None]:
    """What libraries print is not the answer."""
    with contextlib.redirect_stdout(sys.stderr):
        yield


def _from_store(
    found: Replay, run_dir: Path, config: RunConfig, arguments: argparse.Namespace
) -> None:
    """Everything that can be made again."""
    from learner.algorithm import build_algorithm
    from learner.recount import recount
    from learner.shards import merged
    from storage.diagnostics import DiagnosticsReader

    past = found.past
    shard, commit = merged(past.parts), past.commit
    keys = [(commit.lineage, commit.update, window.window_id) for window in shard.windows]
    rows = DiagnosticsReader(run_dir / "diagnostics").read(keys)
    stored = {key[2]: row for key, row in rows.items()}
    algorithm = build_algorithm(
        config.algorithm, window=config.window, max_length=config.task.max_response_length,
        fire=config.generator.fire,
    )  # fmt: skip
    made = recount(algorithm, shard, stored, version=past.recorded.version)
    found.lacking |= made.lacking
    found.quantities += [_ranks(found), _masks(past), *_columns(made, stored)]
    metrics = made.metrics | past.prepared.metrics
    found.quantities.append(_figures(found, metrics, STORE, EXACT))
    if arguments.store_only:
        found.lacking["logprobs, values, losses, gradients, weights"] = "--store-only was given"
    else:
        _with_models(found, stored, run_dir, config, arguments.tolerance)


def _ranks(found: Replay) -> Quantity:
    """Which rank trained what, by what the ranks wrote down and by the rules."""
    if not found.written:
        found.lacking[RANKS] = "no rank wrote down what it trained"
        return quantity(RANKS, (), source=STORE, tolerance=0.0)
    rows = rank_rows(found.written, found.past.prepared.parts)
    return quantity(RANKS, rows, source=STORE, tolerance=0.0)


def _masks(past: "PastBatch") -> Quantity:
    """What was kept out of the loss, and why, by the records and by the rules."""
    recorded = {window.window_id: window for window in past.recorded.windows}
    rows = []
    for window in past.prepared.taken.windows:
        place = past.windows[window.window_id]
        both = (_codes(w, place.start, place.end) for w in (recorded[window.window_id], window))
        rows.append(Row(f"trajectory {place.trajectory_id}", place.start, *both))
    return quantity(MASKS, rows, source=STORE, tolerance=0.0)


def _codes(window: TakenWindow, start: int, end: int) -> Array:
    """[end - start] 0 for a token in the loss, else the reason's number."""
    from storage.queries import REASONS

    codes = np.zeros(end - start)
    for run in window.masked:
        codes[run.start - start : run.end - start] = 1 + REASONS.index(run.reason)
    return codes


def _columns(made: "Recount", stored: dict[int, TokenDiagnostics]) -> Iterator[Quantity]:
    """Numbers of windows and of tokens."""
    lams = [
        Row(f"window {w.window_id}", None, np.array([stored[w.window_id].lam]), np.array([lam]))
        for w, lam in zip(made.windows, made.lams, strict=True)
        if w.window_id in stored
    ]
    yield quantity("lambda", lams, source=STORE, tolerance=EXACT)
    windows = {w.window_id: i for i, w in enumerate(made.windows)}
    for name, column in made.columns.items():
        again = {key: column[i] for key, i in windows.items()}
        lacks = name in made.lacking
        yield _tokens(name, stored, again, STORE, EXACT, lacks=lacks)


def _tokens(
    name: str,
    stored: dict[int, TokenDiagnostics],
    again: "dict[int, Float32]",
    source: str,
    tolerance: float,
    *,
    lacks: bool = False,
) -> Quantity:
    """A figure of single tokens, by window."""
    rows = [
        row_of(f"trajectory {row.trajectory_id}", row.start, row.columns[name], again[key])
        for key, row in stored.items()
        if key in again and name in row.columns
    ]
    return quantity(name, rows, source=source, tolerance=tolerance, lacks=lacks)


def _figures(
    found: Replay, metrics: dict[str, Metric] | dict[str, float], source: str, tolerance: float
) -> Quantity:
    """Figures of the update; one that was broken off has those of a part."""
    recorded = found.past.commit.metrics
    if found.past.commit.skipped is not None:
        found.lacking["figures"] = f"the update was broken off: {found.past.commit.skipped}"
        recorded = {}
    rows = named_rows(recorded, metrics)
    return quantity("figures", rows, source=source, tolerance=tolerance)


# -- with the models -------------------------------------------------------------------------------


def _with_models(
    found: Replay,
    stored: dict[int, TokenDiagnostics],
    run_dir: Path,
    config: RunConfig,
    tolerance: float,
) -> None:
    """The update itself, where the weights of its start are there."""
    from learner.rerun import obstacle, rerun, weights_after

    past, update = found.past, found.past.commit.update
    why = obstacle(config, run_dir, update, past.after)
    if why is None:
        try:
            with tempfile.TemporaryDirectory(prefix="headrace-replay-") as beside:
                parts = past.prepared.parts
                again = rerun(config, run_dir, past.header(), parts, Path(beside))
        except UserError as error:
            why = str(error)
    if why is not None:
        found.lacking["logprobs, values, losses, gradients, weights"] = why
        return
    found.device = again.device
    rows = {row.window_id: row for row in again.done.diagnostics}
    for name in ("learner_logprobs", "values", "advantages"):
        columns = {key: row.columns[name] for key, row in rows.items()}
        found.quantities.append(_tokens(name, stored, columns, MODELS, tolerance))
    metrics = {
        name: value
        for name, value in again.done.metrics.items()
        if not name.startswith(OF_THE_CLOCK)
    }
    found.quantities.append(_figures(found, metrics, MODELS, tolerance))
    after = weights_after(run_dir, update, past.recorded.batch_id)
    if not after:
        found.lacking["weights"] = f"there is no checkpoint of update {update} to compare with"
    for name, weights in after.items():
        rows_of = _tensors(weights, again.weights[name])
        found.quantities.append(
            quantity(f"weights of the {name}", rows_of, source=MODELS, tolerance=tolerance)
        )


def _tensors(stored: "Mapping[str, Tensor]", again: "Mapping[str, Tensor]") -> Iterator[Row]:
    """Tensors by name, their numbers counted from the first one; one at a time is in memory as
    float64."""
    for name in stored:
        yield Row(name, 0, *(x[name].double().flatten().numpy() for x in (stored, again)))


# -- told ------------------------------------------------------------------------------------------


def _plain(found: Replay, run: str) -> dict[str, Any]:
    commit = found.past.commit
    return {
        "run": run,
        "update": commit.update,
        "lineage": commit.lineage,
        "batch_id": commit.batch_id,
        "windows": len(found.past.recorded.windows),
        "value_trajectories": len(found.past.recorded.value_trajectories),
        "device": found.device,
        "agrees": found.agrees,
        "quantities": [
            q._asdict()
            | {
                "worst": [
                    {
                        "whose": d.whose,
                        "place": d.place,
                        "stored": _told(q, d.stored),
                        "recomputed": _told(q, d.recomputed),
                    }
                    for d in q.worst
                ]
            }
            for q in found.quantities
        ],
        "not_recomputed": found.lacking,
    }


def _told(q: Quantity, value: float | None) -> float | str | None:
    """A number as JSON has it, a mask by its name."""
    if q.name == MASKS and value is not None:
        from storage.queries import REASONS

        return ("trained", *REASONS)[int(value)]
    return str(value) if value is not None and math.isinf(value) else value


def _print(found: Replay, run: str) -> None:
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
