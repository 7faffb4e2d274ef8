"""VC-PPO's failure and cure (study 3): a critic that scores tokens low, one lambda for both.

`low` arms begin with a value model that says -1 everywhere, where answers are worth 0 or 1, and
that learns slowly (the paper's ratio of learning rates). Every last token is then a pleasant
surprise of which, with lambda 0.95, little reaches the first tokens of a long answer: short guesses
look better than written-out steps. Cures, alone and together: value pretraining, and lambda 1 for
the value model. `ppo` begins with a new head that says 0. Then, from the low critic and with both
cures, a sweep over the policy's lambda and one over the updates of pretraining (64 trajectories and
four passes each).
"""

from benchmarks.low_critic import write_low_critic
from benchmarks.study import Arm, Study, main_of
from benchmarks.study_settings import PRETRAINING, small
from headrace.install import ROOT

LOW = -1.0
CRITIC = "runs/critics/low"
"""Relative to the source tree; made when the study is run."""
SLOW_CRITIC = "learner.value.lr=2e-4"
DECOUPLED = "algorithm.value.gae_lambda_value=1.0"


def arm(name: str, *overrides: str, pretraining: int = PRETRAINING, low: bool = True) -> Arm:
    """An arm of PPO on the demonstration's task."""
    critic = (f"model.critic_path={CRITIC}",) if low else ()
    settings = (*small(pretraining=pretraining), SLOW_CRITIC, *critic, *overrides)
    return Arm(name, "recipes/algorithms/ppo.toml", settings)


CURES = (
    arm("low", pretraining=0),
    arm("low, pretraining"),
    arm("low, decoupled", DECOUPLED, pretraining=0),
    arm("low, both cures", DECOUPLED),
    arm("ppo", pretraining=0, low=False),
)
LAMBDAS = tuple(
    arm(f"lambda {lam}", DECOUPLED, f"algorithm.advantages.gae_lambda_policy={lam}")
    for lam in ("0.90", "0.98", "0.99", "1.00")
)
STEPS = tuple(arm(f"pretraining {steps}", DECOUPLED, pretraining=steps) for steps in (2, 4, 24, 48))
LEFT_OUT = ("lambda 0.98", "pretraining 4", "pretraining 48")
ARMS = (*CURES, *LAMBDAS, *STEPS)


def make_low_critic() -> None:
    """The value model that `low` arms begin with."""
    write_low_critic(ROOT / "recipes" / "models" / "chain-sums-cold", ROOT / CRITIC, LOW)


STUDY = Study(
    "vcppo",
    arms=ARMS,
    seeds=5,
    reduced_arms=tuple(arm.name for arm in ARMS if arm.name not in LEFT_OUT),
    reduced_seeds=2,
    reference="ppo",
    prepare=make_low_critic,
)


def main(argv: list[str]) -> int:
    """Run what is missing, print the table."""
    return main_of(STUDY, __doc__, argv)
