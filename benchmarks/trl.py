"""TRL's GRPO trainer against ours: completion tokens a second, processor seconds, time to accuracy.

Three arms on the same two cores: `trl`, and `recipes/algorithms/grpo.toml` in `streaming` and in
`synchronous` mode. All train the same policy on the same prompts with the same reward, sampling,
completions an update, optimizer and number of optimizer steps. TRL runs in an environment of its
own, built at the first use from `requirements/trl.lock` below `.cache`; gradient checkpointing,
logging and saving are off.

- tuning     each arm's speed with eight settings (threads, processes, precision, way of generating,
             split of the batch), on a seed that is not shown; the fastest is what is compared
- speed      training seconds and processor seconds of the same number of updates, no evaluations
- race       seconds of training to a held-out accuracy in two successive evaluations

The clock of training leaves out loading, evaluations and what follows the last update, for all arms
alike. Arms take turns in an order that is drawn for each seed. Rows go to `--rows`; what is there
is not run again, unless others kept more than a twentieth of a core busy beside it. `ratio` is
streaming's tokens a second over TRL's at the same seed, `cpu_ratio` TRL's processor seconds a token
over those of our synchronous mode. In full these are 24 runs of tuning and 30 that are shown; with
`--reduced` 12 (two seeds, settings tuned as far as the rows say).
"""

import argparse
import hashlib
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any

from benchmarks import censored
from benchmarks.machine_state import DISTURBED_CORES
from benchmarks.rows import RESULTS, Rows, result_line
from benchmarks.runs import seconds_to
from benchmarks.study import spread, text
from benchmarks.trl_arms import (
    ARMS,
    RECIPE,
    STREAMING,
    SYNCHRONOUS,
    TRL,
    Arm,
    Settings,
    Work,
    measure,
    tuned,
)
from benchmarks.trl_environment import LOCK
from headrace.errors import RunFailedError
from headrace.hardware import detect
from headrace.install import ROOT

CORES = 2
TUNING_SEED = 100
SEEDS, REDUCED_SEEDS = 5, 2
UPDATES = 24
"""Of a run whose speed is measured, tuning or not."""
RACE_UPDATES = 60
"""Most updates of a run to the accuracy."""
ACCURACY = 0.75

Row = dict[str, Any]
Measure = Callable[[Arm, Settings, Work, Path, str], Row]


def works(seed: int, updates: int) -> dict[str, Work]:
    """What is run with a seed that is shown."""
    return {
        "speed": Work(seed, updates),
        "race": Work(seed, RACE_UPDATES, accuracy=ACCURACY),
    }


class Bench:
    """Runs what is missing, and knows what is there."""

    def __init__(
        self,
        rows: Rows,
        updates: int,
        root: Path,
        *,
        tunes: bool = True,
        measure: Measure = measure,
    ) -> None:
        self._rows, self._updates, self._root, self._measure = rows, updates, root, measure
        self._again = {
            name
            for name, row in rows.rows.items()
            if row.get("disturbed") and (tunes or row["part"] != "tuning")
        }
        """Rows of earlier calls that others disturbed: each is made once more."""
        self.failed: list[str] = []
        self._runs = 0

    # -- what is there ----------------------------------------------------------------------------

    def row(self, part: str, arm: Arm, settings: Settings, work: Work) -> Row | None:
        """The row of a run; None where it is to be made."""
        name = key(part, arm, settings, work)
        return None if name in self._again else self._rows.rows.get(name)

    @property
    def tuning(self) -> Work:
        """The work that settings are compared on."""
        return Work(TUNING_SEED, self._updates)

    def speed(self, arm: Arm, settings: Settings) -> float | None:
        """Tokens a second in the tuning run of some settings; 0 where it failed."""
        row = self.row("tuning", arm, settings, self.tuning)
        return None if row is None else float(row["tokens_per_s"])

    def settings(self, arm: Arm) -> tuple[Settings, Settings | None]:
        """The best settings so far, and the next ones to try."""
        return tuned(arm, lambda settings: self.speed(arm, settings))

    # -- running ---------------------------------------------------------------------------------

    def tune(self) -> None:
        """Measure settings, the arms in turns, until each has its best."""
        step = 0
        while left := [arm for arm in ARMS if self.settings(arm)[1] is not None]:
            for arm in shuffled(left, f"tuning/{step}"):
                settings = self.settings(arm)[1]
                assert settings is not None
                self._run("tuning", arm, settings, self.tuning)
            step += 1

    def show(self, seed: int) -> None:
        """Run what is missing of a seed that is shown."""
        for part, work in works(seed, self._updates).items():
            for arm in shuffled(ARMS, f"{part}/{seed}"):
                settings = self.settings(arm)[0]
                if self.row(part, arm, settings, work) is None:
                    self._run(part, arm, settings, work)

    def _run(self, part: str, arm: Arm, settings: Settings, work: Work) -> None:
        self._runs += 1
        name = f"{part}-{arm.name}-{work.seed}-{self._runs}"
        values: Row = {"part": part, "arm": arm.name, "settings": dict(settings), **asdict(work)}
        try:
            values |= self._measure(arm, settings, work, self._root, name)
        except RunFailedError as error:
            if part != "tuning":
                self.failed.append(f"{part} {arm.name} seed {work.seed}: {error}")
                return
            # Settings that do not work are settings that were tried.
            values |= {"tokens_per_s": 0.0, "failed": str(error)[-500:]}
        else:
            values["disturbed"] = values["others"] > DISTURBED_CORES
        if work.accuracy is not None:
            values["seconds"] = seconds_to(values, work.accuracy, successive=2)
        made = key(part, arm, settings, work)
        self._again.discard(made)
        print(line(self._rows.add(made, values)), flush=True)

    # -- the result ------------------------------------------------------------------------------

    def result(self, seeds: Sequence[int]) -> Row:
        """The figures over the seeds whose rows are there."""
        speeds, races = (
            {arm.name: self._found(part, arm, seeds) for arm in ARMS} for part in ("speed", "race")
        )
        rate = ratios(
            speeds, lambda rows: rows[STREAMING]["tokens_per_s"] / rows[TRL]["tokens_per_s"]
        )
        cost = ratios(
            speeds,
            lambda rows: rows[TRL]["cpu_ms_per_token"] / rows[SYNCHRONOUS]["cpu_ms_per_token"],
        )
        shown = [
            row for found in (speeds, races) for rows in found.values() for row in rows.values()
        ]
        return {
            "name": "trl",
            **named("ratio", rate),
            **named("cpu_ratio", cost),
            "repeats": len(rate),
            "tuned": all(self.settings(arm)[1] is None for arm in ARMS),
            "disturbed": sum(bool(row["disturbed"]) for row in shown),
            "updates": self._updates,
            "accuracy": ACCURACY,
            "arms": {
                arm.name: {
                    "settings": dict(self.settings(arm)[0]),
                    **of_speed(speeds[arm.name].values()),
                    **of_race(races[arm.name].values()),
                }
                for arm in ARMS
            },
        }

    def _found(self, part: str, arm: Arm, seeds: Sequence[int]) -> dict[int, Row]:
        settings = self.settings(arm)[0]
        rows = {
            seed: self.row(part, arm, settings, works(seed, self._updates)[part]) for seed in seeds
        }
        return {seed: row for seed, row in rows.items() if row is not None}


def key(part: str, arm: Arm, settings: Settings, work: Work) -> str:
    """The key of a run's row: another recipe, other settings or another TRL make another row."""
    facts = [json.dumps([dict(settings), asdict(work)], sort_keys=True)]
    facts.append((ROOT / RECIPE).read_text(encoding="utf-8"))
    if arm.name == TRL and LOCK.exists():
        facts.append(LOCK.read_text(encoding="utf-8"))
    digest = hashlib.sha256("\n".join(facts).encode()).hexdigest()[:8]
    return f"trl/{part}/{arm.name}/{work.seed}/{digest}"


def shuffled(arms: Sequence[Arm], turn: str) -> list[Arm]:
    """The arms in the order of a turn."""
    return Random(turn).sample(list(arms), len(arms))


def ratios(
    found: Mapping[str, Mapping[int, Row]], of: Callable[[dict[str, Row]], float]
) -> list[float]:
    """A ratio of two arms at each seed that all arms have."""
    common = sorted(set.intersection(*(set(rows) for rows in found.values())))
    return [of({name: rows[seed] for name, rows in found.items()}) for seed in common]


def named(name: str, values: Sequence[float]) -> dict[str, float | None]:
    """`name`, `name_min`, `name_max`: median, least, largest; None without values."""
    if not values:
        return dict.fromkeys((name, f"{name}_min", f"{name}_max"))
    figures = {
        name: statistics.median(values),
        f"{name}_min": min(values),
        f"{name}_max": max(values),
    }
    return {each: round(value, 4) for each, value in figures.items()}


def of_speed(rows: Iterable[Row]) -> Row:
    """Figures of runs without evaluations."""
    found = list(rows)
    names = ("tokens_per_s", "cpu_ms_per_token", "cpu_s", "train_time_s")
    return {name: spread([row[name] for row in found]) if found else None for name in names}


def of_race(rows: Iterable[Row]) -> Row:
    """Seconds to the accuracy; a run that never got there counts with its bound."""
    found = list(rows)
    bounds = [
        censored.at_least(row["evaluations"][-1]["train_time_s"])
        if row["seconds"] is None
        else censored.exactly(row["seconds"])
        for row in found
    ]
    return {
        "seconds": censored.spread(bounds),
        "missed": sum(row["seconds"] is None for row in found),
    }


def line(row: Row) -> str:
    """A finished run in words."""
    start = f"{row['part']:<6} seed {row['seed']:<3} {row['arm']:<11} {row['settings']}: "
    if "failed" in row:
        return start + "failed"
    end = f", {row['seconds']} s to {row['accuracy']}" if row["accuracy"] else ""
    beside = " (disturbed)" if row["disturbed"] else ""
    return (
        f"{start}{row['tokens_per_s']:,.0f} tokens/s, "
        f"{row['cpu_ms_per_token']:.2f} ms of processor a token{end}{beside}"
    )


def show(result: Row) -> None:
    """The figures on the terminal."""
    for name, arm in result["arms"].items():
        print(
            f"{name:<11} {text(arm['tokens_per_s'], ',.0f')} tokens/s, "
            f"{text(arm['cpu_ms_per_token'], '.2f')} ms of processor a token, "
            f"{censored.spread_text(arm['seconds'], '.1f')} s to {result['accuracy']}; "
            f"{arm['settings']}"
        )


def listing(bench: Bench, seeds: Sequence[int], *, tuning: bool) -> list[str]:
    """What there is and what would be run."""
    lines = []
    for arm in ARMS:
        best, following = bench.settings(arm)
        if tuning:
            state = "there  " if following is None else "missing"
            lines.append(f"{state} tuning {arm.name}: up to {arm.budget} runs; best {dict(best)}")
        for seed in seeds:
            for part, work in works(seed, bench.tuning.updates).items():
                state = "missing" if bench.row(part, arm, best, work) is None else "there  "
                lines.append(f"{state} {part} {arm.name} seed {seed}")
    return lines


def main(argv: list[str]) -> int:
    """Run what is missing, print the figures; 1 when runs failed."""
    parser = argparse.ArgumentParser(
        prog="headrace bench trl",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--reduced", action="store_true", help="fewer seeds, no tuning")
    parser.add_argument("--seeds", type=int, help=f"seeds that are shown (default: {SEEDS})")
    parser.add_argument("--updates", type=int, default=UPDATES, help="of a run of its speed")
    parser.add_argument("--list", action="store_true", help="what would be run, and stop")
    parser.add_argument("--rows", type=Path, default=RESULTS / "trl.jsonl")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    options = parser.parse_args(argv)
    seeds = range(options.seeds or (REDUCED_SEEDS if options.reduced else SEEDS))
    cores = set(detect().cores)
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        bench = Bench(Rows(options.rows), options.updates, Path(folder), tunes=not options.reduced)
        if options.list:
            print("\n".join(listing(bench, seeds, tuning=not options.reduced)))
            return 0
        # What is started from here runs on the same cores, whatever its arm.
        os.sched_setaffinity(0, sorted(cores)[:CORES])
        try:
            if not options.reduced:
                bench.tune()
            for seed in seeds:
                bench.show(seed)
        finally:
            os.sched_setaffinity(0, cores)
        result = bench.result(seeds)
    show(result)
    for failure in bench.failed:
        print(f"failed: {failure}", file=sys.stderr)
    if options.json:
        print(result_line(result))
    return 1 if bench.failed else 0
