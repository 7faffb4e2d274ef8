"""Code of users: modules by name, and the places of their errors.

In: `package.module` or `path/to/file.py`. Out: the module, executed once. A file may import its
neighbours, by their names or relatively: its folder stands for its package, whose own `__init__.py`
is run only where something of it is used. Then the working directory counts. Needs no third party.
"""

import importlib
import importlib.util
import sys
import traceback
import zlib
from pathlib import Path
from types import ModuleType
from typing import Any

from headrace.errors import UserError


def load_module(place: str) -> ModuleType:
    """The module of a package or a file; UserError without the file, else whatever it raises."""
    if not place.endswith(".py"):
        _look_in(Path.cwd())
        return importlib.import_module(place)
    path = Path(place).expanduser()
    if not path.is_file():
        raise UserError(f"there is no file {path}")
    package = _package_of(path.parent)
    _look_in(Path.cwd())
    try:
        return _executed(path, package)
    except ImportError as error:
        own = path.parent / "__init__.py"
        # It imports something of its package that no file in there is called.
        if error.name != package.__name__ or path.name == own.name or not own.is_file():
            raise
        told = vars(_executed(own, package)).items()
        vars(package).update({k: v for k, v in told if not k.startswith("__")})
        return _executed(path, package)


def thing_of(target: str) -> Any:
    """Load `FILE.py:THING` or `PACKAGE:THING`; UserError without it."""
    source, _, thing = target.rpartition(":")
    module = load_module(source)
    if not hasattr(module, thing):
        raise UserError(f"{source} has no {thing}")
    return getattr(module, thing)


def _executed(path: Path, package: ModuleType) -> ModuleType:
    """The module of a file, loaded once."""
    name = f"{package.__name__}.{path.stem}"
    if name in sys.modules:
        return sys.modules[name]
    inner = [str(path.parent)] if path.stem == "__init__" else None
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=inner)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _package_of(folder: Path) -> ModuleType:
    """The package that stands for a folder, in which its files import each other."""
    folder = folder.resolve()
    name = f"user_folder_{zlib.crc32(str(folder).encode()):08x}"
    if name not in sys.modules:
        package = ModuleType(name, "A folder with files of a user.")
        package.__path__ = [str(folder)]
        sys.modules[name] = package
    _look_in(folder)
    return sys.modules[name]


def _look_in(folder: Path) -> None:
    """Import from a folder what is nowhere else."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


_OTHERS = {
    *sys.stdlib_module_names, "__main__", "headrace", "headrace_cli", "environments", "rewards",
    "learner", "sandbox", "storage", "tasks",
}  # fmt: skip
MOST_CHARACTERS = 1500
"""Maximum characters of an error's text, without its place."""


def describe(error: BaseException) -> str:
    """Kind, text and place of an error, on one line; of a UserError its text, which says all."""
    told = isinstance(error, UserError)
    text = " ".join((str(error) if told else f"{type(error).__name__}: {error}").split())
    whole = text[:MOST_CHARACTERS] + ("" if told else place_of(error))
    return whole.encode(errors="replace").decode()  # half a character would end who sends it


def place_of(error: BaseException) -> str:
    """` (FILE, line N)`: the last line of a user's code that led to an error; empty without one."""
    for frame, line in reversed([*traceback.walk_tb(error.__traceback__)]):
        file, module = Path(frame.f_code.co_filename), str(frame.f_globals.get("__name__"))
        installed = {"site-packages", "dist-packages"} & {*file.parts}
        if not installed and module.partition(".")[0] not in _OTHERS:
            return f" ({file.name}, line {line})"
    return ""
