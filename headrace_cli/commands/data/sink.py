"""`headrace sink`: stream a run's metrics to TensorBoard, Trackio or a file.

In: a run, a sink. Out: whatever the sink makes. What wakes it: the clock. How it ends: with the
run, with --once when all metrics were sent, or by Ctrl-C. Promises: it reads the run's store from a
process of its own, so that the run never waits for a sink; the position in the run is stored, so
that another call goes on from there; a sink that fails is reported in one line, opened again after
a while, and sent again what it did not take.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.errors import RunFailedError, UserError
from headrace.run_files import run_folder
from headrace.run_files.run_folder import write_atomically
from headrace_cli.commands.data.sinks import RunFacts, Sink, sink_of

if TYPE_CHECKING:
    from storage.queries import Position

POSITION = "position.json"
LOOK_EVERY_S = 2.0
FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 60.0
TRIES = 5
"""Maximum number of consecutive failures of a sink once the run has ended."""
Sleep = Callable[[float], None]


def sink(arguments: argparse.Namespace) -> int:
    """Tell a sink everything that it does not know yet."""
    run_dir = run_folder.find_run(Path(arguments.root or "runs"), arguments.name)
    run_folder.read_config(run_dir)
    target = sink_of(arguments.sink)
    folder = arguments.out or run_dir / "sinks" / Path(arguments.sink).stem
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write to {folder} ({error}); name a folder with --out") from error
    told = Teller(target, run_dir, folder)
    count = told.follow(once=arguments.once)
    print(f"{count:,} step{'s' * (count != 1)} of {run_dir.name} to {arguments.sink} ({folder})")
    return 0


class Teller:
    """Tells one sink of one run."""

    def __init__(
        self, target: Sink, run_dir: Path, folder: Path, *, sleep: Sleep = time.sleep
    ) -> None:
        """`folder`: the sink's, where its position is kept as well. UserError: the sink has figures
        of another run."""
        self._sink, self._run_dir, self._folder, self._sleep = target, run_dir, folder, sleep
        self._place = folder / POSITION
        self._position = self._last_position()
        self._is_open = False
        self._steps = self._failures = 0

    def follow(self, *, once: bool) -> int:
        """Go on until the run has ended; return the number of sent steps. RunFailedError: the sink
        fails again and again, and the run is over."""
        try:
            while True:
                # Looked at before the news, so that none is missed.
                over = once or not self._goes_on()
                try:
                    count = self._tell()
                except UserError:
                    raise
                except Exception as error:  # a sink is somebody else's code
                    self._failed(error, over=over)
                    continue
                if over and not count:
                    return self._steps
                if not count:
                    self._sleep(LOOK_EVERY_S)
        finally:
            self._close()

    def _tell(self) -> int:
        """Tell what is new; how many steps that was."""
        from storage.queries import news

        if not self._is_open:
            self._sink.open(self._facts())
            self._is_open = True
        found = news(self._run_dir, self._position)
        for item in found:
            self._sink.write(item.update, item.at, item.metrics)
            self._position = item.position
            kept = {"run": self._run_dir.name, **self._position._asdict()}
            write_atomically(self._place, json.dumps(kept) + "\n")
            self._steps += 1
            if self._failures:
                self._failures = 0
                print("sink: goes on", file=sys.stderr)
        return len(found)

    def _failed(self, error: Exception, *, over: bool) -> None:
        """Say so once, wait, and have the sink opened again. RunFailedError where the run is over
        and it was tried often enough."""
        self._close()
        self._failures += 1
        failures = self._failures
        first = str(error).strip().splitlines()
        line = f"{type(error).__name__}: {first[0] if first else 'no reason given'}"
        if over and failures >= TRIES:
            raise RunFailedError(f"the sink failed {failures} times in a row: {line}") from error
        if failures == 1:
            print(f"sink: {line}; tries again, the run is not held up", file=sys.stderr)
        self._sleep(min(FIRST_WAIT_S * 2 ** (failures - 1), LONGEST_WAIT_S))

    def _close(self) -> None:
        if self._is_open:
            self._is_open = False
            try:
                self._sink.close()
            except Exception as error:  # a sink is somebody else's code
                print(f"sink: {type(error).__name__} at its end: {error}", file=sys.stderr)

    def _goes_on(self) -> bool:
        from storage.queries import run_line

        status = run_line(self._run_dir).status
        return status not in ("finished", "failed", "interrupted", "stopped", "lost")

    def _facts(self) -> RunFacts:
        config = run_folder.read_config(self._run_dir).public()
        plain = config.model_dump(mode="json")
        return RunFacts(self._run_dir.name, config.name, plain, self._folder)

    def _last_position(self) -> "Position":
        """Where an earlier call came to."""
        from storage.queries import Position

        own = self._run_dir.name
        try:
            kept = json.loads(self._place.read_text())
            run = kept.pop("run", own)
            position = Position(**kept)
        except (OSError, ValueError, TypeError, AttributeError):
            return Position()
        if run != own:
            raise UserError(f"{self._folder} was told of the run {run}: name another --out")
        return position
