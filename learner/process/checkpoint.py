"""Checkpoints: two Hugging Face folders and everything else that a restart needs.

In: folders that `save` callbacks fill. Out: checkpoints/step_N/{policy,critic,state}/ with
manifest.json, and `latest`. Promises: a folder named step_N is complete; its manifest, written
last, names every file with size and sha256; `newest` skips folders that do not match theirs; no
pickle.
"""

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from headrace.host.disk import sync, until_written
from headrace.host.progress_reporter import ProgressReporter
from headrace.run_files.run_folder import (
    CHECKPOINT_FORMAT,
    MANIFEST,
    described_files,
    manifest_text,
    read_manifest,
    write_atomically,
)

LATEST = "latest"
POLICY, CRITIC, RANKER, STATE = "policy", "critic", "ranker", "state"
"""The folders of a checkpoint; all but the last are also names of models."""
_LOG = logging.getLogger("headrace.learner")


def write_checkpoint(
    root: Path,
    update: int,
    fill: Callable[[Path], None],
    *,
    facts: dict[str, Any],
    keep_last: int,
    needs: int = 0,
    tell: Callable[[str], None] = _LOG.warning,
    work: ProgressReporter | None = None,
) -> Path:
    """Write checkpoints/step_N and point `latest` to it, once the disk takes it.

    Args:
        root: the run's checkpoints folder. update: N. fill: writes the files into a given folder;
        may be called repeatedly. facts: further fields of the manifest. keep_last: number of
        checkpoints kept. needs: approximate bytes. tell: receives what the disk lacks, and an empty
        text when it goes on. work: receives the progress.
    """
    work = work or ProgressReporter()

    def attempt() -> Path:
        partial = root / f".step_{update}.partial"
        try:
            return _write(root, partial, update, fill, facts, work)
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    path = until_written(attempt, root, needs, tell=tell)
    _forget(root, update, keep_last)
    return path


def _write(
    root: Path,
    partial: Path,
    update: int,
    fill: Callable[[Path], None],
    facts: dict[str, Any],
    work: ProgressReporter,
) -> Path:
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    fill(partial)
    files = sorted(p for p in partial.rglob("*") if p.is_file())
    with work.moving(f"hashing the checkpoint of update {update}"):
        described = described_files(partial, [str(p.relative_to(partial)) for p in files])
    manifest = {"format": CHECKPOINT_FORMAT, "update": update, **facts, "files": described}
    for done, path in enumerate(files):
        work.at(f"syncing the checkpoint of update {update}", done, len(files), "files")
        sync(path)
    write_atomically(partial / MANIFEST, manifest_text(manifest), durable=True)
    for folder in sorted({p.parent for p in files} | {partial}):
        sync(folder)
    final = root / f"step_{update}"
    if final.exists():  # maybe of an abandoned lineage; half of it is none under its name
        final.rename(mkdtemp(prefix=f".{final.name}.", suffix=".partial", dir=root))
    partial.rename(final)
    write_atomically(root / LATEST, final.name + "\n", durable=True)
    sync(root)
    return final


def newest(
    root: Path,
    *,
    among: Callable[[int, int | None], bool] | None = None,
    passed_over: list[str] | None = None,
) -> Path | None:
    """Return the newest checkpoint whose files are those of its manifest, or None.

    `among` accepts or rejects an update and its batch (None where the manifest names none).
    `passed_over` receives the newer ones that are not whole, and why; newest first."""
    for path in reversed(_numbered(root)):
        if problem := mismatch(path):
            if passed_over is not None:
                passed_over.append(f"checkpoint {path.name} was passed over: {problem}")
            continue
        manifest = read_manifest(path)
        if among is None or among(int(manifest["update"]), manifest.get("batch_id")):
            return path
    return None


def mismatch(path: Path) -> str | None:
    """Say why a checkpoint's files are not those of its manifest; None: they are."""
    try:
        expected: dict[str, dict[str, Any]] = read_manifest(path)["files"]
    except (OSError, ValueError, KeyError) as error:
        return f"no readable {MANIFEST}: {error}"
    found = described_files(path, [name for name in expected if (path / name).is_file()])
    changed = (name for name, facts in expected.items() if found.get(name) != facts)
    name = next(changed, None)
    return None if name is None else f"{name} is missing or changed"


def _numbered(root: Path) -> list[Path]:
    """Return the checkpoint folders, oldest first; their files are not checked."""
    found = [p for p in root.glob("step_*") if p.name.removeprefix("step_").isdigit()]
    return sorted(found, key=number_of)


def number_of(path: Path) -> int:
    """Return the update of a checkpoint's folder."""
    return int(path.name.removeprefix("step_"))


def _forget(root: Path, update: int, keep_last: int) -> None:
    """Remove all checkpoints but the last ones up to this update.

    Those of later updates belong to an abandoned lineage: updates of one lineage only grow."""
    numbered = _numbered(root)
    last = [path for path in numbered if number_of(path) <= update][-keep_last:]
    # One is written at a time: a draft was cut off. On NFS what a process reads stays until later.
    for path in root.glob(".step_*.partial"):
        shutil.rmtree(path, ignore_errors=True)
    for path in numbered:
        if path not in last:  # half of it is none under its name
            shutil.rmtree(path.rename(root / f".{path.name}.old.partial"), ignore_errors=True)
