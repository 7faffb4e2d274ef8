"""Files that a Python needs, reported by itself: as a program it prints them as JSON.

Standard library only, because another environment's Python runs it too.
"""

import json
import sys
import sysconfig
from pathlib import Path
from typing import Any


def describe() -> dict[str, Any]:
    """`executable` (outside of any virtual environment), `readable` (real files and folders of the
    interpreter, none within another), `covered` (folders in those that hold installed packages),
    `packages` (folders that this Python imports installed packages from), `version`."""
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
    covered = [
        folder
        for root in readable
        if root.is_dir() and not root.is_symlink()
        for pattern in ("python*/site-packages", "python*/dist-packages")
        for folder in (*root.glob(pattern), *root.glob(pattern.partition("/")[2]))
        if folder.is_dir()
    ]
    packages = [
        path
        for path in map(Path, sys.path)
        if path.name in ("site-packages", "dist-packages") and path.is_dir()
    ]
    return {
        "executable": str(executable),
        "readable": list(map(str, readable)),
        "covered": list(map(str, covered)),
        "packages": list(map(str, packages)),
        "version": list(sys.version_info[:2]),
    }


if __name__ == "__main__":
    print(json.dumps(describe()))
