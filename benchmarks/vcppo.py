"""VC-PPO's failure and cure (study 3): a critic that scores early tokens low, one lambda for both.

The value model starts from a new head, which gives every token 0 where right answers are worth 1,
and learns slowly (the paper's ratio of learning rates). With one lambda of 0.95 the reward of a
long answer does not reach its first tokens: their advantage is lower than that of short guesses.
Cures, alone and together: value pretraining, and lambda 1 for the value model. Then a sweep over
the policy's lambda and one over the steps of pretraining (64 trajectories and four passes each).
"""

from benchmarks.study import Arm, Study, main_of
from benchmarks.study_settings import PRETRAINING, small

SLOW_CRITIC = "learner.value.lr=2e-4"
DECOUPLED = "algorithm.value.gae_lambda_value=1.0"


def arm(name: str, *overrides: str, pretraining: int = PRETRAINING) -> Arm:
    """An arm of PPO on the demonstration's task."""
    settings = (*small(pretraining=pretraining), SLOW_CRITIC, *overrides)
    return Arm(name, "recipes/algorithms/ppo.toml", settings)


CURES = (
    arm("ppo", pretraining=0),
    arm("ppo, pretraining"),
    arm("ppo, decoupled", DECOUPLED, pretraining=0),
    arm("vcppo", DECOUPLED),
)
LAMBDAS = tuple(
    arm(f"lambda {lam}", DECOUPLED, f"algorithm.advantages.gae_lambda_policy={lam}")
    for lam in ("0.90", "0.98", "0.99", "1.00")
)
STEPS = tuple(arm(f"pretraining {steps}", DECOUPLED, pretraining=steps) for steps in (2, 4, 24, 48))
STUDY = Study(
    "vcppo",
    arms=(*CURES, *LAMBDAS, *STEPS),
    seeds=5,
    reduced_arms=tuple(
        arm.name
        for arm in (*CURES, *LAMBDAS, *STEPS)
        if arm.name not in ("lambda 0.98", "pretraining 4", "pretraining 48")
    ),
    reduced_seeds=2,
)


def main(argv: list[str]) -> int:
    """Run what is missing, print the table."""
    return main_of(STUDY, __doc__, argv)
