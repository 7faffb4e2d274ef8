"""DAPO's parts (study 6): the recipe, and the recipe without one part at a time.

On `graph_walk`, from a start with entropy to lose: to the blind walker every edge is as good as any
other, 0.6 nats a token, and it may become sure of itself too soon. Clip-higher against the collapse
of entropy, dynamic sampling's cost in samples and its gain, overlong shaping where long searches do
not fit (120 tokens, the longest need twice as many), token-level loss; and GRPO as the paper's
starting point. Eight responses to each of eight prompts in an update, eight optimizer steps on
them, so that the clip has something to hold; 48 updates.
"""

from benchmarks.arm_run import metric_of
from benchmarks.study import main_of
from benchmarks.study_plan import Arm, Column, Row, Study
from benchmarks.study_settings import GRAPH_WALK, RESOLVING, small

LAST = 4
"""Updates over which entropy is averaged, at the start and at the end."""


def arm(name: str, *overrides: str, recipe: str = "dapo") -> Arm:
    """An arm of a critic-free recipe."""
    # The paper's share: the last fifth of the longest response.
    overlong = ("algorithm.overlong.cache=24",) if recipe == "dapo" else ()
    settings = (
        *small(pretraining=None, updates=48, prompts=RESOLVING, every=12),
        "schedule.num_generations=8",
        *GRAPH_WALK,
        "task.max_response_length=120",
        "learner.policy.epochs=2",
        "learner.policy.minibatches=4",
        *overlong,
    )
    return Arm(name, f"recipes/algorithms/{recipe}.toml", (*settings, *overrides))


ARMS = (
    arm("dapo"),
    arm("without clip-higher", "algorithm.policy_loss.clip_ratio_high=0.2"),
    arm("without dynamic sampling", "algorithm.admit=all"),
    arm("without overlong shaping", "algorithm.overlong=null"),
    arm("without token-level loss", "algorithm.aggregate=sample_mean"),
    arm("with overlong filter", "algorithm.overlong.filter=true"),
    arm("grpo", recipe="grpo"),
)


def entropy(row: Row, updates: slice) -> float:
    """Mean entropy of the policy over some of its updates, in nats a token."""
    found = [nats for _, nats in metric_of(row, "actor/entropy")[updates]]
    return sum(found) / len(found)


STUDY = Study(
    "dapo-parts",
    arms=ARMS,
    seeds=3,
    reduced_arms=("dapo", "without clip-higher", "without dynamic sampling", "grpo"),
    reduced_seeds=2,
    reference="dapo",
    columns=(
        Column("entropy at the start", lambda row: entropy(row, slice(LAST)), ".2f"),
        Column("at the end", lambda row: entropy(row, slice(-LAST, None)), ".2f"),
    ),
)


def main(argv: list[str]) -> int:
    """Run what is missing, print the table."""
    return main_of(STUDY, __doc__, argv)
