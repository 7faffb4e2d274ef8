"""Versions of a ranker that is trained along, as folders that reward workers load.

In: a ranker and the version of its policy's weights. Out: rankers/vN in the run's folder. Promises:
an announced folder is complete and never changes; the last few stay; weights that are not finite
never leave.
"""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from torch import Tensor

from headrace.errors import RunFailedError
from headrace.host.disk import until_written
from headrace.protocol.messages.control import ModelVersion
from headrace.run_files.run_folder import RANKERS
from learner.ranking.model import SessionRanker, digest_of


def publish(
    ranker: SessionRanker, weights: Mapping[str, Tensor], run_dir: Path, *, version: int,
    keep: int, tell: Callable[[str], None],
) -> ModelVersion:  # fmt: skip
    """Write a version, and remove all but the newest `keep`."""
    if not all(bool(tensor.isfinite().all()) for tensor in weights.values()):
        raise RunFailedError(f"a weight of the ranker is not finite in version {version}")
    root = run_dir / RANKERS
    root.mkdir(exist_ok=True)
    folder, partial = root / f"v{version}", root / f".v{version}.partial"

    def attempt() -> None:
        shutil.rmtree(partial, ignore_errors=True)
        ranker.save(partial, weights)

    size = sum(tensor.numel() * tensor.element_size() for tensor in weights.values())
    until_written(attempt, root, size, tell=tell)
    partial.rename(folder)
    versions = sorted(root.glob("v*"), key=lambda path: int(path.name[1:]))
    for old in versions[:-keep]:
        shutil.rmtree(old, ignore_errors=True)
    return ModelVersion(version=version, path=str(folder), digest=digest_of(folder))
