"""The last stack in the log of each process: of all threads on request, or a traceback."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from storage.queries.processes import supervisor_events

_READ_BYTES = 256 << 10
_MOST_LINES = 400
_THREAD = re.compile(r"(Current thread|Thread) 0x[0-9a-f]+ .*\(most recent call first\):")
_TRACEBACK = "Traceback (most recent call last):"
_FATAL = "Fatal Python error: "
_CHAINED = ("During handling of the above", "The above exception was the direct cause")


@dataclass(frozen=True)
class StackDump:
    """The stack of all `threads` (on request or at a crash), or a `traceback`. `at`: when
    requested, or None."""

    kind: Literal["threads", "traceback"]
    text: str
    at: float | None = None


def last_stacks(run_dir: Path) -> dict[str, StackDump]:
    """By process, the last stack in the last part of its log."""
    events = supervisor_events(run_dir)
    asked = {event.get("name"): event["at"] for event in events if event.get("event") == "stacks"}
    found = {}
    for path in sorted((run_dir / "logs").glob("*.log")):
        stack = last_stack(_end(path))
        if stack is not None:
            at = asked.get(path.stem) if stack.kind == "threads" else None
            found[path.stem] = StackDump(stack.kind, stack.text, at)
    return found


def last_stack(text: str) -> StackDump | None:
    """The last stack in what a process printed."""
    lines = text.splitlines()
    for place in range(len(lines) - 1, -1, -1):
        if _THREAD.match(lines[place]):
            return StackDump("threads", _joined(_threads(lines, place)))
        if lines[place].startswith(_TRACEBACK):
            return StackDump("traceback", _joined(_traceback(lines, place)))
    return None


def _threads(lines: list[str], last: int) -> list[str]:
    """All threads of the dump of which the last one begins here."""
    end = last + 1
    while end < len(lines) and lines[end].startswith("  "):
        end += 1
    first = last
    for place in range(last - 1, -1, -1):
        line = lines[place]
        if _THREAD.match(line) or line.startswith(_FATAL):
            first = place
        elif line and not line.startswith("  "):
            break
    return lines[first:end]


def _traceback(lines: list[str], last: int) -> list[str]:
    """The traceback that begins here, below those of the exceptions that led to it."""
    end = last + 1
    while end < len(lines) and lines[end].startswith(" "):
        end += 1
    first = last
    while (cause := _cause(lines, first)) is not None:
        first = cause
    return lines[first : end + 1]


def _cause(lines: list[str], first: int) -> int | None:
    """The line where the traceback begins that led to the one that begins at `first`."""
    above = first - 1
    while above >= 0 and not lines[above]:
        above -= 1
    if above < 0 or not lines[above].startswith(_CHAINED):
        return None
    begins = [place for place in range(above) if lines[place].startswith(_TRACEBACK)]
    return begins[-1] if begins else None


def _joined(lines: list[str]) -> str:
    return "\n".join(lines[-_MOST_LINES:]).strip()


def _end(path: Path) -> str:
    """The last part of a log; empty where it cannot be read."""
    try:
        with path.open("rb") as log:
            log.seek(0, 2)
            log.seek(max(0, log.tell() - _READ_BYTES))
            return log.read().decode(errors="replace")
    except OSError:
        return ""
