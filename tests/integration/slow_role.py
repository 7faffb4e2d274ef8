"""A role of a run, or `headrace` itself, made slow: `python -m tests.integration.slow_role MODULE
ARGUMENTS...`.

How slow stands in the variable SLOW, as JSON of `Slow`. What is slow goes on all the same, a step
or a MiB after the other, and what is stuck does not.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import SimpleNamespace
from typing import Any, BinaryIO
from unittest.mock import patch

ROLES = ("learner.run", "generators.run", "coordinator.run")


@dataclass(frozen=True)
class Slow:
    """Seconds for each micro-batch, for each MiB of published weights that is hashed, for each
    fsync of the learner; the micro-batch in which it is stuck; and the supervisor's deadline of a
    stop. `start_s`: is added to the stall time-out until the learner is first heard, which a busy
    machine may take long to start."""

    micro_batch_s: float = 0.0
    mib_s: float = 0.0
    fsync_s: float = 0.0
    stuck_at: int = 0
    stop_s: float = 120.0
    start_s: float = 90.0


def _slow_hash(slow: Slow) -> SimpleNamespace:
    def file_digest(file: BinaryIO, new: Callable[[], Any]) -> Any:
        found = new()
        while piece := file.read(1 << 20):
            time.sleep(slow.mib_s)
            found.update(piece)
        return found

    return SimpleNamespace(file_digest=file_digest)


def _headrace(slow: Slow) -> None:
    from headrace_cli.launch import process
    from headrace_cli.launch.display import progress
    from headrace_cli.launch.supervisor import Supervisor, SupervisorDeadlines

    filled = process.fill_placeholders

    def through_here(argv: Iterable[str], values: Mapping[str, str]) -> list[str]:
        words = filled(argv, values)
        if words[1:2] == ["-m"] and words[2] in ROLES:
            words.insert(2, "tests.integration.slow_role")
        return words

    patch.object(process, "fill_placeholders", through_here).start()
    # So often that a line meets each stage: at five seconds that was chance.
    patch.object(progress, "PLAIN_EVERY_S", progress.ASK_EVERY_S).start()
    defaults = Supervisor.__init__.__kwdefaults__
    assert defaults is not None
    defaults["deadlines"] = SupervisorDeadlines(stop_s=slow.stop_s)


def _coordinator(slow: Slow) -> None:
    from coordinator.monitoring.stall_watch import StallWatch

    watch = StallWatch.watch

    def watch_later(waits: StallWatch, overdue_s: float) -> None:
        heard = "learner" in waits._hub.moved
        watch(waits, overdue_s if heard else overdue_s - slow.start_s)

    patch.object(StallWatch, "watch", watch_later).start()


def _learner(slow: Slow) -> None:
    from headrace.protocol.messages import control
    from learner.models.deepspeed_engine import StepLog

    count, fsync = StepLog.count, os.fsync

    def slow_count(log: StepLog, *arguments: Any, **settings: Any) -> None:
        count(log, *arguments, **settings)
        time.sleep(3600 if log.passes == slow.stuck_at else slow.micro_batch_s)

    def slow_fsync(descriptor: int) -> None:
        fsync(descriptor)
        time.sleep(slow.fsync_s)

    patch.object(StepLog, "count", slow_count).start()
    patch.object(os, "fsync", slow_fsync).start()
    patch.object(control, "hashlib", _slow_hash(slow)).start()


def _generator(slow: Slow) -> None:
    from headrace.protocol.messages import control

    patch.object(control, "hashlib", _slow_hash(slow)).start()


def main(words: Sequence[str]) -> int:
    """Run the module's `main`."""
    module, *argv = words
    slow = Slow(**json.loads(os.environ["SLOW"]))
    {"learner.run": _learner, "generators.run": _generator, "coordinator.run": _coordinator}.get(
        module, _headrace
    )(slow)
    code: int = import_module(module).main(argv)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
