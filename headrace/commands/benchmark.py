"""`headrace bench NAME`: runs `main` of `benchmarks/NAME.py` with the options that follow.

Names are written with hyphens and files with underscores; either is understood. A benchmark is
found as a file of the source tree, so that a new one needs no entry here.
"""

import argparse
import ast
import importlib
import sys
from collections.abc import Callable
from pathlib import Path

from headrace.errors import UserError
from headrace.install import ROOT


def available(folder: Path = ROOT / "benchmarks") -> list[str]:
    """Names of the benchmarks, hyphens for underscores: modules of the tree with a `main`."""
    return sorted(
        path.stem.replace("_", "-")
        for path in folder.glob("*.py")
        if not path.stem.startswith("_") and "\ndef main(" in path.read_text(encoding="utf-8")
    )


def about(name: str, folder: Path = ROOT / "benchmarks") -> str:
    """The first paragraph of what a benchmark says of itself, without its own name."""
    text = (folder / f"{name.replace('-', '_')}.py").read_text(encoding="utf-8")
    first = (ast.get_docstring(ast.parse(text)) or "").partition("\n\n")[0]
    return " ".join(first.split()).replace(f": `headrace bench {name}`.", ".")


def bench(arguments: argparse.Namespace) -> int:
    """Run one benchmark; without a name, list them with what each is about."""
    names = available()
    if not names:
        raise UserError(
            "the benchmarks are part of the source tree, and this installation has none; use a "
            "clone of the repository"
        )
    if not arguments.name:
        width = max(map(len, names))
        for name in names:
            print(f"{name:<{width}}  {about(name)}")
        return 0
    name = arguments.name.replace("_", "-")
    if name not in names:
        raise UserError(f"no benchmark {arguments.name!r}; there are: {', '.join(names)}")
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    module = importlib.import_module(f"benchmarks.{name.replace('-', '_')}")
    main: Callable[[list[str]], int] = module.main
    return main(arguments.options)
