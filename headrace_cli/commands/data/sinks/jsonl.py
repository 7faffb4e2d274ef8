"""A sink that is a file: a line of JSON for each step. Also the smallest example of one."""

import json
from collections.abc import Mapping
from typing import IO

from headrace_cli.commands.data.sinks import RunFacts


class Sink:
    """Writes FOLDER/metrics.jsonl."""

    def open(self, run: RunFacts) -> None:
        """Go on behind what is there."""
        self._file: IO[str] = (run.folder / "metrics.jsonl").open("a", encoding="utf-8")

    def write(self, step: int, at: float, metrics: Mapping[str, float]) -> None:
        """One line."""
        self._file.write(json.dumps({"step": step, "at": at, **metrics}) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()
