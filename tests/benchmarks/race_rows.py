"""Made rows of the race, and a small setting of it."""

from pathlib import Path
from typing import Any

from benchmarks.kit.arms import key
from benchmarks.kit.rows import ResultFile
from benchmarks.kit.study_file import Point
from benchmarks.kit.study_plan import Study

SEEDS, TUNING_SEEDS = (1, 2, 3), (101,)
PAIR = ("synchronous", "streaming")
Curve = list[tuple[int, float, float]]
"""(version, seconds, accuracy)"""


def race_row(arm: str, seed: int, curve: Curve, **more: Any) -> dict[str, Any]:
    """A row as a run makes it: two updates of warm-up, 100 tokens and 2 CPU seconds a second."""
    updates = curve[-1][0] + 2
    return {
        "arm": arm,
        "seed": seed,
        "updates": updates,
        "train_time_s": curve[-1][1],
        "tokens": {"trained_policy": 1000, "generated": 100 * updates},
        "staleness": {"mean": 1.5, "max": 4.0},
        "idle_share": {"generator": 0.1, "learner": 0.3},
        "final": (curve[-1][2] + curve[-2][2]) / 2,
        "final_length": 10.0,
        "max_length": 80,
        "num_prompts": 1024,
        "evaluations": [[version, at, accuracy, 10.0] for version, at, accuracy in curve],
        "evaluation_cpu_s": [2 * at for _, at, _ in curve],
        "wall_s": 100.0,
        "others_cpu_share": 0.01,
        "steal_share": 0.0,
        "disturbed": False,
        "cpu_s": {"learner-0": 60.0, "generator-0": 70.0},
        "series": {
            "update": list(range(1, updates + 1)),
            "ledger/generated": [100 * u for u in range(1, updates + 1)],
            "rollout/finished_length": [10.0] * updates,
            "perf/context_share": [0.9, 0.9, *[0.4] * (updates - 2)],
        },
        **more,
    }


def rising(slope: float, *, until: float = 40.0, top: float = 0.9) -> Curve:
    """Accuracy that rises by `slope` a second from 0 to `top`, evaluated each second and update."""
    return [(i, float(i), min(top, slope * i)) for i in range(int(until) + 1)]


def small_race(folder: Path) -> Study:
    """The race in its setting `short` with fewer seeds, and its rows in `folder`."""
    file = Study.load("tppo-vs-ppo", "short").file
    assert file.tuning is not None
    tuning = file.tuning.model_copy(update={"seeds": TUNING_SEEDS})
    file = file.model_copy(update={"seeds": SEEDS, "tuning": tuning})
    return Study("tppo-vs-ppo", file, "small", folder)


def start_of(study: Study, mode: str) -> Point:
    """Where tuning of an arm begins."""
    return study.file.grids[study.file.arms[mode].grid or ""].start


def points_of(study: Study, mode: str) -> list[Point]:
    """Where tuning of an arm begins, and each of its alternatives from there."""
    grid = study.file.grids[study.file.arms[mode].grid or ""]
    others = [{**grid.start, name: v} for name, values in grid.alternatives.items() for v in values]
    return [grid.start, *others]


def add(
    study: Study, rows: ResultFile, mode: str, point: Point, seed: int, curve: Curve, **more: Any
) -> None:
    """A row of the small setting, of tuning or of the race, as the seed says."""
    arm = study.arm(mode, point, tuned=seed in TUNING_SEEDS)
    rows.add(key(arm, seed), race_row(arm.name, seed, curve, **more))
