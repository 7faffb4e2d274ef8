"""Run folders: how they are made, found and locked, and which one `latest` names.

In: a root folder and a run's name. Out: paths. `resolved.json` holds the configuration (a reward
model's run has `reward-model.json` instead). Two locks: one is held for the life of a supervisor,
so that a run is never started twice; the other one by the process that writes its journal and
tables, so that a coordinator whose supervisor died is never joined by a second one. `latest` is the
newest run of any kind, or the last that was resumed; it never means a run that is archived.
"""

import difflib
import fcntl
import hashlib
import json
import os
import re
import secrets
import shlex
import shutil
import socket
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

from headrace.errors import FormatError, UserError, refused_key
from headrace.host.disk import sync

if TYPE_CHECKING:  # a third of a second, which only who reads or writes a configuration pays for
    from headrace.config.sections.reward_model import RewardModelConfig
    from headrace.config.sections.run import RunConfig

Config = TypeVar("Config", "RunConfig", "RewardModelConfig")
LATEST = "latest"
RESOLVED = "resolved.json"
REWARD_MODEL = "reward-model.json"
LIVE_STATE_FILE = "now.json"
"""File of a run's present state, by its coordinator: `at`, `phase`, `waits` (each with `for` and
`age_s`), `heard`, the seconds since each process was, `updates`, the journal's `records`, and
`sql`, why SQL lacks some of these (`text`) and for how long (`age_s`)."""
COORDINATOR_FILE = "coordinator.json"
"""File of a run's coordinator: `address`, `host`, `pid`, `run_id`."""
EVENTS_FILE = "supervisor.jsonl"
"""Every start and death of a process, in lines with checksums."""
MEDIA = "media"
"""The folder of the images of a run's prompts, each named by its SHA-256."""
KEYS = "keys"
"""The folder of a run's own CURVE keys."""
LOCK, WRITER = ".lock", ".writer"
RANKERS = "rankers"
"""Folder of the versions of a ranker that is trained along, v0 and so on."""
MANIFEST = "manifest.json"
CHECKPOINT_FORMAT = 3
"""In a manifest, `lineage` and `update` are the checkpoint's place on the run's line of updates,
`journal` is the last record that was written then."""
NOTES = "notes.json"
"""User's notes on the run, see `headrace.run_files.run_notes`."""
_LOOK_AGAIN_S = 0.1


def make_run_folder(config: "RunConfig | RewardModelConfig") -> Path:
    """A new folder with its configuration, under its root; `latest` names it.

    It is NAME-yyyymmdd-hhmmss-xxxx; the name keeps letters, digits, `.`, `_` and `-`."""
    safe = re.sub(r"[^\w.-]+", "-", config.name, flags=re.ASCII).strip("-.") or "run"
    run_id = f"{safe}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    run_dir = Path(config.root).resolve() / run_id
    try:
        (run_dir / "logs").mkdir(parents=True)
        write_config(run_dir, config)
        name_latest(run_dir)
    except OSError as error:
        raise UserError(f"cannot make the run folder {run_dir}: {error}") from error
    return run_dir


def name_latest(run_dir: Path) -> None:
    """Let `latest` of the folder's root name this run."""
    write_atomically(run_dir.parent / LATEST, run_dir.name + "\n")


def discard_run_folder(run_dir: Path) -> None:
    """Remove a run that never began; `latest` means the newest one that is left."""
    shutil.rmtree(run_dir, ignore_errors=True)  # NFS keeps a lock that its holder has open
    if latest_name(run_dir.parent) is None:
        (run_dir.parent / LATEST).unlink(missing_ok=True)


def latest_name(root: Path) -> str | None:
    """The run that `latest` means: the one that the file names, or, where that is gone or archived,
    the newest that is not archived; None where there is none."""
    try:
        named = (root / LATEST).read_text().strip()
    except OSError:
        named = ""
    there = named and is_run(root / named) and not is_archived(root / named)
    return named if there else newest_run(root, is_run)


def newest_run(root: Path, wanted: Callable[[Path], bool]) -> str | None:
    """Name of the newest run of a root that is not archived and whose folder is wanted."""
    names = reversed(run_names(root))
    return next((n for n in names if wanted(root / n) and not is_archived(root / n)), None)


def run_names(root: Path) -> list[str]:
    """Names of the runs under a root, oldest first."""
    if not root.is_dir():
        return []
    # A folder's own time is of its last new file.
    found = [path for name in (RESOLVED, REWARD_MODEL) for path in root.glob(f"*/{name}")]
    return [path.parent.name for path in sorted(found, key=lambda path: path.stat().st_ctime)]


def run_folders(root: Path) -> list[Path]:
    """Folders under a root that are or were runs: with a configuration, database or journal."""
    signs = (RESOLVED, REWARD_MODEL, "headrace.sqlite", "journal")
    return sorted({path.parent for name in signs for path in root.glob(f"*/{name}")})


def find_run(root: Path, name: str) -> Path:
    """The folder of a run by id, unique beginning, `latest`, or path; UserError for none."""
    if is_run(Path(name)):
        return Path(name).resolve()
    root = root.resolve()
    names = run_names(root)
    if name == LATEST:
        name = latest_name(root) or name
    if name in names:
        return root / name
    begun = [other for other in names if other.startswith(name)]
    if len(begun) == 1:
        return root / begun[0]
    if len(begun) > 1:
        raise UserError(f"{name!r} is the beginning of {len(begun)} runs: {', '.join(begun[:4])}")
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]}?" if near else "; `headrace runs` lists them"
    raise UserError(f"no run {name!r} under {root}{hint if names else ' (it holds none)'}")


def is_run(run_dir: Path) -> bool:
    """Return whether a folder holds a run's configuration."""
    return (run_dir / RESOLVED).is_file() or is_reward_model(run_dir)


def is_evaluation(run_dir: Path) -> bool:
    """Return whether a run only evaluates a model (`headrace eval`); not if it cannot be read."""
    try:
        return json.loads((run_dir / RESOLVED).read_text())["evaluation"]["only"] is True
    except (OSError, ValueError, KeyError, TypeError):
        return False


def need_training(run_dir: Path) -> None:
    """UserError where a run only evaluates; it names the newest training run beside it."""
    if is_evaluation(run_dir):
        newest = newest_run(run_dir.parent, is_training)
        hint = f"; the newest that trains is {newest}" if newest else ""
        raise UserError(f"{run_dir.name} evaluates a model, and this needs a run that trains{hint}")


def is_training(run_dir: Path) -> bool:
    """Return whether a run's folder is neither an evaluation's nor a reward model's."""
    return not (is_reward_model(run_dir) or is_evaluation(run_dir))


def is_archived(run_dir: Path) -> bool:
    """Return whether the run is archived; not where its notes cannot be read."""
    try:
        return json.loads((run_dir / NOTES).read_text(encoding="utf-8"))["archived"] is True
    except (OSError, ValueError, KeyError, TypeError):
        return False


def is_reward_model(run_dir: Path) -> bool:
    """Return whether a folder holds the training of a reward model."""
    return (run_dir / REWARD_MODEL).is_file()


def read_config(run_dir: Path) -> "RunConfig":
    """The configuration a run was started with; UserError for the run of a reward model."""
    from headrace.config.sections.run import RunConfig

    if is_reward_model(run_dir):
        raise UserError(
            f"{run_dir.name} trained a reward model or a start for RL: look at it with `headrace "
            "show`, go on with it by the command that began it, with --resume"
        )
    return _read(run_dir / RESOLVED, RunConfig)


def read_reward_model_config(run_dir: Path) -> "RewardModelConfig":
    """The recipe of a reward model's run; UserError for any other run."""
    from headrace.config.sections.reward_model import RewardModelConfig

    if not is_reward_model(run_dir):
        raise UserError(f"{run_dir.name} did not train a reward model: it has no {REWARD_MODEL}")
    return _read(run_dir / REWARD_MODEL, RewardModelConfig)


def _read(path: Path, kind: type[Config]) -> Config:
    from pydantic import ValidationError

    try:
        return kind.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        line = refused_key(error) if isinstance(error, ValidationError) else error
        raise UserError(f"{path} cannot be read by this version: {line}") from error


def write_config(run_dir: Path, config: "RunConfig | RewardModelConfig") -> None:
    """Write resolved.json or reward-model.json, for the owner alone if it has a password."""
    from headrace.config.sections.reward_model import RewardModelConfig

    name = REWARD_MODEL if isinstance(config, RewardModelConfig) else RESOLVED
    private = not isinstance(config, RewardModelConfig) and config.storage.has_password
    text, mode = config.model_dump_json(indent=2) + "\n", 0o600 if private else 0o666
    write_atomically(run_dir / name, text, mode=mode, durable=True)


def config_digest(run_dir: Path) -> str:
    """SHA-256 of resolved.json as it is now."""
    return hashlib.sha256((run_dir / RESOLVED).read_bytes()).hexdigest()


def write_atomically(path: Path, text: str, *, mode: int = 0o666, durable: bool = False) -> None:
    """Write a small file so that readers see the old text or the new one, never half; `durable`:
    also after a power cut. `mode`: its permissions, from the first byte on."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    part.unlink(missing_ok=True)
    opened = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with open(opened, "w", encoding="utf-8") as file:
        file.write(text)
    if durable:
        sync(part)
    part.replace(path)


@contextmanager
def locked(run_dir: Path) -> Iterator[None]:
    """Hold the run; UserError where another supervisor does, or where it cannot be written."""
    try:
        opened = (run_dir / LOCK).open("w")
    except OSError as error:
        raise UserError(f"{run_dir} cannot be written: {error.strerror or error}") from error
    with opened as file:
        try:
            is_taken = _taken_within(file, 1.0)  # `is_running` holds it for a moment.
        except OSError as error:
            raise UserError(f"{run_dir} cannot be locked: {error.strerror}") from error
        if not is_taken:
            raise UserError(
                f"{run_dir.name} is still going on; end it with: headrace stop "
                f"{shlex.quote(str(run_dir))}"
            )
        yield


def hold_writer(run_dir: Path, *, wait_s: float = 1.0) -> IO[str]:
    """Hold the right to write a run's journal and tables, until the returned file is closed or the
    process ends. UserError: another process holds it, and still does after `wait_s`."""
    file = (run_dir / WRITER).open("a+")
    if not _taken_within(file, wait_s):
        file.seek(0)
        holder = file.read().strip() or "another process"
        file.close()
        raise UserError(
            f"{run_dir.name} is still being written by {holder}: wait until it has ended, or end it"
        )
    file.truncate(0)
    file.write(f"process {os.getpid()} on {socket.gethostname()}")
    file.flush()
    return file


def is_running(run_dir: Path) -> bool:
    """Return whether a supervisor or a coordinator on this machine holds the run."""
    return any(_is_held(run_dir / name) for name in (LOCK, WRITER))


def _is_held(path: Path) -> bool:
    try:
        with path.open() as file:
            return not _taken(file, fcntl.LOCK_SH)
    except OSError:  # there is none, or the file system has no locks, and no run starts there
        return False


def _taken_within(file: IO[str], wait_s: float) -> bool:
    deadline = time.monotonic() + wait_s
    while not _taken(file):
        if time.monotonic() >= deadline:
            return False
        time.sleep(_LOOK_AGAIN_S)
    return True


def _taken(file: IO[str], kind: int = fcntl.LOCK_EX) -> bool:
    """Take the lock of an open file; return whether it has it now."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def manifest_text(facts: dict[str, Any]) -> str:
    """Return a checkpoint's manifest: its facts, with the SHA-256 of these."""
    digest = hashlib.sha256(json.dumps(facts).encode()).hexdigest()
    return json.dumps(facts | {"sha256": digest}, indent=1) + "\n"


def read_manifest(checkpoint: Path) -> dict[str, Any]:
    """The facts of a checkpoint. OSError or ValueError: they cannot be read, or are not those that
    were written; FormatError: it is of another format."""
    text = (checkpoint / MANIFEST).read_text()
    manifest: dict[str, Any] = json.loads(text)
    digest = manifest.pop("sha256", None)
    is_whole = manifest_text(manifest) == text
    found = manifest.get("format", 1)
    if found != CHECKPOINT_FORMAT and (is_whole or digest is None):
        raise FormatError(checkpoint, found, CHECKPOINT_FORMAT)
    if not is_whole:
        raise ValueError(f"{MANIFEST} is not what was written")
    return manifest


def described_files(folder: Path, names: Collection[str]) -> dict[str, dict[str, Any]]:
    """Return size and SHA-256 of files, for a manifest, by threads, as hashing drops the GIL."""

    def describe(name: str) -> dict[str, Any]:
        with (folder / name).open("rb") as file:
            digest = hashlib.file_digest(file, "sha256")
            return {"bytes": os.fstat(file.fileno()).st_size, "sha256": digest.hexdigest()}

    with ThreadPoolExecutor() as threads:
        return dict(zip(names, threads.map(describe, names), strict=True))
