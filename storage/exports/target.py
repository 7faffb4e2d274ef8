"""The target of an export: a file, or a folder for `datasets`, complete or absent.

In: the path that the user named. Out: a place beside it to write to. Promise: what cannot be
written is a UserError before anything is done; a target that exists stays as it is until the new
one is whole; nothing is left of an export that failed.
"""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.errors import UserError

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def check_target(out: Path, *, folder: bool, force: bool) -> None:
    """UserError where the target cannot be, or exists and is not to be replaced."""
    try:
        if out.is_dir() and not folder:
            hint = f"name a file in it, such as {out / 'export.parquet'}"
            raise UserError(f"{out} is a folder; {hint}")
        if folder and out.is_file():
            raise UserError(f"{out} is a file, and a dataset is a folder; name another one")
        if out.exists() and not out.is_dir() and not out.is_file():
            raise UserError(f"{out} is not a regular file")
        if out.is_dir() and force and not is_dataset(out) and any(out.iterdir()):
            raise UserError(f"{out} holds other things than a dataset; name another folder")
        if out.exists() and not force:
            raise UserError(f"{out} exists; --force replaces it")
        if not out.parent.is_dir():
            raise UserError(f"{out.parent} is not a folder")
    except OSError as error:
        raise UserError(f"cannot write {out}: {error.strerror}") from error


def is_dataset(folder: Path) -> bool:
    """Return whether a folder holds the files of an exported dataset alone."""
    return {path.name for path in folder.iterdir()} == set(DATASET_FILES)


DATASET_FILES = ("data-00000-of-00001.arrow", "dataset_info.json", "state.json")
"""Files of a folder for `datasets.load_from_disk`."""


@contextmanager
def part_of(out: Path, *, folder: bool) -> Iterator[Path]:
    """A temporary file or folder beside the target, renamed to it if the block succeeds."""
    part = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        if folder:
            part.mkdir()
        else:
            part.touch()
    except OSError as error:
        raise UserError(f"cannot write {out}: {error.strerror}") from error
    try:
        yield part
        for path in part.iterdir() if folder else (part,):
            with path.open("rb") as file:
                os.fsync(file.fileno())
        if out.is_dir():
            shutil.rmtree(out)
        part.replace(out)
    except OSError as error:
        if error.errno in _FULL:
            raise UserError(f"cannot write {out}: {os.strerror(error.errno)}") from error
        raise
    finally:
        if folder:
            shutil.rmtree(part, ignore_errors=True)
        part.unlink(missing_ok=True)
