"""Staleness (study 5): tokens that are old, under three importance ratios; updates in flight.

Streaming T-PPO with eight windows in an update, so that a window lives through many updates: with a
bound of B updates up to 8 (B + 1) windows are in play, all of them in flight or waiting, and the
mean lag grows with the bound (`mean lag` in the table, in updates). The bound goes from 1 to 16;
the ratio is to the sampler (`behaviour`), decoupled (AReaL) or TIS. 256 updates of the policy train
as many windows as 32 of the other studies.

`borders` is `windowed`: weights change between windows and never inside one, and no token is old.
A stream with a bound of 0 does the same; one with a bound of 1 is the least that differs from it.
`staleness 8, recompute` prefills every live prefix again at each change of weights. One run at a
time: with generator and learner on one core each other's turn keeps tokens young.
"""

from benchmarks.study import main_of
from benchmarks.study_plan import Arm, Column, Row, Study
from benchmarks.study_settings import PRETRAINING, RESOLVING, small

BATCH, UPDATES = 8, 256
SLOTS = 128
"""Trajectories that the generator samples side by side: the bound decides, not their number."""
RATIOS = {
    "behaviour": ("algorithm.ratio.kind=behaviour",),
    "decoupled": ("algorithm.ratio.kind=decoupled",),
    "tis": ("algorithm.ratio.kind=tis",),
}
BOUNDS = (4, 8, 16)


def arm(name: str, *overrides: str) -> Arm:
    """An arm of streaming T-PPO on the demonstration's task."""
    settings = (
        *small(
            pretraining=4 * PRETRAINING, updates=UPDATES, batch=BATCH, prompts=RESOLVING, every=64
        ),
        f"generator.max_num_seqs={SLOTS}",
        *overrides,
    )
    return Arm(name, "recipes/quickstart.toml", settings)


ARMS = (
    arm("borders", "schedule.mode=windowed"),
    arm("staleness 1, behaviour", "schedule.max_staleness=1", *RATIOS["behaviour"]),
    *(
        arm(f"staleness {bound}, {name}", f"schedule.max_staleness={bound}", *ratio)
        for bound in BOUNDS
        for name, ratio in RATIOS.items()
    ),
    arm("staleness 8, recompute", "schedule.max_staleness=8", "generator.kv_on_update=recompute"),
)


def mean_lag(row: Row) -> float:
    """Updates between the sampling of a token and its training."""
    return float(row["staleness"]["mean"])


def left_out(row: Row) -> float:
    """The share of the generated tokens that was too old to be trained."""
    return float(row["dropped"].get("stale", 0) / row["tokens"]["generated"])


def seconds(row: Row) -> float:
    """Of training."""
    return float(row["train_time_s"])


STUDY = Study(
    "staleness",
    arms=ARMS,
    seeds=3,
    reduced_arms=(
        "borders",
        *(f"staleness {bound}, behaviour" for bound in (1, *BOUNDS)),
        *(f"staleness 16, {name}" for name in ("decoupled", "tis")),
        "staleness 8, recompute",
    ),
    reduced_seeds=2,
    reference="borders",
    jobs=1,
    columns=(
        Column("mean lag", mean_lag, ".1f"),
        Column("left out for age", left_out, ".3f"),
        Column("seconds", seconds, ".0f"),
    ),
)


def main(argv: list[str]) -> int:
    """Run what is missing, print the table."""
    return main_of(STUDY, __doc__, argv)
