"""A coordinator that looks at its own threads: `python -m benchmarks.stages FILE OPTIONS`.

Every few milliseconds it sees in which stage the event loop and the recorder's thread are (by the
functions on their stacks) and counts; FILE has the counts as JSON, written now and then. When FILE
is removed, counting begins anew. What waits for the interpreter's lock counts as the stage in which
it waits.
"""

import json
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from types import FrameType

EVERY_S = 0.003
SWITCH_S = 0.0002
STAGES = {
    "codec.py:decode": "decode",
    "codec.py:encode": "send",
    "settle.py:follow": "settle",
    "state.py:apply": "apply",
    "leases.py:see": "apply",
    "values.py:chunk_problem": "check",
    "pieces.py:stretch_problem": "check",
    "intake.py:receive": "intake",
    "phases.py:advance": "phases",
    "loop.py:_tick": "tick",
    "sockets.py:receive": "sockets",
    "journal.py:encode": "journal encode",
    "segments.py:append": "journal write and fsync",
    "run_store.py:_project": "SQL",
    "recorder.py:_commit": "acknowledge",
    "selectors.py:select": "idle",
    "thread.py:_worker": "idle",
}
"""Stages by file and function; the innermost one that is known counts."""


def stage_of(frame: FrameType | None) -> str:
    """The stage of a stack."""
    while frame is not None:
        code = frame.f_code
        name = f"{code.co_filename.rpartition('/')[2]}:{code.co_name}"
        if name in STAGES:
            return STAGES[name]
        frame = frame.f_back
    return "other"


def look(path: Path, loop: int) -> None:
    """Count for as long as the process lives."""
    own, counts = threading.get_ident(), {"loop": Counter[str](), "recorder": Counter[str]()}
    written = 0.0
    while True:
        time.sleep(EVERY_S)
        for thread, frame in sys._current_frames().items():
            stage = stage_of(frame)
            if thread == loop:
                counts["loop"][stage] += 1
            elif thread != own and stage not in ("idle", "other"):
                counts["recorder"][stage] += 1
        if time.monotonic() - written > 0.2:
            if written and not path.exists():
                counts = {name: Counter() for name in counts}
            written = time.monotonic()
            path.write_text(json.dumps({name: dict(c.most_common()) for name, c in counts.items()}))


def main(argv: list[str]) -> int:
    """Look while the coordinator runs."""
    from coordinator import run

    # Who runs gives way soon, or it would be seen only where it waits.
    sys.setswitchinterval(SWITCH_S)
    where = (Path(argv[0]), threading.get_ident())
    threading.Thread(target=look, args=where, daemon=True).start()
    return run.main(argv[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
