"""Fuzzing: what comes from outside is taken or refused, and nothing else happens.

Targets: `codec` (frames to messages), `intake` (messages of all peers to a real coordinator, its
journal and SQL), `config` (recipes and overrides), `filter` (the filter language, in SQL and in
Arrow), `journal` (a journal whose bytes were changed). Inputs are made by the grammar of types,
language and files, and by damage to what is well formed. Input number n of a target is always the
same, so that a finding is repeated by `--target T --from n --inputs 1` (of `intake`, which goes on
from input to input: by its block of 2,000). Any error but the one that a place may raise is a
finding, and so are an input that takes more than two processor seconds and a promise that does not
hold (see `fuzz_targets.py` and `fuzz_runs.py`).

Inputs are counted in pieces of 10,000: each is a row of the file `--rows`, by default
`benchmarks/results/fuzz.jsonl`. Pieces that have a row are not run again, so that `--inputs 200000`
goes on where it was; `--again` runs them.
"""

import json
import logging
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.command_line import command_line, take_rows
from benchmarks.fuzz_runs import IntakeTarget, JournalTarget
from benchmarks.fuzz_targets import CodecTarget, ConfigTarget, FilterTarget, Target
from benchmarks.rows import RESULTS, Rows
from headrace.errors import UserError

PIECE = 10_000
SLOW_S = 2.0
"""Processor seconds of an input."""
STUCK_S = 60.0
"""Seconds of an input, whatever else the machine does."""
TARGETS: dict[str, Callable[[], Target]] = {
    "codec": CodecTarget,
    "intake": IntakeTarget,
    "config": ConfigTarget,
    "filter": FilterTarget,
    "journal": JournalTarget,
}
_MOST_EXAMPLES = 3
Row = dict[str, Any]


def fuzz(name: str, first: int, count: int) -> Row:
    """Give inputs `first` to `first + count - 1` to a target; what became of them."""
    target = TARGETS[name]()
    outcomes: Counter[str] = Counter()
    findings: dict[str, list[int]] = {}
    slowest, began = 0.0, time.perf_counter()

    def found(text: str, number: int) -> None:
        outcomes["finding"] += 1
        examples = findings.setdefault(text, [])
        if len(examples) < _MOST_EXAMPLES:
            examples.append(number)

    for number in range(first, first + count):
        started, worked = time.perf_counter(), time.thread_time()
        try:
            outcomes[target.attempt(Random(f"{name}/{number}"))] += 1
        except Exception as error:  # whatever a target may not raise is what is looked for
            found(_signature(error), number)
        seconds = time.thread_time() - worked
        slowest = max(slowest, seconds)
        if seconds > SLOW_S or time.perf_counter() - started > STUCK_S:
            found(f"takes more than {SLOW_S:g} s", number)
    try:
        target.close()
    except Exception as error:
        found(_signature(error), first + count - 1)
    return {
        "name": "fuzz",
        "target": name,
        "first": first,
        "inputs": count,
        "outcomes": dict(sorted(outcomes.items())),
        "findings": [{"what": text, "inputs": seen} for text, seen in sorted(findings.items())],
        "slowest_s": round(slowest, 4),
        "seconds": round(time.perf_counter() - began, 2),
    }


def _signature(error: Exception) -> str:
    """A kind of error and where it was raised, for counting."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [
        f for f in frames if "site-packages" not in f.filename and "benchmarks" not in f.filename
    ]
    place = (ours or frames)[-1]
    text = " ".join(str(error).split())[:200]
    return f"{type(error).__name__} in {place.name} of {Path(place.filename).name}: {text}"


def pieces(first: int, count: int) -> Iterable[tuple[int, int]]:
    """First inputs and sizes of the pieces of a range."""
    for start in range(first, first + count, PIECE):
        yield start, min(PIECE, first + count - start)


def summary(rows: Iterable[Row]) -> Row:
    """Counts by target, and all findings."""
    counts: Counter[str] = Counter()
    outcomes: dict[str, Counter[str]] = {}
    findings: list[Row] = []
    for row in rows:
        counts[row["target"]] += row["inputs"]
        outcomes.setdefault(row["target"], Counter()).update(row["outcomes"])
        findings += [{"target": row["target"], **finding} for finding in row["findings"]]
    return {
        "inputs": sum(counts.values()),
        "targets": {name: dict(outcomes[name], inputs=counts[name]) for name in sorted(counts)},
        "findings": findings,
    }


def main(argv: Sequence[str]) -> int:
    """Run and print; 1 where something was found."""
    parser = command_line("fuzz", __doc__)
    parser.add_argument("--target", action="append", help="one of them, or several (all)")
    parser.add_argument("--from", type=int, default=0, dest="first", help="first input")
    parser.add_argument("--inputs", type=int, default=PIECE, help="inputs of each target")
    parser.add_argument("--seconds", type=float, help="begin no piece after so long")
    parser.add_argument("--again", action="store_true", help="also pieces that have a row")
    take_rows(parser, RESULTS / "fuzz.jsonl", resumes=True)
    options = parser.parse_args(argv)
    names = options.target or list(TARGETS)
    if strangers := set(names) - set(TARGETS):
        raise UserError(f"no target {sorted(strangers)[0]!r}; there are: {', '.join(TARGETS)}")
    # Thousands of journals are cut off on purpose, and each warns.
    logging.getLogger("storage").setLevel(logging.ERROR)
    rows, began = Rows(options.rows), time.monotonic()
    seen: dict[str, Row] = {}
    for name in names:
        for first, count in pieces(options.first, options.inputs):
            key = f"fuzz/{name}/{first}+{count}"
            if key not in rows.rows or options.again:
                if options.seconds is not None and time.monotonic() - began > options.seconds:
                    continue
                rows.add(key, fuzz(name, first, count))
                print(f"{name} {first}+{count}: {rows.rows[key]['outcomes']}", file=sys.stderr)
            seen[key] = rows.rows[key]
    told = summary(seen.values())
    for finding in told["findings"]:
        print(f"{finding['target']} {finding['inputs']}: {finding['what']}", file=sys.stderr)
    if options.json:
        print(json.dumps(told))
    return 1 if told["findings"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
