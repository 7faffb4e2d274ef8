"""The resumable output file of `headrace reward label` and `anchors`.

In: rows as they come. Out: `NAME.part`, a line of settings, then one row per line; at the end the
file itself, its rows ordered by index. Promises: a command that was interrupted goes on where it
was; rows of other settings are never mixed in; the file appears whole or not at all.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace.errors import UserError
from headrace.run_files import run_folder

OutputRow = dict[str, Any]


class RowFile:
    """Rows by the index of what they are about."""

    def __init__(self, path: Path, settings: OutputRow) -> None:
        """UserError: the file exists, its folder does not, or what was begun has other settings."""
        self.path = path
        self._part = path.with_name(path.name + ".part")
        if path.exists():
            raise UserError(f"{path} is there already; give --out another name, or remove it")
        if not path.parent.is_dir():
            raise UserError(f"{path}: there is no folder {path.parent}; make it first")
        head, self.rows = _read(self._part)
        if head is not None and head != settings:
            other = [name for name in settings if head.get(name) != settings[name]]
            name = (other or ["settings"])[0]
            raise UserError(
                f"{self._part} was begun with another {name} ({head.get(name)!r}, now "
                f"{settings.get(name)!r}); remove it, or give --out another name"
            )
        # The line at which it was interrupted may be torn.
        lines = [json.dumps(settings), *map(json.dumps, self.rows.values())]
        run_folder.write_atomically(self._part, "".join(f"{line}\n" for line in lines))

    def add(self, row: OutputRow) -> None:
        self.rows[row["index"]] = row
        with self._part.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(row, default=str) + "\n")

    def finish(self, keep: Callable[[OutputRow], bool]) -> int:
        """Write the file with the rows to keep; their number."""
        kept = [self.rows[index] for index in sorted(self.rows) if keep(self.rows[index])]
        lines = (json.dumps(row, default=str) + "\n" for row in kept)
        run_folder.write_atomically(self.path, "".join(lines))
        self._part.unlink(missing_ok=True)
        return len(kept)


def _read(part: Path) -> tuple[OutputRow | None, dict[int, OutputRow]]:
    """The settings and the whole rows of what was begun; None where nothing was."""
    lines = part.read_text(encoding="utf-8").split("\n")[:-1] if part.is_file() else []
    if not lines:
        return None, {}
    try:
        head, *rows = (json.loads(line) for line in lines)
    except ValueError as error:
        raise UserError(f"{part} cannot be read ({error}); remove it") from error
    return head, {row["index"]: row for row in rows}
