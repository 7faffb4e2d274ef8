"""Files that the training of a reward model writes to its run folder.

In: one line per step and held-out evaluation, and the run's state. Out: the same, read back.
`metrics.jsonl` has one JSON object a line; `status.json` and `report.json` are whole or not there.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from headrace.run_files.run_folder import write_atomically

METRICS, STATUS = "metrics.jsonl", "status.json"
REPORT, REPORT_PAGE, PLOT = "report.json", "report.md", "report.svg"
MODEL, BEST, CHECKPOINTS = "model", "best", "checkpoints"


class StepLine(msgspec.Struct, frozen=True, tag="step"):
    """One optimizer step.

    Attributes:
        step: from 1 on. loss: mean over the step's examples (line ends with `lines`). grad_norm:
        before clipping; None: not finite, and the step was not applied. lr: the learning rate it
        was taken with. tokens: tokens trained so far. train_time_s: seconds of training so far,
        evaluations left out. at: seconds since the epoch.
    """

    step: int
    loss: float | None
    grad_norm: float | None
    lr: float
    tokens: int
    train_time_s: float
    at: float


class EvaluationLine(msgspec.Struct, frozen=True, tag="evaluation"):
    """Held-out evaluation after `step` steps; `figures` as in the report, only numbers."""

    step: int
    figures: dict[str, float | None]
    train_time_s: float
    at: float


class RewardModelStatus(msgspec.Struct, frozen=True):
    """Status of a run: starting, training, finished, interrupted or failed; `detail` says why."""

    status: str
    step: int = 0
    steps: int = 0
    started_at: float = 0.0
    at: float = 0.0
    detail: str = ""


MetricsLine = StepLine | EvaluationLine
_DECODER: msgspec.json.Decoder[MetricsLine] = msgspec.json.Decoder(MetricsLine)


def append_line(run_dir: Path, line: MetricsLine) -> None:
    """Add a line; it is there for readers at once."""
    with (run_dir / METRICS).open("ab") as file:
        file.write(msgspec.json.encode(line) + b"\n")


def read_lines(run_dir: Path) -> Iterator[MetricsLine]:
    """All lines in order. One that is half written ends them."""
    path = run_dir / METRICS
    if not path.is_file():
        return
    with path.open("rb") as file:
        for text in file:
            try:
                yield _DECODER.decode(text)
            except msgspec.DecodeError:
                return


def steps_and_evaluations(run_dir: Path) -> tuple[list[StepLine], list[EvaluationLine]]:
    """All steps and all evaluations, each in order."""
    lines = list(read_lines(run_dir))
    steps = [line for line in lines if isinstance(line, StepLine)]
    return steps, [line for line in lines if isinstance(line, EvaluationLine)]


def forget_after(run_dir: Path, step: int) -> None:
    """Take back the lines of later steps, which will be taken again."""
    kept = [line for line in read_lines(run_dir) if line.step <= step]
    text = "".join(msgspec.json.encode(line).decode() + "\n" for line in kept)
    write_atomically(run_dir / METRICS, text)


def write_status(run_dir: Path, status: RewardModelStatus) -> None:
    """Write the run's status."""
    write_atomically(run_dir / STATUS, msgspec.json.encode(status).decode() + "\n")


def read_status(run_dir: Path) -> RewardModelStatus:
    """Return the last status of the run; `starting` where none was written yet."""
    try:
        return msgspec.json.decode((run_dir / STATUS).read_bytes(), type=RewardModelStatus)
    except (OSError, msgspec.DecodeError):
        return RewardModelStatus("starting")


def read_report(run_dir: Path) -> dict[str, Any] | None:
    """The report of a run that finished, or None."""
    try:
        report: dict[str, Any] = msgspec.json.decode((run_dir / REPORT).read_bytes())
    except (OSError, msgspec.DecodeError):
        return None
    return report
