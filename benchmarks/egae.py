"""EGAE itself (study 4): window, rule at the cut, boundary mask, value pretraining.

Windowed T-PPO as in `recipes/algorithms/tppo.toml`, with 64 windows an update and 32 updates of the
policy, on the sampler in pure torch. The window goes from 1/16 of the longest response to all of
it. A shorter window means fewer tokens in an update of as many windows: compare `tokens generated`
beside the accuracies.
"""

from benchmarks.study import main_of
from benchmarks.study_plan import Arm, Study
from benchmarks.study_settings import PRETRAINING, small

LONGEST = 240


def arm(name: str, *overrides: str, pretraining: int = PRETRAINING) -> Arm:
    """An arm of T-PPO on the demonstration's task."""
    settings = (*small(pretraining=pretraining), "schedule.mode=windowed", *overrides)
    return Arm(name, "recipes/algorithms/tppo.toml", settings)


WINDOWS = tuple(
    arm(f"window {size}", f"schedule.window={size}") for size in (15, 30, 60, 120, LONGEST)
)
BOUNDARIES = tuple(
    arm(
        f"window {size}, {rule}",
        f"schedule.window={size}",
        f"algorithm.advantages.boundary={rule}",
    )
    for size in (15,)
    for rule in ("bootstrap", "terminal")
)
MASKS = tuple(
    arm(
        f"window {size}, mask {mask}",
        f"schedule.window={size}",
        f"algorithm.advantages.boundary_mask={mask}",
    )
    for size, mask in ((15, 4), (15, 8), (60, 8))
)
NO_PRETRAINING = tuple(
    arm(f"window {size}, no pretraining", f"schedule.window={size}", pretraining=0)
    for size in (15, LONGEST)
)

STUDY = Study(
    "egae",
    arms=(*WINDOWS, *BOUNDARIES, *MASKS, *NO_PRETRAINING),
    seeds=3,
    reduced_arms=(
        "window 15",
        "window 60",
        "window 240",
        "window 15, bootstrap",
        "window 15, terminal",
        "window 15, no pretraining",
    ),
    reduced_seeds=2,
    reference="window 240",
)


def main(argv: list[str]) -> int:
    """Run what is missing, print the table."""
    return main_of(STUDY, __doc__, argv)
