"""A second environment, made in a moment: a virtual environment with what scoring children need,
linked from ours, and with packages of its own."""

import importlib
import venv
from pathlib import Path

NEEDED = (
    "numpy", "msgspec", "pydantic", "pydantic_core", "annotated_types", "typing_extensions",
    "typing_inspection",
)  # fmt: skip


def make_environment(folder: Path, *, needed: tuple[str, ...] = NEEDED, **packages: str) -> str:
    """Its Python. `packages`: modules by name, with their text."""
    venv.create(folder, symlinks=True, with_pip=False)
    (place,) = folder.glob("lib/python*/site-packages")
    for name in needed:
        file = Path(str(importlib.import_module(name).__file__))
        source = file.parent if file.name.startswith("__init__.") else file
        (place / source.name).symlink_to(source)
        libraries = source.with_name(f"{name}.libs")
        if libraries.exists():
            (place / libraries.name).symlink_to(libraries)
    for name, text in packages.items():
        (place / f"{name}.py").write_text(text)
    return str(folder / "bin" / "python")
