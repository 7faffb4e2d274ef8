"""How the processes of a cell import packages that they may see but whose folder they may not list.

In: names of modules, each with its file, or with its folder where it has no `__init__.py`. Standard
library only: it runs in cells, with any Python.
"""

import os
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location


class Importer:
    """Finds these modules for `import`, after everything else has not; put it into
    `sys.meta_path`."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self._files = files

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: object = None
    ) -> ModuleSpec | None:
        """Where a module is; None where it is none of them."""
        file = self._files.get(name)
        if file is None:
            return None
        if os.path.isdir(file):
            found = ModuleSpec(name, None, is_package=True)
            found.submodule_search_locations = [file]
            return found
        folder, _, last = file.rpartition("/")
        inner = [folder] if last == "__init__.py" else None
        return spec_from_file_location(name, file, submodule_search_locations=inner)
