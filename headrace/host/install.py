"""Installed version of the project, origin of its packages, and extras.

Promise: nothing is imported to find out.
"""

import os
import sys
import tomllib
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from importlib.util import find_spec
from pathlib import Path

from headrace.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
"""Folder of the packages (the source tree, or site-packages)."""

PACKAGES = (
    "headrace", "headrace_cli", "coordinator", "generators", "rewards", "learner", "storage",
    "dashboard", "environments", "tasks", "sandbox",
)  # fmt: skip

EXTRAS = {
    "train": (
        "torch", "transformers", "deepspeed", "safetensors", "math_verify", "jsonschema",
        "matplotlib", "peft", "scipy", "aiohttp", "xxhash", "ir_measures",
    ),
    "dashboard": ("streamlit", "altair"),
    "ray": ("ray",),
    "tensorboard": ("tensorboard",),
    "trackio": ("trackio",),
    "wandb": ("wandb",),
    "mlflow": ("mlflow",),
}  # fmt: skip
"""Modules of each extra of the distribution. Reading a run needs none of them."""


def own_imports() -> dict[str, str]:
    """Variables of a Python process that imports our packages before any of its folder's."""
    paths = [str(ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {"PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)), "PYTHONSAFEPATH": "1"}


def version() -> str:
    """The version of the installed distribution, or of the source tree."""
    if (found := dependency_version("headrace")) is not None:
        return found
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])


def setup_seconds() -> float | None:
    """Return the seconds that `make setup` took here; None where it did not install this."""
    try:
        return float(Path(sys.prefix, "headrace-setup-seconds").read_text())
    except (OSError, ValueError):
        return None


def dependency_version(name: str) -> str | None:
    """The installed version of a distribution, or None."""
    try:
        return installed_version(name)
    except PackageNotFoundError:
        return None


def package_origin(name: str) -> Path | None:
    """The folder that `import name` takes, or None; nothing is imported."""
    found = find_spec(name)
    if found is None:
        return None
    folders = list(found.submodule_search_locations or ())
    return Path(folders[0]).resolve() if folders else None


def is_ours(origin: Path) -> bool:
    """Return whether a package's folder belongs to this distribution."""
    return origin.parent == ROOT


def is_there(module: str) -> bool:
    """Return whether `import module` finds something."""
    return find_spec(module) is not None


def lacking(extra: str) -> str:
    """Return a line on what an extra lacks and how to install it, or an empty one."""
    absent = [name for name in EXTRAS[extra] if not is_there(name)]
    return extra_line(absent[0]) if absent else ""


def extra_line(module: str) -> str:
    """The line for a module that only an extra brings; empty for any other one."""
    for extra, modules in EXTRAS.items():
        if module.partition(".")[0] in modules:
            return (
                f"{module} is not installed: this needs headrace[{extra}]; in the source tree "
                f"`pip install -e '.[{extra}]'` brings it"
            )
    return ""


def require(extra: str) -> None:
    """UserError where something of an extra is missing."""
    if line := lacking(extra):
        raise UserError(line)
