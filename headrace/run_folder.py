"""Run folders: how they are made, found and locked, and which one `latest` names.

In: a root folder and a run's name. Out: paths. `resolved.json` holds the configuration (a reward
model's run has `reward-model.json` instead); the lock is held for the life of a supervisor, so that
a run is never started twice. `latest` is the newest run that trains: evaluations never move it.
"""

import difflib
import fcntl
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import ValidationError

from headrace.config.reward_model import RewardModelConfig
from headrace.config.run import RunConfig
from headrace.errors import UserError

LATEST = "latest"
RESOLVED = "resolved.json"
REWARD_MODEL = "reward-model.json"


def new_run_id(name: str) -> str:
    """NAME-yyyymmdd-hhmmss-xxxx; the name keeps letters, digits, `.`, `_` and `-`."""
    safe = re.sub(r"[^\w.-]+", "-", name, flags=re.ASCII).strip("-.") or "run"
    return f"{safe}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


def make_run_folder(config: RunConfig | RewardModelConfig) -> Path:
    """A new folder with its configuration, under its root; `latest` names it, unless
    it only evaluates."""
    root = Path(config.root).resolve()
    run_dir = root / new_run_id(config.name)
    try:
        (run_dir / "logs").mkdir(parents=True)
    except OSError as error:
        raise UserError(f"cannot make the run folder {run_dir}: {error}") from error
    write_config(run_dir, config)
    if not is_evaluation(run_dir):
        name_latest(run_dir)
    return run_dir


def name_latest(run_dir: Path) -> None:
    """Let `latest` of the folder's root name this run."""
    write_atomically(run_dir.parent / LATEST, run_dir.name + "\n")


def discard_run_folder(run_dir: Path) -> None:
    """Remove a run that never began; `latest` names the newest one that is left."""
    shutil.rmtree(run_dir)
    left = latest_name(run_dir.parent)
    if left is not None:
        name_latest(run_dir.parent / left)
    else:
        (run_dir.parent / LATEST).unlink(missing_ok=True)


def latest_name(root: Path) -> str | None:
    """The run that `latest` means: the one that the file names, or, where that is gone or an
    evaluation, the newest that trains; None where there is none."""
    try:
        named = (root / LATEST).read_text().strip()
    except OSError:
        named = ""
    for name in filter(None, [named, *reversed(run_names(root))]):
        if is_run(root / name) and not is_evaluation(root / name):
            return name
    return None


def run_names(root: Path) -> list[str]:
    """Names of the runs under a root, oldest first."""
    if not root.is_dir():
        return []
    found = [path.parent for name in (RESOLVED, REWARD_MODEL) for path in root.glob(f"*/{name}")]
    return [path.name for path in sorted(found, key=lambda path: path.stat().st_ctime)]


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
    """Whether a folder holds a run's configuration."""
    return (run_dir / RESOLVED).is_file() or is_reward_model(run_dir)


def is_evaluation(run_dir: Path) -> bool:
    """Whether a folder holds a run that only evaluates a model, as `headrace eval` makes them; not
    where its configuration cannot be read."""
    try:
        return json.loads((run_dir / RESOLVED).read_text())["evaluation"]["only"] is True
    except (OSError, ValueError, KeyError, TypeError):
        return False


def is_reward_model(run_dir: Path) -> bool:
    """Whether a folder holds the training of a reward model."""
    return (run_dir / REWARD_MODEL).is_file()


def read_config(run_dir: Path) -> RunConfig:
    """The configuration a run was started with; UserError for the run of a reward model."""
    if is_reward_model(run_dir):
        raise UserError(
            f"{run_dir.name} trained a reward model: look at it with `headrace show`, go on with "
            "it by `headrace reward train --resume`"
        )
    try:
        return RunConfig.model_validate_json((run_dir / RESOLVED).read_text())
    except (OSError, ValidationError) as error:
        line = str(error).splitlines()[0]
        raise UserError(f"{run_dir / RESOLVED} cannot be read by this version: {line}") from error


def read_reward_model_config(run_dir: Path) -> RewardModelConfig:
    """The recipe of a reward model's run; UserError for any other run."""
    if not is_reward_model(run_dir):
        raise UserError(f"{run_dir.name} did not train a reward model: it has no {REWARD_MODEL}")
    try:
        return RewardModelConfig.model_validate_json((run_dir / REWARD_MODEL).read_text())
    except (OSError, ValidationError) as error:
        line = str(error).splitlines()[0]
        raise UserError(
            f"{run_dir / REWARD_MODEL} cannot be read by this version: {line}"
        ) from error


def write_config(run_dir: Path, config: RunConfig | RewardModelConfig) -> None:
    """Write resolved.json or, for a reward model, reward-model.json."""
    name = REWARD_MODEL if isinstance(config, RewardModelConfig) else RESOLVED
    write_atomically(run_dir / name, config.model_dump_json(indent=2) + "\n")


def write_atomically(path: Path, text: str) -> None:
    """Write a small file so that readers see the old text or the new one, never half."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


@contextmanager
def locked(run_dir: Path) -> Iterator[None]:
    """Hold the run; UserError where another supervisor does."""
    with (run_dir / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(
                f"{run_dir.name} is still going on; end it with: headrace stop {run_dir.name}"
            ) from error
        yield


def is_running(run_dir: Path) -> bool:
    """Whether a supervisor on this machine holds the run."""
    try:
        with locked(run_dir):
            return False
    except UserError:
        return True
