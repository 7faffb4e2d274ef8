"""What a name such as `package.module:name` or `path/to/file.py:name` stands for.

Out: the object. A module is looked up from the folder in which the run was started, too. A file may
import its neighbours, by their names or relatively: its folder stands for its package, whose own
`__init__.py` is run only where something of it is asked for. What cannot be had is a UserError.
"""

import importlib
import importlib.util
import sys
import zlib
from pathlib import Path
from types import ModuleType

from headrace.errors import UserError


def load_named(name: str) -> object:
    """The object of this name; UserError where there is none, and whatever its module raises."""
    where = f"reward.function={name!r}"
    place, colon, attribute = name.rpartition(":")
    if not colon or not place or not attribute:
        raise UserError(f"{where}: write package.module:name or path/to/file.py:name")
    module = _load_file(Path(place)) if place.endswith(".py") else _load_module(place)
    found = getattr(module, attribute, None)
    if found is None:
        raise UserError(f"{where}: {place} has no function {attribute!r}")
    return found


def _load_module(name: str) -> ModuleType:
    _look_in(Path.cwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise UserError(f"reward.function: cannot import {name!r} ({error})") from error


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UserError(f"reward.function: no file {path}")
    package = _package_of(path.parent)
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
    name = f"reward_folder_{zlib.crc32(str(folder).encode()):08x}"
    if name not in sys.modules:
        package = ModuleType(name, "A folder with files of reward functions.")
        package.__path__ = [str(folder)]
        sys.modules[name] = package
    _look_in(folder)
    return sys.modules[name]


def _look_in(folder: Path) -> None:
    """Import from a folder what is nowhere else."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
