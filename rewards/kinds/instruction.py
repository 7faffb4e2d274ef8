"""`instruction`: the share of an instruction's constraints that a response meets.

The checks (`rewards/answers/instruction_checks.py`) stand in the options, for every prompt, or in a
column of the row. The score is the share that hold; a response is correct when all do.
"""

from headrace.config.sections.base import StrictModel
from headrace.protocol.messages.control import ScoreItem
from rewards.answers.instruction_checks import Check, read_checks
from rewards.answers.row import column
from rewards.functions.results import Verdict
from rewards.verifier import Verifier


class Options(StrictModel):
    """Place of the checks."""

    checks: tuple[Check, ...] = ()
    """Checks of every response, such as `{ type = "length", unit = "words", max = 100 }`. Types:
    length, keywords, forbidden, json, starts_with, ends_with, bullets, script, case."""

    checks_column: str | None = None
    """Column with a row's checks, as objects or JSON. None: `checks` if the option is empty."""


def build(options: Options) -> Verifier:
    """The verifier. Parts: every check by its number and type (`1_length`)."""
    name = options.checks_column or (None if options.checks else "checks")

    def judge(item: ScoreItem) -> Verdict:
        checks = (*options.checks, *(read_checks(column(item, name)) if name else ()))
        held = [check.passes(item.text) for check in checks]
        parts = {
            f"{number}_{check.type}": float(holds)
            for number, (check, holds) in enumerate(zip(checks, held, strict=True), start=1)
        }
        right = all(held)
        return Verdict(sum(held) / len(held), right, {"correct": float(right), **parts})

    return Verifier(judge, (name,) if name else ())
