"""Models by hub name, found in the local cache or downloaded at the start.

In: a path as the recipe gives it. Out: a local folder, so that every process reads the same files.
Only weights in safetensors, the configuration and the tokenizer are taken.
"""

import json
import os
import re
from pathlib import Path
from textwrap import shorten
from typing import Any, TypeVar

from headrace.config.sections.reward_model import RewardModelConfig
from headrace.config.sections.run import RunConfig
from headrace.errors import UserError, first_line

HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
C = TypeVar("C", RunConfig, RewardModelConfig)
FILES = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]
TWICE = ["consolidated*"]
"""Weights that other files have, too: of Mistral's own format."""


def named_model(name: str) -> str:
    """The model folder, in full, or hub name that a user gave; UserError where it is neither."""
    folder = Path(os.path.expanduser(name))
    if folder.is_dir():
        return str(folder.resolve())
    if is_hub_name(name):
        return name
    raise UserError(f"no model folder at {name}")


def is_hub_name(path: str) -> bool:
    """Return whether a path can only be meant as `owner/name` on the hub."""
    if not HUB_NAME.fullmatch(path) or path.startswith("."):
        return False
    return not Path(path.split("/")[0]).is_dir()


def with_local_model(config: C, *, download: bool) -> C:
    """The configuration with models as local folders, where it named some on the hub.

    Without `download` only the local cache is asked, and a model that is not there stays a name.
    """
    changed: dict[str, Any] = {}
    model = config.model
    named = {"path": model.path, "critic_path": model.critic_path}
    paths = {
        key: name and _local(f"model.{key}", name, download=download) for key, name in named.items()
    }
    if paths != named:
        changed["model"] = model.model_copy(update=paths)
    if isinstance(config, RunConfig):
        kl = config.algorithm.kl
        if kl is not None and kl.reference_path is not None and not config.evaluation.only:
            key = "algorithm.kl.reference_path"
            local = {"reference_path": _local(key, kl.reference_path, download=download)}
            changed["algorithm"] = config.algorithm.model_copy(
                update={"kl": kl.model_copy(update=local)}
            )
        judges = {
            name: judge.model_copy(update={"path": _local(key, judge.path, download=download)})
            for name, judge in config.reward.judges.items()
            for key in (f"reward.judges.{name}.path",)
        }
        if judges != config.reward.judges:
            changed["reward"] = config.reward.model_copy(update={"judges": judges})
    return config.model_copy(update=changed) if changed else config


def _local(key: str, path: str, *, download: bool) -> str:
    """The folder of a model, or the path as it is where there is none."""
    if Path(path).is_dir() or not is_hub_name(path):
        return path
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        found = snapshot_download(
            path, allow_patterns=FILES, ignore_patterns=TWICE, local_files_only=not download
        )
        return found if download or _is_whole(Path(found)) else path
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError, ValueError) as error:
        if not download:
            return path
        reason = shorten(first_line(error), 120, placeholder=" ...")
        raise UserError(
            f"{key} = {path!r}: no such model folder here, and the hub has no answer ({reason}); "
            "name a folder that has the model, or begin once where there is a network"
        ) from error


def _is_whole(folder: Path) -> bool:
    """Return whether a snapshot has all its weights: an interrupted download leaves a part."""
    found = {file.name for file in folder.glob("*.safetensors")}
    try:
        index = json.loads((folder / "model.safetensors.index.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return any("-of-" not in name for name in found)
    return set(index["weight_map"].values()) <= found
