"""Staleness (study 5): how old tokens may be, under three importance ratios.

Streaming T-PPO at twice the demonstration's learning rate, so that an update moves the policy far
enough for age to matter. The bound goes from 0 to 8 updates; the ratio is to the sampler
(`behaviour`), decoupled (AReaL) or TIS. `borders` is `windowed`: weights change between windows
and never inside one. `recompute` prefills every live prefix again at each change of weights.
"""

from benchmarks.study import Arm, Study, main_of
from benchmarks.study_settings import PRETRAINING, small

RATIOS = {
    "behaviour": ("algorithm.ratio.kind=behaviour",),
    "decoupled": ("algorithm.ratio.kind=decoupled",),
    "tis": ("algorithm.ratio.kind=tis",),
}


def arm(name: str, *overrides: str) -> Arm:
    """An arm of streaming T-PPO on the demonstration's task."""
    settings = (*small(pretraining=PRETRAINING), "learner.policy.lr=2e-4", *overrides)
    return Arm(name, "recipes/quickstart.toml", settings)


BOUNDS = tuple(
    arm(f"staleness {bound}, {name}", f"schedule.max_staleness={bound}", *ratio)
    for bound in (0, 1, 2, 4, 8)
    for name, ratio in RATIOS.items()
)
CHANGES = (
    arm("borders", "schedule.mode=windowed"),
    arm("staleness 1, recompute", "schedule.max_staleness=1", "generator.kv_on_update=recompute"),
)
STUDY = Study(
    "staleness",
    arms=(*BOUNDS, *CHANGES),
    seeds=5,
    reduced_arms=(
        *(f"staleness {bound}, behaviour" for bound in (0, 1, 4, 8)),
        *(f"staleness 8, {name}" for name in ("decoupled", "tis")),
        "borders",
        "staleness 1, recompute",
    ),
    reduced_seeds=2,
    reference="staleness 0, behaviour",
)


def main(argv: list[str]) -> int:
    """Run what is missing, print the table."""
    return main_of(STUDY, __doc__, argv)
