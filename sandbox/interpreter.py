"""The Python that programs run with: the one that runs Headrace, without installed packages.

Out: its real path, what of the machine's files it needs (`readable`), and folders within those that
are not to be seen (`covered`): packages, which belong to this installation.
"""

import sys
import sysconfig
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True)
class Interpreter:
    """Absolute paths; of `readable` none lies within another."""

    executable: str
    readable: tuple[str, ...]
    covered: tuple[str, ...]


@cache
def interpreter() -> Interpreter:
    """This process's interpreter, outside of any virtual environment."""
    executable = Path(getattr(sys, "_base_executable", None) or sys.executable).resolve()
    base = Path(sys.base_prefix)
    architecture = sysconfig.get_config_var("MULTIARCH")
    libraries = Path("/usr/lib", architecture) if architecture else Path("/usr/lib")
    wanted = (
        base / "lib", base / "lib64", Path(sysconfig.get_path("stdlib")),
        Path(sysconfig.get_path("platstdlib", vars={"platbase": sys.base_prefix})),
        Path("/lib"), Path("/lib64"), libraries, Path("/usr/lib64"), executable,
        Path("/etc/ld.so.cache"), Path("/usr/share/zoneinfo"),
    )  # fmt: skip
    there = [path for path in dict.fromkeys(wanted) if path.exists()]
    readable = [
        path
        for path in there
        if not any(path.is_relative_to(other) for other in there if other != path)
    ]
    packages = [
        folder
        for root in readable
        if root.is_dir() and not root.is_symlink()
        for pattern in ("python*/site-packages", "python*/dist-packages")
        for folder in (*root.glob(pattern), *root.glob(pattern.partition("/")[2]))
        if folder.is_dir()
    ]
    return Interpreter(str(executable), tuple(map(str, readable)), tuple(map(str, packages)))
