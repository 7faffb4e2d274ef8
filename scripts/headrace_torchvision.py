"""Lets torchvision be imported where its native library cannot be loaded.

In: the import of torchvision, in any process of the environment whose site-packages `setup.py` has
copied this file to; a `.pth` file beside it imports it at the interpreter's start. Out: beside a
CPU build of torch, the CUDA build's library does not load, and the rest of torchvision, which is
Python and all that image processors need, stops at two operators that it would have declared: they
are declared here, without a kernel. Promises: standard library only; torch is imported by
torchvision's import alone; a library that loads is left to itself.
"""

import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

OPERATORS = ("nms", "qnms")
SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_kept: list[object] = []


class TorchvisionFinder(importlib.abc.MetaPathFinder):
    """Finds torchvision where Python does, and declares its operators before it runs."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec of torchvision, None for everything else."""
        if fullname != "torchvision":
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None or spec.origin is None:
            return spec
        run, library = spec.loader.exec_module, Path(spec.origin).parent / "_C.so"

        def declare_and_run(module: ModuleType) -> None:
            if library.exists():
                declare_operators(library)
            run(module)

        spec.loader.exec_module = declare_and_run  # type: ignore[method-assign]
        return spec


def declare_operators(library: Path) -> None:
    """Declare the operators unless `library` brings them."""
    torch: Any = importlib.import_module("torch")
    try:
        torch.ops.load_library(str(library))
    except OSError:
        # A library that is freed takes its declarations back.
        declared = torch.library.Library("torchvision", "FRAGMENT")
        for name in OPERATORS:
            declared.define(name + SCHEMA)
        _kept.append(declared)


sys.meta_path.insert(0, TorchvisionFinder())
