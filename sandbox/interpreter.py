"""The Python that programs run with.

Out: its real path, the files that it needs (`readable`), folders within those that are hidden
(`covered`), and the sources of imports beside the standard library. By default it is the one that
runs Headrace, without installed packages, which belong to this installation.
"""

import importlib.metadata
import json
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from headrace.errors import UserError
from sandbox import installation

OLDEST = (3, 11)
"""Version of Python that the inside of a cell needs."""
QUESTION_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Interpreter:
    """A Python and the absolute paths that it needs.

    None of `readable` lies within another, but for what is visible within a covered folder."""

    executable: str
    readable: tuple[str, ...]
    covered: tuple[str, ...]
    paths: tuple[str, ...] = ()
    modules: tuple[tuple[str, str], ...] = ()
    """Names that programs may import besides, and their files (see `cell_factory.py`)."""


@cache
def interpreter() -> Interpreter:
    """This process's interpreter, outside of any virtual environment."""
    return _read(installation.describe())


def interpreter_for(python: str | None, packages: Sequence[str]) -> Interpreter:
    """Return the Python named, with its packages, or ours with those named.

    With what these require, too; UserError where they cannot be had."""
    if python is None:
        return _with_packages(interpreter(), packages)
    if packages:
        raise UserError("the sandbox takes a Python or packages of ours, not both")
    return _of_another(python)


def _read(told: Mapping[str, Any]) -> Interpreter:
    return Interpreter(told["executable"], tuple(told["readable"]), tuple(told["covered"]))


@cache
def _of_another(python: str) -> Interpreter:
    where = f"the sandbox's Python {python!r}"
    question = [python, "-I", installation.__file__]
    try:
        done = subprocess.run(question, capture_output=True, text=True, timeout=QUESTION_TIMEOUT_S)
        told: dict[str, Any] = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise UserError(f"{where} cannot be asked where its library is: {error}") from error
    if tuple(told["version"]) < OLDEST:
        raise UserError(f"{where} is older than {'.'.join(map(str, OLDEST))}")
    found = _read(told)
    visible = tuple(told["packages"])
    covered = tuple(path for path in found.covered if path not in visible)
    return replace(_seeing(replace(found, covered=covered), visible), paths=visible)


def _with_packages(found: Interpreter, names: Sequence[str]) -> Interpreter:
    """The interpreter with distributions of this environment visible."""
    entries: dict[str, None] = {}
    modules: dict[str, str] = {}
    for each in _distributions(names):
        tops = {file.parts[0] for file in each.files or () if file.parts[0] not in ("..", "/")}
        for top in sorted(tops - {"__pycache__"}):
            path = Path(str(each.locate_file(top)))
            if path.exists():
                entries[str(path)] = None
                modules.update(_module_of(path))
    return replace(_seeing(found, tuple(entries)), modules=tuple(sorted(modules.items())))


def _module_of(path: Path) -> dict[str, str]:
    """The name of the module that stands at a path of a packages folder, with its file."""
    if path.is_dir():
        own = path / "__init__.py"
        return {path.name: str(own if own.exists() else path)} if path.name.isidentifier() else {}
    name = path.name.partition(".")[0]
    return {name: str(path)} if path.suffix in (".py", ".so") and name.isidentifier() else {}


def _distributions(names: Iterable[str]) -> list[importlib.metadata.Distribution]:
    """The distributions of these names and those that they require, where they are installed."""
    found: dict[str, importlib.metadata.Distribution] = {}
    waiting = [(name, True) for name in names]
    while waiting:
        name, asked = waiting.pop()
        key = re.sub(r"[-_.]+", "-", name).lower()
        if key in found:
            continue
        try:
            found[key] = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            if asked:
                raise UserError(
                    f"the sandbox cannot show package {name!r}: it is not installed beside Headrace"
                ) from None
            continue
        for line in found[key].requires or ():
            required = re.match(r"[A-Za-z0-9._-]+", line)
            if required and "extra ==" not in line:
                waiting.append((required[0], False))
    return list(found.values())


def _seeing(found: Interpreter, visible: Sequence[str]) -> Interpreter:
    """The interpreter with these paths readable, where they are not yet."""
    hidden = [
        path
        for path in visible
        if _within(path, found.covered) or not _within(path, found.readable)
    ]
    return replace(found, readable=(*found.readable, *hidden))


def _within(path: str, folders: Iterable[str]) -> bool:
    return any(Path(path).is_relative_to(folder) for folder in folders)
