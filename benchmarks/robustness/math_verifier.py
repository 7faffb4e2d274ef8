"""Is our math verifier better than math-verify alone?

`headrace bench math-verifier [FILE.jsonl ...] [--scorer FILE.py:NAME ...] [--json]`. In: files with
one object per line (`gold`, `prediction`, `expected`); without a file, the golden cases of our
tests. Out: accuracy, false accepts, false rejects and milliseconds per case of ours, of plain
math-verify, of math-verify with the right answer in a box, as other trainers call it, and of every
named reward function, of any system (docs/rewards.md). A false accept of ours that math-verify
alone would have rejected is counted apart: there should be none. Every measurement is a row of
`benchmarks/results/math_verifier.jsonl`, or of the file `--rows`.
"""

import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.kit.command_line import add_rows_option, command_line
from benchmarks.kit.rows import RESULTS, report_result
from headrace.config.sections.reward import SourceConfig
from headrace.errors import UserError
from headrace.protocol.messages.control import ScoreItem
from rewards.answers import formula, math_answer
from rewards.functions.user_functions import load_functions

Judge = Callable[[str, str], bool]
DEADLINE_S = 5


class VerifierCase(NamedTuple):
    """A right answer and a response; `expected`: the response is right."""

    gold: str
    prediction: str
    expected: bool


def read_cases(path: Path) -> list[VerifierCase]:
    """Read the cases of a file; UserError where it has none."""
    try:
        rows = [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]
        cases = [
            VerifierCase(row["gold"], row["prediction"], bool(row["expected"])) for row in rows
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path}: each line is an object with gold, prediction and expected ({error!r})"
        ) from error
    if not cases:
        raise UserError(f"{path}: no cases")
    return cases


def golden_cases() -> list[VerifierCase]:
    from tests.rewards.math_cases import RIGHT, WRONG

    return [
        VerifierCase(gold, text, expected)
        for cases, expected in ((RIGHT, True), (WRONG, False))
        for pairs in cases.values()
        for gold, text in pairs
    ]


def judges() -> dict[str, Judge]:
    """Return the compared verifiers, by name."""
    import math_verify

    latex = [math_verify.LatexExtractionConfig()]
    both = [math_verify.ExprExtractionConfig(), math_verify.LatexExtractionConfig()]

    def plain(gold: str, prediction: str) -> bool:
        wanted = math_verify.parse(gold, parsing_timeout=DEADLINE_S)
        given = math_verify.parse(prediction, parsing_timeout=DEADLINE_S)
        return bool(math_verify.verify(wanted, given, timeout_seconds=DEADLINE_S))

    def boxed(gold: str, prediction: str) -> bool:
        wanted = math_verify.parse(f"\\boxed{{{gold}}}", latex, parsing_timeout=DEADLINE_S)
        given = math_verify.parse(prediction, both, parsing_timeout=DEADLINE_S)
        return bool(math_verify.verify(wanted, given, timeout_seconds=DEADLINE_S))

    return {
        "ours": lambda gold, prediction: math_answer.is_right(prediction, gold),
        "math_verify": plain,
        "math_verify_boxed": boxed,
    }


def scorer(name: str) -> Judge:
    """Load a reward function as a judge; UserError if it cannot be loaded or called.

    It accepts what it calls right, else what it gives at least half a point."""
    functions = load_functions(SourceConfig(kind="function", function=name))

    def judge(gold: str, prediction: str) -> bool:
        item = ScoreItem(
            trajectory_id=0, prompt="", text=prediction, answer=gold, finished=True, num_tokens=0
        )
        return functions(item).correct

    return judge


def verdicts(judge: Judge, cases: Iterable[VerifierCase]) -> list[bool]:
    """Return a judge's verdicts; an error is a rejection."""
    found = []
    for case in cases:
        try:
            found.append(judge(case.gold, case.prediction))
        except Exception:
            found.append(False)
    return found


def figures(cases: Sequence[VerifierCase], found: Sequence[bool]) -> dict[str, float]:
    """Return the accuracy of a judge's verdicts."""
    pairs = [(case.expected, verdict) for case, verdict in zip(cases, found, strict=True)]
    return {
        "accuracy": sum(expected == verdict for expected, verdict in pairs) / len(pairs),
        "right": sum(expected == verdict for expected, verdict in pairs),
        "false_accepts": sum(verdict and not expected for expected, verdict in pairs),
        "false_rejects": sum(expected and not verdict for expected, verdict in pairs),
    }


def compare(cases: Sequence[VerifierCase], others: Mapping[str, Judge]) -> dict[str, object]:
    """Return the figures of every judge."""
    result: dict[str, object] = {"name": "math-verifier", "cases": len(cases)}
    said = {}
    for name, judge in {**judges(), **others}.items():
        began = time.perf_counter()
        said[name] = verdicts(judge, cases)
        result[name] = {
            **figures(cases, said[name]),
            "ms_a_case": (time.perf_counter() - began) / len(cases) * 1000,
        }
    result["false_accepts_math_verify_rejects"] = sum(
        ours and not plain and not case.expected
        for case, ours, plain in zip(cases, said["ours"], said["math_verify"], strict=True)
    )
    return result


def _label(name: str) -> str:
    """Return a scorer's name in a row: the last folder, the file and the function."""
    place, _, function = name.rpartition(":")
    parts = Path(place.removesuffix(".py")).parts if place.endswith(".py") else place.split(".")
    return ".".join([*parts[-2:], function])


def main(argv: Sequence[str]) -> int:
    parser = command_line("math-verifier", __doc__)
    parser.add_argument(
        "files",
        nargs="*",
        type=Path,
        metavar="FILE.jsonl",
        help="cases, one object per line; none: the golden cases of the tests",
    )
    parser.add_argument(
        "--scorer", action="append", default=[], metavar="FILE.py:NAME",
        help="a reward function to compare with; repeat for more",
    )  # fmt: skip
    add_rows_option(parser, RESULTS / "math_verifier.jsonl")
    options = parser.parse_args(list(argv))
    others = {_label(name): scorer(name) for name in options.scorer}
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    formula.load()
    cases = [case for path in options.files for case in read_cases(path)] or golden_cases()
    result = {**compare(cases, others), "files": [path.name for path in options.files]}
    if not options.json:
        print(f"{len(cases)} cases")
        for name in (*judges(), *others):
            judged = result[name]
            assert isinstance(judged, dict)
            print(
                f"{name:28} right {judged['right']:4} ({judged['accuracy']:.1%})  false accepts "
                f"{judged['false_accepts']:3}  false rejects {judged['false_rejects']:3}  "
                f"{judged['ms_a_case']:.1f} ms a case"
            )
        print(f"false accepts of ours alone: {result['false_accepts_math_verify_rejects']}")
    return report_result(options, result)
