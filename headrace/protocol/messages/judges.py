"""Addresses of a run's judges: a file for each, in a folder of the run.

In: the address that a judge serves at. Out: the same, to the caller. The file is there as soon as
the judge answers; it is replaced when the judge was started again, and only its owner may read it,
because it holds the key.
"""

from pathlib import Path

import msgspec

JUDGES_VARIABLE = "HEADRACE_JUDGES"
"""Environment variable with the folder."""
FOLDER = "judges"
"""The folder, in that of the run."""


class JudgeAddress(msgspec.Struct, frozen=True):
    """`base` is the address up to `/v1`, `model` the name to ask for."""

    base: str
    model: str
    key: str
    pid: int


def write_address(folder: Path, name: str, address: JudgeAddress) -> None:
    """Write the address of a judge."""
    folder.mkdir(parents=True, exist_ok=True)
    draft = folder / f"{name}.{address.pid}.part"
    draft.touch(0o600)
    draft.write_bytes(msgspec.json.encode(address))
    draft.replace(folder / f"{name}.json")


def forget_address(folder: Path, name: str) -> None:
    """Remove the address of an earlier process of this judge."""
    (folder / f"{name}.json").unlink(missing_ok=True)


def read_address(folder: Path, name: str) -> JudgeAddress | None:
    """Return the address of a judge; None while it has not written one."""
    try:
        return msgspec.json.decode((folder / f"{name}.json").read_bytes(), type=JudgeAddress)
    except (OSError, msgspec.MsgspecError):
        return None
