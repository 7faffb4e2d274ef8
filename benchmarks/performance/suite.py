"""Claim: the whole test suite takes under 25 minutes on two quiet cores.

Runs `make test` in this tree, passes its output on, and times it. In: what pytest shall get
besides. Out: with --json, as the last line, one JSON object: `seconds` of everything, `steps`
(seconds of each step, as `scripts/check.sh` prints them), `tests` (passed, skipped, failed, ...),
`exit_code`, and the machine's state: what others took beside it, and the processor seconds of the
suite. A measurement is a row of the file `--rows`, by default `benchmarks/results/suite.jsonl`; one
beside which others took more than a twentieth of a core is marked.
"""

import re
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.kit.command_line import command_line, take_rows
from benchmarks.kit.machine_state import Watch
from benchmarks.kit.rows import RESULTS, Rows, tell
from headrace.host.install import ROOT

EVERY_S = 2.0
STEP = re.compile(r"^== (?P<name>.+): (?:passed in|FAILED \(exit \d+\) after) (?P<seconds>\d+) s$")
OUTCOMES = re.compile(r"^=* ?(?=\d+ (?:passed|failed|error)).* in [\d.]+s")
COUNT = re.compile(r"(\d+) (passed|skipped|failed|errors?|xfailed|xpassed|deselected)")


def read(lines: Iterable[str]) -> dict[str, Any]:
    """What the output of a suite says: seconds of its steps, and how many tests did what."""
    steps: dict[str, int] = {}
    tests: dict[str, int] = {}
    for line in lines:
        if found := STEP.match(line):
            steps[found["name"]] = int(found["seconds"])
        elif OUTCOMES.match(line):
            tests = {name: int(count) for count, name in COUNT.findall(line)}
    return {"steps": steps, "tests": tests}


def measure(arguments: Sequence[str]) -> dict[str, Any]:
    """Run the suite once."""
    began = time.perf_counter()
    lines: list[str] = []
    with Watch(every_s=EVERY_S) as watch:
        command = ["make", "test", f"ARGS={' '.join(arguments)}"]
        with subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as suite:
            assert suite.stdout is not None
            for line in suite.stdout:
                print(line, end="", flush=True)
                lines.append(line.rstrip("\n"))
    state = watch.state({}).as_row()
    return {
        "benchmark": "suite",
        "seconds": round(time.perf_counter() - began, 1),
        **read(lines),
        "arguments": list(arguments),
        "exit_code": suite.returncode,
        **state,
        "cpu_s": sum(state["cpu_s"].values()),
    }


def main(argv: Sequence[str]) -> int:
    """Measure; the suite's exit code."""
    parser = command_line("suite", __doc__)
    parser.add_argument("arguments", nargs="*", help="for pytest, after --: -- tests/learner")
    take_rows(parser, RESULTS / "suite.jsonl")
    options = parser.parse_args(argv)
    options.rows = Rows(options.rows)
    result = measure(options.arguments)
    tell(options, result)
    return int(result["exit_code"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
