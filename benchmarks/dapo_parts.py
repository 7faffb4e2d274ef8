"""DAPO's parts (study 6): the recipe, and the recipe without one part at a time.

On `tracking`, where every written step may fail: the policy has to become sure of itself, and may
become so too soon. Clip-higher against the collapse of entropy, dynamic sampling's cost in samples
and its gain, overlong shaping where long answers do not fit (120 tokens, the longest need 196),
token-level loss; and GRPO as the paper's starting point. Eight responses to each of eight prompts
in an update, eight optimizer steps on them, so that the clip has something to hold.
"""

from benchmarks.study import Arm, Study, main_of
from benchmarks.study_settings import TRACKING, small


def arm(name: str, *overrides: str, recipe: str = "dapo") -> Arm:
    """An arm of a critic-free recipe."""
    settings = (
        *small(pretraining=None),
        "schedule.num_generations=8",
        *TRACKING,
        "task.max_response_length=120",
        "learner.policy.epochs=2",
        "learner.policy.minibatches=4",
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
STUDY = Study(
    "dapo-parts",
    arms=ARMS,
    seeds=5,
    reduced_arms=tuple(arm.name for arm in ARMS),
    reduced_seeds=2,
    reference="dapo",
)


def main(argv: list[str]) -> int:
    """Run what is missing, print the table."""
    return main_of(STUDY, __doc__, argv)
