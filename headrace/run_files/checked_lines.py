"""Files of JSON lines that only grow, each line with its checksum.

In: objects, or a file. Out: lines, or the objects of those that are whole. Promises: a changed byte
never becomes another object, and is reported; a line cut off by a crash is distinct.
"""

import json
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_SUM = "crc32"


def checked_line(values: Mapping[str, Any]) -> bytes:
    """A line; its last value is the CRC-32 of all that stands before it."""
    body = json.dumps(values)[:-1]
    return f'{body}, "{_SUM}": {zlib.crc32(body.encode())}}}\n'.encode()


def whole_lines(path: Path, damaged: list[str] | None = None) -> Iterator[dict[str, Any]]:
    """The objects of the lines that are what was written; `damaged` takes what is wrong with the
    others. What follows the last end of a line was never confirmed, and is none."""
    with path.open("rb") as file:  # One that a month's learner wrote has half a gigabyte.
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                values = json.loads(line)
                del values[_SUM]
                is_whole = checked_line(values) == line
            except (ValueError, KeyError, TypeError):
                is_whole = False
            if is_whole:
                yield values
            elif damaged is not None:
                damaged.append(f"line {number} is not what was written")


def cut_torn(path: Path) -> int:
    """Cut off a torn last line; return the file's length. The file is made if missing."""
    with path.open("a+b") as file:
        file.seek(0)
        return file.truncate(file.read().rfind(b"\n") + 1)
