"""`headrace bench NAME`: run a benchmark or a study with its own options.

NAME is a module in `benchmarks/`, or `benchmarks/studies/NAME.toml`. Names are written with hyphens
and files with underscores; either is understood. A benchmark is found as a file of the source tree,
so that a new one needs no entry here.
"""

import argparse
import ast
import importlib
import sys
from collections.abc import Callable
from pathlib import Path

from headrace.errors import UserError
from headrace.host.install import ROOT


def available(folder: Path = ROOT / "benchmarks") -> dict[str, Path]:
    """Return benchmarks by name with hyphens: modules of the tree with a `main`, and studies."""
    modules = [
        path
        for path in folder.rglob("*.py")
        if not path.stem.startswith("_") and "\ndef main(" in path.read_text(encoding="utf-8")
    ]
    # A module goes before a study of its name: it is what runs it.
    found = {path.stem: path for path in folder.glob("studies/*.toml")}
    return dict(
        sorted({**found, **{path.stem.replace("_", "-"): path for path in modules}}.items())
    )


def about(path: Path) -> str:
    """Return the first paragraph of a benchmark's description, without its own name."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        said = ast.get_docstring(ast.parse(text)) or ""
    else:
        said = "\n".join(line.removeprefix("#") for line in text.splitlines())
    first = said.partition("\n\n")[0]
    return " ".join(first.split()).replace(f": `headrace bench {path.stem}`.", ".")


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
        for name, path in names.items():
            print(f"{name:<{width}}  {about(path)}")
        return 0
    name = arguments.name.replace("_", "-")
    if name not in names:
        raise UserError(f"no benchmark {arguments.name!r}; there are: {', '.join(names)}")
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    path = names[name].relative_to(ROOT)
    is_study = path.suffix == ".toml"
    where = "benchmarks.studies.study" if is_study else ".".join(path.with_suffix("").parts)
    main: Callable[[list[str]], int] = importlib.import_module(where).main
    return main([name, *arguments.options] if is_study else arguments.options)
