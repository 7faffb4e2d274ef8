"""Checks of checkpoints, token diagnostics and token tables against the journal.

In: a run's folder and the facts; for the tables of pages and exports, a reader of their rows. Out:
findings for images that are missing or damaged; for checkpoints that are missing, not whole or of
another update; for trained windows whose diagnostics are missing, of another length, or without
figures where tokens were in the loss; and where a table says otherwise of what was trained.
"""

import os
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import select

from headrace.data.media import MediaStore
from headrace.errors import UserError
from headrace.protocol.messages.diagnostics import REPORT_BYTES, TOKEN_COLUMNS, WINDOW_BYTES
from headrace.protocol.transport.curve import damaged_keys
from headrace.run_files.checked_lines import whole_lines
from headrace.run_files.run_folder import (
    EVENTS_FILE,
    KEYS,
    MEDIA,
    RESOLVED,
    config_digest,
    described_files,
    read_manifest,
)
from headrace.run_files.update_log import FOLDER
from storage.audit.findings import Findings, Kind
from storage.audit.journal_facts import JournalFacts, TrajectoryFacts, WindowFacts
from storage.database.reader import RunReader
from storage.database.tables import Trajectory
from storage.exports.pages import windows_of
from storage.journal.checkpoints import orphan_checkpoints
from storage.journal.diagnostics import DiagnosticsReader, WindowKey
from storage.journal.record_batches import SegmentWalk
from storage.journal.responses import ResponseSelection, response_pages
from storage.journal.segments import segment_paths
from storage.projection.history import FINAL_PHASES
from storage.text.token_table import token_table

Array = np.ndarray[Any, Any]
MAX_TOKEN_TABLES = 512
"""Maximum number of examined trajectories, evenly spread, always the same ones."""
_IN_LOSS = ("learner_logprobs", "advantages")
"""Figures that every token in the loss has."""


def check_images(run_dir: Path, facts: JournalFacts, findings: Findings) -> int:
    """Look at the images of all prompts; how many there are."""
    store = MediaStore(run_dir / MEDIA)
    for digest in sorted(facts.images):
        try:
            store.read(digest)
        except UserError as error:
            findings.add("image", digest, str(error))
    return len(facts.images)


def check_checkpoints(run_dir: Path, facts: JournalFacts, findings: Findings) -> int:
    """Look at every checkpoint that is kept; how many are."""
    root = run_dir / "checkpoints"
    recorded = {Path(each.path).name: each for each in facts.checkpoints.values()}
    folders = sorted(path for path in root.glob("step_*") if path.is_dir())
    newest = {path.name for path in sorted(folders, key=lambda path: (len(path.name), path))[-1:]}
    if facts.checkpoints:
        last = list(facts.checkpoints.values())[-1]
        newest.add(name := Path(last.path).name)
        # A later one, which may not have been reported yet, is kept in its place.
        if max(newest, key=lambda each: (len(each), each)) == name and not (root / name).is_dir():
            text = f"the newest one, of update {last.update}, is not there"
            findings.add("checkpoint", name, text)
    latest = root / "latest"
    named = latest.read_text(errors="replace") if latest.is_file() else ""
    if (latest.is_file() or folders) and not (
        named in {f"{name}\n" for name in newest} and (root / named.strip()).is_dir()
    ):
        findings.add("checkpoint", "latest", f"names {named!r}, which is not the newest one")
    lost = {orphan.path for orphan in orphan_checkpoints(run_dir)}
    for path in folders:
        try:
            manifest = read_manifest(path)
            problem = checkpoint_problem(path, manifest)
        except (OSError, ValueError, KeyError, TypeError) as error:
            manifest, problem = {}, f"its manifest cannot be read: {error!r}"
        if path in lost:
            problem = problem or "rests on records that the journal does not hold"
        record = recorded.get(path.name)
        # One that was written after the last record of its name has not been reported yet.
        if record is not None and manifest.get("lineage", record.lineage) < record.lineage:
            problem = problem or (
                f"is of lineage {manifest['lineage']} and the journal says {record.lineage}"
            )
        if problem and path.is_dir():  # else a run that goes on has removed it meanwhile
            findings.add("checkpoint", path.name, problem)
    return len(folders)


def checkpoint_problem(path: Path, manifest: dict[str, Any]) -> str | None:
    """Return why a checkpoint differs from its manifest; None where it does not."""
    if f"step_{manifest['update']}" != path.name:
        return f"its manifest says update {manifest['update']}"
    for name, described in manifest["files"].items():
        file = path / name
        if not file.is_file():
            return f"{name} is missing"
        if file.stat().st_size != described["bytes"]:
            return f"{name} has {file.stat().st_size:,} bytes, not {described['bytes']:,}"
    for name, found in described_files(path, manifest["files"]).items():
        if found["sha256"] != manifest["files"][name]["sha256"]:
            return f"{name} is damaged, or its line in the manifest is: another sha256"
    return None


def check_small_files(
    run_dir: Path, facts: JournalFacts, findings: Findings, *, growing: bool
) -> None:
    """Look at the configuration, the keys and the lines of supervisor and learner."""
    if not growing and facts.config not in (None, config_digest(run_dir)):
        text = "is not the configuration that the run was last started with"
        findings.add("damaged", RESOLVED, text)
    if os.access(run_dir / KEYS, os.R_OK | os.X_OK):  # its owner's alone
        for name in damaged_keys(run_dir / KEYS):
            findings.add("damaged", f"{KEYS}/{name}.key", "is no pair of keys, with its secret")
    told: list[str] = []
    ranks = sorted((run_dir / FOLDER).glob("rank-*.jsonl"))
    for path in filter(Path.is_file, [run_dir / EVENTS_FILE, *ranks]):
        wrong: list[str] = []
        for line in whole_lines(path, wrong):
            told += {"started", "ended"} & {line.get("event")}
        if not growing and path.read_bytes()[-1:] not in (b"", b"\n"):
            wrong.append("it ends in the middle of a line")
        for text in wrong:
            findings.add("damaged", str(path.relative_to(run_dir)), text)
    has_ended = not growing and facts.phase in FINAL_PHASES and (run_dir / "logs").is_dir()
    if has_ended and told[-1:] != ["ended"]:
        text = "the journal says that the run has ended, and the supervisor does not"
        findings.add("damaged", EVENTS_FILE, text)


def check_diagnostics(
    run_dir: Path, facts: JournalFacts, findings: Findings, *, growing: bool, max_bytes: int
) -> int:
    """Check diagnostics of windows in the surviving weights; returns how many have some.

    Where those of an update are over `max_bytes`, the learner has left some out."""
    folder = run_dir / "diagnostics"
    paths = segment_paths(folder)
    for path in paths:
        walk = SegmentWalk(path).done()
        ending, is_last = walk.ending(), path == paths[-1]
        if ending != "sealed" and not (is_last and (growing or ending == "open")):
            text = f"{path.stat().st_size - walk.end:,} bytes are no whole batch"
            kind: Kind = "torn" if is_last and ending == "torn" else "damaged"
            findings.add(kind, f"diagnostics/{path.name} at byte {walk.end}", text)
            return 0
    reader = DiagnosticsReader(folder)
    by_update: dict[tuple[int, int], dict[WindowKey, WindowFacts]] = defaultdict(dict)
    for window in facts.windows.values():
        for lineage, update in window.trained[-1:]:
            if facts.updates[lineage, update].reported:
                by_update[lineage, update][lineage, update, window.window_id] = window
    looked_at = 0
    for key in sorted(by_update):
        found = reader.read(by_update[key])
        positions = sum(window.end - window.start for window in by_update[key].values())
        arrays = positions * len(TOKEN_COLUMNS) * np.float32().nbytes
        all_fit = REPORT_BYTES + WINDOW_BYTES * len(by_update[key]) + arrays <= max_bytes
        for window_key, window in by_update[key].items():
            kept = facts.trajectories[window.trajectory_id].in_loss(window)
            where = f"{window.name}, update {key[1]}"
            if window_key not in found:
                if all_fit and kept.any():
                    findings.add("diagnostics", where, "has none")
                continue
            looked_at += 1
            if problem := _wrong(window, kept, found[window_key]):
                findings.add("diagnostics", where, problem)
    return looked_at


def _wrong(window: WindowFacts, kept: Array, seen: Any) -> str | None:
    if (seen.trajectory_id, seen.start) != (window.trajectory_id, window.start):
        return f"are said to be of trajectory {seen.trajectory_id} from {seen.start} on"
    for name, values in seen.columns.items():
        if len(values) != len(kept):
            return f"{name}: {len(values)} figures for {len(kept)} positions"
    for name in _IN_LOSS:
        values = seen.columns.get(name)
        missing = kept if values is None else kept & ~np.isfinite(values)
        if missing.any():
            return f"{name}: {int(missing.sum())} tokens in the loss have no figure"
    return None


def check_masks(reader: RunReader, facts: JournalFacts, findings: Findings) -> int:
    """Compare the token tables of training trajectories; how many were."""
    query = (
        select(Trajectory.trajectory_id, Trajectory.last_offset)
        .where(Trajectory.run == reader.key, Trajectory.purpose == "train", Trajectory.length > 0)
        .where(Trajectory.last_offset.is_not(None))
        .order_by(Trajectory.trajectory_id)
    )
    rows = reader.rows(query)
    chosen = rows[:: max(1, -(-len(rows) // MAX_TOKEN_TABLES))]
    windows: dict[int, list[Any]] = {row.trajectory_id: [] for row in chosen}
    for window in windows_of(reader, list(windows)) if windows else []:
        windows[window[0]].append(window)
    last_offsets = np.array([row.last_offset for row in chosen], np.int64)
    wanted = ResponseSelection(np.array(list(windows), np.int64), last_offsets)
    for response in response_pages(reader.journal, wanted, most_rows=1):
        key, length = int(response.ids[0]), len(response.token_ids)
        trajectory = facts.trajectories.get(key)
        if trajectory is None or length != trajectory.length:
            findings.add("mask", f"trajectory {key}", f"the table has {length} tokens")
            continue
        table = token_table(response, windows[key])
        _compare(trajectory, table.loss_mask, table.trained_at_update, findings)
    return len(chosen)


def _compare(trajectory: TrajectoryFacts, mask: Array, updates: Array, findings: Findings) -> None:
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
