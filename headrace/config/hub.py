"""Models by hub name: found in the local cache, or downloaded before anything else starts.

In: a path as the recipe gives it. Out: a local folder, so that every process reads the same files.
Only weights in safetensors, the configuration and the tokenizer are taken.
"""

import re
from pathlib import Path
from typing import TypeVar

from headrace.config.reward_model import RewardModelConfig
from headrace.config.run import RunConfig
from headrace.errors import UserError

HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
C = TypeVar("C", RunConfig, RewardModelConfig)
FILES = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]


def is_hub_name(path: str) -> bool:
    """Whether a path can only be meant as `owner/name` on the hub."""
    if not HUB_NAME.fullmatch(path) or path.startswith("."):
        return False
    return not Path(path.split("/")[0]).is_dir()


def with_local_model(config: C, *, download: bool) -> C:
    """The configuration with `model.path` as a local folder, where it named a model on the hub.

    Without `download` only the local cache is asked, and a model that is not there stays a name.
    """
    path = config.model.path
    if Path(path).is_dir() or not is_hub_name(path):
        return config
    folder = _snapshot(path, download=download)
    if folder is None:
        return config
    model = config.model.model_copy(update={"path": folder})
    return config.model_copy(update={"model": model})


def _snapshot(name: str, *, download: bool) -> str | None:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return snapshot_download(name, allow_patterns=FILES, local_files_only=not download)
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError, ValueError) as error:
        if not download:
            return None
        reason = str(error).strip().splitlines()[0][:120]
        raise UserError(
            f"model.path = {name!r}: no such model folder here, and the hub has no answer: {reason}"
        ) from error
