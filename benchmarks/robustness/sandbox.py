"""The sandbox's isolation, its speed, and its verdicts on correct programs.

Parts: every escape under every layer (`escapes_tried`, `escapes_held` are those of the layer that
programs run in), short programs one after another on as many cells as there are cores
(`programs_per_s`, a program prints one line), and the reference solutions of HumanEval and MBPP,
each with the tests of its row as the reward kind `code` runs them. The two files are not part of
the project: JSON lines with the published columns. A missing one is reported, its figure is null.
One of MBPP's 974 solutions needs more than twenty seconds and misses the deadline.

Needs some two minutes on two cores. Every measurement is a row of the file `--rows`, by default
`benchmarks/results/sandbox.jsonl`.
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.kit.command_line import add_rows_option, command_line
from benchmarks.kit.rows import RESULTS, report_result
from headrace.errors import RunFailedError
from rewards.kinds.program import program_of
from sandbox.isolation_check import LAYERS, LayerTrial, try_layer
from sandbox.limits import Limits, Program
from sandbox.pool import Sandbox

SHORT = Program("print(sum(range(10)))")
Row = dict[str, Any]


REFERENCES: dict[str, Callable[[Row], Program]] = {
    "humaneval": lambda row: program_of(row["prompt"], row["canonical_solution"], row),
    "mbpp": lambda row: program_of(row["prompt"], row["code"], {**row, "challenge_test_list": []}),
}
"""Functions that build a row's reference solution with its tests, by data set."""


def read(path: Path, what: str) -> list[Row]:
    """Read the rows of a file; none, and a printed line, where it is missing."""
    if not path.is_file():
        print(f"no {path}: give --{what} FILE for its figure", file=sys.stderr)
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]


async def speed(sandbox: Sandbox, count: int) -> float:
    """Measure short programs per second."""
    await asyncio.gather(*(sandbox.run(SHORT) for _ in range(2 * sandbox.parallel)))
    began = time.perf_counter()
    done = await asyncio.gather(*(sandbox.run(SHORT) for _ in range(count)))
    seconds = time.perf_counter() - began
    wrong = [each for each in done if each.stdout != "45\n"]
    if wrong:
        raise RunFailedError(f"{len(wrong)} of {count} programs failed: {wrong[0]}")
    return count / seconds


async def failures(
    sandbox: Sandbox, rows: Sequence[Row], program: Callable[[Row], Program]
) -> list[str]:
    """Return the reference solutions that do not pass, with the reason."""
    results = await asyncio.gather(*(sandbox.run(program(row)) for row in rows))
    return [
        f"{row.get('id', number)}: {result.status} {'; '.join(result.errors)[:200]}"
        for number, (row, result) in enumerate(zip(rows, results, strict=True))
        if result.status != "ok"
    ]


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    trials: list[LayerTrial] = []
    for layer in LAYERS:
        trials.append(await try_layer(layer))
        print(f"{layer:<12} {trials[-1]}", flush=True)
    used = next((trial for trial in trials if trial.works), None)
    found: dict[str, Any] = {
        "layer": used and used.layer,
        "layers": {trial.layer: str(trial) for trial in trials},
        "programs_per_s": None,
        "escapes_tried": used.tried if used else 0,
        "escapes_held": used.tried if used else 0,
        **{f"{name}_{part}": None for name in REFERENCES for part in ("passed", "total")},
    }
    if used is None:
        return found
    async with Sandbox(Limits(seconds=options.seconds), layer=used.layer) as sandbox:
        found["programs_per_s"] = round(await speed(sandbox, options.programs), 1)
        print(f"{found['programs_per_s']} programs a second", flush=True)
        for name, program in REFERENCES.items():
            if rows := read(getattr(options, name), name):
                failed = await failures(sandbox, rows, program)
                passed = len(rows) - len(failed)
                found |= {f"{name}_passed": passed, f"{name}_total": len(rows)}
                print(f"{name}: {passed} of {len(rows)}", *failed, sep="\n  ")
    return found


def main(argv: Sequence[str]) -> int:
    parser = command_line("sandbox", __doc__)
    parser.add_argument("--programs", type=int, default=200, help="short programs to time")
    parser.add_argument("--seconds", type=float, default=10.0, help="deadline of a solution")
    for name in REFERENCES:
        parser.add_argument(
            f"--{name}",
            type=Path,
            default=Path("data") / f"{name}.jsonl",
            help="its problems; left out where there is no such file",
        )
    add_rows_option(parser, RESULTS / "sandbox.jsonl")
    options = parser.parse_args(argv)
    return report_result(options, {"name": "sandbox", **asyncio.run(measure(options))})
